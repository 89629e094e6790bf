"""A query given as JSON, for those who have one already.

It is sent as it is, with the range added and the header fields that prove the order of blocks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headwater.core import BlockRange
from headwater.errors import SourceOptionError
from headwater.query import check_limits

_POSITION = ("fromBlock", "toBlock", "parentBlockHash")
_USUAL = ("number", "hash", "parentHash", "timestamp")
_LINKS = {
    "solana": ("number", "hash", "parentNumber", "parentHash", "timestamp"),
    "fuel": ("number", "hash"),  # its blocks have neither a parent's hash nor a timestamp
}
_NOT_FILTERS = ("type", "fields", "includeAllBlocks")


@dataclass(frozen=True, slots=True)
class RawQuery:
    """The body of a portal request without its range. A `StreamQuery`; pickles."""

    document: Mapping[str, Any]

    @property
    def include_all_blocks(self) -> bool:
        """Whether every block is asked for."""
        return bool(self.document.get("includeAllBlocks"))

    def body(
        self, from_block: int, to_block: int | None = None, parent_block_hash: str | None = None
    ) -> bytes:
        """Return the body of a stream request.

        Raises:
            QueryLimitError: it is larger than a portal accepts.
        """
        blocks = BlockRange(from_block, to_block)
        position = dict(
            zip(_POSITION, (blocks.from_block, blocks.to_block, parent_block_hash), strict=True)
        )
        sent = {key: value for key, value in position.items() if value is not None}
        body = json.dumps({**self.document, **sent}, separators=(",", ":")).encode()
        check_limits(body, self._filters())
        return body

    def _filters(self) -> int:
        return sum(
            len(value)
            for key, value in self.document.items()
            if key not in _NOT_FILTERS and isinstance(value, list)
        )


def parse_raw_query(text: str) -> RawQuery:
    """Understand the option `query`. Called on the driver, before anything is sent.

    Raises:
        SourceOptionError: it is no JSON object, has no type, or has a range of its own.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise SourceOptionError(f"query is not JSON: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("type"), str):
        raise SourceOptionError("query must be a JSON object with a 'type', such as \"evm\"")
    for key in _POSITION:
        if key in document:
            raise SourceOptionError(
                f"query has its own {key}; the range is given by from_block and to_block"
            )
    fields = document.get("fields", {})
    block = fields.get("block", {}) if isinstance(fields, dict) else None
    if not isinstance(block, dict):
        raise SourceOptionError("fields of a query must map entities to fields")
    links = dict.fromkeys(_LINKS.get(document["type"], _USUAL), True)
    return RawQuery({**document, "fields": {**fields, "block": {**block, **links}}})
