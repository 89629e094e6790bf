"""A simulated EVM node: JSON-RPC over the chain and the replicas of a simulated portal.

Written from what nodes answer, and apart from `headwater.portal.node`, which asks them. It shows
the same blocks as the portal beside it, so that rows read through both must be equal. `Quirks` says
what a provider allows and how it fails; replicas that lag or stand on another branch are those of
the portal (`PortalSim.replicas`): every HTTP request is answered by the next one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, Any

from Crypto.Hash import keccak

from headwater.testing.chain.content import content_of
from headwater.testing.chain.tree import ChainSim, Network, SimBlock
from headwater.testing.portal.answer import Break, SimAnswer
from headwater.testing.portal.replicas import View
from headwater.testing.portal.surface import SURFACES

if TYPE_CHECKING:
    from headwater.testing.portal.dataset import PortalSim

Row = dict[str, Any]

FAULTS = (
    "rate limit",
    "rate limit with a time",
    "rate limit in a 200",
    "bad gateway",
    "error in a 200",
    "error in a batch",
    "html",
    "cut",
    "silence",
    "null",
    "no logs",
    "logs twice",
    "removed logs",
    "answers left out",
)
"""What a provider does wrong now and then."""

TOO_WIDE = (
    "block range is too wide",
    "query returned more than 10000 results",
    "eth_getLogs is limited to a {most} range",
    "Log response size exceeded. this block range should work: [{first}, {last}]",
    "exceed maximum block range: {most}",
)
_RECEIPT = (
    *("contractAddress", "gasUsed", "cumulativeGasUsed", "effectiveGasPrice", "status"),
    *("logsBloom", "l1Fee", "l1FeeScalar", "l1GasPrice", "l1GasUsed", "l1BlobBaseFee"),
    *("l1BlobBaseFeeScalar", "l1BaseFeeScalar"),
)


@dataclass(slots=True)
class Quirks:
    """Limits, gaps and errors of a provider. They may be changed while the node runs.

    `fault_share` of the requests meet one of `faults`. `max_range` and `max_logs` bound a request
    for logs, `max_batch` the calls of a request.
    """

    max_range: int | None = None
    max_logs: int | None = None
    max_batch: int | None = None
    lacks: frozenset[str] = frozenset()
    has_finality: bool = True
    chain_id: int = 1
    fault_share: float = 0.0
    faults: tuple[str, ...] = FAULTS


class _Failed(Exception):  # noqa: N818 - an answer
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message}


class NodeSim:
    """Answers the requests of one node, which has the blocks of `portal`.

    `calls` counts the methods that were asked for, `met` what went wrong.
    """

    def __init__(self, portal: PortalSim, quirks: Quirks | None = None) -> None:
        self.quirks = quirks or Quirks()
        self.calls: Counter[str] = Counter()
        self.met: Counter[str] = Counter()
        self.portal = portal
        self._chain = portal.chain
        self._dice = Random(f"node {portal.seed}")
        self._methods: dict[str, Callable[[View, list[Any]], Any]] = {
            "eth_chainId": lambda view, params: hex(self.quirks.chain_id),
            "eth_blockNumber": lambda view, params: hex(view.tip.number),
            "eth_getBlockByNumber": self._by_number,
            "eth_getBlockByHash": self._by_hash,
            "eth_getLogs": self._logs,
            "eth_getBlockReceipts": self._receipts,
            "eth_getTransactionReceipt": self._receipt,
        }

    def respond(self, body: bytes) -> SimAnswer:
        """Answer one HTTP request."""
        with self._chain.lock:
            asked = json.loads(body)
            view = self.portal.replicas.choose().view()
            calls = asked if isinstance(asked, list) else [asked]
            fault = None
            if self._dice.random() < self.quirks.fault_share:
                fault = self._dice.choice(self.quirks.faults)
                self.met[fault] += 1
            limit = self.quirks.max_batch
            if limit is not None and len(calls) > limit:
                self.met["batch refused"] += 1
                return _json(_error(None, -32600, f"batch limit {limit} exceeded"))
            replies = [self._reply(call, view, fault) for call in calls]
            return self._bend(replies if isinstance(asked, list) else replies[0], fault)

    def _bend(self, reply: Any, fault: str | None) -> SimAnswer:
        if fault == "rate limit":
            return _json(_error(None, -32005, "too many requests"), 429)
        if fault == "rate limit with a time":
            return _json(_error(None, 429, "slow down"), 429, {"retry-after": "0.01"})
        if fault == "rate limit in a 200":
            return _json(_error(None, -32005, "request rate exceeded: rate limit"))
        if fault == "bad gateway":
            return SimAnswer(502, {"content-type": "text/html"}, (b"<h1>Bad gateway</h1>",))
        if fault == "error in a 200":
            return _json(_error(0, -32603, "Internal error"))
        if fault == "html":
            return SimAnswer(200, {"content-type": "text/html"}, (b"<html>hello</html>",))
        answer = _json(reply)
        if fault == "error in a batch" and isinstance(reply, list):
            place = self._dice.randrange(len(reply))
            reply[place] = _error(reply[place]["id"], -32000, "header not found")
            answer = _json(reply)
        if fault == "answers left out" and isinstance(reply, list):
            answer = _json(reply[: self._dice.randrange(len(reply))])
        if fault == "cut":
            after = self._dice.randrange(answer.size)
            return SimAnswer(200, answer.headers, answer.body, Break(stall=False, after=after))
        if fault == "silence":
            return SimAnswer(200, answer.headers, answer.body, Break(stall=True))
        return answer

    def _reply(self, call: Row, view: View, fault: str | None) -> Row:
        method, identity = call["method"], call["id"]
        self.calls[method] += 1
        if method not in self._methods or method in self.quirks.lacks:
            return _error(identity, -32601, f"the method {method} does not exist/is not available")
        try:
            result = self._methods[method](view, call["params"])
        except _Failed as failed:
            return {"jsonrpc": "2.0", "id": identity, "error": failed.error}
        if fault == "null" and method.startswith("eth_getBlock"):
            result = None
        if method == "eth_getLogs" and "blockHash" not in call["params"][0]:
            result = {"no logs": [], "logs twice": result + result}.get(fault or "", result)
            if fault == "removed logs":
                result = [{**log, "removed": True} for log in result]
        return {"jsonrpc": "2.0", "id": identity, "result": result}

    # --- methods ----------------------------------------------------------------------------------

    def _by_number(self, view: View, params: list[Any]) -> Row | None:
        tag, full = params
        if tag == "latest":
            return self._block(view.tip, full=full)
        if tag in ("finalized", "safe"):
            if not self.quirks.has_finality:
                raise _Failed(-32602, f"invalid argument 0: hex string without 0x prefix: {tag}")
            final = view.finalized
            return None if final is None else self._by_number(view, [hex(final.number), full])
        block = view.at_or_below(int(tag, 16))
        if block is None or block.number != int(tag, 16):
            return None
        return self._block(block, full=full)

    def _by_hash(self, view: View, params: list[Any]) -> Row | None:
        block = self._known(view, params[0])
        return None if block is None else self._block(block, full=params[1])

    def _known(self, view: View, block_hash: str) -> SimBlock | None:
        """Return a block of the replica's branch: a node forgets the others."""
        block = self._chain.find(block_hash)
        return block if block is not None and view.at_or_below(block.number) == block else None

    def _logs(self, view: View, params: list[Any]) -> list[Row]:
        (wanted,) = params
        if "blockHash" in wanted:
            block = self._known(view, wanted["blockHash"])
            if block is None:
                raise _Failed(-32000, "unknown block")
            blocks = [block]
        else:
            first, last = int(wanted["fromBlock"], 16), int(wanted["toBlock"], 16)
            self._check_range(first, last)
            blocks = view.blocks(first, last)
        logs = [log for block in blocks for log in logs_of(self._chain, block)]
        logs = [log for log in logs if _matches(log, wanted)]
        most = self.quirks.max_logs
        if most is not None and len(logs) > most and len(blocks) > 1:
            self.met["too many logs"] += 1
            raise _Failed(-32005, f"query returned more than {most} results")
        return logs

    def _check_range(self, first: int, last: int) -> None:
        most = self.quirks.max_range
        if most is not None and last - first + 1 > most:
            self.met["too wide"] += 1
            text = self._dice.choice(TOO_WIDE)
            good = {"most": most, "first": hex(first), "last": hex(first + most - 1)}
            raise _Failed(self._dice.choice((-32005, -32000, -32602)), text.format(**good))

    def _receipts(self, view: View, params: list[Any]) -> list[Row] | None:
        block = self._known(view, params[0])
        if block is None:
            return None
        rows = content_of(self._chain, block).rows("transactions")
        return [self._receipt_of(block, row) for row in rows]

    def _receipt(self, view: View, params: list[Any]) -> Row | None:
        for block in reversed(view.blocks(view.tip.number - 200, view.tip.number)):
            for row in content_of(self._chain, block).rows("transactions"):
                if row["hash"] == params[0]:
                    return self._receipt_of(block, row)
        return None

    # --- objects ----------------------------------------------------------------------------------

    def _receipt_of(self, block: SimBlock, row: Row) -> Row:
        own = {name: _hexed(row[name]) for name in _RECEIPT if row[name] is not None}
        return {**own, "contractAddress": row["contractAddress"], "status": _hexed(row["status"]),
                "transactionHash": row["hash"], "transactionIndex": hex(row["transactionIndex"]),
                "blockHash": block.hash, "blockNumber": hex(block.number)}  # fmt: skip

    def _block(self, block: SimBlock, *, full: bool) -> Row:
        content = content_of(self._chain, block)
        result = {name: _hexed(value) for name, value in content.header.items()}
        result["logsBloom"] = bloom_of(self._chain, block)
        rows = content.rows("transactions")
        result["transactions"] = [row["hash"] for row in rows]
        if full:
            fields = SURFACES[Network.EVM].families["transactions"].fields
            kept = [name for name in fields if name not in _RECEIPT]
            result["transactions"] = [
                {name: _hexed(row[name]) for name in kept if name != "sighash"}
                | {"blockHash": block.hash, "blockNumber": hex(block.number)}
                for row in rows
            ]
        return result


@lru_cache(maxsize=4096)
def logs_of(chain: ChainSim, block: SimBlock) -> list[Row]:
    """Return the logs of a block as a node sends them."""
    place = {"blockHash": block.hash, "blockNumber": hex(block.number), "removed": False}
    rows = content_of(chain, block).rows("logs")
    return [{name: _hexed(value) for name, value in row.items()} | place for row in rows]


@lru_cache(maxsize=4096)
def bloom_of(chain: ChainSim, block: SimBlock) -> str:
    """Return the bloom of a block's logs."""
    bloom = 0
    for log in logs_of(chain, block):
        for value in (log["address"], *log["topics"]):
            digest = keccak.new(digest_bits=256, data=bytes.fromhex(value[2:])).digest()
            for start in (0, 2, 4):
                bloom |= 1 << (int.from_bytes(digest[start : start + 2]) & 2047)
    return f"0x{bloom:0512x}"


def _matches(log: Row, wanted: Row) -> bool:
    addresses = wanted.get("address")
    if addresses is not None and log["address"] not in addresses:
        return False
    topics = wanted.get("topics", [])
    if len(topics) > len(log["topics"]):
        return False
    return all(some is None or log["topics"][place] in some for place, some in enumerate(topics))


def _hexed(value: Any) -> Any:
    """Write a number as nodes do."""
    if isinstance(value, int):
        return hex(value)
    if isinstance(value, str) and not value.startswith("0x") and value.isdecimal():
        return hex(int(value))
    return value


def _error(identity: Any, code: int, message: str) -> Row:
    return {"jsonrpc": "2.0", "id": identity, "error": {"code": code, "message": message}}


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> SimAnswer:
    sent = {"content-type": "application/json", **(headers or {})}
    return SimAnswer(status, sent, (json.dumps(value).encode(),))
