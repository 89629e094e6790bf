"""Rows that the stream keeps for itself, in `headwater_<name>` next to the state.

They are tables like any other: written with their batch, taken back with it. Streams share them;
a column says whose a row is. Runs on the driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from headwater.targets.base import SideTable
from headwater.targets.clickhouse.catalog import Catalog
from headwater.targets.clickhouse.client import ClickHouseClient
from headwater.targets.clickhouse.ddl import create_table
from headwater.targets.clickhouse.settings import Table, table
from headwater.targets.clickhouse.sql import Fragment, TableName, compose
from headwater.targets.clickhouse.store import Store

_KEY = ("block_number", "ordinal")
_OWN = "stream_id = {stream:String}"


class SideTables:
    """The side tables of one stream."""

    def __init__(self, client: ClickHouseClient, catalog: Catalog, stream_id: str) -> None:
        self._client = client
        self._catalog = catalog
        self._id = stream_id
        self._columns: dict[str, pa.Schema] = {}

    def open(self, tables: Sequence[SideTable]) -> None:
        """Create what is missing."""
        for one in tables:
            declared = _declaration(one.name)
            self._catalog.declare(declared)
            create_table(self._client, self._name(one.name), declared, one.columns)
            self._columns[one.name] = one.columns

    def write(self, store: Store, side: Mapping[str, pa.Table]) -> None:
        """Insert the rows of a batch."""
        for name, rows in side.items():
            store.insert(_declaration(name).name, rows)

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
            params |= dict(zip(("block", "ordinal"), after, strict=True))
        if up_to_block is not None:
            where += " AND block_number <= {last:Int64}"
            params["last"] = up_to_block
        schema = self._columns[name]
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
        """Add rows, as far as they are not there, then remove those up to a key.

        A crash in between leaves both; doing it again adds nothing.
        """
        for other, rows in moved.items():
            store.insert(_declaration(other).name, self._missing(other, rows))
        store.remove_all_rows(
            tables=[_declaration(name).name],
            where=f"{_OWN} AND (block_number, ordinal) <= ({{block:Int64}}, {{ordinal:Int64}})",
            params={"stream": self._id, "block": up_to[0], "ordinal": up_to[1]},
        )

    def _missing(self, name: str, rows: pa.Table) -> pa.Table:
        """Return those of the rows whose keys are not there."""
        if not rows.num_rows:
            return rows
        blocks = rows.column("block_number").to_pylist()
        held = self.read(name, (min(blocks) - 1, 2**62), max(blocks), None).select(_KEY)
        known = set(zip(*(held.column(one).to_pylist() for one in _KEY), strict=True))
        keys = zip(*(rows.column(one).to_pylist() for one in _KEY), strict=True)
        return rows.filter(pa.array([key not in known for key in keys], pa.bool_()))

    def _name(self, name: str) -> TableName:
        return self._catalog.parse(_declaration(name).name)


def _declaration(name: str) -> Table:
    return table(
        f"`headwater_{name}`", order_by=["ordinal"], stream_column="stream_id", live_view=False
    )
