"""DuckDB's dialect: its names, types and errors, and how it is asked which tables there are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import ClassVar

import pyarrow as pa

from headwater.core.rooms import DUCKDB_KEY_BYTES, duckdb_room
from headwater.decode.columns.integers import wide_integer
from headwater.errors import (
    AppendOnlyError,
    InvalidOptionError,
    StreamInUseError,
    TableKeyError,
    TableSchemaError,
    UndeclaredTableError,
)
from headwater.targets.duckdb.session import Session
from headwater.targets.sql.dialect import COLUMN_TYPES, Dialect, Errors
from headwater.targets.sql.layout import Column, Layout, Table, Undo
from headwater.targets.text import Fragment, QualifiedName, compose, literal, quote

DEFAULT_SCHEMA = "main"
Place = tuple[str, str, str]  # database, schema and table, spelled as DuckDB does
INTEGER_TYPES = re.compile(
    r"BIGNUM|U?HUGEINT|U?(?:BIGINT|INTEGER|SMALLINT|TINYINT)|DECIMAL\(\d+,0\)"
)
_PLAIN = {kind: names[1] for kind, names in COLUMN_TYPES.items()}
_NO_VIEW = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
_BITS = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64, "HUGEINT": 128}
_BITS |= {f"U{name}": bits for name, bits in _BITS.items()}
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")


class TableName(QualifiedName):
    """A table in a schema. DuckDB compares names without regard to case."""

    __slots__ = ()
    default_schema: ClassVar[str] = DEFAULT_SCHEMA
    ignores_case: ClassVar[bool] = True


ERRORS = Errors(
    undeclared=UndeclaredTableError,
    table=TableSchemaError,
    key=TableKeyError,
    append_only=AppendOnlyError,
    in_use=StreamInUseError,
    name=TableSchemaError,
)


def _checked(declared: Table) -> Table:
    types = {column: kind.upper().replace(" ", "") for column, kind in declared.types.items()}
    for column, kind in types.items():
        if kind != "VARCHAR" and not INTEGER_TYPES.fullmatch(kind):
            raise InvalidOptionError(
                "types= takes VARCHAR and integer types: BIGNUM, HUGEINT, DECIMAL(38,0), …",
                column=column,
                got=kind,
            )
    if declared.indexes:
        raise InvalidOptionError("indexes= is for PostgreSQL", table=declared.name)
    return replace(declared, name=TableName.of(declared.name), types=types)


def read_layout(session: Session, name: QualifiedName) -> Layout | None:
    """Read a table or a view from DuckDB's own tables."""
    same = ("lower({name}) = $2", *name.folded)
    places = _places(session, "table", *same) or _places(session, "view", *same)
    if not places:
        return None
    ((place, text),) = places
    generated = _generated(session, place) if "GENERATED" in text else set()
    bound = _bound(session, place) if "PRIMARY KEY" in text or "UNIQUE" in text else []
    keys = [tuple(names) for kind, names in bound if kind == "PRIMARY KEY"]
    columns = {
        column: Column(
            column,
            kind,
            kind,
            scale=_decimal(kind)[1],
            generated=column in generated,
            default=default,
        )
        for column, kind, default in _columns(session, place)
    }
    key = keys[0] if keys else ()
    return Layout(name, key, Undo.NONE, "", columns, unique=len(bound) > len(keys))


def _make_schema(session: Session, name: str) -> None:
    """Create a schema if it is not there."""
    session.run("CREATE SCHEMA IF NOT EXISTS {name}", name=name)


def _columns_of(session: Session, schema: str, prefix: str) -> list[tuple[str, str, str]]:
    """Return table, column and type of all tables whose name begins with a prefix."""
    wanted = ("starts_with({name}, $2)", schema.lower(), prefix)
    places = sorted([*_places(session, "table", *wanted), *_places(session, "view", *wanted)])
    return [
        (place[-1], column, kind)
        for place, _ in places
        for column, kind, _ in _columns(session, place)
    ]


def _read_images(
    session: Session,
    layout: Layout,
    kept: Fragment,
    log: QualifiedName,
    stream_id: str,
) -> Fragment:
    """Read JSON into a struct of texts, beside the row that is there now."""
    key = " AND ".join(
        f"now.{quote(name)} = {from_text(f'kept.key.{quote(name)}', layout.columns[name].type)}"
        for name in layout.key
    )
    return compose(
        "(SELECT op, block_num, id, from_json(pk, {texts}) AS key, "
        "from_json(coalesce(prev_value, pk), {texts}) AS old, "
        "json_keys(coalesce(prev_value, pk)) AS names FROM ({kept})) AS kept "
        "LEFT JOIN {table} AS now ON {key}",
        texts=literal(json.dumps(dict.fromkeys(layout.stored, "VARCHAR"))),
        kept=kept,
        table=layout.name,
        key=Fragment(key),
    )


def _image_values(layout: Layout) -> Fragment:
    """Return the columns of a kept row; those that came since keep what they hold."""
    return Fragment(
        ", ".join(
            f"CASE WHEN list_contains(kept.names, {literal(name)}) "
            f"THEN {from_text(f'kept.old.{quote(name)}', layout.columns[name].type)} "
            f"ELSE now.{quote(name)} END AS {quote(name)}"
            for name in layout.stored
        )
    )


def _widen_change_log(session: Session, log: QualifiedName, create: Callable[[], None]) -> None:
    """Create the log anew, and copy its rows: DuckDB changes no column of a primary key."""
    layout, old = read_layout(session, log), log.suffixed("_before")
    known = layout is not None and "stream_id" in layout.columns
    names = "id, op, table_name, pk, prev_value, block_num"
    session.run("ALTER TABLE {log} RENAME TO {old}", log=log, old=old.name)
    create()
    session.run(
        "INSERT INTO {log} ({names}, stream_id) SELECT {names}, {stream} FROM {old}",
        log=log,
        old=old,
        names=Fragment(names),
        stream=Fragment("coalesce(stream_id, '')" if known else "''"),
    )
    session.run("DROP TABLE {old}", old=old)


def _append(
    session: Session, name: QualifiedName, rows: pa.Table, *, only_new: bool = False
) -> None:
    """Add rows, straight from Arrow."""
    with session.frame(rows) as view:
        session.run(
            "INSERT INTO {table} ({names}) SELECT {names} FROM {view} {conflict}",
            table=name,
            names=rows.schema.names,
            view=view,
            conflict=Fragment("ON CONFLICT DO NOTHING" if only_new else ""),
        )


# DuckDB's lists of columns describe each view of its own before they answer, so the columns of one
# table are asked for by its name. It has to be there: an error ends the transaction.


def _places(
    session: Session, kind: str, condition: str, schema: str, name: str
) -> list[tuple[Place, str]]:
    """Return the tables, or the views, of a schema that meet a condition, and their definitions."""
    rows = session.rows(
        "SELECT database_name, schema_name, {name}, sql FROM {all}() "
        "WHERE database_name = current_database() AND lower(schema_name) = $1 AND {condition}",
        [schema, name],
        name=Fragment(f"{kind}_name"),
        all=Fragment(f"duckdb_{kind}s"),
        condition=Fragment(condition.format(name=f"{kind}_name")),
    )
    return [((row[0], row[1], row[2]), row[3]) for row in rows]


def _columns(session: Session, place: Place) -> list[tuple[str, str, str | None]]:
    """Return name, type and default of the columns of a table that is there."""
    sql = "SELECT cid, name, type, dflt_value FROM pragma_table_info($1)"
    rows = session.rows(sql, [".".join(map(quote, place))])
    return [(name, kind, default) for _, name, kind, default in sorted(rows)]


def _generated(session: Session, place: Place) -> set[str]:
    """Return the columns that a table computes itself."""
    rows = session.rows(
        "SELECT column_name FROM information_schema.columns WHERE table_catalog = $1 "
        "AND table_schema = $2 AND table_name = $3 AND is_generated = 'ALWAYS'",
        place,
    )
    return {name for (name,) in rows}


def _bound(session: Session, place: Place) -> list[tuple[str, list[str]]]:
    """Return the columns of a table's primary key, and of what else is unique."""
    return session.rows(
        "SELECT constraint_type, constraint_column_names FROM duckdb_constraints() "
        "WHERE database_name = $1 AND schema_name = $2 AND table_name = $3 "
        "AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')",
        place,
    )


# --- rows as DuckDB can take them: any Arrow type to a column type, exactly -----------------------
# Arrow scans are zero-copy. What DuckDB cannot scan (256-bit decimals) becomes decimal text. Text
# becomes an integer only after `targets/values.py`: DuckDB itself would round "1.5".


def scannable(rows: pa.Table) -> pa.Table:
    """Return rows as DuckDB can scan them: pyarrow below 25 crashes where views are handed over."""
    for index, field in enumerate(rows.schema):
        kind, plain = field.type, _NO_VIEW.get(field.type)
        if pa.types.is_decimal256(kind) and kind.scale == 0:
            plain = pa.string()
        elif pa.types.is_list(kind) and pa.types.is_dictionary(kind.value_type):
            plain = pa.list_(kind.value_type.value_type)
        if plain is not None:
            rows = rows.set_column(index, field.with_type(plain), rows.column(index).cast(plain))
    return rows


def column_type(field: pa.Field) -> str:
    """Return the DuckDB type of a frame's column."""
    kind = field.type
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return "TIMESTAMP WITH TIME ZONE" if kind.tz else "TIMESTAMP"
    if pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= 38:
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_dictionary(kind):
        return column_type(pa.field(field.name, kind.value_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"{column_type(kind.value_field)}[]"
    if pa.types.is_struct(kind) and kind.num_fields:
        inner = ", ".join(f"{quote(child.name)} {column_type(child)}" for child in kind)
        return f"STRUCT({inner})"
    if pa.types.is_fixed_size_binary(kind):
        return "BLOB"
    raise TableSchemaError("no column type for this Arrow type", column=field.name, type=kind)


def new_column_type(field: pa.Field) -> str:
    """Return the type of a column that is created for a frame's column: wide integers are numbers.

    `BIGNUM` is the only exact one for 256 bits. It is taken for 128 bits as well: the sum of
    `UHUGEINT` is a `DOUBLE`, and that of `HUGEINT` can overflow.
    """
    return "BIGNUM" if wide_integer(field) else column_type(field)


def fits(source: str, target: str, kind: pa.DataType) -> bool:
    """Tell whether all or some values of a frame's type can be stored in a column exactly.

    Integers go into any column of integers: `targets/values.py` sees to those that have no place.
    """
    if kind == pa.null() or _plain(source) == _plain(target):
        return True
    if target == "BIGNUM":
        return source in _BITS or source == "VARCHAR" or source.endswith(",0)")
    if source == "VARCHAR":
        return target in ("JSON", "UUID") or bool(INTEGER_TYPES.fullmatch(target))
    if source in _BITS and target in _BITS:
        return True
    (digits, scale), (room, places) = _decimal(source), _decimal(target)
    if scale is not None and places is not None:
        return places >= scale and room - places >= digits - scale
    return (source, target) == ("FLOAT", "DOUBLE")


def as_stored(name: str, source: pa.DataType, kind: str) -> str:
    """Return SQL for a column of a frame in the type of the table's column."""
    if kind == "BIGNUM" and pa.types.is_decimal(source):
        name = f"{name}::VARCHAR"  # which DuckDB does not cast
    return f"CAST({name} AS {kind})"


def as_json(pairs: Iterable[tuple[str, str, str]], *, texts: bool = False) -> Fragment:
    """Return SQL for a JSON object of (name, value, type of the value), exact when it is read back.

    Integers of any length, booleans and text are what they are; of anything else JSON holds the
    text, because a reader would round it or write it otherwise. `texts`: of those, too, as the
    Substreams sink has keys.
    """
    parts = []
    for name, value, kind in pairs:
        if is_nested(kind):
            value = f"to_json({value})::VARCHAR"
        elif texts or not (kind in ("VARCHAR", "BOOLEAN") or INTEGER_TYPES.fullmatch(kind)):
            value = f"{value}::VARCHAR"
        parts.append("'" + name.replace("'", "''") + f"': {value}")
    return Fragment(f"to_json({{{', '.join(parts)}}})::VARCHAR")


def from_text(value: str, kind: str) -> str:
    """Return SQL that reads back what `as_json` wrote."""
    return f"CAST({value}::JSON AS {kind})" if is_nested(kind) else f"CAST({value} AS {kind})"


def is_nested(kind: str) -> bool:
    """Tell whether a type is of lists, structs or maps."""
    return kind.endswith("]") or kind.startswith(("STRUCT", "MAP"))


def _plain(kind: str) -> str:
    """Return a type without the differences that are only spelling."""
    return kind.replace(" ", "").replace('"', "").upper()


def _decimal(kind: str) -> tuple[int, int | None]:
    """Return the digits of a decimal, and how many are of a fraction; None: it is another type."""
    match = _DECIMAL.fullmatch(kind)
    return (int(match[1]), int(match[2])) if match else (0, None)


DUCKDB = Dialect(
    name_type=TableName,
    errors=ERRORS,
    differ="differ, also without regard to case,",
    text="VARCHAR",
    json="JSON",
    letter=Fragment("VARCHAR"),
    block_number="BIGINT",
    integers=re.compile(r"\w*INT(EGER)?"),
    longest_key=DUCKDB_KEY_BYTES,
    checked=_checked,
    column_type=column_type,
    new_column_type=new_column_type,
    can_hold=lambda column, field: fits(column_type(field), column.type, field.type),
    room=lambda column: duckdb_room(column.type),
    all_tables=Fragment(
        "SELECT schema_name AS table_schema, table_name FROM duckdb_tables() "
        "WHERE database_name = current_database()"
    ),
    same_table=Fragment("lower(table_schema) = $1 AND lower(table_name) = $2"),
    read_table=read_layout,
    columns_of=_columns_of,
    make_schema=_make_schema,
    claim_note="position INTEGER",
    claim_order=Fragment("position, table_schema, table_name"),
    undoes_keyless=True,
    change_id=Fragment("BIGINT"),
    change_index=("block_num",),
    numbers_changes=True,
    widen_change_log=_widen_change_log,
    read_images=_read_images,
    image_values=_image_values,
    append=_append,
)
