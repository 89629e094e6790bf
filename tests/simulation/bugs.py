"""Bugs planted by hand, each in one place of the product: would the worlds find them?

    python -m tests.simulation.bugs              # search: the first seed up to 200 that finds each

A bug is a patch of a few lines that is applied while a world is played. `seed` is one that finds
it; a test plays that one, and sees that the world is right without the bug and wrong with it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import BlockCursor
from headwater.effects.outbox import Outbox
from headwater.portal import PortalClient
from headwater.stream import assemble
from headwater.stream.extensions import MissingBlocks
from headwater.stream.factory_index import FactoryIndex
from headwater.stream.micro_batches import _IntoTarget as IntoTarget
from headwater.stream.portal_run import PortalRun
from headwater.stream.user_code import Step
from headwater.stream.verification import _Plan as VerificationPlan
from headwater.substreams.cursors import TABLE as CURSORS
from headwater.substreams.cursors import CursorLog
from headwater.targets.clickhouse.catalog import Catalog
from headwater.targets.clickhouse.undo import Undo as ClickHouseUndo
from headwater.targets.delta.stream_table import StreamTable as DeltaTable
from headwater.targets.duckdb.session import Session
from headwater.targets.duckdb.undo import DuckDBUndoLog
from headwater.targets.fanout import FanOutTarget
from headwater.targets.parquet import tables as parquet
from headwater.targets.postgres import encode
from headwater.targets.sql.aggregate_tables import Aggregates
from headwater.targets.sql.side_tables import ConfigTable
from tests.simulation.kinds import KINDS
from tests.simulation.places import Engines
from tests.simulation.script import Script
from tests.simulation.situations import Tally
from tests.simulation.soak import play

SEEDS = range(1, 201)


@dataclass(frozen=True, slots=True)
class Bug:
    """A planted bug: what a class of faults looks like, where it is planted, and what finds it.

    `kinds` are the kinds of targets that have the code; worlds of others are passed over.
    """

    name: str
    owner: Any
    attribute: str
    make: Callable[[Any], Any]
    kinds: tuple[str, ...]
    seed: int

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Have the bug there for a while."""
        with ExitStack() as stack:
            made = self.make(getattr(self.owner, self.attribute))
            stack.enter_context(patch.object(self.owner, self.attribute, made))
            yield


def _nothing(right: Any) -> Any:
    return lambda *given, **named: 0


def _nothing_taken(right: Any) -> Any:
    return lambda self, batch_id, state, gone: state


def _first_block_lost(right: Any) -> Any:
    def resolve_range(*given: Any, **named: Any) -> Any:
        found = right(*given, **named)
        return replace(found, from_block=max(found.from_block, 1))

    return resolve_range


def _by_number(right: Any) -> Any:
    def uncertain(self: Any) -> tuple[int, BlockCursor] | None:
        low = self._lowest.number
        for index, held in enumerate(self.states):
            certain = [one for one in held.landing_points() if one.number <= low]
            if certain and certain[-1] != held.cursor:
                return index, certain[-1]
        return None

    return uncertain


def _only_the_first(right: Any) -> Any:
    def roll_back(self: Any, state: Any) -> None:
        targets, self.targets = self.targets, self.targets[:1]
        states, self.states = self.states, self.states[:1]
        right(self, state)
        self.targets, self.states = targets, [*self.states, *(state for _ in states[1:])]

    return roll_back


def _twice_if_final(right: Any) -> Any:
    def write(self: Any, tx: Any, data: Any, scope: Any) -> None:
        for _ in range(1 if scope.hot else 2):
            right(self, tx, data, scope)

    return write


def _too_early(right: Any) -> Any:
    def advanced(self: Any, state: Any) -> None:
        right(self, replace(state, finalized=state.cursor))

    return advanced


def _later(right: Any) -> Any:
    def blocks_up_to(self: Any, ranges: Any, last: int, first: int | None) -> Any:
        found = right(self, ranges, last, first)
        return tuple(replace(one, from_block=min(last, one.from_block + 3)) for one in found)

    return blocks_up_to


def _cut_text(right: Any) -> Any:
    def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        fitted = right(batch, schema)
        columns = [
            pc.utf8_slice_codeunits(one, 0, 8000) if pa.types.is_string(one.type) else one
            for one in fitted.columns
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    return conform


def _of_the_newest(right: Any) -> Any:
    def rows(self: Any, batch: Any) -> Any:
        newest = self._notes[self.last].cursor
        found = right(self, batch)[CURSORS.name].to_pylist()
        named = [one | {"cursor": newest} for one in found]
        return {CURSORS.name: pa.Table.from_pylist(named, schema=CURSORS.columns)}

    return rows


def _uncounted(right: Any) -> Any:
    return lambda self, batch: {}


def _all_in_the_last(right: Any) -> Any:
    def decode_blocks(*given: Any) -> Any:
        blocks = right(*given)
        if not blocks:
            return blocks
        names = blocks[-1].tables
        whole = {name: pa.concat_tables([one.tables[name] for one in blocks]) for name in names}
        none = {name: table.slice(0, 0) for name, table in whole.items()}
        return [*(replace(one, tables=none) for one in blocks[:-1]),
                replace(blocks[-1], tables=whole)]  # fmt: skip

    return decode_blocks


def _whole_seconds(right: Any) -> Any:
    return lambda values: right(values.cast(pa.timestamp("s", values.type.tz), safe=False))


def _no_reports(right: Any) -> Any:
    return lambda self: []


def _made_by_each(right: Any) -> Any:
    def create(self: Any) -> None:
        sql = self.creates.replace("IF NOT EXISTS ", "")
        self._session.run(self._statement(sql))

    return create


def _cut_name(right: Any) -> Any:
    return lambda self, text: right(self, text[:10])


def _closed_for_all(right: Any) -> Any:
    def close(self: Any) -> None:
        self._file.users = 1
        right(self)

    return close


def _bare_tables(right: Any) -> Any:
    return lambda tables, session: dict(tables)


_SQL = ("DuckDB", "PostgreSQL")
_EVOLVING = (*_SQL, "ClickHouse", "Delta", "Iceberg")
_FAN_OUT = ("fan-out",)
BUGS = (
    Bug("a range shrinks in silence", PortalClient, "resolve_range", _first_block_lost, KINDS, 4),
    Bug("user code is not told of a fork", Step, "fork", _nothing, KINDS, 6),
    Bug("children of orphaned blocks stay", FactoryIndex, "roll_back", _nothing, KINDS, 26),
    Bug("messages of hot blocks are sent", Outbox, "advanced", _too_early, KINDS, 5),
    Bug("replaced rows do not return", DuckDBUndoLog, "_bring_back", _nothing, ("DuckDB",), 23),
    Bug("sums count rows twice", Aggregates, "write", _twice_if_final, _SQL, 161),
    Bug("rows above the cursor stay", ClickHouseUndo, "above", _nothing, ("ClickHouse",), 4),
    Bug("a paused writer may go on", DeltaTable, "check_writer", _nothing, ("Delta",), 36),
    Bug("text is cut", parquet, "conform", _cut_text, ("Parquet", "fan-out"), 135),
    Bug("a number stands for a block", FanOutTarget, "_uncertain", _by_number, _FAN_OUT, 199),
    Bug("one of two targets goes back", FanOutTarget, "roll_back", _only_the_first, _FAN_OUT, 119),
    Bug("a query takes nothing back", IntoTarget, "_take_back", _nothing_taken, KINDS, 29),
    Bug("the cursor of a later block is stored", CursorLog, "rows", _of_the_newest, _SQL, 80),
    Bug("lost blocks are not counted", MissingBlocks, "rows", _uncounted, KINDS, 110),
    Bug("blocks of a group are one", assemble, "decode_blocks", _all_in_the_last, KINDS, 1),
    Bug("times lose their fractions", encode, "_timestamps", _whole_seconds, ("PostgreSQL",), 121),
    Bug("verify compares no sums", VerificationPlan, "compare_sums", _no_reports, _SQL, 63),
    Bug("what streams share is made by each", ConfigTable, "create", _made_by_each, _SQL, 1),
    Bug("names of tables are cut", Catalog, "parse", _cut_name, ("ClickHouse",), 4),
    Bug("a stream that ends closes it for all", Session, "close", _closed_for_all, ("DuckDB",), 3),
    Bug("callbacks are given bare tables", assemble, "frames", _bare_tables, KINDS, 3),
    Bug("an added output begins late", PortalRun, "blocks_up_to", _later, _EVOLVING, 20),
)


def finds(bug: Bug, seed: int, engines: Engines) -> str | None:
    """Return what a world says of a bug; None if it finds nothing, or is wrong without it."""
    with bug.planted():
        wrong = play(Script.draw(seed), engines, Tally())[1]
    if wrong is None or play(Script.draw(seed), engines, Tally())[1] is not None:
        return None
    return wrong


def main() -> int:
    """Search a seed for each bug, or for those whose names hold a word."""
    missed = 0
    with Engines() as engines:
        for bug in BUGS:
            if not all(word in bug.name for word in sys.argv[1:]):
                continue
            seeds = [one for one in SEEDS if KINDS[one % len(KINDS)] in bug.kinds]
            found = next(((one, said) for one in seeds if (said := finds(bug, one, engines))), None)
            missed += found is None
            print(f"{bug.name}: {found}"[:300], flush=True)  # noqa: T201 - a command
    return missed


if __name__ == "__main__":
    raise SystemExit(main())
