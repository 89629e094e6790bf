"""SQLite as a target of your own: rows, cursor and history in one transaction, forks included."""

import sqlite3

from headwater import BlockCursor, create_target, evm, find_rollback_index, portal_stream
from headwater.testing import simulated_portal

db = sqlite3.connect("own.sqlite")
db.execute("CREATE TABLE transfers (block INTEGER, token TEXT, value TEXT)")
db.execute("CREATE TABLE history (number INTEGER PRIMARY KEY, hash TEXT)")


def write(read):
    last = db.execute("SELECT number, hash FROM history ORDER BY number DESC LIMIT 1").fetchone()
    for batch in read(BlockCursor(*last) if last else None):
        state = batch.ctx.stream.state
        rows = batch.data["transfers"].toArrow().select(["block_number", "address", "value"])
        cursors = {(one.number, one.hash) for one in (*state.rollback_chain, state.current)}
        with db:  # one transaction
            values = (tuple(row.values()) for row in rows.to_pylist())
            db.executemany("INSERT INTO transfers VALUES (?, ?, ?)", values)
            db.executemany("INSERT OR REPLACE INTO history VALUES (?, ?)", cursors)
        if state.current.number == portal.chain.head.number:
            if portal.chain.forks:
                return
            portal.fork(depth=3, length=5)


def fork(previous_blocks):
    found = db.execute("SELECT number, hash FROM history ORDER BY number").fetchall()
    history = [BlockCursor(*one) for one in found]
    index = find_rollback_index(history, previous_blocks)
    if index < 0:
        return None  # nothing in common: the stream ends with an error
    safe = history[index]
    with db:
        db.execute("DELETE FROM transfers WHERE block > ?", [safe.number])
        db.execute("DELETE FROM history WHERE number > ?", [safe.number])
    print("went back to block", safe.number)
    return safe


with simulated_portal(seed=7, blocks=60) as portal:
    outputs = {"transfers": evm.events("erc20.Transfer", range=0)}
    stream = portal_stream(id="own", portal=portal.url, outputs=outputs)
    stream.pipe_to(create_target(write=write, fork=fork))
    print("last block", db.execute("SELECT max(number) FROM history").fetchone()[0])
db.close()
