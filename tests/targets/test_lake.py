"""What lake targets share: paths, columns, Parquet files and the stored state."""

from __future__ import annotations

import pickle
import resource
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.address import Secret
from headwater.core import Batch, BlockCursor, BlockHeader, Head, PipeState
from headwater.errors import (
    InvalidOptionError,
    LakeDiskFullError,
    LakePathError,
    LakeSchemaError,
    StoredStateError,
)
from headwater.targets import delta_target, iceberg_target, parquet_target
from headwater.targets.contract import Delivery, SideTable, Target
from headwater.targets.lake.columns import check_columns, conform, lake_schema
from headwater.targets.lake.files import FilePlan, WrittenFile, write_distributed
from headwater.targets.lake.paths import CatalogPlace, Place
from headwater.targets.lake.side import SideFiles, side_status
from headwater.targets.lake.state import (
    FORMAT,
    STATE,
    Author,
    SideFile,
    StoredStream,
    slug,
    window_stem,
)
from tests.targets.lake_places import SECRET_KEY, bucket

ROWS = pa.table({"block_number": [3, 1, 2], "value": ["c", "a", "b"]})
SCHEMA = ROWS.schema


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "local":
        return Place.of(tmp_path)
    one = bucket()
    return Place.of(one.uri, one.options)


# --- paths ----------------------------------------------------------------------------------------


def test_files_are_written_listed_read_replaced_and_deleted(place: Place) -> None:
    place.replace("a/state.json", b"one")
    place.replace("a/state.json", b"two")
    with place.under("b").create("c.bin") as sink:
        sink.write(b"12345")
    assert place.read("a/state.json") == b"two"
    assert place.read("missing") is None
    found = {one.name: one.size for one in place.files()}
    assert found == {"a/state.json": 3, "b/c.bin": 5}
    assert [one.name for one in place.files("b")] == ["b/c.bin"]
    assert all(one.written > 1e9 for one in place.files())
    place.delete("b/c.bin")
    place.delete("b/c.bin")
    assert [one.name for one in place.files()] == ["a/state.json"]
    assert list(place.files("nowhere")) == []


def test_a_place_shows_no_credentials_and_works_after_pickling() -> None:
    one = bucket()
    place = Place.of(one.uri, one.options)
    place.replace("x", b"1")
    assert SECRET_KEY not in f"{place!r} {place} {place.options}"
    again: Place = pickle.loads(pickle.dumps(place))
    assert again.read("x") == b"1"
    assert again == place


@pytest.mark.parametrize(
    "path", ["", "s3://key:secret@bucket/x", "s3:///x", "s3://bucket/x?secret=1", "a\x00b"]
)
def test_a_path_that_cannot_work_is_refused(path: str) -> None:
    with pytest.raises(LakePathError, match="E2601") as refused:
        Place.of(path)
    assert "secret" not in str(refused.value).partition(". Fix:")[0]


def test_a_file_system_that_is_not_there_is_refused() -> None:
    with pytest.raises(LakePathError, match="no file system"):
        Place.of("nosuch://host/x").read("y")


# --- columns --------------------------------------------------------------------------------------


def write_files(plan: FilePlan, rows: pa.Table) -> list[WrittenFile]:
    return plan.write(rows.to_batches(50_000))


def test_types_become_those_that_every_engine_reads() -> None:
    rows = pa.table(
        {
            "small": pa.array([1], pa.uint8()),
            "word": pa.array([2**64 - 1], pa.uint64()),
            "huge": pa.array([Decimal(10**75)], pa.decimal256(76, 0)),
            "kind": pa.array(["x"]).dictionary_encode(),
            "at": pa.array([1], pa.timestamp("s", "Europe/Paris")),
            "list": pa.array([[1]], pa.list_(pa.int16())),
            "none": pa.nulls(1),
        }
    )
    schema = lake_schema(rows.schema)
    assert [str(field.type) for field in schema] == [
        "int32", "decimal128(20, 0)", "string", "string", "timestamp[us, tz=UTC]",
        "list<element: int32>", "string",
    ]  # fmt: skip
    made = conform(rows.to_batches()[0], schema).to_pylist()[0]
    assert made["word"] == Decimal(2**64 - 1)
    assert made["huge"] == str(10**75)
    assert made["kind"] == "x"


def test_what_a_table_cannot_hold_is_refused() -> None:
    with pytest.raises(LakeSchemaError, match="E2602"):
        lake_schema(pa.schema([("a", pa.duration("s"))]))
    with pytest.raises(LakeSchemaError, match="only by case"):
        lake_schema(pa.schema([("a", pa.int64()), ("A", pa.int64())]))
    held = pa.schema([("a", pa.int32()), ("b", pa.string())])
    check_columns("t", pa.schema([("a", pa.int64())]), held)
    with pytest.raises(LakeSchemaError, match="lacks a column"):
        check_columns("t", pa.schema([("c", pa.int64())]), held)
    with pytest.raises(LakeSchemaError, match="another type"):
        check_columns("t", pa.schema([("a", pa.string())]), held)
    with pytest.raises(LakeSchemaError, match="does not fit"):
        conform(pa.record_batch({"a": [2**40]}), held)
    assert conform(pa.record_batch({"a": [1]}), held).to_pylist() == [{"a": 1, "b": None}]


# --- files ----------------------------------------------------------------------------------------


def test_files_are_named_by_window_stream_and_attempt_and_described_by_receipts(
    place: Place,
) -> None:
    plan = FilePlan(
        place, SCHEMA, window_stem(Author(slug("My Stream"), 2), 1, 3), sort_by=("block_number",),
        block_column="block_number", window=(1, 3),
    )  # fmt: skip
    one, two = write_files(plan, ROWS)[0], write_files(plan, ROWS)[0]
    assert one.name != two.name, "attempts never share a file"
    assert one.name.startswith(f"data/0000000001-0000000003-{slug('My Stream')}-e000002-00000-")
    assert (one.rows, one.first, one.last) == (3, 1, 3)
    assert {found.name: found.size for found in place.files()}[one.name] == one.size
    with place.open(one.name) as source:
        assert pq.read_table(source).column("value").to_pylist() == ["a", "b", "c"]
    statistics = one.metadata.row_group(0).column(0).statistics
    assert (statistics.min, statistics.max) == (1, 3)
    assert write_files(plan, ROWS.slice(0, 0)) == []


def _halves(rows: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
    return [("low", rows.slice(0, 1)), ("high", rows.slice(1))]


def test_rows_are_split_and_files_are_rolled_over(tmp_path: Path) -> None:
    place = Place.of(tmp_path)
    split = write_files(FilePlan(place, SCHEMA, "s", split=_halves), ROWS)
    assert {one.partition: one.rows for one in split} == {"low": 1, "high": 2}
    many = pa.table({"block_number": range(900_000), "value": ["x"] * 900_000})
    files = write_files(FilePlan(place, SCHEMA, "r", file_bytes=1), many)
    assert len(files) > 2
    assert sum(one.rows for one in files) == 900_000


def test_rows_of_other_blocks_are_refused_and_leave_no_file(tmp_path: Path) -> None:
    place = Place.of(tmp_path)
    plan = FilePlan(place, SCHEMA, "s", block_column="block_number", window=(2, 3))
    with pytest.raises(LakeSchemaError, match="blocks"):
        write_files(plan, ROWS)

    def broken() -> object:
        yield from ROWS.to_batches()
        yield from (many.to_batches())
        raise RuntimeError("lost")

    many = pa.table({"block_number": range(400_000), "value": ["x"] * 400_000})
    with pytest.raises(RuntimeError, match="lost"):
        FilePlan(place, SCHEMA, "s").write(broken())  # type: ignore[arg-type]
    assert list(place.files()) == []


def test_a_dictionary_is_made_of_values_that_repeat(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "token": ["a", "b"] * 5000,
            "hash": [f"0x{one:x}" for one in range(10_000)],
            "topics": [["x", "y"]] * 10_000,
            "call": [{"to": "z"}] * 10_000,
        }
    )
    schema = lake_schema(rows.schema)
    group = write_files(FilePlan(Place.of(tmp_path), schema, "s"), rows)[0].metadata.row_group(0)
    found = [group.column(one) for one in range(group.num_columns)]
    encoded = {one.path_in_schema: one.has_dictionary_page for one in found}
    assert encoded == {"token": True, "hash": False, "topics.list.element": True, "call.to": True}


class Elsewhere:
    """Rows of executors whose disk is not the driver's."""

    def run(self, function: FilePlan, schema: pa.Schema) -> pa.Table:
        made = pa.Table.from_batches(function(ROWS.to_batches(), 0), schema)
        for one in list(function.place.files()):
            function.place.delete(one.name)
        return made


def test_a_file_that_the_driver_does_not_find_is_not_committed(tmp_path: Path) -> None:
    with pytest.raises(LakePathError, match=r"does not find.*file:///"):
        write_distributed(FilePlan(Place.of(tmp_path), SCHEMA, "s"), Elsewhere())  # type: ignore[arg-type]


def test_executors_need_no_pyiceberg_to_write_a_table_on_a_disk(tmp_path: Path) -> None:
    """Its import takes most of a second of every worker."""
    place = CatalogPlace(tmp_path.as_uri(), Secret((("token", "x"),)))
    (tmp_path / "plan").write_bytes(pickle.dumps(FilePlan(place, SCHEMA, "s")))
    (tmp_path / "rows").write_bytes(pickle.dumps(ROWS.to_batches()))
    program = (
        "import pickle, sys; plan, rows = (pickle.load(open(one, 'rb')) for one in sys.argv[1:]);"
        "print(len(plan.write(rows)), [one for one in sys.modules if one.startswith('pyiceberg')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "plan"), str(tmp_path / "rows")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "1 []", done.stderr
    assert [one.name for one in place.files("data")] == [
        f"data/{one.name}" for one in (tmp_path / "data").iterdir()
    ]


def test_two_streams_never_share_a_slug() -> None:
    assert slug("plain_1") == "plain_1"
    assert len({slug(one) for one in ("a b", "a-b", "A b", "a_b", "ü", "é", "")}) == 7


# --- state ----------------------------------------------------------------------------------------


def test_what_is_stored_of_a_stream_comes_back() -> None:
    cursor = BlockCursor(5, "0xAb", 7)
    side = {"outbox": (SideFile("side/a.parquet", 1, 2, 3),)}
    stored = StoredStream("one", PipeState(cursor, None, (cursor,)), 4, "config ü", side)
    assert StoredStream.from_properties(stored.to_properties()) == stored
    assert StoredStream.from_properties(StoredStream("x").to_properties()) == StoredStream("x")


def test_a_newer_format_or_an_incomplete_one_is_refused() -> None:
    good = StoredStream("one").to_properties()
    for bad in ({**good, FORMAT: "2"}, {**good, FORMAT: ""}, {**good, STATE: "{"}, {FORMAT: "1"}):
        with pytest.raises(StoredStateError):
            StoredStream.from_properties(bad)


# --- side tables ----------------------------------------------------------------------------------


def test_side_rows_are_few_files_however_often_rows_come(place: Place) -> None:
    columns = pa.schema(
        [("block_number", pa.int64()), ("ordinal", pa.int64()), ("text", pa.string())]
    )
    side = SideFiles(place, 3)
    side.open([SideTable("notes", columns)])
    files: dict[str, tuple[SideFile, ...]] = {}
    for number in range(30):
        rows = pa.table({"block_number": [number], "ordinal": [0], "text": [str(number)]})
        before, files = files, dict(side.add(files, {"notes": rows}))
        assert side.add(files, {"notes": rows}) == files, "a key that is there stays as it is"
        side.discard(before, files)
    assert len(files["notes"]) < 6
    assert side_status(files)["notes"] == (30, 0)
    assert len(list(place.files("side"))) == len(files["notes"])
    back = side.remove_above(files, 20)
    assert side.read(back, "notes", after=(18, 0))["text"].to_pylist() == ["19", "20"]
    settled = side.settle(back, "notes", (18, 0), {})
    assert side.read(settled, "notes", up_to_block=19)["text"].to_pylist() == ["19"]
    for epoch in (2, 3):
        assert SideFiles(place, epoch).sweep(settled) == 0, "they may be another writer's"
    assert SideFiles(place, 4).sweep(settled) > 0
    assert len(list(place.files("side"))) == len(settled["notes"])
    with pytest.raises(InvalidOptionError):
        side.read(files, "other")


# --- storage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [parquet_target, delta_target])
def test_a_storage_that_cannot_be_reached_is_named_without_its_keys(
    make: Callable[..., Target[Delivery]],
) -> None:
    options = {
        "s3.endpoint": "http://127.0.0.1:1",
        "s3.access-key-id": "one",
        "s3.secret-access-key": "planted-secret",
        "s3.region": "us-east-1",
    }
    target = make("s3://bucket/chain", options=options)
    target.bind("one")
    with pytest.raises(LakePathError, match="the storage cannot be reached") as caught:
        target.recover()
    assert "planted-secret" not in f"{caught.value} {caught.value.__cause__}"


@pytest.mark.parametrize("kind", ["iceberg", "delta", "parquet"])
def test_a_full_disk_is_a_coded_error_and_leaves_the_batch_before(
    kind: str, tmp_path: Path
) -> None:
    """The limit of file sizes stands for a disk without room: writing fails as it does there."""
    make: dict[str, Callable[[], Any]] = {
        "iceberg": lambda: iceberg_target(tmp_path, tables=["t"]),
        "delta": lambda: delta_target(tmp_path),
        "parquet": lambda: parquet_target(tmp_path),
    }

    def rows(number: int, size: int) -> pa.Table:
        noise = Random(number).randbytes(size).hex()
        return pa.table({"block_number": pa.array([number], pa.int64()), "value": [noise]})

    def block(target: Any, state: PipeState, number: int, size: int) -> PipeState:
        header = BlockHeader(number, f"h{number}", f"h{number - 1}", number - 1, number)
        head = Head(BlockCursor(number, f"h{number}"))
        after = state.advance([header], head)
        data = Delivery({"t": rows(number, size)})
        target.commit([Batch((header,), head, after, (), data)], after)
        return after

    target = make[kind]()
    target.bind("one")
    state = block(target, target.recover(), 1, 10)
    if target.capabilities.finish is not None:
        target.capabilities.finish()

    def write_large() -> None:
        block(target, state, 2, 4 << 20)
        if target.capabilities.finish is not None:
            target.capabilities.finish()

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(LakeDiskFullError, match=r"E2614.*File too large"):
            write_large()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    target.close()
    target = make[kind]()
    target.bind("one")
    assert target.recover() == state
    assert block(target, state, 2, 10).number == 2
    target.close()
