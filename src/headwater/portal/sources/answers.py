"""Answers of a source: a small one is read to its end, one with blocks tells how it went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

import msgspec

from headwater.errors import TransportError
from headwater.portal.outage import read_body
from headwater.portal.sources.standing import Need
from headwater.portal.transport import Response

_PLACES = frozenset({"fromBlock", "toBlock", "parentBlockHash"})


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


class Listener(Protocol):
    """Who is told how an answer with blocks went."""

    def delivered(self, index: int, need: Need, *, blocks: bool) -> None:
        """Take it that the source answered, with blocks or without."""
        ...

    def broke(self, index: int, error: TransportError) -> None:
        """Take it that the answer broke."""
        ...


class WatchedAnswer:
    """An answer with blocks: whether any came, and whether it broke, tells of its source."""

    def __init__(self, response: Response, listener: Listener, index: int, need: Need) -> None:
        self._response = response
        self._listener = listener
        self._index = index
        self._need = need
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    def chunks(self) -> Iterator[bytes]:
        """Yield the body as it arrives."""
        blocks = False
        try:
            for chunk in self._response.chunks():
                if not blocks and chunk.strip():
                    blocks = True
                    self._listener.delivered(self._index, self._need, blocks=True)
                yield chunk
        except TransportError as error:
            self._listener.broke(self._index, error)
            raise
        if not blocks and self.status == 200:
            self._listener.delivered(self._index, self._need, blocks=False)

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
