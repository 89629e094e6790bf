"""What the history target refuses, before anything is written, with the names that are valid."""

import subprocess
import sys

import pyarrow as pa
import pytest

from headwater.changes import Changes, TableSchema
from headwater.changes.declaration import ColumnType
from headwater.errors import (
    ChangeBlockError,
    ChangeFormError,
    ChangeKeyError,
    ChangeNumberError,
    ChangeRefusedError,
    DuplicateInsertError,
    InvalidOptionError,
    PrimaryKeyNeededError,
    TableDeclarationError,
    TableMismatchError,
    UnknownColumnError,
    UnknownTableError,
)
from headwater.targets import DuckDBSettings, PostgresSettings, history_target
from tests.targets.change_log.places import Place, Stream

TRANSFER = "CREATE TABLE transfer (id varchar PRIMARY KEY, value bigint NOT NULL DEFAULT 0)"


@pytest.fixture
def stream(place: Place) -> Stream:
    place.sql(TRANSFER)
    stream = place.stream("transfer")
    stream.block(1, Changes(block=1).insert("transfer", "tx1", value=1), final=0)
    return stream


def unchanged(stream: Stream) -> bool:
    held = stream.rows("SELECT * FROM transfer") == [{"id": "tx1", "value": 1}]
    same = stream.target.recover() == stream.state
    stream.target.close()
    return held and same


def test_a_table_without_a_primary_key_is_refused_at_the_start(place: Place) -> None:
    place.sql("CREATE TABLE transfer (id varchar, value bigint)")
    with pytest.raises(PrimaryKeyNeededError, match=r"E6010.*id, value"):
        place.stream("transfer")


def test_a_table_that_does_not_exist_is_refused_with_those_that_do(place: Place) -> None:
    place.sql(TRANSFER)
    with pytest.raises(UnknownTableError, match=r"E6002.*transfers.*known=.*\btransfer\b"):
        place.stream("transfers")


def test_changes_of_unknown_tables_columns_and_keys_are_refused(stream: Stream) -> None:
    block = Changes(block=2)
    with pytest.raises(UnknownTableError, match=r"E6002.*known=transfer"):
        stream.block(2, block.insert("transfers", "a"))
    with pytest.raises(UnknownColumnError, match=r"E6004.*known=id, value"):
        stream.block(2, Changes(block=2).update("transfer", "a", Value=1))
    with pytest.raises(ChangeKeyError, match=r"E6003.*key=id"):
        stream.block(2, Changes(block=2).update("transfer", {"hash": "a"}, value=1))
    assert unchanged(stream)


def test_a_second_insert_of_a_key_is_refused(stream: Stream) -> None:
    """Also one that is deleted again in the same block."""
    with pytest.raises(DuplicateInsertError, match=r"E6005.*tx1"):
        stream.block(2, Changes(block=2).insert("transfer", "tx1", value=2))
    twice = Changes(block=2).insert("transfer", "tx1", value=2).delete("transfer", "tx1")
    with pytest.raises(DuplicateInsertError, match=r"E6005.*tx1"):
        stream.block(2, twice)
    assert unchanged(stream)


def test_values_that_the_table_cannot_hold_are_refused(stream: Stream) -> None:
    """Too large, null where none may be; and no fraction is rounded."""
    for value in (2**63, None):
        with pytest.raises(ChangeRefusedError, match="E6012"):
            stream.block(2, Changes(block=2).insert("transfer", "tx2", value=value))
    with pytest.raises(ChangeNumberError, match="E6006"):
        stream.block(2, Changes(block=2).insert("transfer", "tx2", value="1.5"))
    assert unchanged(stream)


def test_fractions_that_a_column_would_round_are_refused(place: Place) -> None:
    place.sql("CREATE TABLE price (id varchar PRIMARY KEY, value decimal(20,2))")
    stream = place.stream("price")
    stream.block(1, Changes(block=1).insert("price", "a", value="1.25"), final=0)
    with pytest.raises(ChangeNumberError, match=r"E6006.*more places"):
        stream.block(2, Changes(block=2).upsert("price", "a", value="1.255"))
    assert [row["value"] for row in stream.rows("SELECT value FROM price")] == ["1.25"]
    stream.target.close()


def test_changes_of_blocks_that_are_not_the_batchs_are_refused(stream: Stream) -> None:
    for number in (1, 3):
        with pytest.raises(ChangeBlockError, match=rf"E6013.*changes={number}\.\.{number}"):
            stream.block(2, Changes(block=number).update("transfer", "tx1", value=9))
    assert unchanged(stream)


def test_a_frame_that_holds_no_changes_is_refused(stream: Stream) -> None:
    batch = stream.batch(2, pa.table({"value": [1]}), stream.state, final=0, branch="a")
    with pytest.raises(ChangeFormError, match=r"E6001.*frame=changes"):
        stream.target.prepare_batch(batch)
    assert unchanged(stream)


def test_a_declaration_that_is_not_the_table_is_refused(place: Place) -> None:
    place.sql(TRANSFER)
    columns: dict[str, ColumnType] = {"id": "text", "value": "integer"}
    with pytest.raises(TableMismatchError, match=r"E6011.*primary key"):
        place.stream(TableSchema("transfer", key=["value"], columns=columns))
    with pytest.raises(TableMismatchError, match=r"E6011.*column=note.*found=id, value"):
        place.stream(TableSchema("transfer", key=["id"], columns={**columns, "note": "text"}))
    with pytest.raises(TableMismatchError, match=r"E6011.*another kind"):
        place.stream(TableSchema("transfer", key=["id"], columns={**columns, "value": "text"}))
    place.stream(TableSchema("transfer", key=["id"], columns=columns)).target.close()


def test_a_history_table_of_somebody_else_is_refused(place: Place) -> None:
    place.sql(TRANSFER + "; CREATE TABLE substreams_history (id integer PRIMARY KEY, op varchar)")
    with pytest.raises(TableMismatchError, match=r"E6011.*history"):
        place.stream("transfer")


def test_foreign_keys_that_change_rows_by_themselves_are_refused(place: Place) -> None:
    """Nothing would keep what they change. DuckDB has none."""
    if place.kind == "duckdb":
        with pytest.raises(Exception, match="CASCADE"):
            place.sql(
                f"{TRANSFER}; CREATE TABLE c (id varchar REFERENCES transfer ON DELETE CASCADE)"
            )
        return
    place.sql(
        f"{TRANSFER}; CREATE TABLE child (id varchar PRIMARY KEY, "
        "transfer varchar REFERENCES transfer ON DELETE CASCADE)"
    )
    with pytest.raises(TableMismatchError, match=r"E6011.*CASCADE"):
        place.stream("transfer", "child")


def test_two_spellings_of_one_key_are_one_key_or_refused(place: Place) -> None:
    """Integers and bytes have one spelling; where only the database knows, two are refused."""
    place.sql("CREATE TABLE n (id bigint PRIMARY KEY, v bigint)")
    place.sql("CREATE TABLE u (id uuid PRIMARY KEY, v bigint)")
    stream = place.stream("n", "u")
    stream.block(1, Changes(block=1).insert("n", "5", v=1).update("n", "05", v=2), final=0)
    assert stream.rows("SELECT * FROM n") == [{"id": 5, "v": 2}]
    one = "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"
    twice = Changes(block=2).insert("u", one, v=1).update("u", one.lower(), v=2)
    with pytest.raises(ChangeKeyError, match=r"E6003.*two keys"):
        stream.block(2, twice)
    stream.target.close()


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TableDeclarationError, match="E6009"):
        history_target("a.duckdb", tables=[])
    with pytest.raises(TableDeclarationError, match="E6009"):
        history_target("a.duckdb", tables=["a", "a"])
    with pytest.raises(InvalidOptionError, match="names of their own"):
        history_target("a.duckdb", tables=["cursors"])
    with pytest.raises(InvalidOptionError, match="DuckDBSettings"):
        history_target("a.duckdb", tables=["a"], settings=PostgresSettings())
    for address in ("postgresql://nowhere/x", "host=nowhere dbname=x"):
        with pytest.raises(InvalidOptionError, match="PostgresSettings"):
            history_target(address, tables=["a"], settings=DuckDBSettings())


FIRST_IMPORTS = """
import os, sys
import duckdb, psycopg, pyarrow.compute  # what takes long, and imports nothing of ours
for name in sys.argv[1:]:
    if not os.fork():
        __import__(name)
        import headwater.targets.sql.history
        os._exit(0)
    _, status = os.wait()
    assert status == 0, name
"""


def test_every_module_can_be_the_first_that_is_imported() -> None:
    """Each target's package imports what is built on it. A fork for each: none has seen another."""
    names = [
        f"headwater.targets.{extra}.{module}"
        for extra in ("postgres", "duckdb")
        for module in ("merge", "undo", "dialect", "target")
    ]
    ran = subprocess.run(
        [sys.executable, "-c", FIRST_IMPORTS, *names], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
