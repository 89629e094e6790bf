"""Extensions of a stream store rows with each batch, and move with the target through forks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater import create_target
from headwater.core import Batch, BlockHeader, Head, PipeState
from headwater.errors import InvalidOptionError, PostgresTableError, SideTablesError
from headwater.errors import TableSchemaError as DuckDBTableError
from headwater.pipeline import Event, Settled
from headwater.stream import PortalStream, StopRequested, portal_stream
from headwater.targets import (
    Delivery,
    KeepsSideTables,
    MemoryTarget,
    SideTable,
    duckdb_target,
    postgres_target,
)
from headwater.targets.duckdb import DuckDBSettings
from headwater.targets.postgres import PostgresSettings
from headwater.testing import PortalServer, simulated_portal
from tests.stream.test_stream import stream_of
from tests.stream.truth import transfers
from tests.targets.postgres_places import database

COUNTS = SideTable(
    "counts",
    pa.schema([("block_number", pa.int64()), ("ordinal", pa.int64()), ("rows", pa.int64())]),
)


class CountsRows:
    """Stores how many rows each block has, and remembers it too."""

    def __init__(self, stream_id: str, calls: list[str]) -> None:
        self.id = stream_id
        self.calls = calls
        self.known: dict[int, int] = {}
        self.stored: KeepsSideTables | None = None

    @property
    def tables(self) -> Sequence[SideTable]:
        return [COUNTS]

    def start(self, target: KeepsSideTables, state: PipeState) -> None:
        self.stored = target
        self.known = self.read()
        self.calls.append(f"start {len(self.known)}")

    def rows(self, batch: Batch[Delivery]) -> Mapping[str, pa.Table]:
        counted = Counter(batch.data.data["transfers"].toArrow()["block_number"].to_pylist())
        self.known |= counted
        rows = [{"block_number": number, "ordinal": 0, "rows": n} for number, n in counted.items()]
        return {"counts": pa.Table.from_pylist(rows, schema=COUNTS.columns)}

    def advanced(self, state: PipeState) -> None:
        assert self.read() == self.known

    def rolled_back(self, state: PipeState) -> None:
        assert state.cursor is not None
        self.known = {n: c for n, c in self.known.items() if n <= state.cursor.number}
        assert self.read() == self.known
        self.calls.append("rolled back")

    def finish(self, state: PipeState) -> None:
        assert self.read() == self.known
        self.calls.append("finish")

    def stop(self) -> None:
        self.calls.append("stop")

    def read(self) -> dict[int, int]:
        assert self.stored is not None
        rows = self.stored.read_side_table("counts").to_pylist()
        return {row["block_number"]: row["rows"] for row in rows}


def counting(stream: PortalStream, calls: list[str]) -> PortalStream:
    return replace(stream, extensions=(lambda stream_id: CountsRows(stream_id, calls),))


def truth(portal: PortalServer, last: int) -> dict[int, int]:
    blocks = portal.chain.canonical(0, last)
    return dict(Counter(row[0] for row in transfers(portal.chain, blocks)))


TARGETS: dict[str, Callable[[Path], Any]] = {
    "memory": lambda path: MemoryTarget(),
    "duckdb": lambda path: duckdb_target(path / "a.duckdb"),
    "postgres": lambda path: postgres_target(database()),
}


@pytest.mark.guarantee("SIDE-1")
@pytest.mark.parametrize("kind", TARGETS)
def test_a_part_moves_in_lockstep_with_its_table_through_forks_and_restarts(
    kind: str, tmp_path: Path
) -> None:
    with simulated_portal(seed=5, blocks=40, finality_depth=12) as portal:
        target, calls = TARGETS[kind](tmp_path), list[str]()
        settled = 0

        def on_event(event: Event) -> None:
            nonlocal settled
            if isinstance(event, Settled) and event.state.cursor == portal.chain.head.cursor:
                settled += 1
                if settled > 4:
                    raise StopRequested
                portal.fork(settled + 1) if settled < 3 else portal.extend(2)

        counting(stream_of(portal), calls).pipe_to(target, on_event=on_event)
        assert calls == ["start 0", "rolled back", "rolled back", "stop"]
        calls.clear()
        last = portal.chain.head.number
        counting(stream_of(portal, (0, last)), calls).pipe_to(target)
        assert calls[1:] == ["finish", "stop"]
        target.bind("transfers")
        target.open_side_tables([COUNTS])
        target.recover()
        rows = target.read_side_table("counts").to_pylist()
        target.close()
        assert {row["block_number"]: row["rows"] for row in rows} == truth(portal, last)


def test_a_target_without_side_tables_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with simulated_portal(seed=5, blocks=20) as portal:
        stream = counting(stream_of(portal), [])

        def write(read: Any) -> None:
            next(read(None))

        with pytest.raises(SideTablesError, match=r"E0011.*counts"):
            stream.pipe_to(create_target(write=write))
        with pytest.raises(SideTablesError):
            next(iter(stream))
        assert not portal.ledger.statuses()


@pytest.mark.parametrize(
    ("kind", "error"), [("duckdb", DuckDBTableError), ("postgres", PostgresTableError)]
)
def test_a_side_table_of_other_columns_is_refused(
    kind: str, error: type[Exception], tmp_path: Path
) -> None:
    target = TARGETS[kind](tmp_path)
    target.bind("one")
    target.open_side_tables([COUNTS])
    target.close()
    other = SideTable("counts", COUNTS.columns.append(pa.field("more", pa.string())))
    with pytest.raises(error, match="headwater_counts"):
        target.open_side_tables([other])
    target.close()


def test_streams_of_one_id_in_two_tables_of_state_are_two(tmp_path: Path) -> None:
    dsn, path = database(), tmp_path / "a.duckdb"
    pairs: list[list[Any]] = [
        [
            duckdb_target(path, settings=DuckDBSettings(id="one", table=table))
            for table in ("sync", "other")
        ],
        [
            postgres_target(dsn, settings=PostgresSettings(id="one", table=table))
            for table in ("sync", "other")
        ],
    ]
    header = BlockHeader(1, "a1", "a0", 0, 1)
    state = PipeState().advance([header], Head())
    row = pa.Table.from_pylist([{"block_number": 1, "ordinal": 0, "rows": 7}], COUNTS.columns)
    batch = Batch((header,), Head(), state, (), Delivery({}, None, {"counts": row}))
    for first, second in pairs:
        for target in (first, second):
            target.open_side_tables([COUNTS])
            target.recover()
        first.commit([batch], state)
        assert second.recover() == PipeState()  # it removes what is above its own cursor
        assert second.read_side_table("counts").num_rows == 0
        assert first.read_side_table("counts").num_rows == 1
        first.close()
        second.close()


def test_a_side_table_begins_with_its_key() -> None:
    with pytest.raises(InvalidOptionError, match="block_number and ordinal"):
        MemoryTarget[Any]().open_side_tables([SideTable("x", pa.schema([("a", pa.int64())]))])


def test_all_extensions_are_stopped_even_if_one_fails(tmp_path: Path) -> None:
    class Fails(CountsRows):
        def stop(self) -> None:
            raise OSError("stop")

    calls: list[str] = []
    with simulated_portal(seed=5, blocks=20) as portal:
        stream = portal_stream(
            id="transfers", portal=portal.url, outputs=stream_of(portal, (0, 5)).outputs
        )
        extensions = tuple(
            lambda stream_id, make=make: make(stream_id, calls)
            for make in (CountsRows, Fails, CountsRows)
        )
        with pytest.raises(OSError, match="stop"):
            replace(stream, extensions=extensions).pipe_to(MemoryTarget())
    assert calls.count("stop") == 2
