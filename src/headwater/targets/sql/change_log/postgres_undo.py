"""How PostgreSQL's tables are restored from the history: as from any undo log, images aside."""

from __future__ import annotations

import json
from collections.abc import Sequence

from headwater.targets.postgres.capture import OPERATION
from headwater.targets.postgres.layout import Layout
from headwater.targets.postgres.merge import SCALARS
from headwater.targets.postgres.session import Session
from headwater.targets.postgres.undo import UndoLog
from headwater.targets.sql.text import Fragment, QualifiedName, columns, compose, equal, literal


class HistoryLog(UndoLog):
    """The undo log of tracked tables, with images that come from the history."""

    def __init__(self, session: Session, stream_id: str, history: QualifiedName) -> None:
        super().__init__(session, stream_id)
        self._history = history

    def _adopt(self, layouts: Sequence[Layout], number: int) -> None:
        """Nobody else writes the history."""

    def _images(self, layout: Layout) -> Fragment:
        """Read the oldest image of each row; columns that came since keep what they hold."""
        whole = not self._has_drifted(layout)
        base = Fragment("NULL::{table}" if whole else "now")
        now = Fragment(
            ""
            if whole
            else "CROSS JOIN LATERAL json_populate_record(NULL::{table}, kept.pk::json) AS one "
            "LEFT JOIN {table} AS now ON {same}"
        )
        gaps: dict[str, QualifiedName | str] = {
            "table": layout.name,
            "same": equal(layout.key, "now", "one"),
        }
        return compose(
            "SELECT {values}, CASE kept.op WHEN 'I' THEN 'INSERT' ELSE kept.op END AS {operation} "
            'FROM (SELECT DISTINCT ON (pk COLLATE "C") pk, op::text, prev_value FROM {history} '
            "WHERE block_num > (SELECT above FROM given) "
            "AND stream_id = (SELECT stream FROM given) AND table_name = {name} "
            'ORDER BY pk COLLATE "C", block_num, id) AS kept {now} CROSS JOIN LATERAL '
            "json_populate_record({base}, COALESCE(kept.prev_value, kept.pk)::json) AS old",
            values=columns(layout.stored, "old."),
            operation=OPERATION,
            history=self._history,
            name=literal(layout.name.full),
            now=compose(now, **gaps),
            base=compose(base, **gaps),
        )

    def _has_drifted(self, layout: Layout) -> bool:
        """Tell whether an image may lack a column: its name is not in the text, or is nested."""
        if any(one.bare not in SCALARS for one in layout.columns.values()):
            return True
        names = [json.dumps(one, ensure_ascii=False) + ":" for one in layout.stored]
        return bool(
            self._session.rows(
                compose(
                    "SELECT FROM {history} WHERE stream_id = $1 AND table_name = $2 "
                    "AND EXISTS (SELECT FROM unnest($3::text[]) AS name "
                    "WHERE strpos(prev_value, name) = 0) LIMIT 1",
                    history=self._history,
                ),
                [self._id, layout.name.full, names],
            )
        )

    def _forget(self, layout: Layout) -> Fragment:
        return compose(
            "DELETE FROM {history} WHERE block_num > (SELECT above FROM given) "
            "AND stream_id = (SELECT stream FROM given) AND table_name = {name}",
            history=self._history,
            name=literal(layout.name.full),
        )
