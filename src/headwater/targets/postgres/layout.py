"""A table as it is in the database: its columns, its key, its partitions, what refers to it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from headwater.targets.postgres.session import Session
from headwater.targets.sql import catalog
from headwater.targets.sql.catalog import Column, Undo
from headwater.targets.sql.text import QualifiedName


@dataclass(frozen=True, slots=True)
class Layout(catalog.Layout):
    """A table, and what undo capture must know of it.

    `always_compare`: a key may change in ways that no trigger on the key columns sees.
    `acted_upon`: a foreign key elsewhere deletes or changes rows when rows here go. `merged`: a
    foreign key of its own deletes or changes rows here, and what it does is seen together with what
    set it off, one row perhaps twice. `refers`: it has foreign keys. `primary`: the name of the
    primary key's constraint. `shared`: other streams write it too.
    """

    partitions: tuple[QualifiedName, ...] = ()
    partitioned: bool = False
    always_compare: bool = False
    acted_upon: bool = False
    merged: bool = False
    refers: bool = False
    primary: str | None = None
    shared: bool = False

    @property
    def relations(self) -> tuple[QualifiedName, ...]:
        """The table and its partitions."""
        return (self.name, *self.partitions)


def read_layout(session: Session, name: QualifiedName) -> Layout | None:
    """Read a table from the catalog; None if there is none of this name."""
    rows = session.rows(
        """
        SELECT c.oid::bigint, c.relkind = 'p',
            EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal
                AND t.tgtype & 3 = 3 AND t.tgtype & 16 = 16),
            EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND NOT i.indisprimary
                AND (i.indisunique OR i.indisexclusion)),
            EXISTS (SELECT FROM pg_constraint AS k WHERE k.confrelid = c.oid AND k.contype = 'f'
                AND (k.confdeltype <> 'a' OR k.confupdtype <> 'a')),
            EXISTS (SELECT FROM pg_constraint AS k WHERE k.conrelid = c.oid AND k.contype = 'f'
                AND (k.confdeltype IN ('c', 'n', 'd') OR k.confupdtype IN ('c', 'n', 'd')))
            AND NOT EXISTS (SELECT FROM pg_constraint AS k WHERE k.conrelid = c.oid
                AND k.contype = 'p' AND k.condeferrable),
            EXISTS (SELECT FROM pg_constraint AS k WHERE k.conrelid = c.oid AND k.contype = 'f'),
            (SELECT k.conname FROM pg_constraint AS k WHERE k.conrelid = c.oid
                AND k.contype = 'p'),
            (SELECT array_agg(a.attname::text ORDER BY place.n) FROM pg_index AS i
                CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS place (attnum, n)
                JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = place.attnum
                WHERE i.indrelid = c.oid AND i.indisprimary AND place.n <= i.indnkeyatts),
            (SELECT json_agg(json_build_array(i.indisunique, i.columns)) FROM (
                SELECT i.indisunique, array_agg(a.attname::text) AS columns
                FROM pg_index AS i CROSS JOIN LATERAL unnest(i.indkey) AS place (attnum)
                JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = place.attnum
                WHERE i.indrelid = c.oid AND NOT i.indisprimary
                GROUP BY i.indexrelid, i.indisunique) AS i)::text
        FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p')
        """,
        [name.schema, name.name],
    )
    if not rows:
        return None
    oid, partitioned, watched, unique, acted_upon, merged, refers, primary, key, others = rows[0]
    return Layout(
        name,
        tuple(key or ()),
        Undo.NONE,
        "",
        columns=_columns(session, oid),
        partitions=_partitions(session, oid, type(name)) if partitioned else (),
        partitioned=partitioned,
        always_compare=partitioned or watched,
        unique=unique,
        indexes=tuple((one, tuple(names)) for one, names in json.loads(others or "[]")),
        acted_upon=acted_upon,
        merged=merged,
        refers=refers,
        primary=primary,
    )


def _columns(session: Session, oid: int) -> dict[str, Column]:
    rows = session.rows(
        """
        SELECT a.attname, format_type(a.atttypid, a.atttypmod),
            format_type(coalesce(nullif(t.typbasetype, 0), t.oid), NULL),
            CASE WHEN a.atttypid = 'numeric'::regtype AND a.atttypmod >= 4
                THEN (a.atttypmod - 4) >> 16 END,
            CASE WHEN a.atttypid = 'numeric'::regtype AND a.atttypmod >= 4
                THEN (a.atttypmod - 4) & 2047 END,
            a.attgenerated <> '', a.attidentity = 'a',
            CASE WHEN a.attgenerated = '' THEN pg_get_expr(d.adbin, d.adrelid) END, a.attnotnull
        FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
        LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = $1::bigint::oid AND a.attnum > 0 AND NOT a.attisdropped
        ORDER BY a.attnum
        """,
        [oid],
    )
    return {row[0]: Column(*row) for row in rows}


def _partitions(
    session: Session, oid: int, name_type: type[QualifiedName]
) -> tuple[QualifiedName, ...]:
    rows = session.rows(
        "SELECT n.nspname, c.relname FROM pg_partition_tree($1::bigint::oid::regclass) AS p "
        "JOIN pg_class AS c ON c.oid = p.relid JOIN pg_namespace AS n ON n.oid = c.relnamespace "
        "WHERE p.level > 0 ORDER BY 1, 2",
        [oid],
    )
    return tuple(name_type(*row) for row in rows)
