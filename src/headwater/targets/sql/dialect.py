"""Every difference between the databases that share this folder's code, in one list.

Each database has one `Dialect`. Statements that both read alike are written once, with parameters
as `$1`; where an engine needs, or is faster with, a form of its own, the form is here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pyarrow as pa

from headwater.address import Address
from headwater.core.rooms import Room
from headwater.errors import HeadwaterError
from headwater.targets.sql.layout import Table
from headwater.targets.text import Fragment, Part, QualifiedName, compose, literal

if TYPE_CHECKING:
    from headwater.targets.sql.layout import Column


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

    name_type: ClassVar[type[QualifiedName]]
    text: ClassVar[str]

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
    statement: type[HeadwaterError]


class Dialect(ABC):
    """Says what one database does in its own way. It holds no state."""

    name_type: ClassVar[type[QualifiedName]]
    errors: ClassVar[Errors]
    text: ClassVar[str] = "TEXT"
    json: ClassVar[str]
    block_number: ClassVar[str]  # the type of `current_number` in table `sync`
    differ: ClassVar[str] = "differ"
    undoes_keyless: ClassVar[bool] = False  # tables without a primary key
    claim_note: ClassVar[str]  # the last column of the table of claims
    claim_order: ClassVar[Fragment]  # parents before children, where that matters
    bytewise: ClassVar[str] = ""  # what makes a text compare by its bytes
    letter: ClassVar[Fragment]  # the type of one character
    change_id: ClassVar[Fragment]  # the type of `id` in a change log
    change_index: ClassVar[tuple[str, ...]]  # the columns by which its rows are found
    longest_key: ClassVar[int | None] = None  # bytes of all texts of a key
    numbers_changes: ClassVar[bool] = False  # the target makes those ids, not the database
    all_tables: ClassVar[Fragment]  # the query of `table_schema` and `table_name`
    same_table: ClassVar[Fragment]  # the rows of such a query that are of table `$1`, `$2`
    readable: ClassVar[Fragment] = Fragment("true")  # the rows of tables that this user may read

    def locate(self, place: str | Path | Address) -> Any:
        """Return the place of a database as it is kept, with what of it is secret out of sight."""
        return place

    def name(self, text: str) -> QualifiedName:
        """Read a table's name as users write it."""
        return self.name_type.parse(text)

    def declare(self, given: str | Table) -> Table:
        """Return a declaration whose name and types this database can use; refuse any other."""
        declared = Table.of(given) if isinstance(given, str) else given
        return self._checked(declared)

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

    # --- what each database does in its own way ---------------------------------------------------

    @abstractmethod
    def check_columns(self, table: QualifiedName, names: Iterable[str]) -> None:
        """Refuse names of columns that the database would not keep as they are."""

    @abstractmethod
    def check_change_log_tables(self, session: Any, names: Sequence[QualifiedName]) -> None:
        """Refuse tables whose changes a change log could not capture."""

    @abstractmethod
    def _checked(self, declared: Table) -> Table:
        """Resolve the name of a declaration, and check its types."""

    @staticmethod
    @abstractmethod
    def column_type(field: pa.Field) -> str:
        """Return the type of a column that holds the values of a field."""

    @staticmethod
    @abstractmethod
    def new_column_type(field: pa.Field) -> str:
        """Return the type of a column that is created for a field: wide integers are numbers."""

    @staticmethod
    @abstractmethod
    def read_table(session: Any, name: QualifiedName) -> Any:
        """Return the layout of a table as it is now, not undone by anything; None without one."""

    def declared_type(self, declared: Table, field: pa.Field) -> str:
        """Return the type of a new column: the declared one, or what its values need."""
        types = {self.fold(name): kind for name, kind in declared.types.items()}
        try:
            return types.get(self.fold(field.name)) or self.new_column_type(field)
        except self.errors.table as error:
            error.facts = {"table": declared.name, **error.facts}
            raise

    @abstractmethod
    def can_hold(self, column: Column, field: pa.Field) -> bool:
        """Tell whether a column can hold all values of a field without loss."""

    @abstractmethod
    def room(self, column: Column) -> Room:
        """Return what a column can hold."""

    @abstractmethod
    def is_integer(self, column: Column) -> bool:
        """Tell whether a column can hold the number of a block, and nothing but integers."""

    @abstractmethod
    def make_schema(self, session: Any, name: str) -> None:
        """Create a schema if it is not there."""

    @abstractmethod
    def columns_of(self, session: Any, schema: str, prefix: str) -> list[tuple[str, str, str]]:
        """Return table, column and type of all tables whose name begins with a prefix."""

    @abstractmethod
    def read_images(
        self,
        session: Any,
        layout: Any,
        kept: Fragment,
        log: QualifiedName,
        stream_id: str,
    ) -> Fragment:
        """Return what `image_values` are selected from: rows that a change log has kept as JSON.

        `kept` is the query of the rows of the log: all columns but the table's. What is returned
        has `op`, `block_num` and `id` under the same name.
        """

    @abstractmethod
    def image_values(self, layout: Any) -> Fragment:
        """Return the columns of a row that a change log has kept."""

    @abstractmethod
    def widen_change_log(
        self, session: Any, log: QualifiedName, create: Callable[[], None]
    ) -> None:
        """Give a change log of the Substreams sink 64-bit ids and a column for the stream.

        `create` creates the log anew, where it has been moved out of the way.
        """

    @abstractmethod
    def append(
        self, session: Any, name: QualifiedName, rows: pa.Table, *, only_new: bool = False
    ) -> None:
        """Add rows to a table of these columns; with `only_new` not those whose key is there."""
