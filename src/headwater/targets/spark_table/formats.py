"""Delta and Iceberg in Spark's catalog: what a commit is in each, and how it is fenced.

Delta: one commit per write, fenced by the transaction id of the stream. Each carries the stream's
id as `txnAppId` and a number that grows with epoch and commit as `txnVersion`: Delta leaves out a
write whose number is not higher than the newest one's, and refuses one of two that are made at the
same moment. Whether a commit was let in is read from the table's history, where its record stands.

Iceberg: each start writes a branch of its own, `headwater_<stream>_<epoch>_<writer>`, by as many
statements as it takes, and the last one says the record. Then `fast_forward` moves `main`, which is
the commit: the catalog does so only if `main` is an ancestor of the branch. A start makes its
branch at the snapshot that it has looked at, so no writer of an earlier epoch moves `main` again.
Where others have rewritten files meanwhile, the commit is made once more, behind theirs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from headwater.core import PipeState
from headwater.errors import LakeStorageError, SparkTableError, StateMissingError
from headwater.targets.lake.state import STREAM, slug
from headwater.targets.spark_table.tables import (
    BLOCK_NUMBER,
    WHOLE_EVERY,
    Record,
    StreamTable,
    Write,
    fold,
    literal,
    quoted,
)

_HARMLESS = (
    "OPTIMIZE", "VACUUM", "REORG", "CLUSTER BY", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES",
    "COMPUTE STATS", "ANALYZE", "UPGRADE PROTOCOL", "ADD CONSTRAINT", "DROP CONSTRAINT",
    "CHANGE COLUMN", "ADD COLUMNS", "SET TABLE COMMENT", "CREATE TABLE", "FSCK", "DROP FEATURE",
)  # fmt: skip
_FINAL = "headwater.final"  # the property of a table with what outlives its history
_CONFLICT = ("Concurrent", "MetadataChanged", "ProtocolChanged")
_COMMITS = 1 << 31  # of an epoch
_BEGIN = "headwater.begin"  # said by an empty snapshot, made where a table had none
TABLE_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


class DeltaTable(StreamTable):
    """One Delta table of a stream."""

    _partitions: tuple[str, ...] = ()

    def check(self) -> None:
        """Note its partitions; every Delta table keeps the promises."""
        (detail,) = self._tables.sql(f"DESCRIBE DETAIL {self.name}")
        self._partitions = tuple(detail["partitionColumns"])

    def never_empty(self) -> list[str]:
        """Return partitions of text: readers find null where one is empty."""
        texts = [
            column.name for column in self.columns if column.dataType.simpleString() == "string"
        ]
        return [name for name in self._partitions if name in texts]

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
        properties = {
            row["key"]: row["value"] for row in self._tables.sql(f"SHOW TBLPROPERTIES {self.name}")
        }
        return (
            Record.from_properties(json.loads(properties[_FINAL])) if _FINAL in properties else None
        )

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
            if any(text in str(error) for text in _CONFLICT):
                return False
            raise
        newest, *_ = self._since_last()
        return newest.is_same(record)

    def _since_last(self) -> list[Record]:
        """Return the records down to the one that was the newest; refuse rows of others since."""
        records = []
        for record in self._records():
            records.append(record)
            if record.is_whole or (self.last is not None and record.is_same(self.last)):
                break
        return records


def _record_of(entry: dict[str, Any]) -> Record | None:
    text = entry["userMetadata"]
    if text is None or STREAM not in text:
        return None
    try:
        said = json.loads(text)
    except ValueError:
        return None
    return Record.from_properties(said) if isinstance(said, dict) else None


class IcebergTable(StreamTable):
    """One Iceberg table of a stream."""

    _head: int | None = None  # the snapshot of `main` that was looked at
    _is_there = False  # whether the writer's branch is at `_head`
    _refs: Mapping[str, int] = {}

    def check(self) -> None:
        """Refuse a session without Iceberg's extensions, and a catalog without branches."""
        try:
            self._tables.sql(f"ALTER TABLE {self.name} DROP BRANCH IF EXISTS `headwater_none`")
        except (SparkTableError, LakeStorageError) as error:
            raise SparkTableError(
                "branches of Iceberg are needed: spark.sql.extensions=org.apache.iceberg.spark"
                ".extensions.IcebergSparkSessionExtensions, and a catalog that has them",
                table=self.name,
                **error.facts,
            ) from error

    def epochs(self) -> int:
        """Return the highest epoch: that of a start that was not let in is in its branch's name."""
        return max([super().epochs(), *(epoch for epoch, _ in self._branches())])

    def claimed(self) -> None:
        """Drop the branches of earlier starts."""
        assert self.last is not None, "it was claimed"
        for epoch, name in self._branches():
            if epoch < self.last.epoch:
                self._alter(f"DROP BRANCH IF EXISTS {quoted(name)}")

    def _branches(self) -> list[tuple[int, str]]:
        """Return the branches of the stream's writers, each with its epoch."""
        own = re.compile(rf"headwater_{re.escape(slug(self._stream))}_(\d+)_[0-9a-f]+")
        matches = ((own.fullmatch(name), name) for name in self._refs)
        return sorted((int(match[1]), name) for match, name in matches if match)

    def _records(self) -> Iterator[Record]:
        """Walk back from `main`. What is newer than the stream's commits must be rewritten files.

        Where all of the stream's commits have expired there, its branch still holds the newest.
        """
        self._tables.sql(f"REFRESH TABLE {self.name}")
        refs = self._tables.sql(f"SELECT name, snapshot_id FROM {self.name.of('refs')}")  # noqa: S608
        self._refs = {row["name"]: row["snapshot_id"] for row in refs}
        self._head, self._is_there = self._refs.get("main"), False
        rows = self._tables.sql(
            f"SELECT snapshot_id, parent_id, operation, summary FROM {self.name.of('snapshots')}"  # noqa: S608
        )
        snapshots = {row["snapshot_id"]: row for row in rows}
        changed: list[str] = []
        came, at = False, self._head
        while at is not None and (snapshot := snapshots.get(at)) is not None:
            at, record = snapshot["parent_id"], Record.from_properties(snapshot["summary"])
            if record is None and not came:
                is_harmless = snapshot["operation"] == "replace" or _BEGIN in snapshot["summary"]
                changed += [] if is_harmless else [snapshot["operation"]]
            elif record is not None:
                self._refuse(changed)
                came = True
                yield record
        if not came and (left := self._left(snapshots)) is not None:
            self._refuse(changed)
            yield left

    def _left(self, snapshots: Mapping[int, Mapping[str, Any]]) -> Record | None:
        """Return the last record on a branch, with a state that counts whether it was let in or
        not: the last final block before it.
        """
        branches = reversed(self._branches())
        heads = (snapshots.get(self._refs[name], {}).get("summary", {}) for _, name in branches)
        newest = fold(
            record for head in heads if (record := Record.from_properties(head)) is not None
        )
        if newest is None:
            return None
        if newest.final == PipeState():
            raise StateMissingError(
                "the snapshots of the stream have expired", stream=self._stream, table=self.name
            )
        return newest.at_final()

    def _try(self, record: Record, write: Write) -> bool:
        branch = f"headwater_{slug(record.stream)}_{record.epoch}_{record.writer}"
        if self._head is None:
            empty = self._tables.empty(self.columns)
            self._tables.append(str(self.name), empty, {f"snapshot-property.{_BEGIN}": "yes"})
            return False
        is_there, self._is_there = self._is_there, False
        place = self.name.of(f"branch_{branch}")
        if not is_there:
            at = f"AS OF VERSION {self._head}"
            self._alter(f"CREATE OR REPLACE BRANCH {quoted(branch)} {at}")
        if write.above is not None and self._has_rows(write.above, place):
            self._tables.sql(
                f"DELETE FROM {place} WHERE {quoted(BLOCK_NUMBER)} > {write.above}"  # noqa: S608
            )
        rows = self._tables.empty(self.columns) if write.frame is None else write.frame
        said = {
            f"snapshot-property.{name}": value for name, value in record.to_properties().items()
        }
        self._tables.append(place, rows, said)
        try:
            moved = self._tables.sql(
                f"CALL {self.name.catalog}.system.fast_forward(table => "
                f"{literal(self.name.within)}, branch => 'main', to => {literal(branch)})"
            )
        except LakeStorageError:
            return False
        self._head, self._is_there = moved[0]["updated_ref"], True
        return True

    def _alter(self, what: str) -> None:
        self._tables.sql(f"ALTER TABLE {self.name} {what}")
