"""Shows the streams of a folder of Parquet files to operators."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.targets.lake.admin import LakeAdmin
from headwater.targets.lake.paths import Place
from headwater.targets.lake.state import StoredStream
from headwater.targets.parquet.state import FOLDER, read_stored
from headwater.targets.parquet.windows import window_of


class ParquetAdmin(LakeAdmin):
    """Reads the folder of a `parquet_target`. Its files hold final blocks alone."""

    undo = "final_only"

    def _stored(self) -> Iterator[StoredStream]:
        place = Place.of(self._address)
        for folder in place.under(FOLDER).folders() if FOLDER in place.folders() else ():
            stream_id = unquote(folder)
            found = read_stored(place, stream_id)
            if found is not None:
                yield StoredStream(stream_id, found.state)

    def _tables(self, stream_id: str) -> list[str]:
        found = read_stored(Place.of(self._address), stream_id)
        return [] if found is None else list(found.coverage)

    def _rows(self, stream_id: str, table: str, first: int, last: int) -> pa.Table:
        place = Place.of(self._address)
        stored = read_stored(place, stream_id)
        assert stored is not None, "the stream has tables"
        found = [stored.schemas[table].empty_table()] if table in stored.schemas else []
        for name in sorted(one.name for one in place.files(table)):
            window = window_of(name.rpartition("/")[2])
            if window is not None and window.first <= last and first <= window.last:
                with place.open(name) as file:
                    found.append(pq.ParquetFile(file).read())
        return pa.concat_tables(found, promote_options="default") if found else pa.table({})


ADMIN = ParquetAdmin
