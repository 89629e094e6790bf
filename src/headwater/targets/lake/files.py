"""Parquet files of lake targets: written on executors or on the driver, each attempt on its own.

A file counts once a commit names it. Every attempt of a task writes files of its own, whose names
tell the blocks, the writer (`Author`) and the attempt; what comes back is a receipt per file, of
the attempts that Spark counts. Files of the others, and those of a commit that never came, are
named by nothing: they are orphans, which a sweep deletes. So a task may be tried again or run
twice.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.errors import LakePathError, LakeSchemaError
from headwater.targets.frames import block_range
from headwater.targets.lake.columns import conform
from headwater.targets.lake.paths import Place
from headwater.targets.values import Fitting, Tally

if TYPE_CHECKING:
    from headwater.spark.executors import ExecutorRows

GROUP_ROWS, GROUP_BYTES = 200_000, 32 << 20  # of one row group, as Arrow holds them
SORT_BYTES = 64 << 20  # of a file whose rows are sorted: it is held whole
FILE_BYTES = 128 << 20  # of a file as it is stored
OPEN_FILES = 32  # of one task, where rows are split
_BATCH_ROWS = 50_000  # of a table in memory, at a time
_SAMPLE_ROWS = 10_000  # of a file: whether their values repeat decides how a column is encoded
COMPRESSION = "zstd"
Split = Callable[[pa.RecordBatch], Iterable[tuple[str, pa.RecordBatch]]]
"""Cuts rows by partition: yields a text that names one, and its rows. It must pickle."""

_RECEIPT = pa.schema(
    [
        ("part", pa.int64()),
        ("name", pa.string()),
        ("rows", pa.int64()),
        ("size", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("partition", pa.string()),
        ("footer", pa.binary()),
        ("altered", pa.string()),
    ]
)


class WrittenFile(NamedTuple):
    """What is known of a file that was written: enough to commit it without reading it again.

    `first` and `last` are its blocks, -1 if the rows name none; `footer` is Parquet's. A receipt
    without a name is of no file: `altered` says what was done to values of the part.
    """

    part: int
    name: str
    rows: int
    size: int
    first: int
    last: int
    partition: str
    footer: bytes
    altered: str = ""

    @property
    def metadata(self) -> pq.FileMetaData:
        """What Parquet says of the file: row groups, columns and their statistics."""
        return pq.read_metadata(BytesIO(self.footer))


@dataclass(frozen=True, slots=True)
class FilePlan:
    """How the rows of one frame become files. It pickles.

    `stem` begins every name (`window_stem`), in `directory` of `place`. `schema` is that of the
    files, in lake types; its metadata (field ids) is kept. Rows are sorted within a file by
    `sort_by`, and cut by `split`. With a `block_column` and a `window`, rows of other blocks are
    refused.
    """

    place: Place
    schema: pa.Schema
    stem: str
    directory: str = "data"
    sort_by: tuple[str, ...] = ()
    split: Split | None = None
    block_column: str | None = None
    window: tuple[int, int] | None = None
    file_bytes: int = FILE_BYTES
    compression: str = COMPRESSION
    fitting: Fitting | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch], part: int) -> Iterator[pa.RecordBatch]:
        """Write the rows of a part on an executor, and yield the receipts."""
        tally = Tally()
        files = self.write(batches, part, tally)
        if tally:
            files.append(WrittenFile(part, "", 0, 0, -1, -1, "", b"", tally.dump()))
        rows = [file._asdict() for file in files]
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=_RECEIPT)

    def write(
        self, batches: Iterable[pa.RecordBatch], part: int = 0, tally: Tally | None = None
    ) -> list[WrittenFile]:
        """Write rows in this process; if that fails, remove what was begun.

        The tally is told what was done to values.
        """
        if self.fitting is not None:
            batches = self.fitting.through(batches, Tally() if tally is None else tally)
        attempt = _Attempt(self, part)
        try:
            for batch in batches:
                attempt.add(batch)
            return attempt.finish()
        except BaseException:
            attempt.abandon()
            raise


@dataclass(frozen=True, slots=True)
class ValueSplit:
    """Cuts rows by the values of columns; the text is JSON of `[value, …]`, as texts or null."""

    columns: tuple[str, ...]

    def __call__(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of each combination of values."""
        groups = pa.Table.from_batches([rows]).group_by(list(self.columns)).aggregate([])
        for group in groups.to_pylist():
            empty = [name for name in self.columns if group[name] == ""]
            if empty:
                raise LakeSchemaError(
                    "a partition holds no empty text: readers would find null",
                    column=empty[0],
                )
            mine = [
                pc.is_null(rows.column(name))
                if group[name] is None
                else pc.fill_null(pc.equal(rows.column(name), group[name]), False)
                for name in self.columns
            ]
            key = json.dumps([partition_text(group[name]) for name in self.columns])
            yield key, rows.filter(reduce(pc.and_, mine))


def partition_text(value: object) -> str | None:
    """Return a value of a partition as texts name it: ISO dates, `true` and `false`."""
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def write_distributed(
    plan: FilePlan, rows: ExecutorRows, tally: Tally | None = None
) -> list[WrittenFile]:
    """Have tasks write rows that lie on executors; the receipts of the attempts that count.

    Raises:
        LakePathError: executors write to a disk that is not the driver's.
    """
    receipts = [WrittenFile(**receipt) for receipt in rows.run(plan, _RECEIPT).to_pylist()]
    written = [receipt for receipt in receipts if receipt.name]
    altered = Tally() if tally is None else tally
    for receipt in receipts:
        altered.add(Tally.load(receipt.altered))
    for receipt in written:
        if not plan.place.is_seen(receipt.name):
            raise LakePathError(
                "an executor has written a file that the driver does not find: a local path is a "
                "directory of each machine",
                file=plan.place.uri_of(receipt.name),
            )
    return sorted(written, key=lambda receipt: (receipt.part, receipt.name))


def repeating_columns(rows: pa.Table) -> list[str]:
    """Return the columns whose values repeat, by the first rows: a dictionary pays for these.

    For hashes and amounts Parquet would fill a dictionary, find it too large and drop it, which
    takes as long as writing them. Columns of columns get one in any case.
    """
    sample = rows.slice(0, _SAMPLE_ROWS)
    names: list[str] = []
    for column in sample.schema:
        if pa.types.is_nested(column.type):
            names += _leaves(column.name, column.type)
        elif 2 * pc.count_distinct(sample[column.name]).as_py() <= max(sample.num_rows, 2):
            names.append(column.name)
    return names


def _leaves(path: str, kind: pa.DataType) -> Iterator[str]:
    """Yield the columns of a nested column, as Parquet names them."""
    if pa.types.is_struct(kind):
        for column in kind:
            yield from _leaves(f"{path}.{column.name}", column.type)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    else:
        yield path


class _Attempt:
    """The files of one attempt of one part."""

    def __init__(self, plan: FilePlan, part: int) -> None:
        self._plan = plan
        self._part = part
        self._name = secrets.token_hex(6)
        self._open: dict[str, _OpenFile] = {}
        self._done: list[WrittenFile] = []
        self._begun: list[str] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows; files are written and closed on the way."""
        plan = self._plan
        if not batch.num_rows:
            return
        rows = conform(batch, plan.schema)
        for key, piece in (("", rows),) if plan.split is None else plan.split(rows):
            file = self._open.pop(key, None) or _OpenFile(plan, key)
            self._open[key] = file  # the one used last comes last
            file.hold(piece)
            self._flush(file)
        while len(self._open) > OPEN_FILES:
            self._close(next(iter(self._open)))

    def finish(self) -> list[WrittenFile]:
        """Close all files; return what is known of them."""
        while self._open:
            self._close(next(iter(self._open)))
        return self._done

    def abandon(self) -> None:
        """Remove what was begun, as far as that works: what stays is swept later."""
        for file in self._open.values():
            with suppress(Exception):
                file.discard()
        for name in self._begun:
            with suppress(Exception):
                self._plan.place.delete(name)

    def _flush(self, file: _OpenFile) -> None:
        plan = self._plan
        if plan.sort_by:
            full = file.held_bytes >= SORT_BYTES
        else:
            is_group = file.held_rows >= GROUP_ROWS or file.held_bytes >= GROUP_BYTES
            full = is_group and file.write(self._next_name) >= plan.file_bytes
        if full:
            self._close(file.key)

    def _close(self, key: str) -> None:
        file = self._open[key]
        self._done.append(file.close(self._part, self._next_name))
        del self._open[key]

    def _next_name(self) -> str:
        plan, count = self._plan, len(self._begun)
        file = f"{plan.stem}-{self._part:05d}-{self._name}-{count:03d}.parquet"
        name = f"{plan.directory}/{file}" if plan.directory else file
        self._begun.append(name)
        return name


class _OpenFile:
    """A file that is being written; its rows are held until they make a row group."""

    def __init__(self, plan: FilePlan, key: str) -> None:
        self.key = key
        self.held_rows = self.held_bytes = 0
        self._plan = plan
        self._held: list[pa.RecordBatch] = []
        self._name = ""
        self._sink: Any = None
        self._writer: Any = None
        self._footers: list[pq.FileMetaData] = []
        self._first, self._last, self._rows = -1, -1, 0

    def hold(self, rows: pa.RecordBatch) -> None:
        self._note_blocks(rows)
        self._held.append(rows)
        self._rows += rows.num_rows
        self.held_rows += rows.num_rows
        self.held_bytes += rows.nbytes

    def write(self, next_name: Callable[[], str]) -> int:
        """Write what is held as a row group; return how long the file is."""
        plan = self._plan
        rows = pa.Table.from_batches(self._held, plan.schema)
        if plan.sort_by:
            rows = rows.sort_by([(name, "ascending") for name in plan.sort_by])
        if self._writer is None:
            self._name = next_name()
            self._sink = plan.place.create(self._name)
            self._writer = pq.ParquetWriter(
                self._sink,
                plan.schema,
                compression=plan.compression,
                coerce_timestamps="us",
                use_dictionary=repeating_columns(rows),
                metadata_collector=self._footers,
            )
        self._writer.write_table(rows, row_group_size=GROUP_ROWS)
        self._held.clear()
        self.held_rows = self.held_bytes = 0
        return int(self._sink.tell())

    def close(self, part: int, next_name: Callable[[], str]) -> WrittenFile:
        if self._held:
            self.write(next_name)
        self._writer.close()
        size = int(self._sink.tell())
        self._sink.close()
        footer = BytesIO()
        self._footers[0].write_metadata_file(footer)
        return WrittenFile(
            part, self._name, self._rows, size, self._first, self._last, self.key, footer.getvalue()
        )

    def discard(self) -> None:
        for handle in (self._writer, self._sink):
            if handle is not None:
                handle.close()

    def _note_blocks(self, rows: pa.RecordBatch) -> None:
        name = self._plan.block_column
        if name is None or rows.schema.get_field_index(name) < 0:
            return
        ends, nulls = block_range(rows.column(name))
        window = self._plan.window
        if window is not None and (
            nulls or not ends or ends[0] < window[0] or ends[-1] > window[1]
        ):
            raise LakeSchemaError(
                "rows do not belong to the blocks of their batch",
                column=name,
                blocks=f"{window[0]}..{window[1]}",
                found="..".join(map(str, ends)),
                without=nulls,
            )
        if ends:
            self._first = ends[0] if self._first < 0 else min(self._first, ends[0])
            self._last = max(self._last, ends[-1])
