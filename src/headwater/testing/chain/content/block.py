"""The contents of one simulated block: what is the same on every network, for each to fill in.

A network's class names the `families` of its lines and makes the header and the rows. Rows are
drawn in one order always, so that a seed means the same chain for ever.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any, ClassVar

from headwater.query import NETWORKS
from headwater.query.values import snake_name
from headwater.testing.chain.population import ContentSettings, Draw, Network, Population
from headwater.testing.chain.tree import SimBlock

Row = dict[str, Any]
Rows = dict[str, list[Row]]


def absent(network: Network, entity: str) -> Row:
    """Return all fields of an entity without a value: a row begins with what it may not have."""
    catalogue = next(catalogue for catalogue in NETWORKS if catalogue.type == network)
    return dict.fromkeys(field.wire for field in catalogue.entity(entity).fields)


class BlockContent(ABC):
    """One block's contents, family by family; rows are shared, so readers do not change them.

    `families` are in the order in which lines hold them. Each is made when it is first asked for,
    by a cached property of its name, since most requests want one or two of them.
    """

    families: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        seed: int,
        block: SimBlock,
        since_start: int,
        people: Population,
        settings: ContentSettings,
    ) -> None:
        self._seed, self._block, self._since_start = seed, block, since_start
        self._people, self._settings = people, settings

    @cached_property
    def header(self) -> Row:
        """The block's own fields."""
        return self._header()

    def rows(self, family: str) -> list[Row]:
        """Return the rows of a family, in block order."""
        rows: list[Row] = getattr(self, f"_{snake_name(family)}")
        return rows

    @abstractmethod
    def _header(self) -> Row: ...

    @property
    def _links(self) -> Row:
        block = self._block
        return {"number": block.number, "hash": block.hash, "parentHash": block.parent_hash}

    @cached_property
    def _keys(self) -> list[str]:
        """What names each transaction, in block order."""
        return transaction_keys(self._seed, self._block, self._settings)


class WholeContent(BlockContent):
    """Contents whose families are made together, in `_fill`."""

    def rows(self, family: str) -> list[Row]:
        """Return the rows of a family, in block order."""
        return self._rows[family]

    @abstractmethod
    def _fill(self, rows: Rows) -> None: ...

    @cached_property
    def _rows(self) -> Rows:
        rows: Rows = {family: [] for family in self.families}
        self._fill(rows)
        return rows


def transaction_keys(
    seed: int,
    block: SimBlock,
    settings: ContentSettings,
    more: Sequence[str] = (),
    salt: str | None = None,
) -> list[str]:
    """Return a key for each transaction, in block order: some by the block, some by its height.

    Those of the height are in every block that ever stands there, mostly at another place: a real
    chain includes again what a replaced block held. `more` are keys of this block alone; `salt`
    orders them all, by default the hash.
    """
    average, share = settings.transactions_per_block, settings.recurring_share
    own, recurring = f"{seed}/{block.hash}", f"{seed}/{block.number}"
    keys = [
        f"{name}/{index}"
        for name, part in ((own, average * (1 - share)), (recurring, average * share))
        for index in range(Draw(name, "count").count(part))
    ]
    suffix = block.hash if salt is None else salt
    return sorted([*keys, *more], key=lambda key: blake2b((key + suffix).encode()).digest())
