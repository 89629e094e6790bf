"""Delta tables as a target: rows, cursor, high-water mark and rollback chain in one commit.

The first table of a stream leads: its commits carry the state. A stream with one table commits
rows and state in one atomic step. With several, the others commit first and the leader last, which
is the commit point; a rollback begins with the leader. So a crash leaves, at worst, tables ahead of
the leader, and every start puts these back. A rollback removes the files of orphaned blocks and
adds what they had replaced, in one commit per table, whatever the size of the table.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from headwater.core.callbacks import Callback
from headwater.core.rooms import Policy
from headwater.errors import (
    InvalidOptionError,
    LakeUnsupportedError,
    LakeWriterError,
    StateMissingError,
)
from headwater.targets.database import OnData
from headwater.targets.delta.changes import DataFile, Net, Undo
from headwater.targets.delta.maintenance import Maintenance
from headwater.targets.delta.settings import DeltaSettings, Table, table
from headwater.targets.delta.stream_table import StreamTable
from headwater.targets.delta.tables import StreamTables
from headwater.targets.lake.authors import Author, slug
from headwater.targets.lake.paths import Options, Place
from headwater.targets.lake.state import STATE, StoredStream, position
from headwater.targets.lake.target import LakeTarget
from headwater.targets.lake.tx import Change, TableRewritten, Tx
from headwater.targets.tables import TableOptions, declare_tables
from headwater.targets.values import check_policy

_ATTEMPTS = 5  # at a table that an earlier writer still commits to
logger = logging.getLogger("headwater.targets.delta")


def delta_target(
    path: str | Path,
    *,
    tables: Iterable[str | TableOptions | Table] | None = None,
    on_data: OnData[Tx[DataFile]] | None = None,
    aggregates: Iterable[object] = (),
    options: Options | None = None,
    unrepresentable: str = "replace",
    settings: DeltaSettings | None = None,
) -> DeltaTarget:
    """Write a stream to Delta tables.

    Args:
        path: a directory or `s3://bucket/prefix`, with a folder per table.
        tables: every table that `on_data` writes, as a name or `table(...)`. Without `on_data`,
            only those that need more than their name.
        on_data: `on_data(tx, data)` or `on_data(tx, data, ctx)`, called for each batch. Left out,
            each output is inserted into the table of its own name.
        aggregates: not offered: aggregate in the engine that reads the tables.
        options: credentials and addresses of an object store (`s3.endpoint`, `s3.region`,
            `s3.access-key-id`, `s3.secret-access-key`); left out, those of the environment.
        unrepresentable: what is done with a value that a column cannot hold: `"replace"` it by the
            nearest one, `"null"`, `"skip"` its row, or `"stop"`. Counted and told in any case.
        settings: the stream id, how much is kept and rewritten.
    """
    if tuple(aggregates):
        raise LakeUnsupportedError("lake targets keep no aggregates")
    if on_data is not None and tables is None:
        raise InvalidOptionError("on_data is given, but not the tables that it writes")
    declared = declare_tables(tables or (), Table, table)
    return DeltaTarget(
        Place.of(path, options),
        {one.name: one for one in declared},
        Callback.optional("on_data", on_data, "tx, data", "tx, data, ctx"),
        settings or DeltaSettings(),
        check_policy(unrepresentable),
    )


class DeltaTarget(LakeTarget[DataFile]):
    """Made by `delta_target`."""

    def __init__(
        self,
        place: Place,
        tables: Mapping[str, Table],
        on_data: Callback | None,
        settings: DeltaSettings,
        policy: Policy = Policy.REPLACE,
    ) -> None:
        super().__init__(on_data, settings, policy)
        self._place = place
        self._declared = tables
        self._settings = settings
        self._tables: StreamTables | None = None

    # --- opening ----------------------------------------------------------------------------------

    @property
    def _is_open(self) -> bool:
        return self._tables is not None

    def _open(self) -> None:
        tables = StreamTables(
            self._place,
            self._id,
            self._declared,
            automatic=self._on_data is None,
            announce=self._announce,
        )
        tables.load()
        found = read_state(tables)
        epoch = 0 if found is None else found.epoch
        if self._tables is not None and epoch > self._stored.epoch:
            raise LakeWriterError("another writer of the stream has begun", stream=self._id)
        self._stored = replace(found or StoredStream(self._id), epoch=epoch + 1)
        self._open_side(side_place(self._place, self._id))
        lead = tables.lead
        for one in sorted(tables.open.values(), key=lambda one: one is not lead):
            self._claim(one, tables)
        self._sweep_side()
        self._tables = tables

    def _release(self) -> None:
        self._tables = None

    @property
    def _opened(self) -> StreamTables:
        assert self._tables is not None, "a target recovers before anything else"
        return self._tables

    def _claim(self, one: StreamTable, tables: StreamTables) -> None:
        """Put a table back to the state's cursor, in a commit that no earlier writer has seen.

        One that an earlier writer has changed meanwhile is read again, and then whether this start
        still holds the table that leads: a later one may have put it right already.
        """
        for attempt in range(_ATTEMPTS):
            one.read_undo(self._stored.state.undo_floor)
            self._announce(f"claim {one.name}")
            try:
                self._put_back(one, self._stored, always=True)
            except LakeWriterError:
                if one.is_lead or attempt + 1 == _ATTEMPTS:
                    raise
                one.reload()
                tables.check_lead()
            else:
                one.keep_log()
                return

    # --- changing ---------------------------------------------------------------------------------

    def _table(self, name: str, schema: pa.Schema | None) -> StreamTable | None:
        tables = self._opened
        known = name in tables.open
        found = tables.get(name, schema, self._said(self._stored, lead=True))
        if found is not None and not known and tables.lead not in (None, found):
            tables.check_lead()  # a later start would see the table, and claim it
            self._claim(found, tables)
        return found

    def _check_rename(self, old: str, new: str) -> None:
        self._opened.check_rename(old, new)

    def _rename(self, old: str, new: str) -> None:
        self._opened.rename(old, new)

    def _commit(
        self, stored: StoredStream, changes: Mapping[str, Sequence[Change[DataFile]]]
    ) -> None:
        """Commit the tables; the one that leads comes last, with what is stored."""
        tables = self._opened
        lead = tables.make_lead(self._said(self._stored, lead=True))
        for name, several in changes.items():
            if name != lead.name:
                self._commit_table(tables.open[name], several, self._said(stored))
        self._commit_table(lead, changes.get(lead.name, ()), self._said(stored, lead=True))
        for one in tables.open.values():
            one.forget_up_to(stored.state.undo_floor)

    def _commit_table(
        self, one: StreamTable, changes: Sequence[Change[DataFile]], said: Mapping[str, str]
    ) -> None:
        undo = [Undo(change.state.number, change.added, change.removed) for change in changes]
        self._announce(f"commit {one.name}")
        one.commit(Net.of(undo), said, undo)
        one.undo += undo

    def _go_back(self, stored: StoredStream) -> None:
        """Put the table that leads back, with what is stored; then the others."""
        tables = self._opened
        lead = tables.make_lead(self._said(stored, lead=True))
        author = Author(slug(stored.stream_id), stored.epoch)
        several = sorted(tables.open.values(), key=lambda one: one is not lead)
        ways = [one.way_back(stored.state.number, author) for one in several]  # or nothing changes
        for one, net in zip(several, ways, strict=True):
            self._put_back(one, stored, net)

    @property
    def _has_place(self) -> bool:
        """Whether a table leads: it has what is stored."""
        return self._opened.lead is not None

    def _write_config(self, text: str) -> None:
        self.recover()
        if self._opened.lead is None:  # nothing is stored yet: it comes with the first commit
            self._stored = replace(self._stored, config=text)
        else:
            super()._write_config(text)

    def _put_back(
        self,
        one: StreamTable,
        stored: StoredStream,
        found: Net | None = None,
        *,
        always: bool = False,
    ) -> None:
        """Commit the way back to what is stored: one that was found before, or is found now."""
        number, author = stored.state.number, Author(slug(stored.stream_id), stored.epoch)
        for attempt in range(_ATTEMPTS):
            net = one.way_back(number, author) if found is None else found
            if not (net or always or one.is_lead):
                break
            self._announce(f"put back {one.name}")
            try:
                one.commit(net, self._said(stored, lead=one.is_lead))
                break
            except TableRewritten:  # at this moment
                found = None
                if attempt + 1 == _ATTEMPTS:
                    raise
        one.went_back(number)
        if net:
            logger.info("table.back table=%s block=%d", one.name, number)

    def _said(self, stored: StoredStream, *, lead: bool = False) -> dict[str, str]:
        """Return what a commit says of itself: its block; that of the leader, the whole state."""
        if lead:
            return stored.to_properties()
        return position(stored.stream_id, stored.epoch, stored.state)

    def _maintain(self, *, bounded: bool) -> dict[str, int]:
        """Compact; all that can be done includes checkpoints."""
        work = self._maintenance(bounded=bounded)
        if not bounded:
            return work.run()
        return {"compacted": work.compact(), "log_entries": work.shorten_logs()}

    def _sweep(self) -> int:
        return self._maintenance(bounded=True).sweep()

    def _maintenance(self, *, bounded: bool) -> Maintenance:
        return Maintenance(
            list(self._opened.open.values()),
            self._id,
            self._stored.epoch,
            self._stored.state.undo_floor,
            self._settings,
            self._announce,
            bounded,
            lambda one: self._said(self._stored, lead=one.is_lead),
        )


def side_place(place: Place, stream_id: str) -> Place:
    """Return where a stream keeps the files of its side tables."""
    return place.under(f"_headwater/{slug(stream_id)}")


def read_state(tables: StreamTables) -> StoredStream | None:
    """Return what is stored of a stream; None if it has no tables here.

    Raises:
        StateMissingError: the stream has tables, but no state is left.
    """
    lead = tables.lead
    if lead is None:
        if tables.open:
            raise StateMissingError(
                "no table of the stream has its state",
                stream=tables.stream_id,
                tables=[*tables.open],
            )
        return None
    said = next((one for one in lead.said() if STATE in one), None)
    if said is None:
        raise StateMissingError(
            "no commit with the stream's state is left", stream=tables.stream_id, table=lead.name
        )
    return StoredStream.from_properties(said)
