"""Takes rows back, by the means of each engine. Safe to repeat, also after a crash halfway."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from headwater.errors import ClickHouseServerError
from headwater.targets.clickhouse.client import every_row
from headwater.targets.clickhouse.layout import Family, Layout
from headwater.targets.clickhouse.sql import DELETED, columns, compose
from headwater.targets.clickhouse.state import Lease
from headwater.targets.clickhouse.versioned import Versioned, is_log
from headwater.targets.text import Fragment

logger = logging.getLogger("headwater.targets.clickhouse")

_ROUNDS = 5
_EXTERNAL = {"max_bytes_before_external_group_by": "2000000000"}
Params = Mapping[str, object]


class Undo:
    """Removes rows from tables of a server, as long as the writer's lease holds.

    Runs on the driver.
    """

    def __init__(self, lease: Lease) -> None:
        self._client = lease.client
        self._lease = lease
        self._noticed: set[str] = set()

    def above(self, layout: Layout, number: int) -> int:
        """Remove the stream's rows above a block; return how many there were.

        What stands in the log of another table is undone there first.
        """
        versioned = Versioned.of_log(self._lease, layout)
        if versioned is not None:
            versioned.restore(number)
        where = compose("<block> > {above:Int64}", block=layout.block_column)
        return self._remove_own(layout, where, {"above": number})

    def check_reach(self, layout: Layout, number: int) -> None:
        """Refuse an undo that a log does not reach; other tables say of each row its block."""
        versioned = Versioned.of_log(self._lease, layout)
        if versioned is not None:
            versioned.check_reach(number)

    def between(self, layout: Layout, above: int, last: int) -> int:
        """Remove the stream's rows above a block, up to another one; return how many there were."""
        where = compose(
            "<block> > {above:Int64} AND <block> <= {last:Int64}", block=layout.block_column
        )
        return self._remove_own(layout, where, {"above": above, "last": last})

    def _remove_own(self, layout: Layout, where: str, params: Params) -> int:
        own = {"stream": self._lease.id_in(layout.name)}
        return self.remove(layout, f"{where} AND {layout.own}", {**params, **own})

    def remove(self, layout: Layout, where: str, params: Params) -> int:
        """Remove the rows that meet a condition; return how many counted."""
        if layout.family is Family.COLLAPSING:
            return self._cancel(layout, where, params)
        if layout.family is Family.REPLACING:
            return self._supersede(layout, where, params)
        return self._delete(layout, where, params)

    def _cancel(self, layout: Layout, where: str, params: Params) -> int:
        """Insert the negative of what the rows come to, until nothing is left.

        Rows are netted over all stored columns, so neither duplicates nor rows that were cancelled
        before are counted wrongly, and a materialized view is told exactly what it must give back.
        Whether something is left is told by a sum of hashes, which needs no groups.

        Of rows that agree in ORDER BY the engine shows a +1 that comes after the last -1. So a
        negative without its row gets one row more than it lacks, and the last -1 comes after them.
        """
        names = columns(column for column in layout.columns if column != layout.sign)
        net, hashes, copy = (_unused(name, layout) for name in ("net", "hashes", "copy"))
        parts: dict[str, Any] = {
            "names": names,
            "sign": layout.sign,
            "net": net,
            "hashes": hashes,
            "copy": copy,
        }
        rows = compose(
            "SELECT <names>, <sign> FROM <table> WHERE (<where>)",
            table=layout.name,
            where=_given(where),
            **parts,
        )
        left = compose(
            "SELECT toInt64(sum(<sign>)) AS <net>, sumWithOverflow("
            "reinterpretAsInt64(sipHash64(tuple(<names>))) * <sign>) AS <hashes>, "
            "countIf(<sign> < 0) AS <copy> FROM (<rows>)",
            rows=rows,
            **parts,
        )
        nets = compose(
            "SELECT <names>, sum(<sign>) AS <net> FROM (<rows>) GROUP BY <names> HAVING <net> != 0",
            rows=rows,
            **parts,
        )
        removed: int | None = None
        for _ in range(_ROUNDS):
            (row,) = self._client.rows(left, params)
            if not (row[net] or row[hashes]):
                return removed or 0
            alive, lone = int(row[net]), 0
            if row[copy]:
                (counted,) = self._client.rows(
                    "SELECT sumIf(<net>, <net> > 0) AS <hashes>, countIf(<net> < 0) AS <copy> "
                    "FROM (<nets>)",
                    params,
                    nets=nets,
                    **parts,
                )
                alive, lone = int(counted[hashes]), int(counted[copy])
            removed = alive if removed is None else removed
            if lone:
                self._insert_nets(layout, nets, params, parts, "< 0", "1")
            self._insert_nets(layout, nets, params, parts, "> 0", "-1")
        raise ClickHouseServerError(
            "rows come back while they are removed: another program writes the table",
            table=layout.name,
            rows=removed,
        )

    def _insert_nets(
        self,
        layout: Layout,
        nets: Fragment,
        params: Params,
        parts: Mapping[str, Any],
        which: str,
        sign: str,
    ) -> None:
        """Insert rows of a sign for groups: as many as they come to; for negatives one more."""
        self._lease.run(
            "INSERT INTO <table> (<names>, <sign>) SELECT <names>, <value> FROM (<nets>) "
            "ARRAY JOIN range(toUInt64(abs(<net>) + (<net> < 0))) AS <copy> "
            "WHERE <net> <which> AND <condition>",
            params,
            settings=every_row() | _EXTERNAL,  # the same rows may have to go again and again
            table=layout.name,
            nets=nets,
            value=Fragment(sign),
            which=Fragment(which),
            **parts,
        )

    def _supersede(self, layout: Layout, where: str, params: Params) -> int:
        """Insert a newer, deleted version of each row."""
        alive = compose("<table> FINAL WHERE (<where>)", table=layout.name, where=_given(where))
        count = self._count(layout, alive, params)
        if count:
            self._lease.run(
                "INSERT INTO <table> (<rest>, <version>, <deleted>) "
                "SELECT <rest>, <version> + 1, 1 FROM <alive> AND <condition>",
                params,
                settings=every_row(),
                table=layout.name,
                rest=layout.values,
                version=layout.version,
                deleted=layout.deleted,
                alive=alive,
            )
        return count

    def _delete(self, layout: Layout, where: str, params: Params) -> int:
        """Delete rows; materialized views are not told of it, and keep theirs."""
        which = compose("<table> WHERE (<where>)", table=layout.name, where=_given(where))
        count = self._count(layout, which, params)
        if count:
            self._notice(layout)
            self._lease.run(
                "DELETE FROM <which> AND <condition>", params, settings=DELETED, which=which
            )
        return count

    def _notice(self, layout: Layout) -> None:
        if str(layout.name) not in self._noticed and not is_log(layout):
            self._noticed.add(str(layout.name))
            logger.warning(
                "undo.by_deletion table=%s: its engine has no sign, so materialized views on it "
                "keep the rows of orphaned blocks",
                layout.name,
            )

    def _count(self, layout: Layout, which: Fragment, params: Params) -> int:
        name = _unused("count", layout)
        rows = self._client.rows(
            "SELECT count() AS <name> FROM <which>", params, name=name, which=which
        )
        return int(rows[0][name])


def _given(where: str) -> Fragment:
    """Return a condition that may end in a comment."""
    return Fragment(f"{where}\n")


def _unused(name: str, layout: Layout) -> str:
    """Return a name that no column of the table has."""
    name = f"_headwater_{name}"
    while name in layout.columns:
        name = f"_{name}"
    return name
