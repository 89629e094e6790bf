"""Asks the server whether a batch may be committed, so that no parser must be perfect.

SQL of the user's may end the transaction, release the stream's lock, write a table that was not
declared, drop one that a fork must be able to restore, or take off the triggers that keep what it
changes. However that was written, the server knows what came of it. One query tells all of it; a
cheaper one tells whether anything differs from a batch that was accepted before, and mostly nothing
does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headwater.errors import PostgresStatementError, UntrackedTableError
from headwater.targets.contract import Scope
from headwater.targets.postgres.dialect import TableName
from headwater.targets.postgres.session import IDENTITY, Session, TryAgain
from headwater.targets.postgres.triggers import Tracked
from headwater.targets.sql.catalog import CLAIMS
from headwater.targets.sql.database import Store
from headwater.targets.text import Fragment, QualifiedName, compose, literal

# A transaction holds a lock on every table that it has written, however it has: by SQL, by a
# cascade, by a trigger. $1 and $2 are the tracked relations by oid and by name, $3 their triggers
# as oid/name.
_QUERY = """
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
SELECT 'gone', ARRAY[held.oid::text] FROM unnest($1::oid[], $2::text[]) AS held (oid, name)
WHERE to_regclass(held.name) IS DISTINCT FROM held.oid
UNION ALL
SELECT 'uncaptured', ARRAY[name] FROM unnest($3::text[]) AS held (name)
WHERE NOT EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = split_part(held.name, '/', 1)::oid
    AND t.tgname = split_part(held.name, '/', 2) AND t.tgenabled <> 'D')
UNION ALL
SELECT 'foreign', ARRAY[t.tgrelid::text] FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
WHERE t.tgrelid = ANY($1::oid[]) AND NOT t.tgisinternal AND t.tgenabled <> 'D'
AND starts_with(p.proname, 'maybe_snapshot_')
"""

# The same in short: numbers of rows of the catalog with the transaction that wrote them last, so
# that whatever was altered, renamed, created or dropped differs. It has no parameters: the server
# plans it once.
_GLANCE = """
SELECT {identity}, locks.held, current_setting('sqd.snapshot_enabled', true),
    current_setting('sqd.snapshot_block_number', true), current_setting('sqd.snapshot_id', true),
    locks.written, {names},
    (SELECT string_agg(t.oid || ' ' || t.xmin, ', ' ORDER BY t.oid) FROM pg_trigger AS t
    WHERE t.tgrelid IN ({oids}))
FROM (SELECT coalesce(bool_or(l.locktype = 'advisory' AND l.objsubid = 1
        AND l.classid::bigint << 32 | l.objid::bigint = {key}), false) AS held,
    array_agg(DISTINCT l.relation || ' ' || coalesce(c.xmin::text, '')) FILTER (WHERE
        l.locktype = 'relation'
        AND l.mode IN ('RowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')) AS written
    FROM pg_locks AS l LEFT JOIN pg_class AS c ON c.oid = l.relation
    WHERE l.pid = pg_backend_pid() AND l.granted) AS locks
"""


class Facts(NamedTuple):
    """What a glance tells of a transaction: what it has written, and how it is captured."""

    written: frozenset[str]
    names: str | None
    triggers: str | None


class Guard:
    """Judges batches. Runs on the driver, at the end of `on_data`, inside the transaction.

    It remembers what it has accepted, as long as no transaction fails.
    """

    def __init__(
        self,
        session: Session,
        store: Store,
        sync: QualifiedName,
        stream_id: str,
    ) -> None:
        self._session = session
        self._catalog = store.catalog
        self._side = store.side
        self._own = (sync, sync.suffixed(CLAIMS))
        self._id = stream_id
        self._glance: tuple[Fragment, Fragment] | None = None
        self._accepted: dict[bool, Facts] = {}  # by whether the batch was hot

    def forget(self) -> None:
        """Look at everything again: a transaction has failed."""
        self._accepted.clear()

    def check(self, scope: Scope) -> None:
        """Refuse the batch if a fork could not undo it, or if it is not ours to commit any more.

        Raises:
            TryAgain: its changes were not kept, and will be when it is written once more.
        """
        tracked = self._catalog.tracked()
        glance = self._glance_at(tracked)
        ((identity, is_locked, *settings, written, names, triggers),) = self._session.rows(
            glance, prepare=True
        )
        self._session.compare(identity, is_locked)
        if scope.hot and settings != ["true", str(scope.block), self._id]:
            raise PostgresStatementError("a fork could not undo this", what="SET sqd.…")
        facts = Facts(frozenset(written or ()), names, triggers)
        held = self._accepted.get(scope.hot)
        if held is not None and held[1:] == facts[1:] and facts.written <= held.written:
            return
        self._judge(scope, tracked)
        known = held.written if held is not None else frozenset()
        if glance == self._glance_at(self._catalog.tracked()):
            self._accepted[scope.hot] = facts._replace(written=facts.written | known)

    def _glance_at(self, tracked: Mapping[int, Tracked]) -> Fragment:
        """Return the query of a glance at these relations; what was accepted of others is void."""
        oids = ", ".join(map(str, tracked)) or "0"
        names = [literal(one.relation.quoted) for one in tracked.values()]
        texts = ", ".join(f"to_regclass({one})::oid::text" for one in names)
        asked = Fragment(f"{oids}: {texts}")
        if self._glance is None or self._glance[0] != asked:
            self._accepted.clear()
            sql = compose(
                _GLANCE,
                identity=IDENTITY,
                key=Fragment(str(self._session.lock_key)),
                names=Fragment(f"concat_ws(' ', {texts})" if names else "''"),
                oids=Fragment(oids),
            )
            self._glance = asked, sql
        return self._glance[1]

    def _judge(self, scope: Scope, tracked: Mapping[int, Tracked]) -> None:
        """Look at everything, and refuse what must be."""
        oids = list(tracked)
        rows = self._session.rows(
            _QUERY,
            [
                oids,
                [one.relation.quoted for one in tracked.values()],
                [f"{oid}/{name}" for oid in oids for name in tracked[oid].triggers],
            ],
            prepare=True,
        )
        found: dict[str, list[list[str]]] = {}
        for what, parts in rows:
            found.setdefault(what, []).append(parts)
        gone = {int(oid) for (oid,) in found.get("gone", [])}
        if scope.hot:
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
            own = relation in self._own or relation in self._side.names
            known = own or self._catalog.is_known(relation, parent)
            if known is False:
                raise UntrackedTableError("a table that was not declared was written", table=name)
            if known is None:
                raise TryAgain(f"partition {relation} is new")
