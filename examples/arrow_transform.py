"""A transform with Arrow alone, and a table that `on_data` keeps by key. No Spark starts here."""

import pyarrow.compute as pc

from headwater import duckdb_target, evm, portal_stream, table
from headwater.testing import simulated_portal


def without_self_payments(data):
    rows = data["transfers"].toArrow()
    return {"transfers": rows.filter(pc.not_equal(rows["from"], rows["to"]))}


def write(tx, data):  # inside the transaction of the batch
    rows = data["transfers"]
    tx.insert("transfers", rows)
    seen = rows.toArrow().group_by("to").aggregate([("block_number", "max")])
    tx.upsert("last_received", seen.rename_columns(["account", "block_number"]))


with simulated_portal(seed=7, blocks=100) as portal:
    outputs = {"transfers": evm.events("erc20.Transfer", range=(0, 99))}
    stream = portal_stream(id="last", portal=portal.url, outputs=outputs)
    target = duckdb_target(
        "last.duckdb",
        tables=[table("transfers", append_only=True), table("last_received", key=["account"])],
        on_data=write,
    )
    stream.pipe_batches(without_self_payments).pipe_to(target)
    print(target.query("FROM last_received").num_rows, "accounts have received something")
