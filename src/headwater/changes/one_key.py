"""The changes of one key, folded one after the other: the way for the few that are truly mixed.

`fold` works on columns. Two kinds of keys it leaves to this module: those where one column sees
different field operations, and those where updates come before the first upsert, so that a row
that is there and a new one get different fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwater.changes.steps import Chain

Chains = dict[str, Chain]


def fold_one_key(changes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return operation, fields and fresh of the changes of one key, given in order.

    Called by `fold`, where it runs; that no insert meets a row was checked before. The same
    changes give the same result again.
    """
    there: Chains = {}  # what a row gets that was there before the first change
    fresh: Chains | None = None  # the row, if none was there before; None while there is none
    new_only = gone = False  # an insert says that none was there; a delete ends what was there
    for change in changes:
        operation, fields = change["operation"], change["fields"] or ()
        if operation == "delete":
            gone, fresh = True, None
            continue
        if operation == "insert":
            new_only = new_only or not gone
        creates = operation in ("insert", "upsert")
        if fresh is None and creates:
            fresh = {}
        for field in fields:
            step = (field["operation"], field["value"])
            if fresh is not None:
                fresh[field["name"]] = fresh.get(field["name"], Chain()).then(*step)
            if not gone:
                there[field["name"]] = there.get(field["name"], Chain()).then(*step)
    return _folded(there, fresh, new_only=new_only, gone=gone)


def _folded(there: Chains, fresh: Chains | None, *, new_only: bool, gone: bool) -> dict[str, Any]:
    if fresh is None and (gone or new_only):
        return {"operation": "transient" if new_only else "delete", "fields": None, "fresh": None}
    row = None if fresh is None else _row(fresh)
    if new_only or gone:
        return {"operation": "insert" if new_only else "replace", "fields": None, "fresh": row}
    fields = [
        {"name": name, "value": value, "operation": operation}
        for name in sorted(there)
        for operation, value in there[name].steps()
    ]
    return {"operation": "update" if row is None else "upsert", "fields": fields, "fresh": row}


def _row(chains: Chains) -> list[dict[str, Any]]:
    return [{"name": name, "value": chains[name].on(None)} for name in sorted(chains)]
