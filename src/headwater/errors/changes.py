"""E6: Changes: operations on rows that contradict each other, their tables or their types."""

from headwater.errors.base import ChangeError


class ChangeFormError(
    ChangeError,
    code="E6001",
    fix="give a table, a key without nulls, one of insert, update, upsert, delete, and values that "
    "are text, integers, Decimals, booleans, bytes, dates or None; a float is not exact: give a "
    "Decimal or text",
):
    """A change is not well-formed: a part is missing, or has a kind that cannot be exact."""


class UnknownTableError(
    ChangeError,
    code="E6002",
    fix="use one of the declared tables that the message lists, or declare this one",
):
    """A change names a table that was not declared."""


class ChangeKeyError(
    ChangeError,
    code="E6003",
    fix="give exactly the columns of the table's key, and do not change them by a field",
):
    """The key of a change is not the key that its table declares."""


class UnknownColumnError(
    ChangeError,
    code="E6004",
    fix="use one of the declared columns that the message lists, spelt in the same case",
):
    """A change names a column that its table does not declare."""


class DuplicateInsertError(
    ChangeError,
    code="E6005",
    fix="use upsert if the row may be there already, or delete it first",
):
    """A row is inserted while a row with its key is there."""


class ChangeNumberError(
    ChangeError,
    code="E6006",
    fix="give decimal numbers as text, such as '-12.5', with at most 1000 digits; add, sub, min "
    "and max need numbers",
):
    """A value that is added, subtracted or compared is not a number."""


class DatabaseChangesError(
    ChangeError,
    code="E6007",
    fix="give the bytes of one DatabaseChanges message per block, as the module put them out",
):
    """Bytes are not a DatabaseChanges message."""


class UnsetOperationError(
    ChangeError,
    code="E6008",
    fix="set the operation of every change in the module that made the message",
):
    """A change in a DatabaseChanges message has no operation, or one that is unknown."""


class TableDeclarationError(
    ChangeError,
    code="E6009",
    fix="declare TableSchema(name, key=[...], columns={name: type}) with a key among the columns",
):
    """The declaration of a table contradicts itself."""


class PrimaryKeyNeededError(
    ChangeError,
    code="E6010",
    fix="give the table a primary key: without one a fork could not find the rows to restore",
):
    """A table that changes are to be applied to has no primary key."""


class TableMismatchError(
    ChangeError,
    code="E6011",
    fix="change the table or its declaration so that names, key and kinds of columns agree",
):
    """A table in the database is not as it was declared, or cannot be undone."""


class ChangeRefusedError(
    ChangeError,
    code="E6012",
    fix="correct the change, or the constraint of the table that the message names",
):
    """The database refuses a change: a value is too large, null, or breaks a constraint."""


class ChangeBlockError(
    ChangeError,
    code="E6013",
    fix="give each change the number of the block that it comes from, which is one of its batch",
):
    """A change names a block that its batch does not hold."""


class AggregateError(
    ChangeError,
    code="E6014",
    fix="name an output and its columns as the message lists them; sums need integers, decimals or "
    "decimal text, min and max those or times, and keys must not be null",
):
    """An aggregate cannot be computed as it was declared."""


class InsertOnlyError(
    ChangeError,
    code="E6015",
    fix="on ClickHouse, updates, upserts and deletes need a table of ReplacingMergeTree(version, "
    "is_deleted) whose ORDER BY is their key, of integers and strings; ADD, MAX, MIN and "
    "SET_IF_NULL on rows of earlier blocks need PostgreSQL or DuckDB",
):
    """A table of ClickHouse cannot take a change: its engine keeps no versions, or a field is
    computed from what is stored."""
