"""State differences of a simulated EVM block, so that each one begins where the last one ended.

Balances, nonces, code and token storage are followed through the block's transactions; the kind of
a difference (`+`, `-`, `*`, `=`) then follows from what stood there before and after.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from headwater.testing.chain.content.evm_scenes import TRANSFER, Frame, Scene
from headwater.testing.chain.draw import Draw

_GAS_PRICE = 10**9


class StateChanges:
    """The differences that a block's transactions make, in order."""

    def __init__(self, salt: str) -> None:
        self.rows: list[dict[str, Any]] = []
        self._salt = salt
        self._state: dict[tuple[str, str], str | None] = {}

    def apply(self, index: int, scene: Scene, gas_used: int, nonce: int) -> None:
        """Add the differences that one transaction makes; a failed one still pays its gas."""
        changed: dict[tuple[str, str], str | None] = {}
        root = scene.root
        self._pay(changed, root.sender, -gas_used * _GAS_PRICE)
        self._state[root.sender, "nonce"] = hex(nonce)
        changed[root.sender, "nonce"] = hex(nonce + 1)
        if not scene.failed:
            if root.kind != "suicide" and root.value:
                self._pay(changed, root.sender, -root.value)
                self._pay(changed, root.to, root.value)
            for frame in _frames(root):
                self._run(changed, frame)
            for event in scene.events:
                if event.topics[0] == TRANSFER and len(event.topics) == 3:
                    value = int(event.data, 16)
                    self._move(changed, event.address, event.topics[1], -value)
                    self._move(changed, event.address, event.topics[2], value)
        for (address, key), after in sorted(changed.items()):
            before = self._before(address, key)
            self.rows.append(_difference(index, address, key, before, after))
            self._state[address, key] = after

    def _run(self, changed: dict[tuple[str, str], str | None], frame: Frame) -> None:
        """Follow what a frame does to accounts as such: creation, destruction, a mere look."""
        if frame.error is not None:
            return
        if frame.kind == "create":
            for key in ("code", "nonce"):
                self._state[frame.to, key] = None
            changed[frame.to, "code"] = frame.output
            changed[frame.to, "nonce"] = "0x1"
        elif frame.kind == "suicide":
            self._state[frame.sender, "balance"] = hex(frame.value)
            self._state[frame.sender, "code"] = "0x6001ff"
            changed[frame.sender, "balance"] = changed[frame.sender, "code"] = None
            self._pay(changed, frame.to, frame.value)
        elif frame.call_type == "staticcall":
            self._pay(changed, frame.to, 0)

    def _pay(self, changed: dict[tuple[str, str], str | None], address: str, value: int) -> None:
        place = (address, "balance")
        held = int(changed.get(place) or self._before(*place) or "0x0", 16)
        changed[place] = hex(max(held + value, 1))

    def _move(
        self, changed: dict[tuple[str, str], str | None], token: str, holder: str, value: int
    ) -> None:
        """Change a holder's balance in a token's storage; zero clears the slot."""
        slot = "0x" + blake2b((token + holder).encode(), digest_size=32).hexdigest()
        held = changed[token, slot] if (token, slot) in changed else self._before(token, slot)
        balance = min(max(int(held or "0x0", 16) + value, 0), 2**256 - 1)
        changed[token, slot] = f"0x{balance:064x}" if balance else None

    def _before(self, address: str, key: str) -> str | None:
        """Return what stood there before this transaction; drawn where the block is the first."""
        if (address, key) not in self._state:
            draw = Draw(self._salt, address, key)
            if key == "balance":
                self._state[address, key] = hex(10**21 + draw.bits(70))
            else:
                slot = f"0x{draw.bits(90):064x}"
                self._state[address, key] = None if draw.chance(0.3) else slot
        return self._state[address, key]


def _difference(
    index: int, address: str, key: str, before: str | None, after: str | None
) -> dict[str, Any]:
    if before == after:
        kind, before, after = "=", None, None
    elif before is None:
        kind = "+"
    elif after is None:
        kind = "-"
    else:
        kind = "*"
    return {
        "transactionIndex": index,
        "address": address,
        "key": key,
        "kind": kind,
        "prev": before,
        "next": after,
    }


def _frames(frame: Frame) -> list[Frame]:
    frames = [frame]
    for child in frame.children:
        frames += _frames(child)
    return frames
