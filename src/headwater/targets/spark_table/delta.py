"""Delta in Spark's catalog: one commit per write, fenced by the transaction id of the stream.

Each commit carries the stream's id as `txnAppId` and a number that grows with epoch and commit as
`txnVersion`: Delta leaves out a write whose number is not higher than the newest one's, and refuses
one of two that are made at the same moment. So a writer that was replaced changes nothing; whether
a commit was let in is read from the table's history, where its record stands.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from headwater.core import PipeState
from headwater.errors import LakeStorageError
from headwater.targets.lake.state import STREAM
from headwater.targets.spark_table.records import WHOLE_EVERY, Record
from headwater.targets.spark_table.tables import BLOCK_NUMBER, StreamTable, Write, literal

_HARMLESS = (
    "OPTIMIZE", "VACUUM", "REORG", "CLUSTER BY", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES",
    "COMPUTE STATS", "ANALYZE", "UPGRADE PROTOCOL", "ADD CONSTRAINT", "DROP CONSTRAINT",
    "CHANGE COLUMN", "ADD COLUMNS", "SET TABLE COMMENT", "CREATE TABLE", "FSCK", "DROP FEATURE",
)  # fmt: skip
_FINAL = "headwater.final"  # the property of a table with what outlives its history
_CONFLICT = ("Concurrent", "MetadataChanged", "ProtocolChanged")
_COMMITS = 1 << 31  # of an epoch


class DeltaTable(StreamTable):
    """One Delta table of a stream."""

    _partitions: tuple[str, ...] = ()

    def check(self) -> None:
        """Note its partitions; every Delta table keeps the promises."""
        (detail,) = self._tables.sql(f"DESCRIBE DETAIL {self.name}")
        self._partitions = tuple(detail["partitionColumns"])

    def never_empty(self) -> list[str]:
        """Return partitions of text: readers find null where one is empty."""
        texts = [one.name for one in self.columns if one.dataType.simpleString() == "string"]
        return [one for one in self._partitions if one in texts]

    def claimed(self) -> None:
        """Keep the last final block where it outlives the history."""
        assert self.last is not None, "it was claimed"
        if self.last.final != PipeState():
            text = json.dumps(self.last.at_final().to_properties())
            self._tables.sql(
                f"ALTER TABLE {self.name} SET TBLPROPERTIES ('{_FINAL}' = {literal(text)})"
            )

    def _records(self) -> Iterator[Record]:
        """Read the history: what stands between the stream's commits must have changed no row."""
        changed: list[str] = []
        came = False
        for entry in self._history():
            record = _record_of(entry)
            if record is not None:
                self._refuse(changed)
                came = True
                yield record
            elif not entry["operation"].startswith(_HARMLESS):
                changed.append(entry["operation"])
        if not came and (left := self._left()) is not None:
            self._refuse(changed)
            yield left

    def _history(self) -> Iterator[dict[str, Any]]:
        """Yield the commits, newest first; only as many are read as somebody wants."""
        oldest: int | None = None
        for count in (4, 2 * WHOLE_EVERY, 1 << 30):
            entries = self._tables.sql(f"DESCRIBE HISTORY {self.name} LIMIT {count}")
            for entry in entries:
                if oldest is None or entry["version"] < oldest:  # there may be new ones by now
                    oldest = entry["version"]
                    yield entry
            if len(entries) < count:
                return

    def _left(self) -> Record | None:
        """Return the record among the table's properties: history holds none any more."""
        held = {
            one["key"]: one["value"] for one in self._tables.sql(f"SHOW TBLPROPERTIES {self.name}")
        }
        return Record.from_properties(json.loads(held[_FINAL])) if _FINAL in held else None

    def _try(self, record: Record, write: Write) -> bool:
        options = {
            "txnAppId": f"headwater/{record.stream}",
            "txnVersion": str(record.epoch * _COMMITS + record.number),
            "userMetadata": json.dumps(record.to_properties(), separators=(",", ":")),
        }
        place = str(self.name)
        try:
            if write.frame is None or write.above is not None:
                above = record.state.number if write.above is None else write.above
                rows = self._tables.empty(self.columns) if write.frame is None else write.frame
                self._tables.replace_above(place, BLOCK_NUMBER, above, rows, options)
            else:
                self._tables.append(place, write.frame, options)
        except LakeStorageError as error:
            if any(one in str(error) for one in _CONFLICT):
                return False
            raise
        newest, *_ = self._since_last()
        return newest.is_same(record)

    def _since_last(self) -> list[Record]:
        """Return the records down to the one that was the newest; refuse rows of others since."""
        found = []
        for one in self._records():
            found.append(one)
            if one.is_whole or (self.last is not None and one.is_same(self.last)):
                break
        return found


def _record_of(entry: dict[str, Any]) -> Record | None:
    text = entry["userMetadata"]
    if text is None or STREAM not in text:
        return None
    try:
        said = json.loads(text)
    except ValueError:
        return None
    return Record.from_properties(said) if isinstance(said, dict) else None
