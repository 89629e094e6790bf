"""What must hold before a batch is committed: the server is asked, so no parser must be perfect.

SQL of the user's may end the transaction, release the stream's lock, write a table that was not
declared, drop one that a fork must be able to restore, or take off the triggers that keep what it
changes. However that was written, the server knows what came of it. One query tells all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.errors import PostgresStatementError, UntrackedTableError
from headwater.targets.contract import Scope
from headwater.targets.postgres.catalog import PostgresCatalog
from headwater.targets.postgres.dialect import TableName
from headwater.targets.postgres.session import HOLDS, IDENTITY, Session
from headwater.targets.postgres.transactions import TryAgain
from headwater.targets.sql.text import QualifiedName, compose

# A transaction holds a lock on every table that it has written, however it has: by SQL, by a
# cascade, by a trigger. $1 is the key of the stream's lock; $2 and $3 are the tracked relations by
# oid and by name, $4 their triggers as oid/name.
_QUERY = compose(
    """
SELECT 'transaction', ARRAY[{identity}, {holds}::text,
    current_setting('sqd.snapshot_enabled', true),
    current_setting('sqd.snapshot_block_number', true), current_setting('sqd.snapshot_id', true)]
UNION ALL
SELECT 'written', ARRAY[n.nspname, c.relname, rn.nspname, r.relname]::text[]
FROM pg_locks AS l
JOIN pg_class AS c ON c.oid = l.relation AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_class AS r ON c.relispartition AND r.oid = pg_partition_root(c.oid)
LEFT JOIN pg_namespace AS rn ON rn.oid = r.relnamespace
WHERE l.locktype = 'relation' AND l.pid = pg_backend_pid() AND l.granted
AND l.mode IN ('RowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
UNION ALL
SELECT 'gone', ARRAY[held.oid::text] FROM unnest($2::oid[], $3::text[]) AS held (oid, name)
WHERE to_regclass(held.name) IS DISTINCT FROM held.oid
UNION ALL
SELECT 'uncaptured', ARRAY[name] FROM unnest($4::text[]) AS held (name)
WHERE NOT EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = split_part(held.name, '/', 1)::oid
    AND t.tgname = split_part(held.name, '/', 2) AND t.tgenabled <> 'D')
UNION ALL
SELECT 'foreign', ARRAY[t.tgrelid::text] FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
WHERE t.tgrelid = ANY($2::oid[]) AND NOT t.tgisinternal AND t.tgenabled <> 'D'
AND starts_with(p.proname, 'maybe_snapshot_')
""",
    identity=IDENTITY,
    holds=HOLDS,
)


class Guard:
    """Judges one batch. Runs on the driver, at the end of `on_data`, inside the transaction."""

    def __init__(
        self,
        session: Session,
        catalog: PostgresCatalog,
        own: Sequence[QualifiedName],
        stream_id: str,
    ) -> None:
        self._session = session
        self._catalog = catalog
        self._own = own
        self._id = stream_id

    def check(self, scope: Scope) -> None:
        """Refuse the batch if a fork could not undo it, or if it is not ours to commit any more.

        Raises:
            TryAgain: its changes were not kept, and will be when it is written once more.
        """
        tracked = self._catalog.tracked()
        oids = list(tracked)
        rows = self._session.rows(
            _QUERY,
            [
                self._session.lock_key,
                oids,
                [compose("{name}", name=one.relation) for one in tracked.values()],
                [f"{oid}/{name}" for oid in oids for name in tracked[oid].triggers],
            ],
            prepare=True,
        )
        found: dict[str, list[list[str]]] = {}
        for what, parts in rows:
            found.setdefault(what, []).append(parts)
        identity, is_locked, *settings = found["transaction"][0]
        self._session.compare(identity, is_locked == "true")
        gone = {int(oid) for (oid,) in found.get("gone", [])}
        if scope.hot:
            if settings != ["true", str(scope.block), self._id]:
                raise PostgresStatementError("a fork could not undo this", what="SET sqd.…")
            for oid in gone:
                raise PostgresStatementError(
                    "a fork could not undo this", what=f"DROP or RENAME of {tracked[oid].relation}"
                )
            changed = found.get("uncaptured", []) + found.get("foreign", [])
            for (name,) in changed:
                relation = tracked[int(name.partition("/")[0])].relation
                raise TryAgain(f"the triggers of {relation} were changed")
        elif gone:
            self._catalog.refresh(gone)
        self._check_written(found.get("written", []))

    def _check_written(self, rows: Sequence[Sequence[str]]) -> None:
        for schema, name, root_schema, root in rows:
            relation = TableName(schema, name)
            parent = None if root is None else TableName(root_schema, root)
            known = relation in self._own or self._catalog.is_known(relation, parent)
            if known is False:
                raise UntrackedTableError("a table that was not declared was written", table=name)
            if known is None:
                raise TryAgain(f"partition {relation} is new")
