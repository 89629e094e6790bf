"""Administers the streams of a folder of Parquet files. Its files hold final blocks alone.

Every start removes files above the cursor: so a move only stores where the cursor is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import unquote

from headwater.errors import LakeCommandError
from headwater.targets.admin import FINAL_ONLY
from headwater.targets.lake.admin import LakeAdmin, LakeMoment
from headwater.targets.lake.paths import Place
from headwater.targets.lake.settings import ParquetSettings
from headwater.targets.lake.table import LakeTables
from headwater.targets.parquet.held import Part
from headwater.targets.parquet.state import FOLDER
from headwater.targets.parquet.tables import ParquetTables
from headwater.targets.parquet.target import ParquetTarget


class ParquetAdmin(LakeAdmin[Part]):
    """Administers the folder of a `parquet_target`."""

    undo = FINAL_ONLY
    own_rows = True

    def __init__(self, address: str | Place, schema: str | None = None, table: str = "") -> None:
        self._place = address if isinstance(address, Place) else Place.of(address)

    @contextmanager
    def lakes(self) -> Iterator[Mapping[str, LakeTables[Part]]]:
        """Return the tables of each stream in the folder."""
        names = map(unquote, self._place.under(FOLDER).folders())
        yield {one: ParquetTables(self._place, one, {}, ParquetSettings()) for one in names}

    def ends_in(self, tables: LakeTables[Part]) -> LakeMoment | None:
        """The state says what files cover, and files never change."""
        stored = tables.load()
        assert stored is not None, "the stream is there"
        found = self._moment(stored, dict.fromkeys(tables.open, stored.state.number))
        named = self._place.path_of if self._place.is_local else self._place.uri_of
        files = {
            name: tuple(sorted(map(named, table.live()))) for name, table in tables.open.items()
        }
        return replace(found, files=files)

    def target(self, stream_id: str) -> ParquetTarget:
        """Refuse: plain files keep no side tables."""
        raise LakeCommandError("a folder of Parquet files keeps no side tables", stream=stream_id)

    def _writer(self, stream_id: str) -> ParquetTarget:
        return ParquetTarget.at(self._place, {}, None, ParquetSettings(id=stream_id))


ADMIN = ParquetAdmin
