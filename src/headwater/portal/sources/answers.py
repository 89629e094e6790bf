"""Asks a source what it can, and takes its answers: a small one whole, one with blocks watched.

A source is asked for its network, its oldest block, its heads, and whether it is our chain: in the
reading thread before it is used, in a thread of its own while another one is. No retry happens
here: a source that does not answer has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import msgspec

from headwater.core import BlockCursor
from headwater.errors import HeadwaterError, TransportError
from headwater.portal.outage import read_body
from headwater.portal.sources.standing import contradicts
from headwater.portal.transport import NoAnswerYet, Request, Response, Transport
from headwater.portal.wire import (
    Dataset,
    LineSplitter,
    explain,
    read_dataset,
    read_head_answer,
    read_header,
)

_PLACES = frozenset({"fromBlock", "toBlock", "parentBlockHash"})
_METADATA = "metadata?expand[]=metadata"
_REFUSED = frozenset({400, 404, 405})


@dataclass(frozen=True, slots=True)
class Findings:
    """What a source says of itself. `fault` is why it cannot be used; then the rest is unknown."""

    dataset: Dataset | None = None
    head: int | None = None
    final: BlockCursor | None = None
    has_finality: bool | None = None
    contradicts: str | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """What a source is compared with: our newest final block, and the type of the network."""

    final: BlockCursor | None = None
    network: str | None = None


def examine(transport: Transport, known: Known, *, heads: bool = True) -> Findings:
    """Ask a source for what it holds, for its heads if they are wanted, and for our final block."""
    try:
        said = _ask(transport, _METADATA, absent=_REFUSED)
        dataset = None if said is None else read_dataset(said)  # an old portal has none
        contradiction = _contradiction(transport, known)
        if not heads:
            return Findings(dataset, contradicts=contradiction)
        said = _ask(transport, "head")
        head = None if said is None else read_head_answer(said)
        if head is None:
            return Findings(fault="it has no block")
        said = _ask(transport, "finalized-head")
        final = None if said is None else read_head_answer(said)
        return Findings(dataset, head.number, final, final is not None, contradiction)
    except NoAnswerYet:
        return Findings(fault="it does not answer")
    except HeadwaterError as error:
        return Findings(fault=in_short(error))


def in_short(error: HeadwaterError) -> str:
    """Return an error as the reason of a verdict: without its code and what to do."""
    reason = error.facts.get("reason")
    return str(error.message) if reason is None else f"{error.message}: {reason}"


def _ask(
    transport: Transport, route: str, absent: frozenset[int] = frozenset({404})
) -> bytes | None:
    """Return the answer to a question; None if the source has no such thing."""
    with closing(transport.send(Request("GET", route))) as response:
        body = read_body(response)
    if response.status in absent:
        return None
    if response.status >= 400:
        name = route.partition("?")[0]
        raise TransportError(f"it answers {response.status} to {name}", reason=explain(body, 100))
    return body


def _contradiction(transport: Transport, known: Known) -> str | None:
    """Tell how a source contradicts our final block; None if it has it, or does not say."""
    final = known.final
    if final is None or final.hash is None or known.network is None:
        return None
    asked = {
        "type": known.network,
        "fromBlock": final.number,
        "toBlock": final.number,
        "includeAllBlocks": True,
        "fields": {"block": {"number": True, "hash": True}},
    }
    request = Request("POST", "stream", msgspec.json.encode(asked))
    with closing(transport.send(request)) as response:
        if response.status != 200:
            return None  # it is behind, or does not have the block any more
        lines = LineSplitter()
        for chunk in response.chunks():
            for line in lines.feed(chunk):
                header = read_header(line)
                same = header.number != final.number or header.hash == final.hash
                return None if same else contradicts(final, header.hash)
    return None


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """A small answer that was read to its end: a refusal is shown if no source does better."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    is_question: bool = False
    may_change: bool = False

    def chunks(self) -> Iterator[bytes]:
        """Yield the body."""
        yield self.body

    def close(self) -> None:
        """Do nothing."""


def read_whole(response: Response) -> WholeAnswer:
    """Read an answer that is small to its end."""
    if isinstance(response, WholeAnswer):
        return response
    with closing(response):
        return WholeAnswer(response.status, response.headers, read_body(response))


class WatchedAnswer:
    """An answer with blocks: whether any came, and whether it broke, tells of its source.

    `on_delivered` is told once whether blocks came, `on_broke` why no more did.
    """

    def __init__(
        self,
        response: Response,
        on_delivered: Callable[[bool], None],
        on_broke: Callable[[TransportError], None],
    ) -> None:
        self._response = response
        self._on_delivered = on_delivered
        self._on_broke = on_broke
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    def chunks(self) -> Iterator[bytes]:
        """Yield the body as it arrives."""
        blocks = False
        try:
            for chunk in self._response.chunks():
                if not blocks and chunk.strip():
                    blocks = True
                    self._on_delivered(True)
                yield chunk
        except TransportError as error:
            self._on_broke(error)
            raise
        if not blocks and self.status == 200:
            self._on_delivered(False)

    def close(self) -> None:
        """Close the answer."""
        self._response.close()


class Position(msgspec.Struct, rename="camel"):
    """Where a query begins, and for which kind of network it is."""

    type: str | None = None
    from_block: int | None = None


decode_position = msgspec.json.Decoder(Position).decode


def query_number(body: bytes) -> int:
    """Return a number that a query has wherever it begins and ends."""
    query = msgspec.json.decode(body)
    kept = {name: part for name, part in query.items() if name not in _PLACES}
    return hash(msgspec.json.encode(kept, order="deterministic"))
