"""Bytes to values: all that a portal sends, and nothing that needs a socket or a clock.

Pure; runs on the driver and on executors alike, and the same bytes give the same values again.
Of a block line only the header is built: decoders read the line itself later, column-wise. The rest
of the line is still checked to be JSON, so what leaves the client can be parsed by anyone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from headwater.core import BlockCursor, BlockHeader, BlockRange, Fork, Head
from headwater.errors import AnswerTooLargeError, MalformedAnswerError, MalformedLineError

_BlockNumber = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_BlockHash = Annotated[str, msgspec.Meta(min_length=1)]

LINE_BYTES = 256 * 2**20  # many times the largest block of any network, in all of its fields
_MILLISECONDS_FROM = 100_000_000_000  # as seconds: the year 5138; as milliseconds: 1973
_EXCERPT_BYTES = 80
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_BYTE = re.compile(r"\(byte (\d+)\)")
_MISSING = re.compile(r"blocks from (\d{1,18}) to (\d{1,18}) are not available")
_BAD_NUMBER = re.compile(rb'"header"\s*:\s*\{[^{}]*?"number"\s*:\s*(\d{1,19})')


# --- lines ----------------------------------------------------------------------------------------


class LineSplitter:
    """Cuts a body that arrives in arbitrary chunks into its lines; blank ones are dropped.

    A chunk without a newline is only put aside, so one huge line in many small chunks is joined
    once. What arrives without completing a line is bounded, however well it was compressed. Used by
    the client for each response; never kept for another.
    """

    __slots__ = ("_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take a chunk; return the lines that it completes, without their newlines.

        Raises:
            AnswerTooLargeError: no line was completed for too long.
        """
        self._size += len(chunk)
        lines = chunk.split(b"\n")
        self._parts.append(lines[0])
        whole: list[bytes] = []
        if len(lines) > 1:
            lines[0] = b"".join(self._parts)
            self._parts = [lines.pop()]
            whole = [line for line in lines if line and not line.isspace()]
        if whole:
            self._size = len(self._parts[0])
        elif self._size > LINE_BYTES:
            raise AnswerTooLargeError("a line of the stream is too long", limit=LINE_BYTES)
        return whole

    @property
    def rest(self) -> bytes:
        """What has arrived since the last newline."""
        return b"".join(self._parts)


class _Header(msgspec.Struct, rename="camel", gc=False):
    number: _BlockNumber
    hash: _BlockHash
    parent_hash: str | None = None
    parent_number: int | None = None
    timestamp: Any = None


class _Line(msgspec.Struct, gc=False):
    header: _Header


_decode_line = msgspec.json.Decoder(_Line).decode


def read_header(line: bytes, after: int | None = None) -> BlockHeader:
    """Return the header of a block line; the whole line is known to be JSON in UTF-8 afterwards.

    `after` is the number of the last good block, for the error's text.

    Raises:
        MalformedLineError: the line is not a block.
    """
    try:
        if not line.isascii():
            line.decode()  # msgspec skips strings that were not asked for without looking into them
        header = _decode_line(line).header
    except _UNREADABLE as error:
        raise _malformed_line(line, error, after) from error
    return BlockHeader(
        header.number,
        header.hash,
        header.parent_hash,
        header.parent_number,
        _seconds(header.timestamp),
    )


def _seconds(timestamp: object) -> int | None:
    """Return whole seconds. Some networks report milliseconds; what is no number is unknown."""
    if isinstance(timestamp, bool) or not isinstance(timestamp, int | float):
        return None
    whole = int(timestamp)  # always finite: JSON has no other numbers, and 1e999 is refused
    return whole // 1000 if whole >= _MILLISECONDS_FROM else whole


def _malformed_line(line: bytes, error: Exception, after: int | None) -> MalformedLineError:
    if isinstance(error, UnicodeDecodeError):
        reason, position = "not UTF-8", error.start
    else:
        reason = str(error)
        match = _BYTE.search(reason)
        position = int(match[1]) if match else len(line) if "truncated" in reason else 0
        reason = _BYTE.sub("", reason).strip()
    number = _BAD_NUMBER.search(line)
    place = "before any block" if after is None else f"after block {after}"
    first = max(0, position - _EXCERPT_BYTES // 2)
    facts: dict[str, object] = {} if number is None else {"block": int(number[1])}
    return MalformedLineError(
        f"a line of the stream is not a block, {place}: {reason}",
        **facts,
        byte=position,
        of=len(line),
        excerpt=_show(line[first : first + _EXCERPT_BYTES]),
    )


# --- heads and forks ------------------------------------------------------------------------------


def read_head(headers: Mapping[str, str]) -> Head:
    """Return what the headers of a stream answer say of the chain; what is unusable is absent.

    A finalized head needs both number and hash: without the hash nothing could be anchored to it.
    """
    number = _number(headers.get("x-sqd-finalized-head-number"))
    block_hash = headers.get("x-sqd-finalized-head-hash")
    latest = _number(headers.get("x-sqd-head-number"))
    return Head(
        finalized=BlockCursor(number, block_hash) if number is not None and block_hash else None,
        latest=None if latest is None else BlockCursor(latest),
    )


def _number(text: str | None) -> int | None:
    if text is None or len(text) > 18 or not (text.isascii() and text.isdecimal()):
        return None
    return int(text)


class _Entry(msgspec.Struct):
    number: _BlockNumber
    hash: _BlockHash


class _Conflict(msgspec.Struct, rename="camel"):
    previous_blocks: list[_Entry]


def read_fork(body: bytes) -> Fork:
    """Return the sample of a 409. An empty one is a `Fork` too: fork resolution refuses it.

    Raises:
        MalformedAnswerError: the body does not name the portal's blocks.
    """
    conflict = _decode(body, _Conflict, "a fork (409)")
    return Fork(tuple(BlockCursor(block.number, block.hash) for block in conflict.previous_blocks))


# --- single answers -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dataset:
    """What a portal says of a dataset. `kind` is its network type, such as "evm"."""

    name: str
    aliases: tuple[str, ...] = ()
    real_time: bool = False
    start_block: int = 0
    kind: str | None = None
    display_name: str | None = None
    chain_id: int | None = None


class _Evm(msgspec.Struct):
    chain_id: int | None = None


class _Details(msgspec.Struct):
    kind: str | None = None
    display_name: str | None = None
    evm: _Evm | None = None


class _Metadata(msgspec.Struct):
    dataset: str
    aliases: list[str] | None = None
    real_time: bool | None = None
    start_block: _BlockNumber | None = None
    metadata: _Details | None = None


def read_dataset(body: bytes) -> Dataset:
    """Return the answer to `metadata`; `MalformedAnswerError` if it is none."""
    answer = _decode(body, _Metadata, "metadata")
    details = answer.metadata or _Details()
    return Dataset(
        name=answer.dataset,
        aliases=tuple(answer.aliases or ()),
        real_time=bool(answer.real_time),
        start_block=answer.start_block or 0,
        kind=details.kind,
        display_name=details.display_name,
        chain_id=None if details.evm is None else details.evm.chain_id,
    )


class _HeadAnswer(msgspec.Struct):
    number: _BlockNumber
    hash: str | None = None


def read_head_answer(body: bytes) -> BlockCursor | None:
    """Return the answer to `head` or `finalized-head`; nothing at all means: there is none yet."""
    if not body.strip():
        return None
    answer = _decode(body, _HeadAnswer | None, "a head")
    return None if answer is None else BlockCursor(answer.number, answer.hash or None)


class _BlockAt(msgspec.Struct):
    block_number: _BlockNumber


def read_block_at(body: bytes) -> int:
    """Return the answer to `timestamps/…/block`; `MalformedAnswerError` if it is none."""
    return int(_decode(body, _BlockAt, "a block by time").block_number)


def read_missing(said: str) -> BlockRange | None:
    """Return the blocks that a portal says it does not have, in the text of a refusal (400)."""
    match = _MISSING.search(said)
    if match is None or int(match[2]) < int(match[1]):
        return None
    return BlockRange(int(match[1]), int(match[2]))


def explain(body: bytes, limit: int = 500) -> str:
    """Return a server's own words about a refusal: its text, or the message in its JSON envelope.

    For the text of an error, so it is one line and short.
    """
    text = body.decode(errors="replace")
    with suppress(*_UNREADABLE):
        text = _message_in(msgspec.json.decode(body)) or text
    return " ".join(text.split())[:limit]


def _message_in(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        for key in ("message", "error", "detail", "reason"):
            if message := _message_in(value.get(key)):
                return message
    return None


def _decode(body: bytes, shape: Any, what: str) -> Any:
    try:
        return msgspec.json.decode(body, type=shape)
    except _UNREADABLE as error:
        raise MalformedAnswerError(
            f"the answer to {what} cannot be read: {error}", excerpt=_show(body[:_EXCERPT_BYTES])
        ) from error


def _show(data: bytes) -> str:
    return data.decode(errors="replace")
