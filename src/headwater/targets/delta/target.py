"""Delta tables as a target: rows, cursor, high-water mark and rollback chain in one commit.

The first table of a stream leads: its commits carry the state. A stream with one table commits
rows and state in one atomic step. With several, the others commit first and the leader last, which
is the commit point; a rollback begins with the leader. It removes the files of orphaned blocks and
adds what they had replaced, in one commit per table, whatever the size of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from headwater.core.callbacks import Callback
from headwater.core.rooms import Policy
from headwater.core.several import Several
from headwater.errors import InvalidOptionError
from headwater.targets.database import OnData
from headwater.targets.delta.changes import DataFile
from headwater.targets.delta.tables import StreamTables
from headwater.targets.lake.paths import Options, Place, check_spelling
from headwater.targets.lake.settings import (
    Declared,
    DeltaSettings,
    Table,
    check_folder_name,
    declared_tables,
)
from headwater.targets.lake.table import Announce
from headwater.targets.lake.target import LakeTarget
from headwater.targets.lake.tx import Tx
from headwater.targets.sql.aggregates import Aggregate, Plan, plan_aggregates
from headwater.targets.values import check_policy


class DeltaTarget(LakeTarget[DataFile]):
    """Made by `delta_target`."""

    place: Place

    @classmethod
    def at(
        cls,
        place: Place,
        declared: Mapping[str, Table],
        on_data: Callback | None,
        settings: DeltaSettings,
        policy: Policy = Policy.REPLACE,
        plans: Sequence[Plan] = (),
    ) -> DeltaTarget:
        """Make a target of a place; without `on_data` tables need no declaration."""

        def open_tables(stream_id: str, announce: Announce) -> StreamTables:
            automatic = on_data is None
            return StreamTables(place, stream_id, declared, announce, automatic=automatic)

        made = cls(open_tables, on_data, settings, policy, declared=declared, plans=plans)
        made.place = place
        return made


def delta_target(
    path: str | Path,
    *,
    tables: Several[Declared] | None = None,
    on_data: OnData[Tx[DataFile]] | None = None,
    aggregates: Iterable[Aggregate] = (),
    options: Options | None = None,
    unrepresentable: str = "replace",
    settings: DeltaSettings | None = None,
) -> DeltaTarget:
    """Write a stream to Delta tables.

    Args:
        path: a directory or `s3://bucket/prefix`, with a folder per table.
        tables: every table that `on_data` writes, as a name, `table(...)`, or the `TableSchema` of
            changes that `tx.apply` applies. Without `on_data`,
            only those that need more than their name.
        on_data: `on_data(tx, data)` or `on_data(tx, data, ctx)`, called for each batch. Left out,
            each output is inserted into the table of its own name.
        aggregates: tables that sum up outputs, made by `aggregate(...)`; each batch rewrites the
            files that hold its keys.
        options: credentials and addresses of an object store (`s3.endpoint`, `s3.region`,
            `s3.access-key-id`, `s3.secret-access-key`); left out, those of the environment.
        unrepresentable: what is done with a value that a column cannot hold: `"replace"` it by the
            nearest one, `"null"`, `"skip"` its row, or `"stop"`. Counted and told in any case.
        settings: the stream id, how much is kept and rewritten.
    """
    plans = plan_aggregates(aggregates)
    declared = declared_tables(tables, plans, without=("order_by", "properties"), on_data=on_data)
    for one in declared.values():
        check_folder_name(one.name)
        if any(part.transform != "identity" for part in one.partition_by):
            raise InvalidOptionError(
                "partition_by takes columns of the table, no transforms: make the column in the "
                "pipeline",
                table=one.name,
            )
    callback = Callback.optional("on_data", on_data, "tx, data", "tx, data, ctx")
    policy = check_policy(unrepresentable)
    place = Place.of(path, options)
    check_spelling(str(place.local_path) if place.is_local else "")
    return DeltaTarget.at(place, declared, callback, settings or DeltaSettings(), policy, plans)
