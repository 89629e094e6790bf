"""The rows of one insert: cut after the same rows, checked across all of them, sent as they are."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.rooms import Policy
from headwater.errors import ClickHouseRowsError, ClickHouseTableError
from headwater.targets.clickhouse import ClickHouseClient
from headwater.targets.clickhouse.transfer import Piece, Transfer, pieces_of
from headwater.targets.values import Fitting, Tally
from tests.targets.clickhouse_places import database

TYPES = {"block_number": "Int64", "n": "Int64", "sender": "Nullable(FixedString(2))"}
FITTING = Fitting({}, Policy.REPLACE, ClickHouseTableError)
TRANSFER = Transfer("t", TYPES, {}, ("block_number", "n"), "block_number", (1, 9), True, FITTING)


def rows(*numbers: int, sender: str | None = "0xabcd") -> pa.Table:
    return pa.table(
        {
            "block_number": pa.array([1] * len(numbers), pa.int64()),
            "n": pa.array(numbers, pa.int64()),
            "sender": pa.array([sender] * len(numbers), pa.string()),
        }
    )


def sealed(*steps: pa.Table) -> list[int]:
    piece = Piece(TRANSFER, None, Tally())
    for one in steps:
        piece.add(one)
    found: list[int] = pa.ipc.open_stream(piece.seal()).read_all()["n"].to_pylist()
    return found


@given(st.lists(st.lists(st.integers(0, 12), max_size=4), max_size=5))
def test_rows_that_would_become_one_are_found_wherever_they_stand(steps: list[list[int]]) -> None:
    """Within a step, across steps, in order or not."""
    numbers = [one for step in steps for one in step]
    if len(set(numbers)) == len(numbers):
        assert not numbers or sealed(*(rows(*step) for step in steps)) == numbers
    else:
        with pytest.raises(ClickHouseRowsError, match="would become one"):
            sealed(*(rows(*step) for step in steps))


@given(st.lists(st.integers(0, 30), max_size=6), st.integers(1, 20))
def test_pieces_end_after_the_same_rows_however_they_come(sizes: list[int], limit: int) -> None:
    total = sum(sizes)
    whole = rows(*range(total))
    ends = [sum(sizes[:at]) for at in range(len(sizes) + 1)]
    batches = [one for a, b in pairwise(ends) for one in whole.slice(a, b - a).to_batches()]
    found = [
        pa.ipc.open_stream(body).read_all()["n"].to_pylist()
        for body, _ in pieces_of(batches, TRANSFER, limit, "zstd", Tally())
    ]
    assert found == [list(range(total))[at : at + limit] for at in range(0, total, limit)]


def test_the_memory_of_rows_that_were_added_is_let_go() -> None:
    """Also that of their keys, which are parts of a larger buffer as they come from Spark."""
    types = {"block_number": "Int64", "n": "Int64", "note": "String"}
    piece = Piece(replace(TRANSFER, types=types), "zstd", Tally())
    before, size = pa.total_allocated_bytes(), 0
    for at in range(4):
        notes = pa.array([200 * "x"] * 20_000)
        table = rows(*range(at * 20_000, (at + 1) * 20_000)).set_column(2, "note", notes)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        piece.add(pa.ipc.open_stream(sink.getvalue()).read_all())
        size += table.nbytes
        del notes, table, sink, writer
    assert pa.total_allocated_bytes() - before < size // 4
    assert pa.ipc.open_stream(piece.seal()).read_all().num_rows == 80_000


@pytest.mark.parametrize("compression", ["zstd", None])
def test_the_server_reads_what_a_piece_is_sent_as(compression: str | None) -> None:
    """Also if a column of bytes has none in the first rows, and comes as text and as bytes."""
    client = ClickHouseClient(database())
    client.run(
        "CREATE TABLE t (block_number Int64, n Int64, sender Nullable(FixedString(2))) "
        "ENGINE = MergeTree ORDER BY n"
    )
    piece = Piece(TRANSFER, compression, Tally())
    for at, sender in enumerate([None, "0xabcd", "xy"]):
        piece.add(rows(at, sender=sender))
    client.insert_body(TRANSFER.target("1"), piece.seal(), None)
    found = client.rows("SELECT hex(sender) AS s FROM t ORDER BY n")
    assert [one["s"] for one in found] == [None, "ABCD", "7879"]
    client.close()


@pytest.mark.parametrize(
    ("address", "compression"),
    [
        ("http://localhost:8123", None),
        ("http://127.0.0.1", None),
        ("http://[::1]:8123/a", None),
        ("http://db.example:8123", "zstd"),
        ("https://u:p@10.1.2.3/a", "zstd"),
    ],
)
def test_rows_are_compressed_for_servers_elsewhere(address: str, compression: str | None) -> None:
    assert ClickHouseClient(address).compression == compression
