"""Gives tables rows of blocks that the stream has passed: `on_config_change="evolve"`.

There are no transactions, so every step can be repeated: a batch first removes what its tables have
of its blocks, be it of an earlier definition or of an attempt that a crash has ended. The stream's
configuration, which says how far it got, changes last. Runs on the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headwater.core import Batch, BlockRange
from headwater.errors import EvolveError
from headwater.targets.clickhouse.catalog import Catalog
from headwater.targets.clickhouse.client import ClickHouseClient
from headwater.targets.clickhouse.layout import Layout
from headwater.targets.clickhouse.sql import TableName, compose
from headwater.targets.clickhouse.store import Store
from headwater.targets.clickhouse.undo import Undo
from headwater.targets.contract import Delivery, Scope
from headwater.targets.frames import executor_rows, to_arrow
from headwater.targets.text import Fragment


class History:
    """The tables of outputs, as far as they can be filled again."""

    def __init__(
        self,
        client: ClickHouseClient,
        catalog: Catalog,
        undo: Undo,
        store: Callable[[Scope], Store],
    ) -> None:
        self._client = client
        self._catalog = catalog
        self._undo = undo
        self._store = store

    def check_new(self, output: str) -> None:
        """Refuse an added output whose table holds rows."""
        name = self._name(output)
        layout = self._catalog.described(name)
        if layout is not None and self._catalog.holds_rows(layout):
            raise EvolveError(
                "the table of an output that was added holds rows already; drop or rename it",
                table=name,
            )

    def first_block(self, output: str, behind: int) -> int | None:
        """Return the first block of a table; `behind` if it is empty, None if it is not there."""
        layout = self._catalog.admitted(self._name(output))
        if layout is None:
            return None
        found = self._client.rows(
            compose(
                "SELECT toInt64(<block>) AS headwater_block FROM <table> <final> "
                "<own> ORDER BY <block> LIMIT 1",
                block=layout.block_column,
                table=layout.name,
                final=Fragment("FINAL" if layout.marks else ""),
                own=self._own(layout, "WHERE"),
            ),
            {"stream": self._catalog.stream_id},
        )
        return int(found[0]["headwater_block"]) if found else behind

    def write(self, batches: Sequence[tuple[BlockRange, Batch[Delivery]]], *, widen: bool) -> None:
        """Replace the rows of the batches' blocks, in the tables of their outputs."""
        for covered, batch in batches:
            scope = Scope(batch.state.number, covered.from_block - 1, hot=False)
            for output, frame in batch.data.data.items():
                name = self._name(output)
                rows = frame if executor_rows(frame) is not None else to_arrow(frame)
                if widen:
                    self._widen(name, rows)
                layout = self._catalog.admitted(name)
                if layout is not None:
                    self._undo.between(layout, scope.after, scope.block)
                    self._catalog.forget_versions()
                self._store(scope).insert(table_of(output), rows)

    def check_rename(self, renamed: Mapping[str, str]) -> None:
        """Refuse tables that cannot be given their new names."""
        for new, old in renamed.items():
            self._catalog.check_rename(self._name(old), self._name(new))

    def rename(self, renamed: Mapping[str, str]) -> None:
        """Give tables new names; one that has it already was renamed before a crash."""
        for new, old in renamed.items():
            self._catalog.rename(self._name(old), self._name(new))

    def _widen(self, name: TableName, rows: Any) -> None:
        far = executor_rows(rows)
        self._catalog.widen(name, rows.schema if far is None else far.schema)

    def _name(self, output: str) -> TableName:
        return self._catalog.parse(table_of(output))

    @staticmethod
    def _own(layout: Layout, word: str) -> Fragment:
        if layout.stream_column is None:
            return Fragment("")
        return compose(f"{word} <stream> = {{stream:String}}", stream=layout.stream_column)


def table_of(output: str) -> str:
    """Return the table of an output: a name with a point is not one of a database."""
    return f"`{output}`" if "." in output else output
