"""May changes of several blocks be merged in another order than that of the blocks?"""

from __future__ import annotations

from collections.abc import Iterable

from headwater.targets.duckdb.dialect import TableName
from headwater.targets.duckdb.session import Session
from headwater.targets.sql.merge.shape import Shape


def are_independent(session: Session, shapes: Iterable[Shape]) -> bool:
    """Tell whether no row's change can be refused because of another row. Runs on the driver.

    It can where values are unique beside the key, or refer to rows; and where two spellings may be
    one key, only the order of blocks tells rows apart.
    """
    shapes = list(shapes)
    if any(one.ambiguous for one in shapes):
        return False
    bound = session.rows(
        "SELECT lower(schema_name), lower(table_name), constraint_type = 'FOREIGN KEY' "
        "FROM duckdb_constraints() WHERE database_name = current_database() "
        "AND constraint_type IN ('UNIQUE', 'FOREIGN KEY') UNION ALL "
        "SELECT lower(schema_name), lower(table_name), false FROM duckdb_indexes() "
        "WHERE database_name = current_database() AND is_unique AND NOT is_primary"
    )
    mine = {TableName.parse(one.full_name).folded for one in shapes}
    return not any(refers or (schema, table) in mine for schema, table, refers in bound)
