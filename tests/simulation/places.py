"""Where the streams of the simulation write: what places are, memory and DuckDB.

Servers are real, one of each kind for all seeds; each world gets a schema or a database of its own,
and reaches it through a proxy that can lose connections.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from headwater.core import Batch, BlockCursor, PipeState
from headwater.stream.extensions import MISSING
from headwater.stream.factory_index import CHILDREN
from headwater.targets import MemoryStore, MemoryTarget
from headwater.targets.admin import open_admin
from headwater.targets.contract import Delivery
from headwater.targets.duckdb import DuckDBSettings, duckdb_target
from headwater.targets.duckdb import table as duckdb_table
from headwater.targets.duckdb.session import _OPEN, Session, open_session
from headwater.targets.frames import to_arrow
from headwater.targets.side_rows import PREFIX
from headwater.targets.sql.history import history_target
from headwater.targets.sql.undo import BLOCK, CHANGE_LOG
from headwater.testing.servers.clickhouse import clickhouse_server
from headwater.testing.servers.postgres import postgres_server
from tests.simulation.lossy_proxy import LossyProxy
from tests.simulation.second import MemoryAdmin
from tests.simulation.tables import (
    LATEST,
    MORE,
    POOLS,
    SWAPS,
    TRANSFERS,
    Shape,
    Tables,
    in_order,
    pools_in,
)
from tests.targets.lake_places import Bucket, bucket, started

MEMORY = Path("/dev/shm")
_TAKES_TURN = Session.transaction.__wrapped__.__code__  # type: ignore[attr-defined]
SIDE_CHILDREN, SIDE_MISSING = PREFIX + CHILDREN.name, PREFIX + MISSING.name


@dataclass(frozen=True, slots=True)
class Stored:
    """What a database holds of one stream: its cursor, its tables, and blocks of undo data."""

    kind: str
    cursor: BlockCursor | None
    tables: Tables
    undo_blocks: tuple[int, ...] = ()
    missing: tuple[range, ...] = ()  # blocks that were left out, as is stored
    lacks: frozenset[str] = frozenset()  # tables that nobody but the stream can read
    final_only: bool = False  # rows of hot blocks are not shown


class Engines:
    """Real servers, started when they are first needed, and kept until the end."""

    def __init__(
        self,
        postgres: Callable[[], str] | None = None,
        clickhouse: Callable[[], str] | None = None,
    ) -> None:
        self._stack = ExitStack()
        self._postgres = postgres or (lambda: self._stack.enter_context(postgres_server()))
        self._clickhouse = clickhouse or (lambda: self._stack.enter_context(clickhouse_server()))

    @cached_property
    def postgres(self) -> str:
        """The address of PostgreSQL."""
        return self._postgres()

    @cached_property
    def clickhouse(self) -> str:
        """The address of ClickHouse."""
        return self._clickhouse().rstrip("/")

    @cached_property
    def s3(self) -> str:
        """The address of the S3 server."""
        return started("-I", "-S", str(Path(__file__).parent / "s3.py"))

    def bucket(self) -> Bucket:
        """Return a new bucket of the S3 server."""
        return bucket(self.s3)

    def __enter__(self) -> Engines:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()


class Place(ABC):
    """One database for the streams of a world. `proxy` is there where a network is.

    `schema` is where tables are made, if they are not all in one.
    """

    schema: str = ""
    kind: str
    fenced: bool = True  # a second writer is refused, or refuses the first
    transactional: bool = True
    keyed: bool = False  # it has tables with a key
    sums: bool = False  # it keeps aggregates
    changes: bool = False  # it keeps a change log
    applies: bool = False  # it applies changes without one
    side_tables: bool = True  # it keeps children of factories and messages
    final_only: bool = False  # it shows final blocks alone
    rereads: bool = False  # a start goes back to final blocks, which is all that one target keeps
    evolves: bool = False  # a stream here can be given another definition
    renames: bool = True  # where streams evolve, an output can be given another name
    maintained: bool = False  # it can be maintained from outside while a stream runs
    proxy: LossyProxy | None = None
    calm: bool = False  # the world has come to rest
    gives_up: bool = False  # a stream leaves out blocks that its portal no longer has

    @abstractmethod
    def target(self, shape: Shape, process: str, clock: Callable[[], float]) -> Any:
        """Return a target of one process, not opened yet."""

    @abstractmethod
    def rival(self, shape: Shape, process: str, clock: Callable[[], float]) -> Any:
        """Return the target of another stream that must be kept from these tables; None: of none.

        Where streams may share tables it has the same id, and its state in another table.
        """

    @abstractmethod
    def read(self, shape: Shape) -> Stored:
        """Read what is committed, past the proxy."""

    def stored(self, shape: Shape) -> list[Stored]:
        """Read what is committed in each place that a stream fills here."""
        return [self.read(shape)]

    def own(self, shape: Shape) -> Shape:
        """Return a shape whose tables are where this place has them."""
        return replace(shape, schema=self.schema)

    def looked_at(self, shape: Shape) -> list[Place]:
        """Return the places that `verify` looks at, one after the other."""
        return [self]

    def watch(self, target: Any, hook: Callable[[str], None]) -> None:
        """Have a target call `hook` before each statement."""
        target.on_statement = hook

    def environment(self) -> AbstractContextManager[None]:
        """Surround what a command does here."""
        return nullcontext()

    def still(self) -> AbstractContextManager[None]:
        """Surround reading while nobody writes: what was opened may stay open."""
        return nullcontext()

    def maintain(self) -> None:
        """Maintain the tables from outside, as an operator would while streams run."""
        return

    @abstractmethod
    def admin(self, shape: Shape) -> Any:
        """Return what `verify` reads a stream's tables through, past the proxy."""

    def waits_for_lock(self, process: str) -> bool:
        """Tell whether a statement of a process waits for a lock of another one."""
        return False

    def has_sessions(self, processes: Sequence[str]) -> bool:
        """Tell whether the server holds a session of one of these processes."""
        return False

    def drop_sessions(self, process: str) -> None:
        """End what the server holds for a process, as it does when it misses its keepalives."""
        return

    def merge(self) -> None:
        """Have the server merge the parts of its tables."""
        return

    def close(self) -> None:
        """Remove everything."""
        return


class _WatchedMemory(MemoryTarget[Delivery]):
    """Memory that announces what it does, as the other targets announce statements."""

    on_statement: Callable[[str], None] | None = None

    def commit(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None:
        self._announce("commit")
        super().commit(batches, state)

    def recover(self) -> PipeState:
        self._announce("recover")
        return super().recover()

    def roll_back(self, state: PipeState) -> None:
        self._announce("roll back")
        super().roll_back(state)

    def read_side_table(self, name: str, **which: Any) -> pa.Table:
        self._announce(f"read {name}")
        return super().read_side_table(name, **which)

    def settle_side_rows(
        self, name: str, up_to: tuple[int, int], moved: Mapping[str, pa.Table]
    ) -> None:
        self._announce(f"settle {name}")
        super().settle_side_rows(name, up_to, moved)

    def _announce(self, what: str) -> None:
        if self.on_statement is not None:
            self.on_statement(what)


class MemoryPlace(Place):
    """Memory that outlives the process in front of it."""

    kind = "memory"
    fenced = False

    def __init__(self, engines: Engines) -> None:
        self._stores: dict[str, MemoryStore[Delivery]] = {}

    def target(self, shape: Shape, process: str, clock: Callable[[], float]) -> Any:
        """Return a target on the stream's store."""
        return _WatchedMemory(self._stores.setdefault(shape.stream, MemoryStore()))

    def rival(self, shape: Shape, process: str, clock: Callable[[], float]) -> Any:
        """Return none: each stream has its own store."""

    def read(self, shape: Shape) -> Stored:
        """Read the store."""
        held = self._stores.setdefault(shape.stream, MemoryStore()).committed
        tables: Tables = {}
        for name in shape.tables:
            frames = [to_arrow(batch.data.data[name]) for batch in held.batches]
            tables[name] = in_order(shape, name, [row for one in frames for row in one.to_pylist()])
        if shape.swaps:
            children = held.side.get(CHILDREN.name)
            tables[POOLS] = pools_in([] if children is None else children["address"].to_pylist())
        missing = held.side.get(MISSING.name, MISSING.columns.empty_table()).to_pylist()
        return Stored(self.kind, held.state.cursor, tables, missing=ranges_in(missing))

    def admin(self, shape: Shape) -> Any:
        """Show the stream's store."""
        names = {shape.name(one): shape.output(one) for one in shape.tables}
        return MemoryAdmin(shape.stream, self._stores[shape.stream], names)


class DuckDBPlace(Place):
    """A file, in memory where the machine has such a folder."""

    kind = "DuckDB"
    keyed = sums = changes = evolves = True

    def __init__(self, engines: Engines) -> None:
        folder = str(MEMORY) if os.access(MEMORY, os.W_OK) else None
        self._folder = tempfile.mkdtemp(prefix="headwater-soak-", dir=folder)
        self._path = f"{self._folder}/a.duckdb"
        self._settings = DuckDBSettings(config={"threads": 1}, unfinalized_blocks_retention=1)

    def target(self, shape: Shape, process: str, clock: Callable[[], float]) -> Any:
        """Return a target on the file."""
        return self._target(shape, self._settings)

    def rival(self, shape: Shape, process: str, clock: Callable[[], float]) -> Any:
        """Return one with its state in another table."""
        return self._target(shape, replace(self._settings, table="elsewhere"))

    def _target(self, shape: Shape, settings: DuckDBSettings) -> Any:
        if shape.changes:
            return history_target(self._path, tables=shape.schemas(), settings=settings)
        return duckdb_target(
            self._path,
            tables=declared(shape, duckdb_table),
            on_data=shape.on_data(),
            aggregates=shape.aggregates(),
            settings=settings,
        )

    def read(self, shape: Shape) -> Stored:
        """Read the file, beside writers of this process."""
        if not Path(self._path).exists():
            pools: Tables = {POOLS: []} if shape.swaps else {}
            return Stored(self.kind, None, {one: [] for one in shape.tables} | pools)
        session = open_session(self._path, self._settings.config, None, self._path)

        def query(sql: str) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = session.arrow(sql).to_pylist()
            return found

        with closing(session):
            there = {row["name"] for row in query("SELECT table_name AS name FROM duckdb_tables()")}
            return read_sql(self.kind, shape, query, there)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Hold the file: opening it costs more than what is read."""
        if not Path(self._path).exists():
            yield
            return
        with closing(open_session(self._path, self._settings.config, None, self._path)):
            yield

    def waits_for_lock(self, process: str) -> bool:
        """Look whether its thread waits for the turn to write, which another one has."""
        file = _OPEN.get(str(Path(self._path).resolve()))
        thread = next((one for one in threading.enumerate() if one.name == process), None)
        if file is None or thread is None:
            return False
        frame, turn = sys._current_frames().get(thread.ident or 0), repr(file.turn)
        if frame is None or frame.f_code is not _TAKES_TURN:
            return False
        return turn.startswith("<locked") and f"owner={thread.ident} " not in turn

    def admin(self, shape: Shape) -> Any:
        """Open the file as a command would; no writer may have it open."""
        return open_admin(self._path)

    def close(self) -> None:
        """Remove the file."""
        shutil.rmtree(self._folder, ignore_errors=True)


def declared(shape: Shape, table: Callable[..., Any]) -> list[Any]:
    """Declare the tables that `Shape.write` writes."""
    found = [table(shape.name(TRANSFERS), append_only=True)]
    if shape.swaps:
        found.append(table(shape.name(SWAPS), append_only=True))
    if shape.more:
        found.append(table(shape.name(MORE), append_only=True))
    if shape.latest:
        found.append(table(shape.name(LATEST), key=["token"]))
    return found


def read_sql(
    kind: str, shape: Shape, query: Callable[[str], list[dict[str, Any]]], there: set[str]
) -> Stored:
    """Read a stream from a database with transactions; `there` are the tables that exist."""
    own = f"WHERE stream_id = '{shape.stream}'"

    def rows(name: str, columns: str = "*", which: str = "") -> list[dict[str, Any]]:
        quoted = ".".join(f'"{part}"' for part in name.split("."))
        return query(f"SELECT {columns} FROM {quoted} {which}") if name in there else []

    def placed(name: str) -> str:
        return f"{shape.schema}.{name}" if shape.schema else name

    tables = {one: in_order(shape, one, rows(shape.name(one))) for one in shape.tables}
    undo = rows(placed(CHANGE_LOG), "DISTINCT block_num AS block", own)
    for one in shape.tables:
        undo += rows(f"{shape.name(one)}__snapshots", f"DISTINCT {BLOCK} AS block")
    if shape.swaps:
        tables[POOLS] = pools_in(row["address"] for row in rows(placed(SIDE_CHILDREN), which=own))
    found = rows(
        placed("sync"),
        "current_number AS number, current_hash AS hash",
        f"WHERE id = '{shape.stream}' ORDER BY current_number DESC LIMIT 1",
    )
    cursor = BlockCursor(int(found[0]["number"]), found[0]["hash"]) if found else None
    missing = ranges_in(rows(placed(SIDE_MISSING), which=own))
    return Stored(kind, cursor, tables, tuple(sorted({int(row["block"]) for row in undo})), missing)


def ranges_in(rows: Sequence[Mapping[str, Any]]) -> tuple[range, ...]:
    """Return the blocks that rows of the side table say were left out."""
    return tuple(range(int(row["ordinal"]), int(row["block_number"]) + 1) for row in rows)


def close_all(places: Sequence[Place]) -> None:
    """Remove what worlds have left; one that fails does not keep the others."""
    for one in places:
        with suppress(OSError):
            one.close()
