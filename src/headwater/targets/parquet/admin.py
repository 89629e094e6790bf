"""Administers the streams of a folder of Parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.errors import LakeCommandError
from headwater.targets.admin import FINAL_ONLY, TableStatus
from headwater.targets.lake.admin import LakeAdmin
from headwater.targets.lake.paths import Place
from headwater.targets.lake.state import StoredStream
from headwater.targets.parquet.state import FOLDER, read_stored
from headwater.targets.parquet.target import ParquetTarget, parquet_target
from headwater.targets.parquet.windows import window_of


class ParquetAdmin(LakeAdmin):
    """Administers the folder of a `parquet_target`. Its files hold final blocks alone.

    Every start removes files above the cursor: so a move only stores where the cursor is.
    """

    undo = FINAL_ONLY

    def __init__(self, address: str, schema: str | None = None, table: str = "") -> None:
        self._place = Place.of(address)

    def target(self, stream_id: str) -> ParquetTarget:
        """Refuse: plain files keep no side tables."""
        raise LakeCommandError("a folder of Parquet files keeps no side tables", stream=stream_id)

    def _stored(self) -> Sequence[tuple[StoredStream, list[str]]]:
        found = []
        folders = self._place.under(FOLDER).folders() if FOLDER in self._place.folders() else []
        for stream_id in sorted(map(unquote, folders)):
            stored = read_stored(self._place, stream_id)
            if stored is not None:
                one = StoredStream(stream_id, stored.state, config=stored.config)
                found.append((one, sorted(stored.coverage)))
        return found

    def _status(self, name: str) -> TableStatus:
        """Return how rows of a table are undone; all of them are the stream's own."""
        return TableStatus(name, self.undo, own_rows=True)

    def _rows(self, stream_id: str, table: str, first: int, last: int) -> pa.Table:
        stored = read_stored(self._place, stream_id)
        assert stored is not None, "the stream has tables"
        found = [stored.schemas[table].empty_table()] if table in stored.schemas else []
        for name in sorted(one.name for one in self._place.files(table)):
            window = window_of(name.rpartition("/")[2])
            if window is not None and window.first <= last and first <= window.last:
                with self._place.open(name) as file:
                    found.append(pq.ParquetFile(file).read())
        return pa.concat_tables(found, promote_options="default") if found else pa.table({})

    def _writer(self, stream_id: str) -> ParquetTarget:
        return parquet_target(self._place.uri, id=stream_id)


ADMIN = ParquetAdmin
