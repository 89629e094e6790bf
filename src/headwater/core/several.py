"""A type for parameters that take several things, and for which a single text is a mistake."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeVar

Item = TypeVar("Item", covariant=True)


class Several(Protocol[Item]):
    """Lists, tuples, sets and keys of a mapping, but no text, which only contains texts.

    For type checkers alone: `tables="transfers"` is refused in the editor already.
    """

    def __contains__(self, item: object, /) -> bool:
        """Tell whether it has an item, whatever that is."""
        ...

    def __iter__(self) -> Iterator[Item]:
        """Hand out the items."""
        ...
