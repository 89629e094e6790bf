"""The undo log: keeps what hot blocks change, and puts it back after a fork.

One engine works on both forms of the log (`logs.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from headwater.errors import TableMismatchError
from headwater.targets.sql.dialect import Dialect
from headwater.targets.sql.layout import Layout, Undo
from headwater.targets.sql.logs import ChangeLog, Log, Snapshots
from headwater.targets.sql.merger import Loaded
from headwater.targets.text import Fragment, QualifiedName, compose

KEPT = (Undo.KEYED, Undo.KEYLESS, Undo.CHANGE_LOG)
EVERY_BLOCK = 2**62  # above any


class UndoLog(ABC):
    """The undo data of one stream. Runs on the driver, inside a transaction."""

    def __init__(self, session: Any, dialect: Dialect, stream_id: str) -> None:
        self._session = session
        self._dialect = dialect
        self._id = stream_id
        self._snapshots = Snapshots()

    def log(self, layout: Layout) -> Log:
        """Return the form in which a table's log is kept."""
        if layout.undo is Undo.CHANGE_LOG:
            return ChangeLog(self._dialect, self._dialect.name(layout.block_column))
        return self._snapshots

    def restore(self, layouts: Sequence[Layout], number: int) -> None:
        """Put every table back to what it was at a block, and forget what came after.

        Also tables that only a change log names: they are no longer declared, or were written by a
        release that claimed none.
        """
        known = {one.name.folded for one in layouts}
        unclaimed: dict[tuple[str, str], Layout] = {}
        for log in {one.block_column for one in layouts if one.undo is Undo.CHANGE_LOG}:
            for one in self.unclaimed(self._dialect.name(log), number):
                if one.name.folded not in known:
                    unclaimed[one.name.folded] = one
        self._restore([*unclaimed.values(), *layouts], number)

    def unclaimed(self, log: QualifiedName, number: int = -1) -> list[Layout]:
        """Return the tables whose changes above a block a change log holds."""
        names = ChangeLog(self._dialect, log).touched(self._session, self._id, number)
        return [self._unclaimed(name, log.full) for name in names]

    def holds_above(self, layouts: Sequence[Layout], number: int) -> bool:
        """Tell whether there is anything to restore: images, or rows of append-only tables."""
        parts = ["$1::text IS NULL", "$2::bigint IS NULL"]
        for layout in layouts:
            log = self.log(layout)
            if layout.undo is Undo.APPEND_ONLY:
                table, above = layout.name, compose("{b} > $2::bigint", b=layout.block_column)
            else:
                table, above = log.name(layout), log.above(layout)
            if layout.deferred or not self._exists(table):
                continue  # without its index the whole table would be read
            parts.append(compose("EXISTS (SELECT 1 FROM {t} WHERE {above})", t=table, above=above))
        sql = " OR ".join(parts)
        return bool(self._session.rows(f"SELECT {sql}", [self._id, number])[0][0])

    def prune(self, layout: Layout, number: int) -> None:
        """Forget what lies at or below a number."""
        log = self.log(layout)
        if layout.undo in KEPT and self._exists(log.name(layout)):
            self._session.run(log.prune(layout), [self._id, number])

    def count(self, layout: Layout) -> int:
        """Return how many rows the log holds of a table."""
        log = self.log(layout)
        if layout.undo not in KEPT or not self._exists(log.name(layout)):
            return 0
        ((rows,),) = self._session.rows(
            "SELECT count(*) FROM {log} WHERE {above}",
            [self._id, -1],
            log=log.name(layout),
            above=log.above(layout),
        )
        return int(rows)

    def remove_all(self, layouts: Sequence[Layout]) -> None:
        """Forget everything: the stream is. Also what a change log says of other tables."""
        for layout in layouts:
            self.prune(layout, EVERY_BLOCK)
        for log in {one.block_column for one in layouts if one.undo is Undo.CHANGE_LOG}:
            self._session.run(
                "DELETE FROM {log} WHERE stream_id = $1", [self._id], log=self._dialect.name(log)
            )

    def first_id(self, layouts: Iterable[Layout]) -> int | None:
        """Return the first free id of the change log, where the database does not number rows."""
        logs = {one.block_column for one in layouts if one.undo is Undo.CHANGE_LOG}
        if not logs or not self._dialect.numbers_changes:
            return None
        ((newest,),) = self._session.rows(
            "SELECT max(id) FROM {log}", log=self._dialect.name(logs.pop())
        )
        return int(newest or 0) + 1

    def capture(self, loaded: Sequence[Loaded], floor: int, first: int | None) -> None:
        """Keep what a round of a merge is about to change, for blocks above `floor`."""
        hot = [one for one in loaded if one.changes.newest > floor]
        changes = [one for one in hot if one.layout.undo is Undo.CHANGE_LOG]
        if changes:
            log = ChangeLog(self._dialect, self._dialect.name(changes[0].layout.block_column))
            numbered = first is not None
            self._session.run(
                "INSERT INTO {log} ({id} op, table_name, pk, prev_value, block_num, stream_id) "
                "SELECT {place} op, table_name, pk, prev_value, block, $1::text "
                "FROM ({rows}) AS kept ORDER BY place",
                [self._id],
                log=log.name(changes[0].layout),
                id=Fragment("id," if numbered else ""),
                place=Fragment(f"{first} + place," if numbered else ""),
                rows=Fragment(" UNION ALL ".join(log.rows(one, floor) for one in changes)),
            )
        for one in hot:
            if one.layout.undo is Undo.KEYED:
                self._capture_rows(one)

    def _unclaimed(self, name: QualifiedName, log: str) -> Layout:
        layout: Layout | None = self._dialect.read_table(self._session, name)
        if layout is None or not layout.key:
            raise TableMismatchError("a table that must be restored is gone", table=name.full)
        return layout.undone(Undo.CHANGE_LOG, log)

    def _exists(self, name: QualifiedName) -> bool:
        return self._dialect.exists(self._session, name)

    # --- what each database does in its own way ---------------------------------------------------

    @abstractmethod
    def _restore(self, layouts: Sequence[Layout], number: int) -> None:
        """Put tables back from their images."""

    @abstractmethod
    def _capture_rows(self, loaded: Loaded) -> None:
        """Keep the rows that a merge meets in snapshots, unless triggers do."""
