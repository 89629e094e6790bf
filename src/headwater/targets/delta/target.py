"""Delta tables as a target: rows, cursor, high-water mark and rollback chain in one commit.

The first table of a stream leads: its commits carry the state. A stream with one table commits
rows and state in one atomic step. With several, the others commit first and the leader last, which
is the commit point; a rollback begins with the leader. It removes the files of orphaned blocks and
adds what they had replaced, in one commit per table, whatever the size of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from headwater.core.several import Several
from headwater.errors import InvalidOptionError
from headwater.targets.database import OnData
from headwater.targets.delta.changes import DataFile
from headwater.targets.delta.tables import StreamTables
from headwater.targets.lake.admin import LakeAdmin, LakeMoment
from headwater.targets.lake.paths import Options, Place, check_spelling
from headwater.targets.lake.settings import (
    Declared,
    DeltaSettings,
    check_folder_name,
    declared_tables,
)
from headwater.targets.lake.state import BLOCK
from headwater.targets.lake.table import LakeTables
from headwater.targets.lake.target import LakeTarget
from headwater.targets.lake.tx import Tx
from headwater.targets.sql.aggregates import Aggregate, plan_aggregates


class DeltaTarget(LakeTarget[DataFile]):
    """Made by `delta_target`. Without `on_data` tables need no declaration."""

    def _open_tables(self) -> StreamTables:
        automatic = self._on_data is None
        return StreamTables(
            self.place, self._id, self._declared, self._announce, automatic=automatic
        )


def delta_target(
    path: str | Path,
    *,
    tables: Several[Declared] | None = None,
    on_data: OnData[Tx[DataFile]] | None = None,
    aggregates: Iterable[Aggregate] = (),
    options: Options | None = None,
    unrepresentable: str = "replace",
    settings: DeltaSettings | None = None,
) -> DeltaTarget:
    """Write a stream to Delta tables.

    Args:
        path: a directory or `s3://bucket/prefix`, with a folder per table.
        tables: every table that `on_data` writes, as a name, `table(...)`, or the `TableSchema` of
            changes that `tx.apply` applies. Without `on_data`,
            only those that need more than their name.
        on_data: `on_data(tx, data)` or `on_data(tx, data, ctx)`, called for each batch. Left out,
            each output is inserted into the table of its own name.
        aggregates: tables that sum up outputs, made by `aggregate(...)`; each batch rewrites the
            files that hold its keys.
        options: credentials and addresses of an object store (`s3.endpoint`, `s3.region`,
            `s3.access-key-id`, `s3.secret-access-key`); left out, those of the environment.
        unrepresentable: what is done with a value that a column cannot hold: `"replace"` it by the
            nearest one, `"null"`, `"skip"` its row, or `"stop"`. Counted and told in any case.
        settings: the stream id, how much is kept and rewritten.
    """
    plans = plan_aggregates(aggregates)
    declared = declared_tables(tables, plans, without=("order_by", "properties"), on_data=on_data)
    for table in declared.values():
        check_folder_name(table.name)
        if any(part.transform != "identity" for part in table.partition_by):
            raise InvalidOptionError(
                "partition_by takes columns of the table, no transforms: make the column in the "
                "pipeline",
                table=table.name,
            )
    place = Place.of(path, options)
    check_spelling(str(place.local_path) if place.is_local else "")
    return DeltaTarget(
        place, declared, on_data, settings or DeltaSettings(), unrepresentable, plans
    )


class DeltaAdmin(LakeAdmin[DataFile]):
    """Administers the folder of a `delta_target`. A fork removes the files of hot blocks.

    Maintenance takes no stream over: its commits rewrite files and say nothing else, so a stream
    that runs goes on. A table that it changes by key at the same moment refuses one of the two.
    """

    undo = "files"

    def __init__(self, address: str | Place, schema: str | None = None, table: str = "") -> None:
        self._place = address if isinstance(address, Place) else Place.of(address)

    @contextmanager
    def lakes(self) -> Iterator[Mapping[str, LakeTables[DataFile]]]:
        """Return the tables of each stream in the folder."""
        tables = StreamTables(self._place, "", {})
        owners = {tables.owner(name) for name in tables.folders()}
        names = sorted(owner for owner in owners if owner is not None)
        yield {name: StreamTables(self._place, name, {}) for name in names}

    def shown(self, name: str) -> str | None:
        """Return the name of a table's folder."""
        return None if name.startswith("_") else name

    def ends_in(self, tables: LakeTables[DataFile]) -> LakeMoment | None:
        """Tables are committed before the one that leads, and put back after it."""
        stored = tables.load()
        assert isinstance(tables, StreamTables), "made here"
        assert stored is not None, "the stream is there"
        lead = tables.lead(stored)
        number, before = stored.state.number, lead.version
        tables.load()
        newest = {name: table.version_at(number) for name, table in tables.open.items()}
        lead.reload()
        since = [int(commit[BLOCK]) for commit in lead.said() if commit["version"] > before]
        versions = {name: version for name, version in newest.items() if version is not None}
        if min(since, default=number) < number or len(versions) < len(newest):
            return None
        return self._moment(stored, versions)

    def _writer(self, stream_id: str) -> DeltaTarget:
        return DeltaTarget(self._place, {}, None, DeltaSettings(id=stream_id))


ADMIN = DeltaAdmin
