"""Reads a window of blocks from a node, and believes only what fits together.

A node answers each call by itself: between two of them the chain may fork, and two of them may be
answered by two servers. So every block of a window has its header read, headers must follow each
other by their hashes, each log must name the hash of its block's header, and a header whose bloom
says that there may be logs is not believed to have none until the block, by its hash, was asked.
What does not fit is `Unsettled` and read again. Nothing here is remembered for another window.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from headwater.portal.node.answers import (
    Header,
    Item,
    Log,
    read_bloom,
    read_header,
    read_item,
    read_items,
    read_logs,
)
from headwater.portal.node.rpc import (
    Answer,
    Call,
    NodeRefusal,
    NodeRpc,
    RpcError,
    TooWide,
    Unsettled,
)
from headwater.portal.node.selection import BlockData, Selection

_TOO_LARGE = 413


class WindowReader:
    """Reads windows from one node. Knows what the node's methods are like, nothing of the chain."""

    def __init__(self, rpc: NodeRpc) -> None:
        self._rpc = rpc
        self._receipts_by_block = True

    def read(
        self, selection: Selection, first: int, last: int, beside: Sequence[Call] = ()
    ) -> tuple[list[BlockData], list[Answer]]:
        """Return the blocks of a window; fewer, if the node does not have the last ones yet.

        The calls `beside` are asked with the last headers, so that one server answers both; their
        answers are returned, too.

        Raises:
            TooWide: the node does not answer for so many blocks.
            Unsettled: its answers do not fit together.
            NodeRefusal: it refuses.
            TransportError: the connection broke.
        """
        filters = selection.log_filters()
        log_calls: list[Call] = [
            ("eth_getLogs", [{**wanted, "fromBlock": hex(first), "toBlock": hex(last)}])
            for wanted in filters
        ]
        full = selection.wants_transactions
        header_calls: list[Call] = [
            ("eth_getBlockByNumber", [hex(number), full]) for number in range(first, last + 1)
        ]
        try:
            answers = self._rpc.ask([*log_calls, *header_calls, *beside])
        except NodeRefusal as refusal:
            if refusal.status == _TOO_LARGE:
                raise TooWide(RpcError(0, refusal.text)) from None
            raise
        ends = len(log_calls) + len(header_calls)
        blocks, headers = self._blocks(answers[len(log_calls) : ends], first, full=full)
        logs = self._logs(answers[: len(log_calls)])
        self._share_out(selection, blocks, logs)
        if filters:
            self._check_blooms(selection, blocks, headers)
        self._complete(selection, blocks)
        return blocks, answers[ends:]

    def headers(self, first: int, last: int) -> list[BlockData]:
        """Return the blocks of a window that the node has, up to the first that it lacks."""
        calls: list[Call] = [
            ("eth_getBlockByNumber", [hex(number), False]) for number in range(first, last + 1)
        ]
        return self._blocks(self._rpc.ask(calls), first, full=False)[0]

    def _blocks(
        self, answers: Sequence[Answer], first: int, *, full: bool
    ) -> tuple[list[BlockData], list[Header]]:
        """Check that headers follow each other; those behind the node's head are left out."""
        blocks: list[BlockData] = []
        headers: list[Header] = []
        for number, answer in enumerate(answers, first):
            raw = self._result("eth_getBlockByNumber", answer)
            header = read_header(raw)
            if header is None:
                break
            if header.place != number:
                raise Unsettled(f"asked for block {number}, got {header.place}")
            headers.append(header)
            block = BlockData(raw, number, header.hash, header.parent_hash)
            if full:
                block.transactions = read_item(raw).get("transactions") or ()
            blocks.append(block)
        if not blocks:
            raise Unsettled(f"block {first} is not there")
        for before, after in pairwise(blocks):
            if after.parent_hash != before.hash:
                raise Unsettled(f"block {after.number} does not follow block {before.number}")
        return blocks, headers

    def _logs(self, answers: Sequence[Answer]) -> list[Log]:
        logs: list[Log] = []
        for answer in answers:
            if isinstance(answer, RpcError):
                raise TooWide(answer)
            logs.extend(read_logs(answer))
        return logs

    def _share_out(self, selection: Selection, blocks: list[BlockData], logs: list[Log]) -> None:
        """Give each block the logs that match, which must name its hash."""
        by_number = {block.number: block for block in blocks}
        of_block: dict[int, list[Log]] = {}
        for log in selection.choose(logs):
            block = by_number.get(log.place)
            if block is None:
                continue  # behind the last block that the node showed: read with the next window
            if log.block_hash != block.hash or log.removed:
                raise Unsettled(f"a log of block {block.number} is of another one")
            of_block.setdefault(block.number, []).append(log)
        for number, own in of_block.items():
            by_number[number].logs = _ordered(own)

    def _check_blooms(
        self, selection: Selection, blocks: list[BlockData], headers: list[Header]
    ) -> None:
        """Ask again, by hash, for the logs of blocks whose bloom says something else."""
        doubtful = []
        for block, header in zip(blocks, headers, strict=True):
            bloom = read_bloom(header)
            if bloom is not None and bool(block.logs) != selection.may_have_logs(bloom):
                doubtful.append(block)
        if not doubtful:
            return
        for block, logs in zip(doubtful, self._logs_by_hash(doubtful, selection), strict=True):
            block.logs = _ordered(selection.choose(logs))

    def _logs_by_hash(
        self, blocks: Sequence[BlockData], selection: Selection | None = None
    ) -> list[list[Log]]:
        """Return the logs of blocks by their hashes: all, or those that a selection may want."""
        filters = [{}] if selection is None else selection.log_filters()
        calls: list[Call] = [
            ("eth_getLogs", [{**wanted, "blockHash": block.hash}])
            for block in blocks
            for wanted in filters
        ]
        answers = iter(self._rpc.ask(calls))
        by_block = []
        for block in blocks:
            logs: list[Log] = []
            for _ in filters:
                logs.extend(read_logs(self._result("eth_getLogs", next(answers))))
            if any(log.block_hash != block.hash for log in logs):
                raise Unsettled(f"a log of block {block.number} is of another one")
            by_block.append(logs)
        return by_block

    # --- transactions, receipts and other logs ----------------------------------------------------

    def _complete(self, selection: Selection, blocks: list[BlockData]) -> None:
        """Read what matching items bring along."""
        lacking = [block for block in blocks if selection.needs_transactions(block)]
        calls: list[Call] = [("eth_getBlockByHash", [block.hash, True]) for block in lacking]
        for block, answer in zip(lacking, self._rpc.ask(calls), strict=True):
            raw = self._result("eth_getBlockByHash", answer)
            header = read_header(raw)
            if header is None or header.hash != block.hash:
                raise Unsettled(f"block {block.number} is not there any more")
            block.transactions = read_item(raw).get("transactions") or ()
        for block in blocks:
            _check_transactions(block)
        lacking = [block for block in blocks if selection.needs_all_logs(block)]
        if lacking:
            for block, logs in zip(lacking, self._logs_by_hash(lacking), strict=True):
                block.all_logs = _ordered(logs)
        wanted = [(block, txs) for block in blocks if (txs := selection.needs_receipts(block))]
        if wanted:
            self._read_receipts(wanted)

    def _read_receipts(self, wanted: list[tuple[BlockData, list[Item]]]) -> None:
        if self._receipts_by_block:
            calls: list[Call] = [("eth_getBlockReceipts", [block.hash]) for block, _ in wanted]
            answers = self._rpc.ask(calls)
            failed = next((answer for answer in answers if isinstance(answer, RpcError)), None)
            if failed is None:
                for (block, txs), answer in zip(wanted, answers, strict=True):
                    assert isinstance(answer, msgspec.Raw)
                    _put_receipts(block, txs, read_items(answer))
                return
            if failed.status != 400:
                raise self._rpc.refusal("eth_getBlockReceipts", failed)
            self._receipts_by_block = False  # the node has no such method, or takes no hash
        single: list[Call] = [
            ("eth_getTransactionReceipt", [tx["hash"]]) for _, txs in wanted for tx in txs
        ]
        answers_of = iter(self._rpc.ask(single))
        for block, txs in wanted:
            receipts = []
            for _ in txs:
                raw = self._result("eth_getTransactionReceipt", next(answers_of))
                if bytes(raw) == b"null":
                    raise Unsettled(f"a receipt of block {block.number} is not there")
                receipts.append(read_item(raw))
            _put_receipts(block, txs, receipts)

    def _result(self, method: str, answer: Answer) -> msgspec.Raw:
        if isinstance(answer, RpcError):
            raise self._rpc.refusal(method, answer)
        return answer


def _ordered(logs: Sequence[Log]) -> list[Log]:
    """Return logs by their place, each once."""
    by_place = {int(log.log_index, 16): log for log in logs}
    return [by_place[place] for place in sorted(by_place)]


def _check_transactions(block: BlockData) -> None:
    """Check that transactions are those of the block, and that they have those of its logs."""
    if not block.transactions:
        return
    if any(tx.get("blockHash") not in (block.hash, None) for tx in block.transactions):
        raise Unsettled(f"a transaction of block {block.number} is of another one")


def _put_receipts(block: BlockData, txs: list[Item], receipts: list[Item] | None) -> None:
    by_transaction = {receipt["transactionHash"]: receipt for receipt in receipts or ()}
    for tx in txs:
        receipt = by_transaction.get(tx["hash"])
        if receipt is None or receipt.get("blockHash") != block.hash:
            raise Unsettled(f"the receipts of block {block.number} are not there")
    block.receipts = by_transaction
