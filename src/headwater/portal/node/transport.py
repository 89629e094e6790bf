"""A node, answering what a portal would: `Transport` over JSON-RPC.

The client, the source and all that stands above them do not know the difference: a request for
blocks becomes calls for headers and logs, and the answer is made of the same lines. What a node
does that a portal never does is settled here and in `window`: a block of another branch is a 409,
a head that is behind is a 204, an answer that does not fit is read again.

Runs on the driver and on executors; pickled as its address. It remembers only what makes answers
quick or certain: sizes that the node takes, and the hashes of the newest blocks that it has shown.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from headwater.address import NodeAddress
from headwater.core import BlockCursor
from headwater.errors import MalformedAnswerError, TransportError
from headwater.portal.node.answers import Item, read_header, read_item
from headwater.portal.node.rpc import (
    UNAVAILABLE,
    Answer,
    Call,
    LearnedSize,
    NodeRefusal,
    NodeRpc,
    RpcError,
    TooWide,
    Unsettled,
)
from headwater.portal.node.selection import BlockData, Selection
from headwater.portal.node.window import WindowReader
from headwater.portal.transport import Request, Response, Timeouts

Read = TypeVar("Read")
SAMPLE = 100  # blocks of the node that a 409 names
ANSWER_S = 10.0  # an answer ends after this time, as a portal's does: heads get old
_FIRST_BLOCKS, _MOST_BLOCKS = 16, 2000
_WINDOW_BYTES = 16 * 2**20  # of a node's answers, about, that are held at once
_REMEMBERED = 1024
_AGAIN = 3  # times that a window is read at once, if answers do not fit


class NodeAnswer:
    """One answer. What the node fails to say after the first lines ends it early and cleanly."""

    def __init__(
        self,
        status: int,
        headers: Mapping[str, str] | None = None,
        chunks: Iterator[bytes] | tuple[bytes, ...] = (),
    ) -> None:
        self.status = status
        self.headers: Mapping[str, str] = headers or {}
        self._chunks = chunks

    def chunks(self) -> Iterator[bytes]:
        """Yield the lines, window by window."""
        yield from self._chunks

    def close(self) -> None:
        """Read nothing more."""
        self._chunks = ()


class _Heads:
    """The newest block and the newest final one, as a node reports them."""

    def __init__(self, latest: Item, final: Item | None) -> None:
        self.latest = int(latest["number"], 16)
        self.latest_hash = str(latest["hash"])
        self.final = None
        if final is not None:
            self.final = BlockCursor(int(final["number"], 16), str(final["hash"]))

    @property
    def final_number(self) -> int:
        """The number of the newest final block; -1: there is none."""
        return -1 if self.final is None else self.final.number

    @property
    def headers(self) -> dict[str, str]:
        """What an answer says of them."""
        said = {"x-sqd-head-number": str(self.latest)}
        if self.final is not None:
            said["x-sqd-finalized-head-number"] = str(self.final.number)
            said["x-sqd-finalized-head-hash"] = str(self.final.hash)
        return said


class NodeTransport:
    """Asks one EVM node. `abort` may be called from another thread, all else from one."""

    def __init__(self, address: NodeAddress, timeouts: Timeouts | None = None) -> None:
        self.address = address
        self.timeouts = timeouts or Timeouts()
        self._rpc = NodeRpc(address, self.timeouts)
        self._reader = WindowReader(self._rpc)
        self._blocks = LearnedSize(_FIRST_BLOCKS, _MOST_BLOCKS)
        self._shown: dict[int, str] = {}
        self._has_tag = True

    def __repr__(self) -> str:
        return f"NodeTransport({self.address})"

    def __reduce__(self) -> tuple[type[NodeTransport], tuple[NodeAddress, Timeouts]]:
        return NodeTransport, (self.address, self.timeouts)

    def abort(self) -> None:
        """Break off what is under way."""
        self._rpc.abort()

    def close(self) -> None:
        """Release every connection."""
        self._rpc.close()

    def send(self, request: Request) -> Response:
        """Answer one request of a portal's client.

        Raises:
            TransportError: the connection broke, or was broken off.
            NodeLacksError: the query asks for what a node is not asked for.
        """
        self._rpc.begin()
        try:
            with _whole_answers():
                return self._answer(request)
        except NodeRefusal as refusal:
            headers = {} if refusal.retry_after is None else {"retry-after": refusal.retry_after}
            return NodeAnswer(refusal.status, headers, (refusal.text.encode(),))
        except Unsettled as doubt:
            text = f"the node's answers do not fit together: {doubt}"
            return NodeAnswer(UNAVAILABLE, {}, (text.encode(),))

    def _answer(self, request: Request) -> NodeAnswer:
        route = request.route.partition("?")[0]
        if request.body is not None:
            return self._stream(json.loads(request.body), final_only=route == "finalized-stream")
        if route == "metadata":
            return _json(self._metadata())
        if route not in ("head", "finalized-head"):  # the client searches for times by itself
            return NodeAnswer(404, {}, (b"a node finds no block by time",))
        heads = self._heads()
        if route == "head":
            return _json({"number": heads.latest, "hash": heads.latest_hash})
        if heads.final is None:
            return NodeAnswer(404, {}, (b"the node reports no final block",))
        return _json({"number": heads.final.number, "hash": heads.final.hash})

    # --- questions --------------------------------------------------------------------------------

    def _metadata(self) -> dict[str, Any]:
        chain_id = int(msgspec.json.decode(self._rpc.one("eth_chainId"), type=str), 16)
        details = {"kind": "evm", "display_name": "EVM node", "evm": {"chain_id": chain_id}}
        name = f"evm-{chain_id}"
        return {"dataset": name, "real_time": True, "start_block": 0, "metadata": details}

    def _heads(self) -> _Heads:
        """Ask for the newest block and the newest final one, in one request if that is possible."""
        return self._heads_in(self._rpc.ask(self._head_calls()))

    def _head_calls(self) -> list[Call]:
        asks_tag = self.address.confirmations is None and self._has_tag
        tags = ["latest", self.address.finality] if asks_tag else ["latest"]
        return [("eth_getBlockByNumber", [tag, False]) for tag in tags]

    def _heads_in(self, answers: Sequence[Answer]) -> _Heads:
        """Return what the answers to `_head_calls` say."""
        if isinstance(answers[0], RpcError):
            raise self._rpc.refusal("eth_getBlockByNumber", answers[0])
        latest = _block(answers[0])
        if latest is None:
            raise Unsettled("the node has no newest block")
        final, confirmations = None, self.address.confirmations
        if len(answers) > 1:
            final = self._tagged(answers[1])
        elif confirmations is not None:
            number = int(latest["number"], 16) - confirmations
            if number >= 0:
                final = _block(self._rpc.one("eth_getBlockByNumber", hex(number), False))
        return _Heads(latest, final)

    def _tagged(self, answer: msgspec.Raw | RpcError) -> Item | None:
        """Return the block of the tag; a node that does not know the tag is not asked again."""
        if not isinstance(answer, RpcError):
            return _block(answer)
        if answer.status == UNAVAILABLE and "not found" not in answer.message.lower():
            raise self._rpc.refusal(f"eth_getBlockByNumber({self.address.finality})", answer)
        self._has_tag = answer.status == UNAVAILABLE  # "finalized block not found": not yet
        return None

    # --- blocks -----------------------------------------------------------------------------------

    def _stream(self, query: Mapping[str, Any], *, final_only: bool) -> NodeAnswer:
        selection = Selection(query)
        first, parent = int(query["fromBlock"]), query.get("parentBlockHash")
        heads = self._heads()
        newest = heads.final_number if final_only else heads.latest
        if first > newest:
            if not final_only and self._is_orphan(first, parent, heads):
                return self._conflict(heads.latest, parent, heads)
            return NodeAnswer(204, heads.headers)
        to_block = query.get("toBlock")
        last = newest if to_block is None else min(newest, int(to_block))
        blocks, own = self._read(selection, first, last)
        if parent is not None and blocks[0].parent_hash != parent:
            return self._conflict(first - 1, parent, heads)
        if own.final_number < heads.final_number:
            heads = own  # what another server calls final may be of another branch than its blocks
        if final_only:
            blocks = [block for block in blocks if block.number <= heads.final_number]
            if not blocks:
                raise Unsettled(f"block {first} is final on another server")
        return NodeAnswer(200, heads.headers, self._lines(selection, blocks, last, heads))

    def _is_orphan(self, first: int, parent: str | None, heads: _Heads) -> bool:
        """Tell whether a block above the node's head was replaced, or may come back.

        A node that is behind shows a block that we have seen; on another branch it shows one that
        we have not, where we have seen one.
        """
        if parent is None:
            return False
        if first == heads.latest + 1:
            return heads.latest_hash != parent
        return self._shown.get(heads.latest, heads.latest_hash) != heads.latest_hash

    def _conflict(self, number: int, parent: str | None, heads: _Heads) -> NodeAnswer:
        """Answer 409 with the node's blocks up to a number, all of one chain.

        A chain that ends with the very parent that did not fit is that of another server.
        """
        sample = self._settled(partial(self._reader.headers, max(0, number - SAMPLE + 1), number))
        if sample[-1].hash == parent:
            raise Unsettled(f"block {number} is there, and the next one does not follow it")
        named = [{"number": block.number, "hash": block.hash} for block in sample]
        final = heads.final
        if final is not None and final.number < sample[0].number:
            named.insert(0, {"number": final.number, "hash": str(final.hash)})
        return _json({"previousBlocks": named}, 409, heads.headers)

    def _lines(
        self, selection: Selection, blocks: list[BlockData], last: int, heads: _Heads
    ) -> Iterator[bytes]:
        """Yield the lines of windows up to a block; end early where the node does not go on.

        As a portal's, an answer has its first block and its last one, also if nothing matches.
        Blocks up to the final one of `heads` count as final: the server of each must say so, too.
        """
        until, begin = time.monotonic() + ANSWER_S, blocks[0].number
        while True:
            with _whole_answers():
                ends = (begin, blocks[-1].number)
                lines = [selection.line(block, boundary=block.number in ends) for block in blocks]
            yield b"".join(line + b"\n" for line in lines if line is not None)
            self._remember(blocks)
            before = blocks[-1]
            if before.number >= last or time.monotonic() >= until:
                return
            try:
                with _whole_answers():
                    blocks, own = self._read(selection, before.number + 1, last)
            except (NodeRefusal, Unsettled, TransportError):
                return  # asked again by the client, which then hears why
            if blocks[0].parent_hash != before.hash:
                return  # a fork: the client asks again with the hash of the last line
            if own.final_number < min(blocks[-1].number, heads.final_number):
                return  # another server, which is behind

    def _read(self, selection: Selection, first: int, last: int) -> tuple[list[BlockData], _Heads]:
        """Read the next window of as many blocks as the node answers for at once.

        With it come the heads as the server sees them that sent the last headers.
        """
        while True:
            end = min(last, first + self._blocks.size - 1)
            asked, before = end - first + 1, self._rpc.received
            try:
                calls = self._head_calls()
                blocks, answers = self._settled(
                    partial(self._reader.read, selection, first, end, calls)
                )
                own = self._heads_in(answers)
            except TooWide as refusal:
                error = refusal.error
                if error.is_rate or error.is_missing_method or asked == 1:
                    raise self._rpc.refusal("eth_getLogs", error) from None
                self._blocks.refused(asked, error.suggested)
                continue
            self._blocks.answered(asked, (self._rpc.received - before) / _WINDOW_BYTES)
            return blocks, own

    def _settled(self, read: Callable[[], Read]) -> Read:
        """Read again, a few times at once, what did not fit together."""
        for _ in range(_AGAIN - 1):
            with suppress(Unsettled):
                return read()
        return read()

    def _remember(self, blocks: list[BlockData]) -> None:
        for block in blocks[-_REMEMBERED:]:
            self._shown[block.number] = block.hash
        while len(self._shown) > _REMEMBERED:
            del self._shown[next(iter(self._shown))]


@contextmanager
def _whole_answers() -> Iterator[None]:
    """Take an answer that lacks something for one that was cut: it may be whole next time."""
    try:
        yield
    except MalformedAnswerError as error:
        raise TransportError(str(error.message), **error.facts) from None
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"[:200]
        raise TransportError("the node's answer lacks a part", reason=reason) from None


def _block(raw: msgspec.Raw) -> Item | None:
    """Return a block as it is; None: the node does not have it."""
    return None if read_header(raw) is None else read_item(raw)


def _json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> NodeAnswer:
    return NodeAnswer(status, headers, (msgspec.json.encode(value),))
