"""How a fork is undone: one statement that puts every table back, whatever refers to what.

PostgreSQL checks foreign keys at the end of a statement. So all tables are restored in one: no
order of tables has to be found, and cycles and references of a table to itself need no care. Per
row the oldest image above the cursor counts: a row that had come into being goes, any other becomes
what it was. Append-only tables lose their rows by block number.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.targets.postgres.layout import Layout, Undo
from headwater.targets.postgres.session import Session
from headwater.targets.postgres.sql import Fragment, TableName, columns, compose, equal, quote
from headwater.targets.postgres.triggers import BLOCK, OPERATION, STREAM

_PLANS = ("enable_hashjoin", "enable_mergejoin", "enable_seqscan", "jit")


class UndoLog:
    """The undo data of one stream. Runs on the driver, inside a transaction."""

    def __init__(self, session: Session, stream_id: str) -> None:
        self._session = session
        self._id = stream_id

    def restore(self, layouts: Sequence[Layout], number: int) -> None:
        """Put every table back to what it was at a block, and forget what came after."""
        parts: list[str] = []
        for index, layout in enumerate(layouts):
            parts += self._append_only(layout, index) if (
                layout.undo is Undo.APPEND_ONLY
            ) else self._keyed(layout, index)  # fmt: skip
        if not parts:
            return
        for plan in _PLANS:  # rows are found by key: the cost is theirs, not the table's
            self._session.run(f"SET LOCAL {plan} = off")
        self._session.run(
            compose(
                "WITH given AS (SELECT $1::bigint AS above, $2::text AS stream), {parts} "
                "SELECT count(*) FROM given",
                parts=Fragment(",\n".join(parts)),
            ),
            [number, self._id],
        )
        for plan in _PLANS:
            self._session.run(f"SET LOCAL {plan} TO DEFAULT")

    def _append_only(self, layout: Layout, index: int) -> list[str]:
        return [
            compose(
                "gone{i} AS (DELETE FROM {table} WHERE {block} > (SELECT above FROM given))",
                i=Fragment(str(index)),
                table=layout.name,
                block=layout.block_column,
            )
        ]

    def _keyed(self, layout: Layout, index: int) -> list[str]:
        names = layout.stored
        rest = [one for one in names if one not in layout.key and not layout.columns[one].identity]
        replace = layout.unique and not layout.acted_upon
        what: dict[str, TableName | Sequence[str] | str] = {
            "i": Fragment(str(index)),
            "table": layout.name,
            "log": layout.name.snapshots,
            "names": names,
            "values": columns(names, "old."),
            "key": layout.key,
            "block": BLOCK,
            "stream": STREAM,
            "operation": OPERATION,
            "same": equal(layout.key, "now", "old"),
            "assign": Fragment(", ".join(f"{quote(one)} = old.{quote(one)}" for one in rest)),
            "goes": Fragment("true" if replace else f"old.{quote(OPERATION)} = 'INSERT'"),
            "lacks": Fragment("true" if replace else compose(
                "NOT EXISTS (SELECT FROM {table} AS now WHERE {same})",
                table=layout.name, same=equal(layout.key, "now", "old"),
            )),
        }  # fmt: skip
        parts = [
            "image{i} AS MATERIALIZED (SELECT DISTINCT ON ({key}) {names}, {operation} "
            "FROM {log} WHERE {block} > (SELECT above FROM given) "
            "AND {stream} = (SELECT stream FROM given) ORDER BY {key}, {block})",
            "gone{i} AS (DELETE FROM {table} AS now USING image{i} AS old "
            "WHERE {same} AND {goes} RETURNING 1)",
            "forgotten{i} AS (DELETE FROM {log} WHERE {block} > (SELECT above FROM given) "
            "AND {stream} = (SELECT stream FROM given))",
        ]
        if rest and not replace:
            parts.append(
                "changed{i} AS (UPDATE {table} AS now SET {assign} FROM image{i} AS old "
                "WHERE {same} AND old.{operation} <> 'INSERT' "
                "AND (SELECT count(*) FROM gone{i}) >= 0 RETURNING 1)"
            )
        what["after"] = Fragment(f"{'changed' if rest and not replace else 'gone'}{index}")
        parts.append(
            "back{i} AS (INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE "
            "SELECT {values} FROM image{i} AS old WHERE old.{operation} <> 'INSERT' "
            "AND {lacks} AND (SELECT count(*) FROM {after}) >= 0)"
        )
        return [compose(part, **what) for part in parts]

    def prune(self, layout: Layout, number: int) -> None:
        """Forget what lies at or below a number."""
        if layout.undo is Undo.KEYED:
            self._session.run(
                compose(
                    "DELETE FROM {log} WHERE {stream} = $1 AND {block} <= $2",
                    log=layout.name.snapshots,
                    stream=STREAM,
                    block=BLOCK,
                ),
                [self._id, number],
            )
