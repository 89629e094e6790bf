"""A folder of Parquet files as a target: final rows only, in files that anybody can read.

A commit takes rows in; they are published once their blocks are final and a rule of `Rollover` is
met.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

from headwater.core.several import Several
from headwater.errors import LakeCommandError
from headwater.targets.admin import FINAL_ONLY
from headwater.targets.contract import Capabilities, Delivery
from headwater.targets.database import OnData
from headwater.targets.lake.admin import LakeAdmin, LakeMoment
from headwater.targets.lake.paths import Options, Place, coded_storage_failures
from headwater.targets.lake.settings import (
    ParquetSettings,
    Table,
    check_folder_name,
    declared_tables,
)
from headwater.targets.lake.table import LakeTables
from headwater.targets.lake.target import LakeTarget
from headwater.targets.lake.tx import Tx
from headwater.targets.parquet.state import FOLDER
from headwater.targets.parquet.table import Part
from headwater.targets.parquet.tables import ParquetTables
from headwater.targets.tables import TableOptions


class ParquetTarget(LakeTarget[Part]):
    """Made by `parquet_target`. Rows that are not final are held: no side tables go with them."""

    def _open_tables(self) -> ParquetTables:
        assert isinstance(self._settings, ParquetSettings), "given by `parquet_target`"
        return ParquetTables(
            self.place, self._id, self._declared, self._settings, self._announce,
            automatic=self._on_data is None, clock=lambda: self.clock(),
        )  # fmt: skip

    @property
    def capabilities(self) -> Capabilities[Delivery]:
        """It keeps the configuration, and publishes what is final when all is read."""
        return Capabilities(
            config=self,
            finish=self._finish,
            uses_frames=self._on_data is not None,
            altered=self.altered.totals,
        )

    def _finish(self) -> None:
        self.recover()
        with self._changing(), coded_storage_failures():
            self._folders.finish(self._stored.state)

    @property
    def _folders(self) -> ParquetTables:
        tables = self._opened
        assert isinstance(tables, ParquetTables), "opened by this target"
        return tables


def parquet_target(
    dir: str | Path,
    *,
    tables: Several[str | TableOptions | Table] | None = None,
    on_data: OnData[Tx[Part]] | None = None,
    options: Options | None = None,
    unrepresentable: str = "replace",
    settings: ParquetSettings | None = None,
) -> ParquetTarget:
    """Write the final rows of a stream to Parquet files.

    Args:
        dir: a directory, `s3://bucket/prefix`, or any path that fsspec knows; a folder per table.
        tables: every table that `on_data` writes, as a name or `table(name, evolve=True)`. Without
            `on_data`, only those that need more than their name.
        on_data: `on_data(tx, data)` or `on_data(tx, data, ctx)`, called once per batch with a `tx`
            that inserts. Left out, each output goes into the table of its own name.
        options: credentials and addresses of an object store (`s3.endpoint`, `s3.region`,
            `s3.access-key-id`, `s3.secret-access-key`); left out, those of the environment.
        unrepresentable: what is done with a value that a column cannot hold: `"replace"` it by the
            nearest one, `"null"`, `"skip"` its row, or `"stop"`. Counted and told in any case.
        settings: the stream id, when rows are published, how many wait in memory.
    """
    declared = declared_tables(
        tables, without=("key", "partition_by", "order_by", "properties"), on_data=on_data
    )
    for name in declared:
        check_folder_name(name)
    place = Place.of(dir, options)
    return ParquetTarget(place, declared, on_data, settings or ParquetSettings(), unrepresentable)


class ParquetAdmin(LakeAdmin[Part]):
    """Administers the folder of a `parquet_target`, whose files hold final blocks alone.

    Every start removes files above the cursor: so a move only stores where the cursor is.
    """

    undo = FINAL_ONLY
    own_rows = True

    def __init__(self, address: str | Place, schema: str | None = None, table: str = "") -> None:
        self._place = address if isinstance(address, Place) else Place.of(address)

    @contextmanager
    def lakes(self) -> Iterator[Mapping[str, LakeTables[Part]]]:
        """Return the tables of each stream in the folder."""
        names = map(unquote, self._place.under(FOLDER).folders())
        yield {name: ParquetTables(self._place, name, {}, ParquetSettings()) for name in names}

    def ends_in(self, tables: LakeTables[Part]) -> LakeMoment | None:
        """The state says what files cover, and files never change."""
        stored = tables.load()
        assert stored is not None, "the stream is there"
        moment = self._moment(stored, dict.fromkeys(tables.open, stored.state.number))
        named = self._place.path_of if self._place.is_local else self._place.uri_of
        files = {
            name: tuple(sorted(map(named, table.live()))) for name, table in tables.open.items()
        }
        return replace(moment, files=files)

    def target(self, stream_id: str) -> ParquetTarget:
        """Refuse: plain files keep no side tables."""
        raise LakeCommandError("a folder of Parquet files keeps no side tables", stream=stream_id)

    def _writer(self, stream_id: str) -> ParquetTarget:
        return ParquetTarget(self._place, {}, None, ParquetSettings(id=stream_id))


ADMIN = ParquetAdmin
