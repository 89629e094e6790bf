"""Iceberg as a target: files first, then a snapshot per block in each table, then the state.

A rollback moves references, whatever the size of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pyiceberg.catalog import Catalog

from headwater.core.callbacks import Callback
from headwater.core.rooms import Policy
from headwater.core.several import Several
from headwater.errors import InvalidOptionError
from headwater.targets.database import OnData
from headwater.targets.iceberg.catalog import CatalogName
from headwater.targets.iceberg.inner import DataFile
from headwater.targets.iceberg.tables import StreamTables
from headwater.targets.lake.settings import NAME, Declared, IcebergSettings, Table, declared_tables
from headwater.targets.lake.table import Announce
from headwater.targets.lake.target import LakeTarget
from headwater.targets.lake.tx import Tx
from headwater.targets.sql.aggregates import Aggregate, Plan, plan_aggregates
from headwater.targets.values import check_policy


class IcebergTarget(LakeTarget[DataFile]):
    """Made by `iceberg_target`."""

    catalog: CatalogName | Catalog

    @classmethod
    def of(
        cls,
        catalog: CatalogName | Catalog,
        declared: Mapping[str, Table],
        on_data: Callback | None,
        settings: IcebergSettings,
        policy: Policy = Policy.REPLACE,
        plans: Sequence[Plan] = (),
    ) -> IcebergTarget:
        """Make a target of declared tables; a catalog that is opened already stays open."""

        def open_tables(stream_id: str, announce: Announce) -> StreamTables:
            owned = isinstance(catalog, CatalogName)
            opened = catalog.open() if isinstance(catalog, CatalogName) else catalog
            return StreamTables(opened, stream_id, declared, settings, announce, owned=owned)

        made = cls(open_tables, on_data, settings, policy, declared=declared, plans=plans)
        made.catalog = catalog
        return made


def iceberg_target(
    catalog: str | Path | Mapping[str, str] | Catalog,
    *,
    tables: Several[Declared],
    on_data: OnData[Tx[DataFile]] | None = None,
    aggregates: Iterable[Aggregate] = (),
    unrepresentable: str = "replace",
    settings: IcebergSettings | None = None,
) -> IcebergTarget:
    """Write a stream to Iceberg tables.

    Args:
        catalog: a directory, which then holds tables and catalog; the name of a catalog that
            pyiceberg is configured with; properties as pyiceberg takes them, such as
            `{"type": "rest", "uri": …}`; or a catalog of pyiceberg's, which stays open.
        tables: every table that is written, as a name, `table(...)`, or the `TableSchema` of
            changes that `tx.apply` applies.
        on_data: `on_data(tx, data)` or `on_data(tx, data, ctx)`, called for each batch; again if
            the batch had to be repeated. Left out, each output is inserted into the table of its
            own name.
        aggregates: tables that sum up outputs, made by `aggregate(...)`; each batch rewrites the
            files that hold its keys.
        unrepresentable: what is done with a value that a column cannot hold: `"replace"` it by the
            nearest one, `"null"`, `"skip"` its row, or `"stop"`. Counted and told in any case.
        settings: the stream id, the namespace, how much is kept and rewritten.
    """
    plans = plan_aggregates(aggregates)
    declared = declared_tables(tables, plans)
    if not declared:
        raise InvalidOptionError('tables names every table that is written: tables=["transfers"]')
    for name in declared:
        if not NAME.fullmatch(name):
            raise InvalidOptionError("a table is named `name` or `namespace.name`", got=repr(name))
    callback = Callback.optional("on_data", on_data, "tx, data", "tx, data, ctx")
    policy = check_policy(unrepresentable)
    named = catalog if isinstance(catalog, Catalog) else CatalogName.of(catalog)
    return IcebergTarget.of(named, declared, callback, settings or IcebergSettings(), policy, plans)
