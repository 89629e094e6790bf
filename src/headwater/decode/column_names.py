"""Names of columns: what rows have in common first, then what the user's own types call things."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headwater.errors import SignatureError


def name_columns(taken: Sequence[str], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a column name for each member of the groups, in order.

    A name that is taken, by the columns before or by an earlier group, gets its group's name as a
    prefix: a parameter `address` of an event becomes `arg_address`. Spark does not tell capitals
    apart, so neither does this. Called when outputs are defined.

    Raises:
        SignatureError: the replacement is taken too.
    """
    used = {name.lower() for name in taken}
    columns: list[str] = []
    for prefix, names in groups.items():
        chosen = [f"{prefix}_{name}" if name.lower() in used else name for name in names]
        lowered = {name.lower() for name in chosen}
        if len(lowered) < len(chosen) or lowered & used:
            raise SignatureError(
                "a parameter is called like a column and its replacement is taken too; names do "
                "not change what is decoded, so rename one",
                columns=", ".join([*columns, *chosen]),
            )
        used |= lowered
        columns.extend(chosen)
    return columns
