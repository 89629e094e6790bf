"""A second opinion on the tables of a world: `headwater verify`, after everything has come to rest.

It reads the blocks once more over HTTP, decodes them, and looks at the tables through the admin of
their place. The judge does none of that: it knows the simulated contents, and reads with SQL of its
own. What both call equal would have to be wrong in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headwater.portal import portal_address
from headwater.stream.factory_index import CHILDREN
from headwater.stream.portal import PortalStream
from headwater.stream.verification import verify
from headwater.targets import MemoryStore
from headwater.targets.admin import Admin, BlockRows, StreamStatus, TableStatus
from headwater.targets.compare import BlockFinding, counted
from headwater.targets.contract import Delivery, SideTable
from headwater.targets.frames import to_arrow
from headwater.targets.side_rows import SideStatus
from headwater.testing.oracle import DisagreementError
from tests.simulation.tables import MORE, SUMS, SWAPS, TRANSFERS, Shape

BLOCK = "block_number"


@dataclass(frozen=True, slots=True)
class MemoryAdmin:
    """Shows the store of one stream as the admin of a database would."""

    stream_id: str
    store: MemoryStore[Delivery]
    tables: Mapping[str, str]  # what they are called, and which frames they are made of

    def streams(self) -> list[StreamStatus]:
        """Return the one stream."""
        tables = tuple(TableStatus(one, "append_only") for one in self.tables)
        return [StreamStatus(self.stream_id, self.store.committed.state, tables)]

    def read_blocks(self, stream_id: str, table: str, first: int, last: int) -> BlockRows:
        """Return the rows of some blocks."""
        name = self.tables[table]
        frames = [to_arrow(one.data.data[name]) for one in self.store.committed.batches]
        rows = pa.concat_tables(frames) if frames else pa.table({BLOCK: pa.array([], pa.int64())})
        block = pa.compute.field(BLOCK)
        return BlockRows(counted(rows.filter((block >= first) & (block <= last))), BLOCK, {})

    def side_tables(self, stream_id: str) -> dict[str, SideStatus]:
        """Return none: they are compared by the judge."""
        return {}

    def read_side_table(self, stream_id: str, table: SideTable) -> pa.Table:
        """Return what is stored."""
        return self.store.committed.side[table.name]


def look_again(
    shape: Shape,
    stream: PortalStream,
    admin: Admin | Any,
    target: Any,
    url: str,
    missing: Sequence[range] = (),
) -> list[str]:
    """Compare the tables that `verify` can compare; return their names.

    The portal has the blocks again that were `missing` when the stream read: they are holes, and
    what is summed up lacks them.

    Raises:
        DisagreementError: it says that something differs, or has compared nothing.
    """
    outputs = {one: shape.output(one) for one in (TRANSFERS, SWAPS, MORE) if one in shape.tables}
    wanted = [f"{shape.name(table)}={output}" for table, output in outputs.items()]
    if shape.sums and not shape.changes and not missing:
        wanted.append(shape.name(SUMS))
    if shape.changes:
        stream = replace(stream, steps=())  # the rows that changes insert are those of the outputs
    asked = replace(stream, portal=portal_address(url))
    found = verify(asked, admin, target=target, tables=wanted)
    findings = [
        (one.table, each)
        for one in found.tables
        for each in one.findings
        if not (isinstance(each, BlockFinding) and each.expected == each.holes
                and any(each.block in gone for gone in missing))
    ]  # fmt: skip
    wrong = findings[:4]
    if wrong:
        raise DisagreementError(f"{shape.stream}: verify finds {wrong}")
    compared = [one.table for one in found.tables if one.table != f"headwater_{CHILDREN.name}"]
    if len(compared) != len(wanted):
        raise DisagreementError(f"{shape.stream}: verify compared {compared} of {wanted}")
    return compared
