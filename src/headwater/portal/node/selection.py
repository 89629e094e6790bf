"""A query as a node is asked for it: which logs, which blocks, and what of them is sent on.

Pure. Made once for each request. What a node cannot be asked for is refused here, before anything
is read. Filters are AND over their keys and OR within a list, filters are OR-ed, relations bring
what belongs to the same transaction, and each item is sent once, in block order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headwater.errors import NodeLacksError
from headwater.portal.node.answers import (
    RECEIPT_FIELDS,
    Item,
    Log,
    bloom_mask,
    complete,
    item_of,
    log_item,
)

ADDRESSES_PER_CALL = 500
_MASKS = 64  # of longer lists the bloom is not asked: nearly all blocks would fit
_TOPICS = ("topic0", "topic1", "topic2", "topic3")
_FOREIGN = {
    "transactionTraces": "traces",
    "transactionStateDiffs": "state diffs",
    "traces": "traces",
    "stateDiffs": "state diffs",
}
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class BlockData:
    """What was read of one block. `logs` are those that match; `all_logs` has the others, too."""

    header: msgspec.Raw
    number: int
    hash: str
    parent_hash: str
    logs: Sequence[Log] = ()
    all_logs: Sequence[Log] = ()
    transactions: Sequence[Item] = ()
    receipts: Mapping[str, Item] | None = None


class Selection:
    """The filters and fields of one request for blocks."""

    def __init__(self, query: Mapping[str, Any]) -> None:
        if query.get("type") != "evm":
            raise NodeLacksError("a node holds an EVM network", query=query.get("type"))
        for family in ("traces", "stateDiffs"):
            if query.get(family):
                _refuse(_FOREIGN[family])
        self._logs = tuple(_Filter(item) for item in query.get("logs") or ())
        self._transactions = tuple(_Filter(item) for item in query.get("transactions") or ())
        self.includes_all = bool(query.get("includeAllBlocks"))
        fields = query.get("fields") or {}
        self._block_fields = _selected(fields, "block", ("number", "hash"))
        self._log_fields = _selected(fields, "log")
        self._transaction_fields = _selected(fields, "transaction")
        self._needs_receipts = not RECEIPT_FIELDS.isdisjoint(self._transaction_fields)
        self._masks = [item.masks() for item in self._logs]

    @property
    def wants_logs(self) -> bool:
        """Whether logs are asked for."""
        return bool(self._logs)

    @property
    def wants_transactions(self) -> bool:
        """Whether transactions are asked for by filters of their own, so of every block."""
        return bool(self._transactions)

    def log_filters(self) -> list[dict[str, Any]]:
        """Return filters for `eth_getLogs` that match at least what is asked for."""
        if not self._logs:
            return []
        topics = [_union(item.values.get(name) for item in self._logs) for name in _TOPICS]
        while topics and topics[-1] is None:
            topics.pop()
        wanted: dict[str, Any] = {"topics": topics} if topics else {}
        addresses = _union(item.values.get("address") for item in self._logs)
        if addresses is None:
            return [wanted]
        return [
            {**wanted, "address": addresses[start : start + ADDRESSES_PER_CALL]}
            for start in range(0, len(addresses), ADDRESSES_PER_CALL)
        ]

    def may_have_logs(self, bloom: int) -> bool:
        """Tell whether a block with this bloom may have a log that matches."""
        return bloom != 0 and any(
            all(any(bloom & mask == mask for mask in masks) for masks in wanted)
            for wanted in self._masks
        )

    def choose(self, logs: Iterable[Log]) -> list[Log]:
        """Return the logs that match."""
        if all(not item.values for item in self._logs):
            return list(logs)
        return [log for log in logs if any(item.matches_log(log) for item in self._logs)]

    # --- what else has to be read of a block ------------------------------------------------------

    def needs_transactions(self, block: BlockData) -> bool:
        """Tell whether matching logs bring their transactions, which are not read yet."""
        if not self._transaction_fields or self._transactions:
            return False
        return bool(self._related(block.logs, "transaction"))

    def needs_all_logs(self, block: BlockData) -> bool:
        """Tell whether something that matches brings the other logs of its transaction."""
        if not self._log_fields:
            return False
        if self._related(block.logs, "transactionLogs"):
            return True
        bringing = [item for item in self._transactions if "logs" in item.relations]
        return any(
            item.matches(complete(tx, None)) for tx in block.transactions for item in bringing
        )

    def needs_receipts(self, block: BlockData) -> list[Item]:
        """Return the transactions whose receipts are needed."""
        if not self._needs_receipts:
            return []
        wanted = self._transactions_of(block)
        return [tx for tx in block.transactions if int(tx["transactionIndex"], 16) in wanted]

    # --- lines ------------------------------------------------------------------------------------

    def line(self, block: BlockData, *, boundary: bool) -> bytes | None:
        """Return the line of a block; None if nothing matches and nobody wants it bare."""
        transactions = self._transactions_of(block)
        logs = self._logs_of(block)
        if not (transactions or logs or boundary or self.includes_all):
            return None
        header = msgspec.json.decode(block.header)
        line: dict[str, Any] = {"header": item_of("block", header, self._block_fields)}
        if transactions and self._transaction_fields:
            line["transactions"] = self._transaction_items(block, transactions)
        if logs and self._log_fields:
            names = self._log_fields
            line["logs"] = [{name: logs[key][name] for name in names} for key in sorted(logs)]
        return _encode(line)

    def _transaction_items(self, block: BlockData, wanted: set[int]) -> list[Item]:
        receipts = block.receipts or {}
        by_index = {int(tx["transactionIndex"], 16): tx for tx in block.transactions}
        return [
            item_of("transaction", complete(tx, receipts.get(tx["hash"])), self._transaction_fields)
            for index in sorted(wanted)
            if (tx := by_index.get(index)) is not None
        ]

    def _transactions_of(self, block: BlockData) -> set[int]:
        """Return the places of the transactions to send."""
        places = self._related(block.logs, "transaction")
        if self._transactions:
            for tx in block.transactions:
                whole = complete(tx, None)
                if any(item.matches(whole) for item in self._transactions):
                    places.add(int(tx["transactionIndex"], 16))
        return places

    def _logs_of(self, block: BlockData) -> dict[int, Item]:
        """Return the logs to send, by their place."""
        logs = {int(log.log_index, 16): log_item(log) for log in block.logs}
        owners = self._related(block.logs, "transactionLogs")
        bringing = [item for item in self._transactions if "logs" in item.relations]
        for tx in block.transactions if bringing else ():
            whole = complete(tx, None)
            if any(item.matches(whole) for item in bringing):
                owners.add(int(tx["transactionIndex"], 16))
        if owners:
            for log in block.all_logs:
                if int(log.transaction_index, 16) in owners:
                    logs[int(log.log_index, 16)] = log_item(log)
        return logs

    def _related(self, logs: Sequence[Log], relation: str) -> set[int]:
        """Return the places of the transactions whose logs bring this along."""
        bringing = [item for item in self._logs if relation in item.relations]
        return {
            int(log.transaction_index, 16)
            for log in (logs if bringing else ())
            if any(item.matches_log(log) for item in bringing)
        }


class _Filter:
    """One filter: the values of each key, in lower case, and its relations."""

    def __init__(self, wire: Mapping[str, Any]) -> None:
        self.values: dict[str, Any] = {}
        self.relations: set[str] = set()
        for key, value in wire.items():
            if isinstance(value, bool):
                if value and key in _FOREIGN:
                    _refuse(_FOREIGN[key])
                self.relations |= {key} if value else set()
            elif isinstance(value, list):
                self.values[key] = {_lower(item) for item in value}
            elif value is not None:
                self.values[key] = value

    def matches_log(self, log: Log) -> bool:
        """Tell whether a log matches."""
        for key, wanted in self.values.items():
            if key == "address":
                fits = log.address.lower() in wanted
            else:
                place = int(key[-1])
                fits = place < len(log.topics) and log.topics[place].lower() in wanted
            if not fits:
                return False
        return True

    def matches(self, tx: Item) -> bool:
        """Tell whether a transaction matches, as a node sends it with its selector."""
        for key, wanted in self.values.items():
            if key == "firstNonce":
                fits = int(tx["nonce"], 16) >= wanted
            elif key == "lastNonce":
                fits = int(tx["nonce"], 16) <= wanted
            elif key == "type":
                fits = int(tx.get("type") or "0x0", 16) in wanted
            else:
                fits = _lower(tx.get(key)) in wanted
            if not fits:
                return False
        return True

    def masks(self) -> list[list[int]]:
        """Return the bits that a match sets in a bloom: those of one value of each list."""
        short = (values for values in self.values.values() if len(values) <= _MASKS)
        return [[bloom_mask(value) for value in values] for values in short]


def _selected(
    fields: Mapping[str, Any], entity: str, forced: Sequence[str] = ()
) -> tuple[str, ...]:
    chosen = fields.get(entity) or {}
    return (*forced, *(name for name, is_on in chosen.items() if is_on and name not in forced))


def _union(lists: Iterable[set[str] | None]) -> list[str] | None:
    """Return all values; None if one list is absent, which means: anything."""
    union: set[str] = set()
    for values in lists:
        if values is None:
            return None
        union |= values
    return sorted(union)


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _refuse(what: str) -> None:
    raise NodeLacksError(f"a node is not asked for {what} yet", lacks=what)
