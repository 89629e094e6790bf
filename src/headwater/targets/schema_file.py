"""Tables to create ahead of a stream: from a file, or from the schema of something in Python.

A file is SQL, or JSON or TOML that names columns and their Arrow types:

    [tables.transfers]
    key = ["block_number", "log_index"]
    types = { value = "numeric(78,0)" }
    [tables.transfers.columns]
    block_number = "int64"
    log_index = "int64"
    value = "string"

`key` and `types` (of the database) may be left out, as in `table(...)` of a target.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.errors import SchemaFileError
from headwater.targets.frames import to_arrow
from headwater.targets.tables import check_types

_ALIASES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float32", "float64", "string", "binary", "date32"),
)
_DECIMAL = re.compile(r"decimal(?:128|256)?\((\d+), ?(\d+)\)")
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:, tz=([\w/+:-]+))?\]")
_LIST = re.compile(r"list<(.+)>")


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A table to create."""

    name: str
    schema: pa.Schema
    key: tuple[str, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_types(self.types)


@dataclass(frozen=True, slots=True)
class SchemaFile:
    """What a schema file asks for: tables by their columns, or statements."""

    tables: tuple[TableSchema, ...] = ()
    sql: str = ""


def read_schema_file(path: str | Path) -> SchemaFile:
    """Read a file by its ending: `.sql`, `.json` or `.toml`.

    Raises:
        SchemaFileError: it cannot be read, or does not describe tables.
    """
    path = Path(path)
    try:
        text = path.read_text("utf-8")
        match path.suffix.lower():
            case ".sql":
                return SchemaFile(sql=text)
            case ".json":
                document = json.loads(text)
            case ".toml":
                document = tomllib.loads(text)
            case other:
                raise SchemaFileError("a schema file ends in .sql, .json or .toml", got=other)
    except (OSError, ValueError) as error:
        raise SchemaFileError("the file cannot be read", path=path, reason=error) from error
    return read_tables(document)


def read_tables(document: object) -> SchemaFile:
    """Read tables as JSON or TOML give them.

    Raises:
        SchemaFileError: a table lacks columns, or something is not what it should be.
    """
    tables = document.get("tables") if isinstance(document, dict) else None
    if not isinstance(tables, dict) or not tables:
        raise SchemaFileError('the file holds {"tables": {name: {"columns": {name: type}}}}')
    return SchemaFile(tuple(_read_table(name, table) for name, table in tables.items()))


def tables_of(**frames: Any) -> SchemaFile:
    """Return tables with the columns of DataFrames, Arrow tables, outputs or Arrow schemas.

    tables_of(transfers=dataframe, owners=pa.schema([...]))
    """
    return SchemaFile(tuple(TableSchema(name, _schema_of(frame)) for name, frame in frames.items()))


def arrow_type(text: str) -> pa.DataType:
    """Return an Arrow type by its name, such as `int64` or `decimal(38,0)`.

    Raises:
        SchemaFileError: there is no such type.
    """
    if text in _ALIASES:
        return pa.type_for_alias(text)
    if match := _DECIMAL.fullmatch(text):
        digits, scale = int(match[1]), int(match[2])
        if 0 < digits <= 76 and scale <= digits:
            return (pa.decimal128 if digits <= 38 else pa.decimal256)(digits, scale)
    if match := _TIMESTAMP.fullmatch(text):
        return pa.timestamp(match[1], match[2])
    if match := _LIST.fullmatch(text):
        return pa.list_(arrow_type(match[1]))
    raise SchemaFileError(
        "no such type",
        got=text,
        known=f"{', '.join(_ALIASES)}, decimal(38,0), timestamp[us, tz=UTC], list<string>",
    )


def _schema_of(frame: Any) -> pa.Schema:
    if isinstance(frame, pa.Schema):
        return frame
    schema = getattr(frame, "schema", None)
    if isinstance(schema, pa.Schema):
        return schema
    if hasattr(frame, "limit") and hasattr(frame, "toArrow"):  # a DataFrame of Spark's
        return to_arrow(frame.limit(0)).schema
    raise SchemaFileError(
        "a schema comes from a DataFrame, an Arrow table or an output", got=type(frame).__name__
    )


def _read_table(name: str, document: object) -> TableSchema:
    entry: dict[str, Any] = {"key": [], "types": {}}
    entry |= document if isinstance(document, dict) else {}
    match entry:
        case {"columns": dict(columns), "key": list(key), "types": dict(types), **rest} if columns:
            texts = [*columns.values(), *key, *types.values()]
            if not rest and all(isinstance(text, str) for text in texts):
                fields = [(column, arrow_type(kind)) for column, kind in columns.items()]
                return TableSchema(name, pa.schema(fields), tuple(key), types)
    raise SchemaFileError(
        'a table is {"columns": {name: type}, "key": [names], "types": {name: type}}', table=name
    )
