"""How the simulator names blocks: 32 bytes, chained, and with the number folded in.

A hash is a digest of the parent's hash, the number and the salt, followed by the number masked with
the digest. It looks like any other hash, but it says which number it has, so that a chain of
millions of blocks finds a block by hash without keeping a dictionary of all of them.
"""

from __future__ import annotations

from hashlib import blake2b

from headwater.testing.chain import base58
from headwater.testing.chain.settings import Network

SIZE = 32
"""Bytes in a block hash."""

_DIGEST = 24
_LIMIT = 1 << 63
_BARE = (Network.BITCOIN, Network.TRON)


def derive(parent: bytes, number: int, salt: int) -> bytes:
    """Return the hash of the block that follows `parent` with this number and salt."""
    packed = parent + number.to_bytes(8, "big") + salt.to_bytes(8, "big")
    digest = blake2b(packed, digest_size=_DIGEST).digest()
    return digest + (number ^ _mask(digest)).to_bytes(8, "big")


def first(root_hash: bytes, seed: int, number: int) -> bytes:
    """Return the hash of a chain's first block; the seed makes it unlike that of other chains."""
    return derive(root_hash + str(seed).encode(), number, 0)


def root(seed: int, network: Network, start_block: int) -> bytes:
    """Return the hash that stands before the first block: zeros if that is an EVM genesis block."""
    if network is Network.EVM and start_block == 0:
        return bytes(SIZE)
    return blake2b(f"{network}/{seed}/{start_block}".encode(), digest_size=SIZE).digest()


def number_of(raw: bytes) -> int | None:
    """Return the number that a hash carries, or None if no block can have this hash."""
    if len(raw) != SIZE:
        return None
    number = int.from_bytes(raw[_DIGEST:], "big") ^ _mask(raw)
    return number if number < _LIMIT else None


def to_text(raw: bytes, network: Network) -> str:
    """Write a hash as the network does: hex digits with or without `0x`, or base58."""
    if network is Network.SOLANA:
        return base58.encode(raw)
    return raw.hex() if network in _BARE else "0x" + raw.hex()


def from_text(text: str, network: Network) -> bytes | None:
    """Read a hash, or return None if the text is not one."""
    try:
        if network is Network.SOLANA:
            return base58.decode(text)
        if network in _BARE:
            return bytes.fromhex(text)
        return bytes.fromhex(text[2:]) if text[:2] in ("0x", "0X") else None
    except ValueError:
        return None


def _mask(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big") * 0x9E3779B97F4A7C15 & 0xFFFF_FFFF_FFFF_FFFF
