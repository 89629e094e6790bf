"""What a portal answers to a request body: judged from the raw JSON, independent of `query`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headwater.testing.chain import ChainSim, Network, SimBlock


class BadRequest(Exception):  # noqa: N818 - the name of the HTTP status it becomes
    """The portal refuses the request body; the text is the body of the 400 answer."""


class Selection:
    """A parsed request body: which blocks match, and what their lines hold."""

    def __init__(self, network: Network, body: Mapping[str, Any]) -> None:
        if body.get("type") != network.value:
            raise BadRequest(f"unknown type {body.get('type')!r}, expected {network.value!r}")
        self.network = network
        self.include_all_blocks: bool = bool(body.get("includeAllBlocks", False))
        position = {"fromBlock", "toBlock", "parentBlockHash"}
        rest = {key: body[key] for key in sorted(body) if key not in position}
        self.key = msgspec.json.encode(rest, order="sorted").decode()
        self._fields: list[str] = list(body.get("fields", {}).get("block", {}))

    def line(self, chain: ChainSim, block: SimBlock, *, boundary: bool = False) -> bytes | None:
        """Return the NDJSON line of a block, without newline; None if it is left out."""
        if not (boundary or self.include_all_blocks):
            return None
        header: dict[str, Any] = {"number": block.number, "hash": block.hash}
        if "parentHash" in self._fields:
            header["parentHash"] = block.parent_hash
        if "timestamp" in self._fields:
            header["timestamp"] = block.timestamp
        return msgspec.json.encode({"header": header})
