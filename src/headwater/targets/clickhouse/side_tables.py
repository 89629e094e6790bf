"""Rows that the stream keeps for itself, in `headwater_<name>` next to the state.

They are tables like any other: written with their batch, taken back with it. Streams share them;
a column says whose a row is. A settlement changes several tables, so what it is to do is noted
first; one that a crash interrupted is completed by the next start. Runs on the driver.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping, Sequence

import pyarrow as pa

from headwater.targets.clickhouse.catalog import Catalog
from headwater.targets.clickhouse.client import ClickHouseClient
from headwater.targets.clickhouse.ddl import create_table
from headwater.targets.clickhouse.lease import Lease
from headwater.targets.clickhouse.settings import Table, table
from headwater.targets.clickhouse.sql import Fragment, TableName, compose, into
from headwater.targets.clickhouse.store import Store
from headwater.targets.contract import SideTable
from headwater.targets.side_rows import KEY, PREFIX, STREAM, check_side_table, side_rows

_NOTE = {"id": "String", "name": "String", "document": "String", "sign": "Int8"}
_OWN = "stream_id = {stream:String}"


class SideTables:
    """The side tables of one stream. `notes` is the table in which settlements are noted."""

    def __init__(
        self, client: ClickHouseClient, catalog: Catalog, notes: TableName, lease: Lease
    ) -> None:
        self._client = client
        self._catalog = catalog
        self._notes = notes
        self._lease = lease
        self._id = lease.stream_id
        self._tables: dict[str, SideTable] = {}

    def complete(self, store: Store) -> None:
        """Complete a settlement that was interrupted. Called at every start."""
        for note in self._noted():
            self._apply(store, note["document"])
            self._note(note["name"], note["document"], -1)

    def create(self, tables: Sequence[SideTable]) -> None:
        """Create what is missing."""
        self._client.run(
            compose(
                "CREATE TABLE IF NOT EXISTS <notes> (id String, name String, document String, "
                "sign Int8) ENGINE = CollapsingMergeTree(sign) ORDER BY (id, name)",
                notes=self._notes,
            )
        )
        for one in tables:
            declared = _declaration(one.name)
            self._catalog.declare(declared)
            create_table(self._client, self._name(one.name), declared, one.columns)
            self._tables[one.name] = check_side_table(one)

    def forget(self) -> None:
        """Strike out settlements that were interrupted: the stream begins anew."""
        self.create(())
        for note in self._noted():
            self._note(note["name"], note["document"], -1)

    def write(self, store: Store, side: Mapping[str, pa.Table]) -> None:
        """Insert the rows of a batch."""
        for name, rows in side.items():
            store.insert(_declaration(name).name, side_rows(self._tables[name], rows))

    def read(
        self,
        name: str,
        after: tuple[int, int] | None,
        up_to_block: int | None,
        limit: int | None,
    ) -> pa.Table:
        """Return the stream's rows in the order of their keys."""
        params: dict[str, object] = {"stream": self._id}
        where = _OWN
        if after is not None:
            where += " AND (block_number, ordinal) > ({block:Int64}, {ordinal:Int64})"
            params |= {"block": after[0], "ordinal": after[1]}
        if up_to_block is not None:
            where += " AND block_number <= {last:Int64}"
            params["last"] = up_to_block
        schema = self._tables[name].columns
        found = self._client.query(
            compose(
                "SELECT <names> FROM <table> FINAL WHERE <where> ORDER BY block_number, ordinal "
                "<limit>",
                names=schema.names,
                table=self._name(name),
                where=Fragment(where),
                limit=Fragment("" if limit is None else f"LIMIT {int(limit)}"),
            ),
            params,
        )
        return found.cast(schema)

    def settle(
        self, store: Store, name: str, up_to: tuple[int, int], moved: Mapping[str, pa.Table]
    ) -> None:
        """Note what is to be done, do it, and strike it out."""
        rows = {
            other: base64.b64encode(_packed(side_rows(self._tables[other], given))).decode()
            for other, given in moved.items()
            if given.num_rows
        }
        document = json.dumps({"name": name, "up_to": list(up_to), "moved": rows})
        note = secrets.token_hex(8)
        self._note(note, document, 1)
        self._apply(store, document)
        self._note(note, document, -1)

    def _apply(self, store: Store, document: str) -> None:
        """Remove rows up to a key, then add those that are not there. Safe to repeat."""
        todo = json.loads(document)
        store.remove_all_rows(
            tables=[_declaration(todo["name"]).name],
            where=f"{_OWN} AND (block_number, ordinal) <= ({{block:Int64}}, {{ordinal:Int64}})",
            params={"stream": self._id, "block": todo["up_to"][0], "ordinal": todo["up_to"][1]},
        )
        for name, packed in todo["moved"].items():
            rows = pa.ipc.open_stream(base64.b64decode(packed)).read_all()
            store.insert(_declaration(name).name, self._missing(name, rows))

    def _missing(self, name: str, rows: pa.Table) -> pa.Table:
        """Return those of the rows whose keys are not there."""
        held = self._client.query(
            compose(
                "SELECT block_number, ordinal FROM <table> FINAL WHERE <own> "
                "AND block_number BETWEEN {first:Int64} AND {last:Int64}",
                table=self._name(name),
                own=Fragment(_OWN),
            ),
            {
                "stream": self._id,
                "first": min(rows.column(KEY[0]).to_pylist()),
                "last": max(rows.column(KEY[0]).to_pylist()),
            },
        )
        known = set(zip(*(held.column(one).to_pylist() for one in KEY), strict=True))
        keys = zip(*(rows.column(one).to_pylist() for one in KEY), strict=True)
        return rows.filter(pa.array([key not in known for key in keys], pa.bool_()))

    def _noted(self) -> list[dict[str, str]]:
        return self._client.rows(
            compose("SELECT name, document FROM <notes> FINAL WHERE id = {id:String}",
                    notes=self._notes),
            {"id": self._id},
        )  # fmt: skip

    def _note(self, name: str, document: str, sign: int) -> None:
        frame = pa.table(
            {
                "id": [self._id],
                "name": [name],
                "document": [document],
                "sign": pa.array([sign], pa.int8()),
            }
        )
        target = into(str(self._notes), _NOTE, self._lease.condition)
        self._client.insert(target, frame, f"{name}/{sign}")

    def _name(self, name: str) -> TableName:
        return self._catalog.parse(_declaration(name).name)


def _declaration(name: str) -> Table:
    return table(f"`{PREFIX}{name}`", order_by=["ordinal"], stream_column=STREAM, live_view=False)


def _packed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())
