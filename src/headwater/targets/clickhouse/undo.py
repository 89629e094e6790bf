"""Taking rows back, each engine in its own way; safe to repeat, also after half of it was done."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from headwater.errors import ClickHouseServerError
from headwater.targets.clickhouse.client import ClickHouseClient, every_row
from headwater.targets.clickhouse.layout import Family, Layout
from headwater.targets.clickhouse.sql import DELETED, Fragment, columns, compose

logger = logging.getLogger("headwater.targets.clickhouse")

_ROUNDS = 5
_EXTERNAL = {"max_bytes_before_external_group_by": "2000000000"}
Params = Mapping[str, object]


class Undo:
    """Removes rows from tables of a server. Runs on the driver."""

    def __init__(self, client: ClickHouseClient) -> None:
        self._client = client
        self._noticed: set[str] = set()

    def above(self, layout: Layout, number: int, stream_id: str) -> int:
        """Remove the stream's rows above a block; return how many there were."""
        where = compose("<block> > {above:Int64}", block=layout.block_column)
        if layout.stream_column is None:
            return self.remove(layout, where, {"above": number})
        where = compose(
            "<where> AND <stream> = {stream:String}", where=where, stream=layout.stream_column
        )
        return self.remove(layout, where, {"above": number, "stream": stream_id})

    def remove(self, layout: Layout, where: str, params: Params) -> int:
        """Remove the rows that meet a condition; return how many there were."""
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
        """
        names = columns(one for one in layout.columns if one != layout.sign)
        which = compose("<table> WHERE <where>", table=layout.name, where=Fragment(where))
        left = compose(
            "SELECT toInt64(sum(<sign>)) AS net, sumWithOverflow("
            "reinterpretAsInt64(sipHash64(tuple(<names>))) * <sign>) AS hashes FROM <which>",
            names=names,
            sign=layout.sign,
            which=which,
        )
        nets = compose(
            "SELECT <names>, sum(<sign>) AS `_sqd_net` FROM <which> GROUP BY <names> "
            "HAVING `_sqd_net` != 0",
            names=names,
            sign=layout.sign,
            which=which,
        )
        removed = None
        for _ in range(_ROUNDS):
            found = self._client.rows(left, params)[0]
            if not (found["net"] or found["hashes"]):
                return removed or 0
            removed = abs(int(found["net"])) if removed is None else removed
            self._client.run(
                compose(
                    "INSERT INTO <table> (<names>, <sign>) "
                    "SELECT <names>, if(`_sqd_net` > 0, -1, 1) FROM (<nets>) "
                    "ARRAY JOIN range(toUInt64(abs(`_sqd_net`))) AS `_sqd_copy`",
                    table=layout.name,
                    names=names,
                    sign=layout.sign,
                    nets=nets,
                ),
                params,
                settings=every_row() | _EXTERNAL,  # the same rows may have to go again and again
            )
        raise ClickHouseServerError(
            "rows come back while they are removed: somebody else writes the table",
            table=layout.name,
            rows=removed,
        )

    def _supersede(self, layout: Layout, where: str, params: Params) -> int:
        """Insert a newer, deleted version of each row."""
        alive = compose("<table> FINAL WHERE <where>", table=layout.name, where=Fragment(where))
        found = self._count(compose("SELECT count() AS n FROM <alive>", alive=alive), params)
        if found:
            self._client.run(
                compose(
                    "INSERT INTO <table> (<rest>, <version>, <deleted>) "
                    "SELECT <rest>, <version> + 1, 1 FROM <alive>",
                    table=layout.name,
                    rest=[one for one in layout.columns if one not in layout.marks],
                    version=layout.version,
                    deleted=layout.deleted,
                    alive=alive,
                ),
                params,
                settings=every_row(),
            )
        return found

    def _delete(self, layout: Layout, where: str, params: Params) -> int:
        """Delete rows; materialized views are not told of it, and keep theirs."""
        which = compose("<table> WHERE <where>", table=layout.name, where=Fragment(where))
        found = self._count(compose("SELECT count() AS n FROM <which>", which=which), params)
        if found:
            self._notice(layout)
            self._client.run(
                compose("DELETE FROM <which>", which=which),
                params,
                settings=DELETED,
            )
        return found

    def _notice(self, layout: Layout) -> None:
        if str(layout.name) not in self._noticed:
            self._noticed.add(str(layout.name))
            logger.warning(
                "undo.by_deletion table=%s: its engine has no sign, so materialized views on it "
                "keep the rows of orphaned blocks",
                layout.name,
            )

    def _count(self, sql: str, params: Params) -> int:
        return int(self._client.rows(sql, params)[0]["n"])
