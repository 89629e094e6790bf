"""What `SqlTarget` and `SqlAdmin` are given: one database, and all that it keeps of one stream.

A `Database` connects, runs a piece of work in one transaction, gives callbacks their `tx`, and has
a dialect. It calls nothing of the target's but the work that it was handed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from headwater.address import Address
from headwater.core.callbacks import Callback
from headwater.errors import HeadwaterError
from headwater.runtime import Wait
from headwater.targets.contract import Scope, SideTable
from headwater.targets.side_rows import stored_id
from headwater.targets.sql.catalog import Catalog
from headwater.targets.sql.dialect import Dialect, Session
from headwater.targets.sql.layout import Table
from headwater.targets.sql.merger import Merger
from headwater.targets.sql.side_tables import ConfigTable, SideTables
from headwater.targets.sql.state import StateSettings, SyncTable
from headwater.targets.sql.undo import UndoLog
from headwater.targets.text import QualifiedName
from headwater.targets.values import Altered


@dataclass(frozen=True, slots=True)
class Store:
    """All that is kept of one stream in one database. Nothing is read before it is used."""

    session: Any
    dialect: Dialect
    sync: SyncTable
    catalog: Any
    undo: Any
    merger: Merger
    side: SideTables
    config: ConfigTable
    altered: Altered = field(default_factory=Altered)


@dataclass(frozen=True, slots=True)
class OpenedStream:
    """The stream that a database is opened for, and what its target hears and decides of it.

    `automatic`: tables are declared as rows for them come. `announce` is told each statement before
    it runs, `pause` waits for a server that is away, and `adopt` takes over state that was kept
    before streams had ids.
    """

    id: str
    tables: Sequence[Table]
    side_tables: Sequence[SideTable]
    automatic: bool
    on_start: Callback | None
    altered: Altered
    adopt: Callable[[Callable[[str], bool]], object]
    announce: Callable[[str], None]
    pause: Wait


Opened = TypeVar("Opened", bound=Session)


class Database(ABC, Generic[Opened]):
    """One database. Runs on the driver, in one thread; it may be opened again after `close`.

    `store` is there once it is open. `file` is set if no other process can read it meanwhile.
    """

    dialect: ClassVar[Dialect]
    settings_type: ClassVar[type[StateSettings]]
    ended: ClassVar[type[HeadwaterError]]  # a callback has ended the transaction
    catalog_type: ClassVar[type[Catalog]] = Catalog
    undo_type: ClassVar[type[UndoLog]]
    merger_type: ClassVar[type[Merger]]
    store: Store
    file: Path | None = None

    def __init__(self, place: str | Path | Address, settings: StateSettings | None) -> None:
        self.settings: Any = settings or self.settings_type()
        self.place = self.dialect.locate(place)
        self._session: Opened | None = None

    @property
    def is_open(self) -> bool:
        """Whether a session is kept for the stream."""
        return self._session is not None

    def close(self) -> None:
        """Close the session. What was not committed is gone."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def stored(
        self,
        session: Opened,
        stream_id: str,
        tables: Sequence[Table] = (),
        *,
        automatic: bool = True,
        altered: Altered | None = None,
    ) -> Store:
        """Return what is kept of a stream. Nothing is read or created yet."""
        dialect, settings = self.dialect, self.settings
        own_id = stored_id(settings.table, stream_id)
        undo = self.undo_type(session, dialect, stream_id)
        return Store(
            session,
            dialect,
            SyncTable(session, dialect, settings.sync, stream_id),
            self.catalog_type(session, dialect, settings, stream_id, tables, automatic=automatic),
            undo,
            self.merger_type(session, undo),
            SideTables(session, dialect, settings.schema, own_id),
            ConfigTable(session, dialect, settings.schema, own_id, stream_id),
            altered or Altered(),
        )

    # --- a run of a stream ------------------------------------------------------------------------

    @abstractmethod
    def connect(self, stream: OpenedStream, look: Callable[[], None] | None = None) -> None:
        """Open the database unless it is open: create what is missing, and call `on_start`.

        Then `look` reads in one transaction, and may repair what a crash has left.
        """

    @abstractmethod
    def transaction(self, work: Callable[[], None], first: Scope | None = None) -> None:
        """Do the work in one transaction; again where that can help. `first` it writes that batch.

        After an error nothing that was remembered of the database is trusted.
        """

    def look(self, work: Callable[[], None]) -> None:
        """Read something that is committed; again where that can help."""
        self.transaction(work)

    @abstractmethod
    def tx(self, scope: Scope | None = None) -> Any:
        """Return the `tx` of a batch, or of a callback that writes none."""

    @abstractmethod
    def reader(self) -> Session:
        """Open a session of its own, which only reads."""

    # --- outside a run ----------------------------------------------------------------------------

    @abstractmethod
    def administer(self, stream_id: str | None) -> AbstractContextManager[Opened]:
        """Open a transaction; with an id, as the one writer of that stream."""

    @abstractmethod
    def empty(self, session: Opened, names: Sequence[QualifiedName]) -> None:
        """Remove all rows of tables that may refer to each other."""

    @abstractmethod
    def run_script(self, session: Opened, sql: str) -> None:
        """Run the statements of a schema file."""
