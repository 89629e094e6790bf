"""A Delta table that is right at every moment, hot blocks included, and read by another engine."""

from deltalake import DeltaTable

from headwater import delta_target, evm, portal_stream
from headwater.testing import simulated_portal

with simulated_portal(seed=7, blocks=200, finality_depth=20) as portal:
    outputs = {"transfers": evm.events("erc20.Transfer", range=(0, 199))}
    stream = portal_stream(id="lake", portal=portal.url, outputs=outputs)
    stream.pipe_to(delta_target("lake"))
    rows = DeltaTable("lake/transfers").to_pyarrow_table(columns=["block_number"])
    blocks = rows["block_number"].to_pylist()
    print(f"{rows.num_rows} rows up to block {max(blocks)}, in a table any engine can read")
