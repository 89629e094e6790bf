"""Compares what a stream has written with the portal, by reading the blocks once more.

`verify` is called by `headwater verify`, and by programs and tests. It takes what a stream is
defined as, and looks at the tables through `headwater.targets.admin`: nothing is changed or locked.
Rows of an output are compared block by block, aggregates key by key after summing up once more, and
children of factories with the creations that the chain has. What is not compared is named. Runs on
the driver, in bounded pieces; Spark starts only if transforms need it.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import Batch, BlockCursor, BlockRange, PipeState, RangeSpec, clip_ranges
from headwater.core.ranges import Latest
from headwater.core.rooms import Policy, Room
from headwater.errors import VerifyError
from headwater.portal import PortalClient, open_transport
from headwater.stream.extensions import MISSING
from headwater.stream.factory_index import CHILDREN, factories_of
from headwater.stream.owned import Handover
from headwater.stream.portal import PortalStream, with_ranges
from headwater.targets.admin import Admin, StreamStatus, TableStatus, find_stream, open_admin
from headwater.targets.compare import (
    COUNT,
    BlockFinding,
    KeyFinding,
    compare_blocks,
    counted,
    shared_columns,
)
from headwater.targets.contract import Capabilities, Delivery, SideTable
from headwater.targets.fanout import FanOutTarget
from headwater.targets.frames import to_arrow
from headwater.targets.lake.admin import LakeAdmin, rooms_of
from headwater.targets.side_rows import PREFIX
from headwater.targets.sql.admin import SqlAdmin
from headwater.targets.sql.aggregate_tables import Recomputed
from headwater.targets.sql.flow import SqlTarget
from headwater.targets.sql.layout import Undo
from headwater.targets.values import Fitting, Tally

PIECE_ROWS, PIECE_BLOCKS = 100_000, 20_000  # that are compared at once
SAMPLE_BLOCKS = 200
_NEVER_FAR = 2**62  # the driver reads all blocks itself, in bounded pieces
_CHILDREN = f"{PREFIX}{CHILDREN.name}"


@dataclass
class TableReport:
    """What was compared of one table, and what differs. Columns of one side are named."""

    table: str
    output: str
    blocks: int = 0
    expected: int = 0
    stored: int = 0
    not_compared: list[str] = field(default_factory=list)
    findings: list[BlockFinding | KeyFinding] = field(default_factory=list)

    def add(self, expected: pa.Table, stored: pa.Table, block_column: str) -> None:
        """Compare the rows of some blocks."""
        shared = shared_columns(expected.column_names, stored.column_names)
        if block_column.casefold() not in map(str.casefold, shared):
            raise VerifyError(
                "the output lacks the column with the number of the block",
                table=self.table, output=self.output, column=block_column,
            )  # fmt: skip
        names = {*expected.column_names, *stored.column_names} - {COUNT}
        alone = names - set(shared) - set(shared.values())
        self.not_compared = sorted({*self.not_compared, *alone})
        self.expected += expected.num_rows
        self.stored += sum(stored[COUNT].to_pylist()) if stored.num_rows else 0
        self.findings += compare_blocks(expected, stored, block_column)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something that the stream wrote and that was not compared, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What `verify` found. Only `is_equal` and `is_complete` together mean that all is well."""

    tables: tuple[TableReport, ...]
    left_out: tuple[LeftOut, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether all that was compared is equal."""
        return not any(table.findings for table in self.tables)

    @property
    def is_complete(self) -> bool:
        """Whether all that the stream wrote here, or that was asked for, was compared."""
        return not self.left_out


def verify(
    stream: PortalStream,
    place: Admin | str,
    *,
    target: Any = None,
    tables: Sequence[str] = (),
    first: int | None = None,
    last: int | None = None,
    sample: int | None = None,
    final: bool = False,
) -> Verification:
    """Compare what a stream has written in one place with the portal; change and lock nothing.

    Beside a stream that runs, only final blocks can be compared (`final`).

    Args:
        stream: the stream as it is defined, with its transforms. It need not have run here.
        place: an address as `open_admin` takes it, or what `open_admin` returned.
        target: the target that the stream is piped to, or a list of targets: it says which tables
            sum up outputs. It is not opened. Without it aggregates are left out, and named.
        tables: only these: `"table"` of an output or an aggregate of the same name, or
            `"table=output"`. Otherwise everything that the stream wrote, or it is named.
        first: the first block to compare.
        last: the last one.
        sample: so many spots of 200 blocks at random, instead of all.
        final: only blocks that no fork changes meanwhile.

    Raises:
        VerifyError: nothing can be compared, or not what was asked for.
        HeadwaterError: the place or the portal cannot be read.
    """
    admin = open_admin(place) if isinstance(place, str) else place
    status = find_stream(admin.streams(), stream.id)
    ranges, gone = _ranges(stream, status, first, last, final=final)
    is_part = (first, last, sample, final) != (None, None, None, False) or gone is not None
    plan = _Plan(stream, admin, status, target, tables, is_part=is_part)
    if gone is not None:
        plan.left_out.append(LeftOut(f"blocks {gone}", "the portal does not have them any more"))
    highest = plan.compare_blocks(ranges, sample)
    reports = [*plan.rows, *plan.compare_sums(), *plan.compare_children(highest)]
    return Verification(tuple(reports), tuple(plan.left_out))


class _Plan:
    """What is compared of a stream, and what is left out."""

    def __init__(
        self,
        stream: PortalStream,
        admin: Admin,
        status: StreamStatus,
        target: Any,
        given: Sequence[str],
        *,
        is_part: bool,
    ) -> None:
        self._stream, self._admin, self._status = stream, admin, status
        self._known = {table.name: table for table in status.tables}
        self.children: pa.Table | None = None
        self.left_out: list[LeftOut] = []
        self.policy = _policy_of(target, admin)
        sums = self._sums_of(target)
        if given:
            parts = (name.partition("=") for name in given)
            named = {table: output or table for table, _, output in parts}
            self.sums = {name: aggregate for name, aggregate in sums.items() if name in named}
            pairs = {table: output for table, output in named.items() if table not in sums}
        else:
            self.sums = sums
            pairs = {name: name for name in stream.outputs if self._holds_rows(name)}
            self._leave_out(target, pairs)
        if is_part and self.sums:
            self._leave_sums_out(given)
        if not pairs and not self.sums:
            raise VerifyError(
                "no table has the name of an output", tables=", ".join(self._known),
                outputs=", ".join(stream.outputs),
            )  # fmt: skip
        for table in pairs:
            if table in self._known and _is_shared(self._known[table]):
                raise VerifyError("other streams write this table, too", table=table)
        self.rows = [TableReport(table, output) for table, output in pairs.items()]

    def compare_blocks(self, ranges: Mapping[str, Sequence[BlockRange]], sample: int | None) -> int:
        """Compare rows block by block, and sum up what aggregates sum up; return the last block."""
        last = 0
        for spot in _spots(
            [block_range for several in ranges.values() for block_range in several], sample
        ):
            reader = _Reader()
            for blocks, data in _pieces(self._stream, ranges, spot, reader):
                last = max(last, blocks.to_block or 0)
                for report in self.rows:
                    self._compare_rows(report, blocks, data)
                for sums in self.sums.values() if data else ():
                    sums.add(data)
            if self.children is not None:
                self.children = reader.children()  # of a later spot, those of the earlier, too
        return last

    def _compare_rows(
        self, report: TableReport, blocks: BlockRange, data: Mapping[str, pa.Table]
    ) -> None:
        first, last = blocks.from_block, blocks.to_block or 0
        stored, block, rooms = self._admin.read_blocks(self._stream.id, report.table, first, last)
        expected = data.get(report.output)
        if expected is None and data:
            raise VerifyError(
                "the stream makes no such output", output=report.output, made=", ".join(data)
            )
        if expected is None:
            expected = stored.drop_columns([COUNT]).slice(0, 0)
        shared = shared_columns(expected.column_names, stored.column_names)
        wanted = {name: rooms[table] for name, table in shared.items() if table in rooms}
        fitting = Fitting.plan(expected.schema, wanted, self.policy, VerifyError, block)
        report.blocks += last - first + 1
        report.add(fitting.apply(expected, Tally()), stored, block)

    def compare_sums(self) -> list[TableReport]:
        """Compare the aggregates with what all blocks sum up to."""
        if not self.sums:
            return []
        reports = []
        for name, sums in self.sums.items():
            stored, rooms = self._stored_sums(name)
            sources = sorted({part.source for part in sums.plan.parts})
            report = TableReport(name, ", ".join(sources), 0, sums.keys, stored.num_rows)
            report.findings += sums.compare(stored, rooms, self.policy)
            reports.append(report)
        now = find_stream(self._admin.streams(), self._stream.id).state.cursor
        if now != self._status.state.cursor:
            raise VerifyError(
                "the stream went on meanwhile: stop it, or compare final blocks alone",
                before=self._status.state.cursor, now=now,
            )  # fmt: skip
        return reports

    def compare_children(self, highest: int) -> list[TableReport]:
        """Compare the children of factories with the creations up to the last block read."""
        if self.children is None:
            return []
        upper = pc.field("block_number") <= highest
        child = pc.field("address") != ""  # the others are marks
        stored = self._admin.read_side_table(self._stream.id, CHILDREN).filter(upper & child)
        report = TableReport(_CHILDREN, "factories", highest + 1)
        report.add(self.children.filter(upper & child), counted(stored), "block_number")
        return [report]

    # --- what there is ----------------------------------------------------------------------------

    def _sums_of(self, target: Any) -> dict[str, Recomputed]:
        """Return the aggregates of the target that exist in this place, by their tables."""
        admin, behind = self._admin, _behind(target)
        plans = [plan for target in behind for plan in getattr(target, "plans", ())]
        spell: Any = admin.dialect.name if isinstance(admin, SqlAdmin) else str
        named = {str(spell(plan.table)): Recomputed(plan) for plan in plans}
        return {name: aggregate for name, aggregate in named.items() if name in self._known}

    def _stored_sums(self, name: str) -> tuple[pa.Table, Mapping[str, Room]]:
        """Return the rows of an aggregate's table, and what its columns can hold."""
        if isinstance(self._admin, LakeAdmin):
            rows = self._admin.read_table(self._stream.id, name)
            return rows, rooms_of(rows.schema)
        assert isinstance(self._admin, SqlAdmin), "only these keep aggregates"
        return self._admin.read_table(name), self._admin.rooms(self._stream.id, name)

    def _leave_sums_out(self, given: Sequence[str]) -> None:
        if given:
            raise VerifyError(
                "an aggregate sums up all blocks, so a part of them says nothing of it",
                table=", ".join(self.sums),
            )
        reason = "an aggregate: a part of the blocks says nothing of it"
        self.left_out += [LeftOut(name, reason) for name in self.sums]
        self.sums = {}

    def _holds_rows(self, table: str) -> bool:
        known = self._known.get(table)
        return known is not None and known.undo != Undo.CHANGE_LOG and not _is_shared(known)

    def _leave_out(self, target: Any, compared: Collection[str]) -> None:
        """Name what the stream wrote and what cannot be compared; expect children if there are."""
        for name, one in self._known.items():
            if name not in compared and name not in self.sums:
                self.left_out.append(LeftOut(name, _reason(one, known=target is not None)))
        targets = _behind(target)
        of_sql = isinstance(self._admin, SqlAdmin)
        sql = [target for target in targets if of_sql and isinstance(target, SqlTarget)]
        for name in sorted({str(name) for target in sql for name in target.untracked}):
            self.left_out.append(LeftOut(name, "untracked: no stream knows what it should hold"))
        if len(targets) > 1:
            kinds = ", ".join(type(target).__name__ for target in targets)
            self.left_out.append(
                LeftOut("the other targets", f"of {kinds} only the one that was named is looked at")
            )
        for name in self._admin.side_tables(self._stream.id):
            if name.removeprefix(PREFIX) == MISSING.name:
                continue  # what is missing is found in the tables
            table = name if name.startswith(PREFIX) else f"{PREFIX}{name}"
            if table != _CHILDREN or not factories_of(self._stream.outputs.values()):
                self.left_out.append(LeftOut(table, "the stream keeps it for itself"))
            elif isinstance(self._admin, LakeAdmin):
                self.left_out.append(LeftOut(table, "a lake keeps it in files of its own"))
            else:
                self.children = CHILDREN.columns.empty_table()


def _behind(target: Any) -> list[Any]:
    """Return the targets that are meant: those of a fan-out, or the one."""
    if isinstance(target, FanOutTarget):
        return list(target.targets)
    if isinstance(target, Sequence):
        return list(target)
    return [] if target is None else [target]


def _policy_of(target: Any, admin: Admin) -> Policy:
    """Return what was done with values that the place cannot hold: as its target says, if given."""
    package = type(admin).__module__.rpartition(".")[0]
    behind = _behind(target)
    own = [target for target in behind if type(target).__module__.startswith(package)] or behind
    policies: list[Policy] = [target.altered.policy for target in own if hasattr(target, "altered")]
    return policies[0] if policies else Policy.REPLACE


def _is_shared(table: TableStatus) -> bool:
    return table.shared and not table.own_rows


def _reason(table: TableStatus, *, known: bool) -> str:
    if _is_shared(table):
        return "other streams write it, too"
    if table.undo == Undo.CHANGE_LOG:
        return "its rows are what changes have made of them"
    if table.undo == Undo.KEYED and not known:
        return "on_data computes it, or it is an aggregate: give the target"
    return "no output has its name: on_data computes it, or TABLE=OUTPUT is to say which one it is"


# --- which blocks ---------------------------------------------------------------------------------


def _ranges(
    stream: PortalStream, status: StreamStatus, first: int | None, last: int | None, *, final: bool
) -> tuple[dict[str, list[BlockRange]], BlockRange | None]:
    """Return the blocks of each output that the stream has committed and that are asked for.

    Then those among them that the portal does not have any more: nothing can be said of their rows.
    """
    reached = status.state.finalized if final else status.state.cursor
    if reached is None:
        raise VerifyError("nothing is committed yet", stream=stream.id, final=final)
    highest = reached.number if last is None else min(last, reached.number)
    asked = BlockRange(first or 0, highest)
    ranges: dict[str, list[BlockRange]] = {}
    transport = open_transport(stream.portal, stream.reading.timeouts)
    headers = next(iter(stream.outputs.values())).query.headers_only()
    with PortalClient(transport, retry=stream.reading.retry, headers=headers) as client:
        oldest = client.oldest_block()
        for name, output in stream.outputs.items():
            ranges[name] = []
            for spec in output.ranges:
                if isinstance(spec.start, Latest):
                    if first is None:
                        raise VerifyError("the range began at the head: give --from", output=name)
                    spec = replace(spec, start=first)
                whole = client.resolve_range(spec)
                begin = max(whole.from_block, asked.from_block)
                end = highest if whole.to_block is None else min(whole.to_block, highest)
                if begin <= end:
                    ranges[name].append(BlockRange(begin, end))
    if not any(ranges.values()):
        raise VerifyError("no output has blocks there", asked=asked, cursor=reached)
    lowest = min(block_range.from_block for several in ranges.values() for block_range in several)
    if lowest >= oldest:
        return ranges, None
    before = BlockCursor(oldest - 1)
    kept = {name: list(clip_ranges(several, before)) for name, several in ranges.items()}
    if not any(kept.values()):
        raise VerifyError(
            "the portal does not have these blocks any more, so nothing can be compared",
            asked=asked, oldest=oldest,
        )  # fmt: skip
    return kept, BlockRange(lowest, oldest - 1)


def _spots(ranges: Sequence[BlockRange], sample: int | None) -> list[BlockRange]:
    """Return the blocks to compare: all, or one spot at random in each of so many equal parts."""
    first = min(block_range.from_block for block_range in ranges)
    last = max(block_range.to_block or 0 for block_range in ranges)
    if sample is None or sample * SAMPLE_BLOCKS >= last - first + 1:
        return [BlockRange(first, last)]
    part = (last - first + 1) // sample
    begins = (first + at * part + random.randint(0, part - SAMPLE_BLOCKS) for at in range(sample))
    return [BlockRange(first, first + SAMPLE_BLOCKS - 1) for first in begins]


# --- reading and comparing ------------------------------------------------------------------------


class _Reader(Handover):
    """Hands batches over, and keeps the children of factories that come with them."""

    def __init__(self) -> None:
        super().__init__(PipeState())
        self._side: list[pa.Table] = []

    @property
    def capabilities(self) -> Capabilities[Delivery]:
        """It takes rows of side tables; it gives none back."""
        return Capabilities(side_tables=self)

    def open_side_tables(self, tables: Sequence[SideTable]) -> None:
        """Need nothing."""

    def read_side_table(self, name: str, **which: Any) -> pa.Table:
        """Return none: nothing was stored before."""
        return CHILDREN.columns.empty_table()

    def settle_side_rows(self, name: str, up_to: tuple[int, int], moved: Any) -> None:
        """Keep all: only outboxes settle, and there are none."""

    def commit(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None:
        """Keep the batches, and the children that they bring."""
        super().commit(batches, state)
        self._side += [
            batch.data.side[CHILDREN.name] for batch in batches if CHILDREN.name in batch.data.side
        ]

    def children(self) -> pa.Table:
        """Return the children up to the last block that was read."""
        return pa.concat_tables([CHILDREN.columns.empty_table(), *self._side])


def _pieces(
    stream: PortalStream,
    ranges: Mapping[str, Sequence[BlockRange]],
    spot: BlockRange,
    reader: _Reader,
) -> Iterator[tuple[BlockRange, dict[str, pa.Table]]]:
    """Read a spot as the stream would; yield contiguous blocks, and the rows of each output."""
    narrowed = _narrow(stream, ranges, spot)
    begin, last = spot.from_block, spot.to_block or 0
    waiting: list[Mapping[str, pa.Table]] = []
    rows = 0
    if narrowed is not None:
        for batch in narrowed.read_into(reader):
            tables = {name: to_arrow(frame) for name, frame in batch.data.items()}
            waiting.append(tables)
            rows += sum(rows.num_rows for rows in tables.values())
            reached = batch.ctx.stream.state.current.number
            if reached < last and (rows >= PIECE_ROWS or reached - begin >= PIECE_BLOCKS):
                yield BlockRange(begin, reached), _together(waiting)
                begin, waiting, rows = reached + 1, [], 0
    yield BlockRange(begin, last), _together(waiting)


def _narrow(
    stream: PortalStream, ranges: Mapping[str, Sequence[BlockRange]], spot: BlockRange
) -> PortalStream | None:
    """Return the stream of these blocks alone, without its outbox; None if it has none there.

    An output without blocks there stays, as transforms may ask for it: it has no ranges.
    """
    first, last = spot.from_block, spot.to_block or 0
    outputs: dict[str, Any] = {}
    for name, output in stream.outputs.items():
        cut = [
            RangeSpec(max(block_range.from_block, first), min(block_range.to_block or last, last))
            for block_range in ranges[name]
            if block_range.from_block <= last and (block_range.to_block or last) >= first
        ]
        outputs[name] = with_ranges(output, tuple(cut))
    if not any(output.ranges for output in outputs.values()):
        return None
    reading = replace(stream.reading, far=_NEVER_FAR)
    return replace(
        stream, outputs=outputs, reading=reading, extensions=(), undo_buffer=0,
        on_config_change="ignore", missing_blocks="error",
    )  # fmt: skip


def _together(parts: Sequence[Mapping[str, pa.Table]]) -> dict[str, pa.Table]:
    names = parts[0] if parts else ()
    return {name: pa.concat_tables([part[name] for part in parts]) for name in names}
