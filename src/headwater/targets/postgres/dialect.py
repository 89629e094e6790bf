"""PostgreSQL's dialect: its names, types, errors and addresses, and how it is asked for tables."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import ClassVar

import psycopg
import pyarrow as pa
from psycopg.conninfo import conninfo_to_dict

from headwater.address import Address, Secret
from headwater.core.rooms import POSTGRES_KEY_BYTES, postgres_room
from headwater.errors import (
    InvalidOptionError,
    PostgresAppendOnlyError,
    PostgresKeyError,
    PostgresLockError,
    PostgresNameError,
    PostgresTableError,
    TableMismatchError,
    UntrackedTableError,
)
from headwater.targets.postgres.encode import encoder
from headwater.targets.postgres.session import Session
from headwater.targets.postgres.transfer import copy_in, plan_transfer
from headwater.targets.postgres.types import SCALARS, castable, column_type, new_column_type
from headwater.targets.sql.dialect import Dialect, Errors
from headwater.targets.sql.layout import Column, Layout, Table, Undo
from headwater.targets.text import Fragment, Part, QualifiedName, columns, compose, equal

DEFAULT_SCHEMA = "public"
LONGEST = 63  # bytes of an identifier; PostgreSQL cuts off the rest silently

_SHOWN = ("host", "port", "dbname", "user")
_SECRET = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
_ASKED = (
    "the PostgreSQL address cannot be read: postgresql://user:password@host:5432/database, where "
    "/ ? # @ : % of a user or password are written as %2F %3F %23 %40 %3A %25, or "
    "host=… user=… password='…', where ' and \\ are written as \\' and \\\\"
)

ERRORS = Errors(
    undeclared=UntrackedTableError,
    table=PostgresTableError,
    key=PostgresKeyError,
    append_only=PostgresAppendOnlyError,
    in_use=PostgresLockError,
    name=PostgresNameError,
)


class TableName(QualifiedName):
    """A table in a schema, taken literally: `Transfers` and `transfers` are two tables."""

    __slots__ = ()
    default_schema: ClassVar[str] = DEFAULT_SCHEMA

    @classmethod
    def check(cls, part: str) -> None:
        """Refuse a name that PostgreSQL would cut off."""
        if len(part.encode()) > LONGEST or "\0" in part:
            raise InvalidOptionError(f"a name has at most {LONGEST} bytes", got=repr(part))

    @classmethod
    def fitted(cls, name: str, prefix: str = "", suffix: str = "") -> str:
        """Return prefix, name and suffix as one identifier; one that is too long gets a digest."""
        whole = prefix + name + suffix
        if len(whole.encode()) <= LONGEST:
            return whole
        digest = "_" + hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
        room = LONGEST - len((prefix + digest + suffix).encode())
        return prefix + name.encode()[:room].decode(errors="ignore") + digest + suffix


# --- a table as it is -----------------------------------------------------------------------------


def read_layout(session: Session, name: QualifiedName) -> Layout | None:
    """Read a table from the server's catalog; None if there is none of this name."""
    rows = session.rows(
        """
        SELECT c.oid::bigint, c.relkind = 'p',
            EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal
                AND t.tgtype & 3 = 3 AND t.tgtype & 16 = 16),
            EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND NOT i.indisprimary
                AND (i.indisunique OR i.indisexclusion)),
            EXISTS (SELECT FROM pg_constraint AS k WHERE k.confrelid = c.oid AND k.contype = 'f'
                AND (k.confdeltype <> 'a' OR k.confupdtype <> 'a')),
            EXISTS (SELECT FROM pg_constraint AS k WHERE k.conrelid = c.oid AND k.contype = 'f'
                AND (k.confdeltype IN ('c', 'n', 'd') OR k.confupdtype IN ('c', 'n', 'd')))
            AND NOT EXISTS (SELECT FROM pg_constraint AS k WHERE k.conrelid = c.oid
                AND k.contype = 'p' AND k.condeferrable),
            EXISTS (SELECT FROM pg_constraint AS k WHERE k.conrelid = c.oid AND k.contype = 'f'),
            (SELECT k.conname FROM pg_constraint AS k WHERE k.conrelid = c.oid
                AND k.contype = 'p'),
            (SELECT array_agg(a.attname::text ORDER BY place.n) FROM pg_index AS i
                CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS place (attnum, n)
                JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = place.attnum
                WHERE i.indrelid = c.oid AND i.indisprimary AND place.n <= i.indnkeyatts),
            (SELECT json_agg(json_build_array(i.indisunique, i.columns)) FROM (
                SELECT i.indisunique, array_agg(a.attname::text) AS columns
                FROM pg_index AS i CROSS JOIN LATERAL unnest(i.indkey) AS place (attnum)
                JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = place.attnum
                WHERE i.indrelid = c.oid AND NOT i.indisprimary
                GROUP BY i.indexrelid, i.indisunique) AS i)::text
        FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p')
        """,
        [name.schema, name.name],
    )
    if not rows:
        return None
    oid, partitioned, watched, unique, acted_upon, merged, refers, primary, key, others = rows[0]
    return Layout(
        name,
        tuple(key or ()),
        Undo.NONE,
        "",
        columns=_columns(session, oid),
        partitions=_partitions(session, oid, type(name)) if partitioned else (),
        partitioned=partitioned,
        always_compare=partitioned or watched,
        unique=unique,
        indexes=tuple((is_unique, tuple(names)) for is_unique, names in json.loads(others or "[]")),
        acted_upon=acted_upon,
        merged=merged,
        refers=refers,
        primary=primary,
    )


def _columns(session: Session, oid: int) -> dict[str, Column]:
    rows = session.rows(
        """
        SELECT a.attname, format_type(a.atttypid, a.atttypmod),
            format_type(coalesce(nullif(t.typbasetype, 0), t.oid), NULL),
            CASE WHEN a.atttypid = 'numeric'::regtype AND a.atttypmod >= 4
                THEN (a.atttypmod - 4) >> 16 END,
            CASE WHEN a.atttypid = 'numeric'::regtype AND a.atttypmod >= 4
                THEN (a.atttypmod - 4) & 2047 END,
            a.attgenerated <> '', a.attidentity = 'a',
            CASE WHEN a.attgenerated = '' THEN pg_get_expr(d.adbin, d.adrelid) END, a.attnotnull
        FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
        LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = $1::bigint::oid AND a.attnum > 0 AND NOT a.attisdropped
        ORDER BY a.attnum
        """,
        [oid],
    )
    return {row[0]: Column(*row) for row in rows}


def _partitions(
    session: Session, oid: int, name_type: type[QualifiedName]
) -> tuple[QualifiedName, ...]:
    rows = session.rows(
        "SELECT n.nspname, c.relname FROM pg_partition_tree($1::bigint::oid::regclass) AS p "
        "JOIN pg_class AS c ON c.oid = p.relid JOIN pg_namespace AS n ON n.oid = c.relnamespace "
        "WHERE p.level > 0 ORDER BY 1, 2",
        [oid],
    )
    return tuple(name_type(*row) for row in rows)


# --- the dialect ----------------------------------------------------------------------------------


def _checked(declared: Table) -> Table:
    types = {column: kind.strip().lower() for column, kind in declared.types.items()}
    name = TableName.of(declared.name)
    POSTGRES.check_columns(name, {*declared.key, *types, *chain(*declared.indexes)})
    return replace(declared, name=name, types=types)


def _can_hold(column: Column, field: pa.Field) -> bool:
    """Tell whether a column can hold all values of a field: the server would round decimals."""
    kind = field.type
    if pa.types.is_decimal(kind) and column.scale is not None and kind.scale > column.scale:
        return False
    return encoder(kind, column.bare) is not None or castable(kind, column.bare)


def _make_schema(session: Session, name: str) -> None:
    """Create a schema if it is not there; asking first needs no right to create one."""
    if not session.rows("SELECT 1 FROM pg_namespace WHERE nspname = $1", [name]):
        session.run("CREATE SCHEMA {name}", name=name)


def _columns_of(session: Session, schema: str, prefix: str) -> list[tuple[str, str, str]]:
    """Return table, column and type of all tables whose name begins with a prefix."""
    return session.rows(
        "SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod) "
        "FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
        "JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
        "WHERE n.nspname = $1 AND starts_with(c.relname, $2) AND c.relkind = 'r' "
        "ORDER BY c.relname, a.attnum",
        [schema, prefix],
    )


def _read_images(
    session: Session, layout: Layout, kept: Fragment, log: QualifiedName, stream_id: str
) -> Fragment:
    """Read JSON into the table's own row type; columns that came since keep what they hold."""
    gaps: dict[str, Part] = {
        "kept": kept,
        "table": layout.name,
        "same": equal(layout.key, "now", "one"),
    }
    read = "json_populate_record({base}, COALESCE(kept.prev_value, kept.pk)::json) AS old"
    if not _may_lack_columns(session, layout, log, stream_id):
        whole = "({kept}) AS kept CROSS JOIN LATERAL " + read.format(base="NULL::{table}")
        return compose(whole, **gaps)
    drifted = (
        "({kept}) AS kept CROSS JOIN LATERAL "
        "json_populate_record(NULL::{table}, kept.pk::json) AS one "
        "LEFT JOIN {table} AS now ON {same} CROSS JOIN LATERAL " + read.format(base="now")
    )
    return compose(drifted, **gaps)


def _may_lack_columns(session: Session, layout: Layout, log: QualifiedName, stream_id: str) -> bool:
    """Tell whether an image may lack a column: its name is not in the text, or is nested."""
    if any(column.bare not in SCALARS for column in layout.columns.values()):
        return True
    names = [json.dumps(name, ensure_ascii=False) + ":" for name in layout.stored]
    return bool(
        session.rows(
            "SELECT FROM {log} WHERE stream_id = $1 AND table_name = ANY($2::text[]) "
            "AND EXISTS (SELECT FROM unnest($3::text[]) AS name "
            "WHERE strpos(prev_value, name) = 0) LIMIT 1",
            [stream_id, [layout.name.quoted, layout.name.full], names],
            log=log,
        )
    )


def _check_change_log_tables(session: Session, names: Sequence[QualifiedName]) -> None:
    """Refuse foreign keys that change rows by themselves: nothing would keep what was there."""
    rows = session.rows(
        "SELECT conrelid::regclass::text, conname FROM pg_constraint WHERE contype = 'f' "
        "AND (confdeltype IN ('c', 'n', 'd') OR confupdtype IN ('c', 'n', 'd')) "
        "AND confrelid = ANY($1::regclass[]) LIMIT 1",
        [[name.quoted for name in names]],
    )
    for table, constraint in rows:
        raise TableMismatchError(
            "a foreign key changes rows by itself, and a fork could not undo it; declare it "
            "without CASCADE, SET NULL or SET DEFAULT",
            table=table,
            constraint=constraint,
        )


def _widen_change_log(session: Session, log: QualifiedName, create: Callable[[], None]) -> None:
    """Change the table in place, so that the sink can go on writing it."""
    sql = (
        "ALTER TABLE {log} ALTER COLUMN id TYPE BIGINT, "
        "ADD COLUMN IF NOT EXISTS stream_id TEXT NOT NULL DEFAULT ''; "
        "CREATE INDEX ON {log} ({columns})"
    )
    session.run(sql, log=log, columns=POSTGRES.change_index)
    ((sequence,),) = session.rows("SELECT pg_get_serial_sequence($1, 'id')", [log.quoted])
    if sequence is not None:
        session.run(f"ALTER SEQUENCE {sequence} AS BIGINT")


def _append(
    session: Session, name: QualifiedName, rows: pa.Table, *, only_new: bool = False
) -> None:
    """Copy rows into the table, or into a temporary one before."""
    transfer = plan_transfer(rows.schema, None)
    if not only_new:
        copy_in(session, name, transfer, rows)
        return
    session.run(
        "INSERT INTO {table} ({names}) {query} ON CONFLICT DO NOTHING",
        table=name,
        names=transfer.names,
        query=transfer.read(session.temporary.fill(transfer, rows)),
    )


# --- the address ----------------------------------------------------------------------------------
# libpq quotes what it cannot read, and takes the rest of a password for a host, a port or a
# database where a character of it should have been written as %xx. So nothing that it says about
# the form of an address is repeated, and no part is shown before the whole makes sense.


def postgres_address(dsn: str | Path | Address) -> Address:
    """Understand an address as a user wrote it. Called where a target is made, on the driver.

    Raises:
        InvalidOptionError: it cannot be read; the error repeats nothing of it.
    """
    if isinstance(dsn, Address):
        return dsn
    dsn = str(dsn) if isinstance(dsn, Path) else dsn
    if not isinstance(dsn, str):
        raise InvalidOptionError("the PostgreSQL address must be a text", got=type(dsn).__name__)
    try:
        info = conninfo_to_dict(dsn)
    except (psycopg.Error, UnicodeError):
        raise InvalidOptionError(_ASKED) from None  # the cause quotes the address
    parts = {name: str(value) for name, value in info.items() if value is not None}
    in_order = all(port.isdecimal() for port in parts.get("port", "").split(",") if port)
    if not in_order or _has_stray_at(dsn):
        raise InvalidOptionError(_ASKED)
    return Address(
        shown=" ".join(f"{name}={parts[name]}" for name in _SHOWN if name in parts),
        whole=Secret(dsn),
        secrets=tuple(Secret(parts[name]) for name in _SECRET if parts.get(name)),
    )


def _has_stray_at(dsn: str) -> bool:
    """Tell whether a URL has an '@' where libpq takes the rest of a password for something else."""
    scheme, is_url, rest = dsn.strip().partition("://")
    if not is_url or scheme not in ("postgresql", "postgres"):
        return False
    server, _, path = rest.partition("/")
    return server.count("@") > 1 or "@" in path.partition("?")[0]


POSTGRES = Dialect(
    name_type=TableName,
    errors=ERRORS,
    longest_name=LONGEST,
    json="JSONB",
    letter=Fragment("CHAR"),
    block_number="NUMERIC",
    integers=re.compile("smallint|integer|bigint|numeric"),
    longest_key=POSTGRES_KEY_BYTES,
    checked=_checked,
    column_type=column_type,
    new_column_type=new_column_type,
    can_hold=_can_hold,
    room=lambda column: postgres_room(column.type, column.bare),
    locate=postgres_address,
    all_tables=Fragment(  # that are not the server's own
        "SELECT n.nspname AS table_schema, c.relname AS table_name FROM pg_class AS c "
        "JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p') "
        "AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'"
    ),
    same_table=Fragment("table_schema = $1 AND table_name = $2"),
    readable=Fragment(
        "CASE WHEN has_schema_privilege(table_schema, 'USAGE') "
        "THEN has_table_privilege(format('%I.%I', table_schema, table_name), 'SELECT') END"
    ),
    read_table=read_layout,
    columns_of=_columns_of,
    make_schema=_make_schema,
    claim_note="deferred BOOLEAN NOT NULL",
    claim_order=Fragment("table_schema, table_name"),
    bytewise=' COLLATE "C"',
    change_id=Fragment("BIGSERIAL"),
    change_index=("stream_id", "block_num"),
    widen_change_log=_widen_change_log,
    check_change_log_tables=_check_change_log_tables,
    read_images=_read_images,
    image_values=lambda layout: columns(layout.stored, "old."),
    append=_append,
)
