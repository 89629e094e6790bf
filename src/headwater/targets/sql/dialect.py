"""Every difference between the databases that share this folder's code, in one list.

Each database has one `Dialect`. Statements that both read alike are written once, with parameters
as `$1`; where an engine needs, or is faster with, a form of its own, the form is here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from headwater.core.rooms import Room
from headwater.errors import HeadwaterError
from headwater.targets.sql.layout import Table
from headwater.targets.text import Fragment, Part, QualifiedName, compose, literal

if TYPE_CHECKING:
    from headwater.targets.sql.layout import Column, Layout


COLUMN_TYPES = {
    pa.string(): ("text", "VARCHAR"),
    pa.large_string(): ("text", "VARCHAR"),
    pa.string_view(): ("text", "VARCHAR"),
    pa.binary(): ("bytea", "BLOB"),
    pa.large_binary(): ("bytea", "BLOB"),
    pa.binary_view(): ("bytea", "BLOB"),
    pa.bool_(): ("boolean", "BOOLEAN"),
    pa.int8(): ("smallint", "TINYINT"),
    pa.int16(): ("smallint", "SMALLINT"),
    pa.int32(): ("integer", "INTEGER"),
    pa.int64(): ("bigint", "BIGINT"),
    pa.uint8(): ("smallint", "UTINYINT"),
    pa.uint16(): ("integer", "USMALLINT"),
    pa.uint32(): ("bigint", "UINTEGER"),
    pa.uint64(): ("numeric(20,0)", "UBIGINT"),
    pa.float32(): ("real", "FLOAT"),
    pa.float64(): ("double precision", "DOUBLE"),
    pa.date32(): ("date", "DATE"),
    pa.null(): ("text", "VARCHAR"),
}
"""The types of columns for values of plain Arrow types, in PostgreSQL and in DuckDB."""
_ALL = Fragment("true")


class Session(Protocol):
    """A connection, as far as statements for both databases need it. Runs on the driver.

    `parts` fill the gaps of a statement, as `compose` does; without any it is taken as it is.
    """

    on_statement: Callable[[str], None] | None

    def run(
        self, sql: str, params: Sequence[object] = (), *, prepare: bool = False, **parts: Part
    ) -> object:
        """Run a statement for its effect; with `prepare` the server keeps its plan."""
        ...

    def rows(
        self, sql: str, params: Sequence[object] = (), *, prepare: bool = False, **parts: Part
    ) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        ...

    def arrow(self, sql: str, params: Sequence[object] = (), **parts: Part) -> pa.Table:
        """Run a query and return a table."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """Commit everything inside, or nothing."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class Lookup(Protocol):
    """Asks a database which tables there are; ClickHouse has one too."""

    @property
    def name_type(self) -> type[QualifiedName]:
        """How a table is named."""
        ...

    @property
    def text(self) -> str:
        """The type of texts."""
        ...

    def exists(self, session: Any, name: QualifiedName) -> bool:
        """Tell whether there is a table of this name."""
        ...

    def columns_of(self, session: Any, schema: str, prefix: str) -> list[tuple[str, str, str]]:
        """Return table, column and type of all tables whose name begins with a prefix."""
        ...


@dataclass(frozen=True, slots=True)
class Errors:
    """The error that each database raises for the same mistake: codes have bands."""

    undeclared: type[HeadwaterError]
    table: type[HeadwaterError]
    key: type[HeadwaterError]
    append_only: type[HeadwaterError]
    in_use: type[HeadwaterError]
    name: type[HeadwaterError]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What one database does in its own way. A statement that both read alike is not here."""

    # names and types
    name_type: type[QualifiedName]
    errors: Errors
    differ: str = "differ"  # as names of columns do
    longest_name: int | None = None  # bytes of a column's name, after which the database cuts it
    text: str = "TEXT"
    json: str
    letter: Fragment  # the type of one character
    block_number: str  # the type of `current_number` in table `sync`
    integers: re.Pattern[str]  # the types, without precision, that hold numbers of blocks
    longest_key: int | None = None  # bytes of all texts of a key
    checked: Callable[[Table], Table]  # a declaration whose name and types can be used
    column_type: Callable[[pa.Field], str]  # of a column that holds the values of a field
    new_column_type: Callable[[pa.Field], str]  # of one that is created: wide integers are numbers
    can_hold: Callable[[Column, pa.Field], bool]  # all values of a field, without loss
    room: Callable[[Column], Room]  # what a column can hold
    # tables that there are
    locate: Callable[[Any], Any] = lambda place: place  # keeps what of it is secret out of sight
    all_tables: Fragment  # the query of `table_schema` and `table_name`
    same_table: Fragment  # the rows of such a query that are of table `$1`, `$2`
    readable: Fragment = _ALL  # the rows of tables that this user may read
    read_table: Callable[[Any, QualifiedName], Any]  # its layout, not undone yet; None without one
    columns_of: Callable[[Any, str, str], list[tuple[str, str, str]]]
    make_schema: Callable[[Any, str], None]  # if it is not there
    # the table of claims
    claim_note: str  # its last column
    claim_order: Fragment  # parents before children, where that matters
    # undoing
    undoes_keyless: bool = False  # tables without a primary key
    bytewise: str = ""  # what makes a text compare by its bytes
    change_id: Fragment  # the type of `id` in a change log
    change_index: tuple[str, ...]  # the columns by which its rows are found
    numbers_changes: bool = False  # the target makes those ids, not the database
    widen_change_log: Callable[[Any, QualifiedName, Callable[[], None]], None]
    """Gives a change log of the Substreams sink 64-bit ids and a column for the stream; `create`
    creates the log anew, where it has been moved out of the way."""
    check_change_log_tables: Callable[[Any, Sequence[QualifiedName]], None] = lambda *_: None
    """Refuses tables whose changes a change log could not capture."""
    read_images: Callable[[Any, Layout, Fragment, QualifiedName, str], Fragment]
    """Returns what `image_values` are selected from: rows that a change log has kept as JSON.

    `kept` is the query of the rows of the log: all columns but the table's. What is returned has
    `op`, `block_num` and `id` under the same name."""
    image_values: Callable[[Layout], Fragment]  # the columns of a row that a change log has kept
    append: Callable[..., None]
    """Adds rows to a table of these columns; with `only_new` not those whose key is there."""

    def name(self, text: str) -> QualifiedName:
        """Read a table's name as users write it."""
        return self.name_type.parse(text)

    def declare(self, given: str | Table) -> Table:
        """Return a declaration whose name and types this database can use; refuse any other."""
        return self.checked(Table.of(given) if isinstance(given, str) else given)

    def tables(self, session: Any) -> set[QualifiedName]:
        """Return all tables of the user's and ours."""
        return {self.name_type(*row) for row in session.rows(self.all_tables)}

    def tables_ending(self, session: Any, suffix: str) -> list[QualifiedName]:
        """Return the tables whose name ends so, as far as this user may read them."""
        rows = session.rows(
            "SELECT table_schema, table_name FROM ({all}) AS held "
            "WHERE right(table_name, {length}) = {suffix} AND {readable}",
            all=self.all_tables,
            length=Fragment(str(len(suffix))),
            suffix=literal(suffix),
            readable=self.readable,
        )
        return [self.name_type(*row) for row in rows]

    def exists(self, session: Any, name: QualifiedName) -> bool:
        """Tell whether there is a table of this name."""
        query = "SELECT 1 FROM ({all}) AS held WHERE {same}"
        sql = compose(query, all=self.all_tables, same=self.same_table)
        return bool(session.rows(sql, name.folded))

    def fold(self, column: str) -> str:
        """Return what two spellings of one column have in common."""
        return column.lower() if self.name_type.ignores_case else column

    def check_columns(self, table: QualifiedName, names: Iterable[str]) -> None:
        """Refuse names that the database would cut: two of them could become one."""
        most = self.longest_name
        if most is None:
            return
        wrong = [name for name in names if len(name.encode()) > most or "\0" in name]
        if wrong:
            raise self.errors.name(
                f"names of columns are cut after {most} bytes", table=table, columns=wrong
            )

    def declared_type(self, declared: Table, field: pa.Field) -> str:
        """Return the type of a new column: the declared one, or what its values need."""
        types = {self.fold(name): kind for name, kind in declared.types.items()}
        try:
            return types.get(self.fold(field.name)) or self.new_column_type(field)
        except self.errors.table as error:
            error.facts = {"table": declared.name, **error.facts}
            raise
