"""Content encodings of the simulated portal: gzip, zstd, or none, as the client accepts."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence

from headwater.testing.portal.answer import Buffer

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ENCODINGS = ("gzip", "zstd")
_BLOCK = 16 * 1024  # zstd would wait for 128 KiB before it lets anything out


def choose_encoding(accepted: str, offered: Sequence[str]) -> str | None:
    """Return the first offered encoding that an Accept-Encoding header names, if any."""
    names = set()
    for item in accepted.lower().split(","):
        name, _, weight = item.partition(";")
        if weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            names.add(name.strip())
    return next((name for name in offered if name in names or "*" in names), None)


def encode(parts: Iterable[Buffer], encoding: str) -> bytes:
    """Compress a body, fast rather than small, so that its beginning can be read by itself."""
    whole = b"".join(parts)
    if encoding == "gzip":
        return gzip.compress(whole, 1, mtime=0)
    engine = zstd.ZstdCompressor(level=1)
    blocks = [
        engine.compress(whole[start : start + _BLOCK], engine.FLUSH_BLOCK)
        for start in range(0, len(whole), _BLOCK)
    ]
    return b"".join(blocks) + engine.flush()


def decoded(chunks: Iterable[Buffer], encoding: str | None) -> Iterator[bytes]:
    """Yield a body piece by piece, decompressed as far as it goes."""
    if encoding is None:
        yield from (bytes(chunk) for chunk in chunks)
        return
    engine = zlib.decompressobj(31) if encoding == "gzip" else zstd.ZstdDecompressor()
    for chunk in chunks:
        if piece := engine.decompress(bytes(chunk)):
            yield piece
