"""What DuckDB's dialect says of a table is what DuckDB's own views of all columns say of it."""

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from headwater.targets.duckdb.dialect import DUCKDB, TableName
from headwater.targets.duckdb.session import Session, open_session

TABLES = """
CREATE SCHEMA "S.x";
CREATE TYPE mood AS ENUM ('good', 'bad');
CREATE TABLE "S.x"."we""ird.Table" (
    "a""q" INTEGER, b JSON, c BIGNUM UNIQUE, d STRUCT(x INTEGER, "Y z" VARCHAR)[],
    e DECIMAL(38,4) DEFAULT 1.5, f TIMESTAMPTZ DEFAULT now(), g mood, h VARCHAR COLLATE nocase,
    i INTEGER[3], j MAP(INTEGER, VARCHAR), k INTEGER DEFAULT NULL, PRIMARY KEY (h, b)
);
CREATE TABLE computed (
    id INTEGER, "PRIMARY KEY" VARCHAR, twice BIGINT GENERATED ALWAYS AS (id * 2), one INTEGER
    DEFAULT 1, UNIQUE (id, one)
);
CREATE TABLE "UNIQUE" ("GENERATED" INTEGER DEFAULT 3);
CREATE TABLE bare (id INTEGER NOT NULL);
CREATE VIEW seen AS SELECT id, twice FROM computed;
ATTACH ':memory:' AS main2;
CREATE TABLE main2.bare (other VARCHAR PRIMARY KEY);
CREATE TABLE main2.elsewhere (id INTEGER);
CREATE TEMP TABLE bare (hidden VARCHAR);
CREATE TEMP TABLE passing (id INTEGER);
"""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Session]:
    session = open_session(tmp_path / 'a"b.duckdb', {}, None, "")
    for statement in TABLES.split(";\n")[:-1]:
        session.run(statement)
    yield session
    session.close()


@pytest.mark.parametrize(
    ("name", "key", "unique"),
    [
        (TableName("s.X", 'WE"ird.table'), ("h", "b"), True),
        (TableName("main", "computed"), (), True),
        (TableName("MAIN", "unique"), (), False),
        (TableName("main", "bare"), (), False),
        (TableName("main", "seen"), (), False),
    ],
)
def test_a_table_is_read_as_the_views_of_all_columns_have_it(
    held: Session, name: TableName, key: tuple[str, ...], unique: bool
) -> None:
    said = held.rows(
        "SELECT column_name, data_type, column_default, is_generated = 'ALWAYS' "
        "FROM information_schema.columns WHERE table_catalog = current_database() "
        "AND lower(table_schema) = $1 AND lower(table_name) = $2 ORDER BY ordinal_position",
        name.folded,
    )
    layout = DUCKDB.read_table(held, name)
    assert layout is not None
    assert (layout.name, layout.key, layout.unique) == (name, key, unique)
    columns = layout.columns.values()
    assert [(one.name, one.type, one.default, one.generated) for one in columns] == said
    assert DUCKDB.exists(held, name) is (name.name != "seen")


@pytest.mark.parametrize("name", ["passing", "elsewhere", "nothing", 'main2"."bare'])
def test_what_is_not_there_is_asked_for_without_an_error(held: Session, name: str) -> None:
    with held.transaction():  # an error would end it
        assert DUCKDB.read_table(held, TableName("main", name)) is None
        assert not DUCKDB.exists(held, TableName("main", name))
        held.run("CREATE TABLE {name} (id INTEGER PRIMARY KEY)", name=TableName("main", name))
        layout = DUCKDB.read_table(held, TableName("main", name))
        assert layout is not None
        assert layout.key == ("id",)


def test_tables_with_a_prefix_are_those_of_the_list_of_all_columns(held: Session) -> None:
    held.run("CREATE TABLE seen_2 (b VARCHAR, a INTEGER)")
    held.run('CREATE TABLE "S.x".seen_3 (c VARCHAR)')
    held.run("CREATE TABLE SEEN_4 (d VARCHAR)")
    said = held.rows(
        "SELECT table_name, column_name, data_type FROM duckdb_columns() "
        "WHERE database_name = current_database() AND schema_name = 'main' "
        "AND starts_with(table_name, 'seen') ORDER BY table_name, column_index"
    )
    assert [name for name, _, _ in said] == ["seen", "seen", "seen_2", "seen_2"]
    assert DUCKDB.columns_of(held, "Main", "seen") == said
    assert DUCKDB.columns_of(held, "main", "nothing") == []


def test_an_error_ends_the_transaction_in_which_a_table_was_asked_for(held: Session) -> None:
    """So a table is looked for before its columns are."""
    held.run("BEGIN TRANSACTION")
    with pytest.raises(duckdb.CatalogException):
        held.rows("FROM pragma_table_info('nothing')")
    with pytest.raises(duckdb.TransactionException):
        held.rows("SELECT 1")
