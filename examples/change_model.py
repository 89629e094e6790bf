"""Rows inserted, updated and deleted: the last approval of each owner to each spender."""

import pyarrow as pa
import pyarrow.compute as pc

from headwater import changes, evm, history_target, portal_stream
from headwater.testing import simulated_portal

KEY = {"token": "address", "owner": "owner", "spender": "spender"}
allowances = changes.TableSchema(
    "allowances", key=list(KEY), columns={**dict.fromkeys(KEY, "text"), "value": "integer"}
)


def to_changes(data):
    approvals = data["approvals"].toArrow()
    is_zero = pc.equal(approvals["value"], "0")
    given = changes.from_columns(
        approvals.filter(pc.invert(is_zero)),
        table="allowances",
        operation="upsert",
        key=KEY,
        fields=["value"],
        ordinal="log_index",
    )
    taken = changes.from_columns(
        approvals.filter(is_zero),
        table="allowances",
        operation="delete",
        key=KEY,
        ordinal="log_index",
    )
    return {"allowances": pa.concat_tables([given, taken])}


with simulated_portal(seed=7, blocks=120) as portal:
    outputs = {"approvals": evm.events("erc20.Approval", range=(0, 119))}
    stream = portal_stream(id="allowances", portal=portal.url, outputs=outputs)
    target = history_target("allowances.duckdb", tables=[allowances])
    stream.pipe_batches(to_changes).pipe_to(target)
    print(target.query("FROM allowances").num_rows, "allowances stand")
    hot = target.query("SELECT count(*) AS n FROM substreams_history")["n"][0]
    print(hot, "changes of hot blocks could still be undone")
