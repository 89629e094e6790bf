"""What an endpoint's cursor says: step, block, head and final block.

Headwater resumes with cursors as they are; it reads them only to show them, and to learn which
block was final where the SQL sink has stored nothing else. The text is a NaCl secretbox under a key
that is published; it hides nothing.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from dataclasses import dataclass

from Crypto.Cipher import Salsa20

from headwater.core import BlockCursor
from headwater.errors import SinkCursorError

# HSalsa20 of the published key 7bfcacee257409099edd2bb6a442638b559a80bfbfc0b9acdea0d8344b10eb00
# under the first 16 bytes of the nonce: XSalsa20 goes on with it as Salsa20
_INNER = bytes.fromhex("4104bbdb82782bc43b68a9a4ba0bbe48867bfe65d73265ced58704889e75877f")
_NONCE = bytes.fromhex("261554c45ab9b752abad4f19c242605702d55a0d91616a1b")
_STEPS = {1: "new", 2: "undo", 16: "irreversible", 17: "new and irreversible"}


@dataclass(frozen=True, slots=True)
class CursorText:
    """The parts of a cursor. `final` is the last block that was final when it was made."""

    step: int
    block: BlockCursor
    head: BlockCursor
    final: BlockCursor

    @property
    def step_name(self) -> str:
        """The step in words."""
        return _STEPS.get(self.step, str(self.step))


def read_cursor(text: str) -> CursorText:
    """Read a cursor.

    Raises:
        SinkCursorError: it is none.
    """
    try:
        sealed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError) as error:
        raise SinkCursorError("the text is no cursor", reason=error) from None
    key, stream = _streams(len(sealed))
    if len(sealed) < 16 or not hmac.compare_digest(_tag(key, sealed[16:]), sealed[:16]):
        raise SinkCursorError("the text is no cursor", reason="its seal is broken")
    plain = bytes(byte ^ mask for byte, mask in zip(sealed[16:], stream, strict=False))
    kind, *parts = plain.decode(errors="replace").split(":")
    if len(parts) != {"c1": 5, "c2": 5, "c3": 7}.get(kind):
        raise SinkCursorError("the cursor is of an unknown kind", kind=kind[:20])
    try:
        step = int(parts[0])
        block, *rest = (
            BlockCursor(int(parts[at]), parts[at + 1]) for at in range(1, len(parts), 2)
        )
    except ValueError as error:
        raise SinkCursorError("the cursor holds no numbers", reason=error) from None
    if kind == "c1":
        return CursorText(step, block, block, rest[0])
    return CursorText(step, block, rest[0], block if kind == "c2" else rest[1])


def write_cursor(cursor: CursorText) -> str:
    """Return the text of a cursor. For tests, and for the simulated endpoint."""
    parts = [cursor.step, *(f"{block.number}:{block.hash}"
             for block in (cursor.block, cursor.head, cursor.final))]  # fmt: skip
    plain = ":".join(["c3", *map(str, parts)]).encode()
    key, stream = _streams(len(plain) + 16)
    hidden = bytes(byte ^ mask for byte, mask in zip(plain, stream, strict=False))
    return base64.urlsafe_b64encode(_tag(key, hidden) + hidden).decode()


def final_block(text: str) -> BlockCursor | None:
    """Return the block that was final when a cursor was made; None if that cannot be read."""
    try:
        return read_cursor(text).final
    except SinkCursorError:
        return None


def _streams(size: int) -> tuple[bytes, bytes]:
    """Return the key of the seal, and the bytes that hide the text."""
    keystream = Salsa20.new(key=_INNER, nonce=_NONCE[16:]).encrypt(bytes(32 + size))
    return keystream[:32], keystream[32:]


def _tag(key: bytes, text: bytes) -> bytes:
    """Return the Poly1305 seal of a text."""
    prime = (1 << 130) - 5
    r = int.from_bytes(key[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    total = 0
    for at in range(0, len(text), 16):
        total = (total + int.from_bytes(text[at : at + 16] + b"\x01", "little")) * r % prime
    return ((total + int.from_bytes(key[16:], "little")) % (1 << 128)).to_bytes(16, "little")
