"""Undo capture: statement-level triggers that copy what a hot block changes, set by set.

Each tracked table has `<table>__snapshots`: its columns, the operation and the block, keyed by
block and primary key, as the Pipes SDK keeps them, and the stream. Of a row that came into being
only the key is kept, of one that changed or went the whole row as it was. The earliest image per
row and block wins. The triggers do nothing unless `sqd.snapshot_enabled` says so; the target
switches it on for blocks that a fork can undo. Triggers of the Pipes SDK are replaced.
"""

from __future__ import annotations

from headwater.targets.postgres.layout import Layout, Undo
from headwater.targets.postgres.session import Session
from headwater.targets.postgres.sql import (
    Fragment,
    TableName,
    columns,
    compose,
    equal,
    fitted,
    literal,
    quote,
)
from headwater.targets.postgres.sync_table import exists

OPERATION = "___sqd__operation"
BLOCK = "___sqd__block_number"
STREAM = "___sqd__id"
RESERVED = "___sqd__"
REFUSED, APPEND_ONLY = "HW113", "HW112"  # what a guard raises, as an SQLSTATE

_ENABLED = "current_setting('sqd.snapshot_enabled', true) IN ('true', 'on', 't', '1')"
_INSTALLING = "SELECT pg_advisory_xact_lock(hashtext('sqd_drizzle_triggers')::bigint)"
_REFERENCES = {
    "insert": "REFERENCING NEW TABLE AS ___sqd__new",
    "update": "REFERENCING OLD TABLE AS ___sqd__old NEW TABLE AS ___sqd__new",
    "delete": "REFERENCING OLD TABLE AS ___sqd__old",
}

_Clause = tuple[str, str]  # what comes before ON <table>, and what after


class Triggers:
    """Installs undo capture on the tables of a stream. Runs on the driver, in a transaction.

    Doing it again changes nothing, and takes no lock on the tables.
    """

    def __init__(self, session: Session, stream_id: str, home: str) -> None:
        self._session = session
        self._id = stream_id
        self._refuse = TableName(home, "sqd_snapshot_refuse")

    def take_turn(self) -> None:
        """Wait until nobody else, also no Pipes SDK, installs triggers in this database."""
        self._session.run(_INSTALLING)

    def install(self, layout: Layout) -> None:
        """Make sure that a table's changes are kept, or refused where they cannot be undone."""
        wanted: dict[str, _Clause] = {}
        if layout.undo is Undo.NONE:
            return
        self._function(self._refuse, _REFUSE_BODY)
        if layout.undo is Undo.APPEND_ONLY:
            wanted["sqd_append_only"] = self._guard("UPDATE OR DELETE OR TRUNCATE", APPEND_ONLY)
        else:
            self._complete_log(layout)
            for event, body in self._bodies(layout).items():
                function = TableName(
                    layout.name.schema, fitted(layout.name.name, "sqd_snapshot_", f"_{event}")
                )
                self._function(function, body)
                wanted[f"sqd_snapshot_{event}"] = self._capture(layout, event, function)
            wanted["sqd_snapshot_truncate"] = self._guard("TRUNCATE", REFUSED)
        for relation in layout.relations:
            self._replace_foreign(relation)
            self._put(relation, wanted, inherited=relation != layout.name)

    def _put(self, relation: TableName, wanted: dict[str, _Clause], *, inherited: bool) -> None:
        held = {
            name
            for (name,) in self._session.rows(
                "SELECT t.tgname FROM pg_trigger AS t WHERE t.tgrelid = $1::regclass "
                "AND t.tgenabled <> 'D'",
                [compose("{name}", name=relation)],
            )
        }
        for name, (event, action) in wanted.items():
            if name in held or (inherited and action.startswith("FOR EACH ROW")):
                continue  # row triggers of a partitioned table are on its partitions already
            self._session.run(
                compose("DROP TRIGGER IF EXISTS {name} ON {table}", name=name, table=relation)
            )
            self._session.run(
                compose(
                    "CREATE TRIGGER {name} {event} ON {table} {action}",
                    name=name,
                    event=Fragment(event),
                    table=relation,
                    action=Fragment(action),
                )
            )

    def _capture(self, layout: Layout, event: str, function: TableName) -> _Clause:
        call = compose("EXECUTE FUNCTION {name}()", name=function)
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

    def _function(self, name: TableName, body: str) -> None:
        rows = self._session.rows(
            "SELECT p.prosrc FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace "
            "WHERE n.nspname = $1 AND p.proname = $2 AND p.pronargs = 0",
            [name.schema, name.name],
        )
        if rows != [(body,)]:
            self._session.run(
                compose("CREATE OR REPLACE FUNCTION {name}() RETURNS trigger ", name=name)
                + f"LANGUAGE plpgsql AS {literal(body)}"
            )

    def _replace_foreign(self, relation: TableName) -> None:
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
            self._session.run(
                compose("DROP TRIGGER {name} ON {table}", name=trigger, table=relation)
            )
            used = self._session.rows(
                "SELECT 1 FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid "
                "JOIN pg_namespace AS n ON n.oid = p.pronamespace "
                "WHERE n.nspname = $1 AND p.proname = $2 LIMIT 1",
                [schema, function],
            )
            if not used:
                self._session.run(
                    compose("DROP FUNCTION {name}()", name=TableName(schema, function))
                )

    # --- the log ----------------------------------------------------------------------------------

    def _complete_log(self, layout: Layout) -> None:
        """Create the log, or give it what it lacks: columns added since, the stream."""
        log = layout.name.snapshots
        kinds = {one: layout.columns[one].type for one in layout.stored}
        if not exists(self._session, log):
            parts = [f"{quote(name)} {kind}" for name, kind in kinds.items()]
            parts += [f"{OPERATION} TEXT NOT NULL", f"{BLOCK} BIGINT NOT NULL", f"{STREAM} TEXT"]
            parts.append(f"PRIMARY KEY ({BLOCK}, {columns(layout.key)})")
            self._session.run(
                compose("CREATE TABLE {log} ({parts})", log=log, parts=Fragment(", ".join(parts)))
            )
            return
        held: dict[str, str] = dict(
            self._session.rows(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
                "WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped",
                [compose("{log}", log=log)],
            )
        )
        for name, kind in (kinds | {STREAM: "text"}).items():
            if name not in held:
                sql = "ALTER TABLE {log} ADD COLUMN {name} {kind}"
            elif held[name] != kind and name != STREAM:
                sql = "ALTER TABLE {log} ALTER COLUMN {name} TYPE {kind} USING {name}::{kind}"
            else:
                continue
            self._session.run(compose(sql, log=log, name=name, kind=Fragment(kind)))

    def adopt(self, layout: Layout) -> None:
        """Take over images without a stream: they are the Pipes SDK's, which knows no others."""
        if layout.undo is Undo.KEYED:
            self._session.run(
                compose(
                    "UPDATE {log} SET {stream} = $1 WHERE {stream} IS NULL",
                    log=layout.name.snapshots,
                    stream=STREAM,
                ),
                [self._id],
            )

    # --- functions --------------------------------------------------------------------------------

    def _bodies(self, layout: Layout) -> dict[str, str]:
        """Return the functions' text by event."""
        everything = columns(layout.stored)
        key = columns(layout.key)
        bodies = {
            "insert": _once(layout, "INSERT", key, "___sqd__new"),
            "update": _once(layout, "UPDATE", everything, "___sqd__old") + _new_keys(layout),
            "delete": _once(layout, "DELETE", everything, "___sqd__old"),
        }
        made = {event: _DECLARE + body + "RETURN NULL;\nEND" for event, body in bodies.items()}
        if not layout.always_compare:
            made["key"] = _KEY_BODY
        return made


_DECLARE = """
#variable_conflict use_column
DECLARE
    ___sqd__at bigint := current_setting('sqd.snapshot_block_number')::bigint;
    ___sqd__of text := nullif(current_setting('sqd.snapshot_id', true), '');
BEGIN
"""
_KEY_BODY = """
BEGIN
    PERFORM set_config('sqd.key_changed_' || TG_RELID, 'true', true);
    RETURN NULL;
END"""
_REFUSE_BODY = """
BEGIN
    RAISE EXCEPTION '% on %', TG_OP, TG_RELID::regclass USING ERRCODE = TG_ARGV[0];
END"""


def _once(layout: Layout, operation: str, names: str, source: str) -> str:
    """Return the statements that keep rows; what the block has kept already stays as it is."""
    keep = _keep(layout, operation, names, source)
    return compose(
        "IF EXISTS (SELECT FROM {log} AS s WHERE s.{block} = ___sqd__at) THEN\n"
        "    {keep} WHERE {new};\nELSE\n    {keep};\nEND IF;\n",
        log=layout.name.snapshots,
        block=BLOCK,
        keep=keep,
        new=_not_kept(layout),
    )


def _new_keys(layout: Layout) -> str:
    """Return the statement that keeps which keys an UPDATE has brought into being."""
    changed = (
        "" if layout.always_compare
        else "current_setting('sqd.key_changed_' || TG_RELID, true) = 'true'"
    )  # fmt: skip
    return compose(
        "IF {changed} THEN\n    {keep} WHERE {new} AND NOT EXISTS "
        "(SELECT FROM ___sqd__old AS o WHERE {same});\nEND IF;\n",
        changed=Fragment(changed or "true"),
        keep=_keep(layout, "INSERT", columns(layout.key), "___sqd__new"),
        new=_not_kept(layout),
        same=equal(layout.key, "o", "r"),
    )


def _keep(layout: Layout, operation: str, names: str, source: str) -> Fragment:
    return compose(
        "INSERT INTO {log} ({names}, {operation}, {block}, {stream}) "
        "SELECT {names}, {what}, ___sqd__at, ___sqd__of FROM {source} AS r",
        log=layout.name.snapshots,
        names=Fragment(names),
        operation=OPERATION,
        block=BLOCK,
        stream=STREAM,
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
