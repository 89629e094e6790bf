"""The text of the trigger functions that keep what a hot block changes.

The earliest image per row and block wins. Foreign keys and triggers of the user's run statements
inside a statement, and the inner one is kept first although the outer one changed the row first. So
an inner statement's images carry a number and the level, and the outer statement removes those that
were made since it began before it keeps its own. What a foreign key does to the very table that is
written comes in one set with the rest; there the order of the rows in the set tells what came
first.
"""

from __future__ import annotations

from headwater.targets.postgres.layout import Layout
from headwater.targets.sql.text import Fragment, columns, compose, equal, literal
from headwater.targets.sql.undo import BLOCK, OPERATION, STREAM

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
