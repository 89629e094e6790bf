"""Undo capture: statement-level triggers that copy what a hot block changes, set by set.

Each tracked table has `<table>__snapshots`: its columns, the operation and the block, keyed by
block and primary key, as the Pipes SDK keeps them, and the stream. Of a row that came into being
only the key is kept, of one that changed or went the whole row as it was. The triggers do nothing
unless `sqd.snapshot_enabled` says so; the target switches it on for blocks that a fork can undo.
Triggers of the Pipes SDK are replaced.

The earliest image per row and block wins. Foreign keys and triggers of the user's run statements
inside a statement, and the inner one is kept first although the outer one changed the row first. So
an inner statement's images carry a number and the level, and the outer statement removes those that
were made since it began before it keeps its own. What a foreign key does to the very table that is
written comes in one set with the rest; there the order of the rows in the set tells what came
first.
"""

from __future__ import annotations

from typing import NamedTuple

from headwater.targets.postgres.dialect import POSTGRES, TableName
from headwater.targets.postgres.session import Session
from headwater.targets.sql.layout import Layout, Undo
from headwater.targets.sql.undo import BLOCK, OPERATION, STREAM
from headwater.targets.text import (
    Fragment,
    QualifiedName,
    columns,
    compose,
    equal,
    literal,
    quote,
)

REFUSED, APPEND_ONLY = "HW113", "HW112"  # what a guard raises, as an SQLSTATE

_ENABLED = "current_setting('sqd.snapshot_enabled', true) IN ('true', 'on', 't', '1')"
_INSTALLING = "SELECT pg_advisory_xact_lock(hashtext('sqd_drizzle_triggers')::bigint)"
_REFERENCES = {
    "insert": "REFERENCING NEW TABLE AS ___sqd__new",
    "update": "REFERENCING OLD TABLE AS ___sqd__old NEW TABLE AS ___sqd__new",
    "delete": "REFERENCING OLD TABLE AS ___sqd__old",
}

_Clause = tuple[str, str]  # what comes before ON <table>, and what after


class Tracked(NamedTuple):
    """A relation whose changes are kept, and the triggers that do it."""

    relation: QualifiedName
    triggers: list[str]


class Triggers:
    """Installs undo capture on the tables of a stream. Runs on the driver, in a transaction.

    Doing it again changes nothing, and takes no lock on the tables.
    """

    def __init__(self, session: Session, stream_id: str, home: str) -> None:
        self._session = session
        self._id = stream_id
        self._refuse = TableName(home, "sqd_snapshot_refuse")
        self.tracked: dict[int, Tracked] = {}  # by oid

    def take_turn(self) -> None:
        """Wait until no other process, the Pipes SDK included, installs triggers here."""
        self._session.run(_INSTALLING)

    def install(self, layout: Layout) -> None:
        """Make sure that a table's changes are kept, or refused where they cannot be undone."""
        if layout.undo in (Undo.NONE, Undo.CHANGE_LOG):
            return
        functions: dict[QualifiedName, str] = {self._refuse: REFUSE_BODY}
        wanted: dict[str, _Clause] = {}
        if layout.undo is Undo.APPEND_ONLY:
            wanted["sqd_append_only"] = self._guard("UPDATE OR DELETE OR TRUNCATE", APPEND_ONLY)
        else:
            self._complete_log(layout)
            for event, body in capture_bodies(layout).items():
                function = TableName(
                    layout.name.schema,
                    TableName.fitted(layout.name.name, "sqd_snapshot_", f"_{event}"),
                )
                functions[function] = body
                wanted[f"sqd_snapshot_{event}"] = self._capture(layout, event, function)
            wanted["sqd_snapshot_truncate"] = self._guard("TRUNCATE", REFUSED)
        statements = self._functions(functions)
        for relation in layout.relations:
            self._replace_foreign(relation)
            statements += self._triggers(relation, wanted, inherited=relation != layout.name)
        if statements:
            self._session.run(";\n".join(statements))

    def _triggers(
        self, relation: QualifiedName, wanted: dict[str, _Clause], *, inherited: bool
    ) -> list[Fragment]:
        """Return the statements that create the triggers which a relation lacks."""
        rows = self._session.rows(
            "SELECT r.oid::bigint, t.tgname, t.tgenabled FROM (SELECT $1::regclass::oid) AS r (oid)"
            " LEFT JOIN pg_trigger AS t ON t.tgrelid = r.oid",
            [compose("{name}", name=relation)],
        )
        held = {name: enabled for _, name, enabled in rows}
        tracked = self.tracked[rows[0][0]] = Tracked(relation, [])
        statements = []
        for name, (event, action) in wanted.items():
            if inherited and action.startswith("FOR EACH ROW"):
                continue  # row triggers of a partitioned table are on its partitions already
            tracked.triggers.append(name)
            if held.get(name, "D") != "D":
                continue
            if name in held:
                statements.append(
                    compose("DROP TRIGGER {name} ON {table}", name=name, table=relation)
                )
            statements.append(
                compose(
                    "CREATE TRIGGER {name} {event} ON {table} {action}",
                    name=name,
                    event=Fragment(event),
                    table=relation,
                    action=Fragment(action),
                )
            )
        return statements

    def _capture(self, layout: Layout, event: str, function: QualifiedName) -> _Clause:
        call = compose("EXECUTE FUNCTION {name}()", name=function)
        if event == "start":
            return (
                "BEFORE INSERT OR UPDATE OR DELETE",
                f"FOR EACH STATEMENT WHEN ({_ENABLED}) {call}",
            )
        if event == "key":
            old, new = columns(layout.key, "OLD."), columns(layout.key, "NEW.")
            return (
                f"AFTER UPDATE OF {columns(layout.key)}",
                f"FOR EACH ROW WHEN (({old}) IS DISTINCT FROM ({new}) AND {_ENABLED}) {call}",
            )
        return (
            f"AFTER {event.upper()}",
            f"{_REFERENCES[event]} FOR EACH STATEMENT WHEN ({_ENABLED}) {call}",
        )

    def _guard(self, events: str, state: str) -> _Clause:
        call = compose("EXECUTE FUNCTION {name}({state})", name=self._refuse, state=literal(state))
        return f"BEFORE {events}", f"FOR EACH STATEMENT WHEN ({_ENABLED}) {call}"

    def _functions(self, wanted: dict[QualifiedName, str]) -> list[Fragment]:
        """Return the statements that create the functions which are not as they should be."""
        rows = self._session.rows(
            "SELECT n.nspname, p.proname, p.prosrc FROM pg_proc AS p "
            "JOIN pg_namespace AS n ON n.oid = p.pronamespace "
            "WHERE p.pronargs = 0 AND p.proname = ANY($1)",
            [[name.name for name in wanted]],
        )
        bodies: dict[QualifiedName, str] = {
            TableName(schema, name): text for schema, name, text in rows
        }
        changed = {name: body for name, body in wanted.items() if bodies.get(name) != body}
        if self._refuse in changed:  # all streams share it, and the first ones may start together
            self.take_turn()
        return [
            compose(
                "CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS {body}",
                name=name,
                body=literal(body),
            )
            for name, body in changed.items()
        ]

    def _replace_foreign(self, relation: QualifiedName) -> None:
        """Drop the row-level triggers that the Pipes SDK has installed, and their functions."""
        rows = self._session.rows(
            "SELECT t.tgname, n.nspname, p.proname FROM pg_trigger AS t "
            "JOIN pg_proc AS p ON p.oid = t.tgfoid "
            "JOIN pg_namespace AS n ON n.oid = p.pronamespace "
            "WHERE t.tgrelid = $1::regclass AND t.tgparentid = 0 "
            "AND starts_with(p.proname, 'maybe_snapshot_')",
            [compose("{name}", name=relation)],
        )
        for trigger, schema, function in rows:
            self._session.run("DROP TRIGGER {name} ON {table}", name=trigger, table=relation)
            used = self._session.rows(
                "SELECT 1 FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid "
                "JOIN pg_namespace AS n ON n.oid = p.pronamespace "
                "WHERE n.nspname = $1 AND p.proname = $2 LIMIT 1",
                [schema, function],
            )
            if not used:
                self._session.run("DROP FUNCTION {name}()", name=TableName(schema, function))

    # --- the log ----------------------------------------------------------------------------------

    def _complete_log(self, layout: Layout) -> None:
        """Create the log, or give it what it lacks: columns added since, the stream."""
        log = layout.name.snapshots
        kinds = {one: layout.columns[one].type for one in layout.stored}
        if not POSTGRES.exists(self._session, log):
            parts = [f"{quote(name)} {kind}" for name, kind in kinds.items()]
            parts += [f"{OPERATION} TEXT NOT NULL", f"{BLOCK} BIGINT NOT NULL"]
            parts += [f"{STREAM} TEXT", f"{NESTED} BIGINT"]
            parts.append(f"PRIMARY KEY ({BLOCK}, {columns(layout.key)})")
            self._session.run(
                "CREATE TABLE {log} ({parts})", log=log, parts=Fragment(", ".join(parts))
            )
            return
        held: dict[str, str] = dict(
            self._session.rows(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
                "WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped",
                [compose("{log}", log=log)],
            )
        )
        for name, kind in (kinds | {STREAM: "text", NESTED: "bigint"}).items():
            if name not in held:
                sql = "ALTER TABLE {log} ADD COLUMN {name} {kind}"
            elif held[name] != kind:
                sql = "ALTER TABLE {log} ALTER COLUMN {name} TYPE {kind} USING {name}::{kind}"
            else:
                continue
            self._session.run(sql, log=log, name=name, kind=Fragment(kind))

    def adopt(self, layout: Layout, sync: QualifiedName) -> None:
        """Take over images without a stream: they are the Pipes SDK's, which knows no others.

        A stream that has no state cannot be the one that they belong to.
        """
        self._session.run(
            "UPDATE {log} SET {stream} = $1 WHERE {stream} IS NULL "
            "AND EXISTS (SELECT FROM {sync} WHERE id = $1)",
            [self._id],
            log=layout.name.snapshots,
            stream=STREAM,
            sync=sync,
        )

    def copy_rows(self, layout: Layout, sync: QualifiedName) -> None:
        """Keep an image of each row that a fork may undo, of a table that kept none so far.

        Its rows were only inserted, and carry their block.
        """
        self._session.run(
            "INSERT INTO {log} ({key}, {operation}, {block}, {stream}) "
            "SELECT {key}, 'INSERT', {at}, $1 FROM {table} WHERE {at} > "
            "coalesce((SELECT (finalized->>'number')::bigint FROM {sync} WHERE id = $1 "
            "ORDER BY current_number DESC LIMIT 1), "
            "(SELECT min(current_number) FROM {sync} WHERE id = $1)) ON CONFLICT DO NOTHING",
            [self._id],
            log=layout.name.snapshots,
            key=layout.key,
            operation=OPERATION,
            block=BLOCK,
            stream=STREAM,
            at=layout.block_column,
            table=layout.name,
            sync=sync,
        )


# --- the text of the trigger functions ------------------------------------------------------------

NESTED = "___sqd__nested"
REFUSE_BODY = """
BEGIN
    RAISE EXCEPTION '% on %', TG_OP, TG_RELID::regclass USING ERRCODE = TG_ARGV[0];
END"""
_KEY_BODY = """
BEGIN
    PERFORM set_config('sqd.key_changed_' || TG_RELID, 'true', true);
    RETURN NULL;
END"""
_MADE = "coalesce(nullif(current_setting('sqd.nested', true), ''), '0')"
_START = "'sqd.start_' || TG_RELID || lower(TG_OP)"
_START_BODY = f"""
BEGIN
    PERFORM set_config({_START} || pg_trigger_depth(), {_MADE}, true);
    RETURN NULL;
END"""
_DECLARE = """
#variable_conflict use_column
DECLARE
    ___sqd__at bigint := current_setting('sqd.snapshot_block_number')::bigint;
    ___sqd__of text := nullif(current_setting('sqd.snapshot_id', true), '');
    ___sqd__depth int := pg_trigger_depth();
    ___sqd__made bigint := {made};
    ___sqd__name text := {start} || ___sqd__depth;
    ___sqd__start bigint := nullif(current_setting(___sqd__name, true), '');
    ___sqd__inner bigint;
BEGIN
    IF ___sqd__start IS NULL THEN  -- a foreign key began it one level below
        ___sqd__name := {start} || ___sqd__depth + 1;
        ___sqd__start := coalesce(nullif(current_setting(___sqd__name, true), ''), '0');
    END IF;
    PERFORM set_config(___sqd__name, '', true);
    IF {numbered} THEN
        ___sqd__inner := (___sqd__made + 1) * 100 + ___sqd__depth;
        PERFORM set_config('sqd.nested', (___sqd__made + 1)::text, true);
    END IF;
"""
_OLD, _NEW = "___sqd__old", "___sqd__new"


def capture_bodies(layout: Layout) -> dict[str, str]:
    """Return the text of a table's functions, by the event that calls them."""
    everything, key = columns(layout.stored), columns(layout.key)
    bodies = {
        "insert": _outrank(layout, _NEW) + _once(layout, "INSERT", key, _NEW),
        "update": _outrank(layout, _OLD, _NEW)
        + (
            _in_order(layout)
            if layout.merged
            else _once(layout, "UPDATE", everything, _OLD) + _new_keys(layout)
        ),
        "delete": _outrank(layout, _OLD) + _once(layout, "DELETE", everything, _OLD),
    }
    declare = compose(
        _DECLARE,
        made=Fragment(_MADE),
        start=Fragment(_START),
        numbered=Fragment("true" if layout.merged else "___sqd__depth > 1"),
    )
    made = {event: f"{declare}{body}    RETURN NULL;\nEND" for event, body in bodies.items()}
    made["start"] = _START_BODY
    if not layout.always_compare:
        made["key"] = _KEY_BODY
    return made


def _outrank(layout: Layout, *sources: str) -> str:
    """Return the statements that remove what statements inside this one have kept of its rows.

    Foreign keys may change a row and then delete it, all at one level, and the deletion may be kept
    first: an UPDATE outranks it too.
    """
    level = Fragment("> ___sqd__depth")
    if len(sources) > 1:
        level = compose("> ___sqd__depth OR s.{operation} = 'DELETE'", operation=OPERATION)
    removals = [
        compose(
            "        DELETE FROM {log} AS s USING {source} AS r WHERE s.{block} = ___sqd__at "
            "AND s.{nested} / 100 > ___sqd__start AND (s.{nested} % 100 {level}) "
            "AND {same};\n",
            level=level,
            log=layout.name.snapshots,
            source=source,
            block=BLOCK,
            nested=NESTED,
            same=equal(layout.key, "s", "r"),
        )
        for source in sources
    ]
    return "    IF ___sqd__made > ___sqd__start THEN\n" + "".join(removals) + "    END IF;\n"


def _once(layout: Layout, operation: str, names: str, source: str) -> str:
    """Return the statements that keep rows; what the block has kept already stays as it is."""
    return compose(
        "    IF EXISTS (SELECT FROM {log} AS s WHERE s.{block} = ___sqd__at) THEN\n"
        "        {keep} WHERE {new};\n    ELSE\n        {keep};\n    END IF;\n",
        log=layout.name.snapshots,
        block=BLOCK,
        keep=_keep(layout, operation, names, source),
        new=_not_kept(layout),
    )


def _new_keys(layout: Layout) -> str:
    """Return the statement that keeps which keys an UPDATE has brought into being."""
    changed = "current_setting('sqd.key_changed_' || TG_RELID, true) = 'true'"
    return compose(
        "    IF {changed} THEN\n        {keep} WHERE {new} AND NOT EXISTS "
        "(SELECT FROM {old} AS o WHERE {same});\n    END IF;\n",
        changed=Fragment("true" if layout.always_compare else changed),
        keep=_keep(layout, "INSERT", columns(layout.key), _NEW),
        new=_not_kept(layout),
        old=_OLD,
        same=equal(layout.key, "o", "r"),
    )


def _in_order(layout: Layout) -> str:
    """Return the statements that keep what an UPDATE did, where it may have met a row twice.

    The old and the new rows come in the same order. A key that is first seen as a new one came into
    being, and what is seen of it later is no image of what was.
    """
    numbered = "(SELECT *, row_number() OVER () AS ___sqd__n FROM {source})"
    old = compose(numbered, source=_OLD)
    new = compose(numbered, source=_NEW)
    first = compose(
        "(SELECT DISTINCT ON ({key}) * FROM {rows} AS x ORDER BY {key}, ___sqd__n)",
        key=layout.key,
        rows=old,
    )
    came = compose(
        "(SELECT DISTINCT ON ({key}) {key}, ___sqd__n FROM {rows} AS x ORDER BY {key}, ___sqd__n)",
        key=layout.key,
        rows=new,
    )
    return compose(
        "    {old} WHERE {new_row} AND NOT EXISTS (SELECT FROM {came} AS c "
        "WHERE {c_same} AND c.___sqd__n < r.___sqd__n);\n"
        "    {new} WHERE {new_row} AND NOT EXISTS (SELECT FROM {first} AS o "
        "WHERE {o_same} AND o.___sqd__n <= r.___sqd__n);\n",
        old=_keep(layout, "UPDATE", columns(layout.stored), first),
        new=_keep(layout, "INSERT", columns(layout.key), came),
        new_row=_not_kept(layout),
        came=came,
        c_same=equal(layout.key, "c", "r"),
        first=first,
        o_same=equal(layout.key, "o", "r"),
    )


def _keep(layout: Layout, operation: str, names: str, source: str) -> Fragment:
    return compose(
        "INSERT INTO {log} ({names}, {operation}, {block}, {stream}, {nested}) "
        "SELECT {names}, {what}, ___sqd__at, ___sqd__of, ___sqd__inner FROM {source} AS r",
        log=layout.name.snapshots,
        names=Fragment(names),
        operation=OPERATION,
        block=BLOCK,
        stream=STREAM,
        nested=NESTED,
        what=literal(operation),
        source=source,
    )


def _not_kept(layout: Layout) -> Fragment:
    return compose(
        "NOT EXISTS (SELECT FROM {log} AS s WHERE s.{block} = ___sqd__at AND {same})",
        log=layout.name.snapshots,
        block=BLOCK,
        same=equal(layout.key, "s", "r"),
    )
