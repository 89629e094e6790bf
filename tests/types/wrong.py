"""Mistakes that both type checkers refuse, one in each line that says so. Nothing here runs."""

from __future__ import annotations

from headwater import (
    BlockCursor,
    Flush,
    bitcoin,
    clickhouse_target,
    duckdb_target,
    evm,
    pipe_to_iterator,
    portal_stream,
    postgres_target,
    solana,
)

TRANSFER = "erc20.Transfer"
outputs = {"transfers": evm.events(TRANSFER)}
stream = portal_stream(id="s", portal="https://portal.example/x", outputs=outputs)

evm.events(TRANSFER, range=[0, 30])  # wrong
evm.events(TRANSFER, range=1.5)  # wrong
evm.events(TRANSFER, range=(0, 1, 2))  # wrong
evm.events(TRANSFER, ranges=(0, 1))  # wrong
evm.events(7)  # wrong
evm.blocks(fields="number")  # wrong
evm.transactions(hash="0x")  # wrong
bitcoin.outputs(range=b"5")  # wrong
solana.blocks(range=object())  # wrong
portal_stream(portal="https://portal.example/x", outputs=outputs)  # wrong
portal_stream(id=5, portal="https://portal.example/x", outputs=outputs)  # wrong
portal_stream(id="s", portal="https://portal.example/x", outputs=[evm.events(TRANSFER)])  # wrong
portal_stream(id="s", portal="https://portal.example/x", outputs={"t": TRANSFER})  # wrong
portal_stream(id="s", portal="x", outputs=outputs, on_config_change="evolves")  # wrong
portal_stream(id="s", portal="x", outputs=outputs, flush=10)  # wrong
stream.pipe_to("postgresql://localhost/chain")  # wrong
stream.pipe_to(duckdb_target)  # wrong
stream.start(["a.duckdb"])  # wrong
stream.pipe_to(duckdb_target("a.duckdb", tables="transfers"))  # wrong
postgres_target("postgresql://localhost/chain", tables="transfers")  # wrong
clickhouse_target("http://localhost:8123/x", tables=[7])  # wrong
stream.on_finalized("transfers", "https://example.com/hook")  # wrong
stream.pipe_onto(duckdb_target("a.duckdb"))  # wrong
BlockCursor("5")  # wrong
Flush(block=10)  # wrong
pipe_to_iterator(stream, 5, lambda previous: None)  # wrong
