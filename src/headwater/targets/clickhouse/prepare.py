"""Creating what streams need, and a user's tables, ahead of the first run. Safe to repeat."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from headwater.errors import ClickHouseServerError, SchemaFileError
from headwater.targets.clickhouse.catalog import Catalog
from headwater.targets.clickhouse.client import ClickHouseClient
from headwater.targets.clickhouse.ddl import create_table, create_view
from headwater.targets.clickhouse.layout import read_layout
from headwater.targets.clickhouse.lease import Lease
from headwater.targets.clickhouse.settings import table
from headwater.targets.clickhouse.side_tables import LeasedConfig, SideTables
from headwater.targets.clickhouse.sql import TableName, parse_name
from headwater.targets.clickhouse.sync_table import SyncTable
from headwater.targets.clickhouse.writer import Attempts
from headwater.targets.contract import SideTable
from headwater.targets.schema_file import SchemaFile
from headwater.targets.sql.tokens import CLICKHOUSE

_SYSTEM = ("system", "information_schema", "INFORMATION_SCHEMA")


def prepare_place(
    client: ClickHouseClient,
    sync: TableName,
    side: SideTables,
    schema: SchemaFile,
    side_tables: Sequence[SideTable],
) -> list[str]:
    """Create what is missing; return the names of what was created.

    Names without a database are of the state's, as in a stream. All of a schema is read before
    anything is created, but there are no transactions: what was created before a statement that
    fails stays.
    """
    asked = [
        (parse_name(one.name, sync.database), table(one.name, order_by=one.key,
                                                         types=one.types), one.schema)
        for one in schema.tables
    ]  # fmt: skip
    statements = CLICKHOUSE.split(schema.sql)
    anywhere = {"database": "default"}
    for place, sql in enumerate(statements, 1):
        problem = f"statement {place} cannot be read; nothing was created"
        _run(client, f"EXPLAIN AST {sql}", problem, anywhere)
    for one in dict.fromkeys((client.database, sync.database)):
        client.create_database(one)
    before = _all_tables(client)
    lease = Lease(client, sync.suffixed("__epochs"), sync, "")
    lease.create()
    SyncTable(client, sync, lease, 1).create()
    Catalog(client, lease, sync.suffixed("__tables"), (), automatic=False, managed=True).create()
    Attempts(client, sync.suffixed("__attempts")).create()
    side.create(side_tables)
    LeasedConfig(client, sync.database, lease).create()
    for name, declared, columns in asked:
        with _explained(f"{name} cannot be created; what was created before it stays"):
            create_table(client, name, declared, columns)
        layout = read_layout(client, name, declared)
        if layout is not None:
            create_view(client, layout)
    _run_all(client, sync.database, statements)
    created = _all_tables(client) - before
    return sorted(one.name if one.database == sync.database else str(one) for one in created)


def _run_all(client: ClickHouseClient, database: str, statements: Sequence[str]) -> None:
    """Run a user's statements, each once, in one session: SET and USE work."""
    once = client.copy()
    once.attempts, once.database = 1, database
    session = {"session_id": f"headwater-{secrets.token_hex(8)}"}
    try:
        for place, sql in enumerate(statements, 1):
            _run(once, sql, f"statement {place} failed; what was created before it stays", session)
    finally:
        once.close()


def _run(
    client: ClickHouseClient, sql: str, problem: str, settings: dict[str, str] | None = None
) -> None:
    with _explained(problem):
        client.run(sql, settings=settings)


@contextmanager
def _explained(problem: str) -> Iterator[None]:
    """Turn the server's refusal into one of the schema."""
    try:
        yield
    except ClickHouseServerError as error:
        raise SchemaFileError(problem, reason=error.facts.get("reason")) from error


def _all_tables(client: ClickHouseClient) -> set[TableName]:
    found = client.rows(
        "SELECT database, name FROM system.tables WHERE NOT has({system:Array(String)}, database) "
        "AND NOT startsWith(name, '.inner')",
        {"system": _SYSTEM},
    )
    return {TableName(one["database"], one["name"]) for one in found}
