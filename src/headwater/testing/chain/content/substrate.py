"""A simulated Substrate block in the portal's wire form: every field of every entity.

The first extrinsic sets the time, as on every chain; then come transfers, batches with inner calls,
EVM transactions with logs in both of the forms that runtimes had, and contracts of three kinds.
"""

from __future__ import annotations

from headwater.testing.chain.content.block import Row, Rows, WholeContent
from headwater.testing.chain.population import Draw
from headwater.testing.chain.tree import SimBlock

TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
SIGHASH = "0xa9059cbb"
_KINDS = ("transfer", "transfer", "batch", "evm", "contract", "gear", "revive")


class SubstrateContent(WholeContent):
    """The contents of one block."""

    families = ("extrinsics", "calls", "events")

    def _header(self) -> Row:
        block, draw = self._block, Draw(self._seed, self._block.hash, "header")
        return {
            **self._links,
            "stateRoot": draw.hex(32),
            "extrinsicsRoot": draw.hex(32),
            "digest": {"logs": [draw.hex(20) for _ in range(2)]},
            "specName": "simulated",
            "specVersion": 1_002_000,
            "implName": "simulated-node",
            "implVersion": 0,
            "timestamp": timestamp(block),
            "validator": None if block.number == 0 else draw.pick(self._people.producers),
        }

    def _fill(self, rows: Rows) -> None:
        keys = self._keys
        if keys:
            _event(rows, None, None, "ParaInclusion.CandidateBacked", {}, "Initialization")
            draw = Draw(self._seed, self._block.hash, "inherent")
            _extrinsic(rows, draw, signer=None, failed=False)
            _call(rows, 0, [], "Timestamp.set", {"now": str(timestamp(self._block))})
        for index, key in enumerate(keys, 1 if keys else 0):
            draw = Draw(key)
            failed = draw.chance(self._settings.failed_share)
            _extrinsic(rows, draw, draw.pick(self._people.accounts), failed)
            getattr(self, f"_{draw.pick(_KINDS)}")(rows, draw, index, failed)

    def _transfer(self, rows: Rows, draw: Draw, index: int, failed: bool, *address: int) -> None:
        account, amount = draw.pick(self._people.accounts), str(draw.bits(90))
        args = {"dest": {"__kind": "Id", "value": account}, "value": amount}
        _call(rows, index, list(address), "Balances.transfer_keep_alive", args, failed)
        if not failed:
            moved = {"from": draw.pick(self._people.accounts), "to": account, "amount": amount}
            _event(rows, index, list(address), "Balances.Transfer", moved)

    def _batch(self, rows: Rows, draw: Draw, index: int, failed: bool) -> None:
        _call(rows, index, [], "Utility.batch", {"calls": []}, failed)
        for position in range(1 + draw.below(3)):
            self._transfer(rows, draw, index, failed, position)

    def _evm(self, rows: Rows, draw: Draw, index: int, failed: bool) -> None:
        token, person = draw.pick(self._people.tokens), draw.hex(20)
        create = draw.chance(0.1)
        action: Row = {"__kind": "Create"} if create else {"__kind": "Call", "value": token}
        data = SIGHASH + "00" * 12 + person[2:] + f"{draw.bits(60):064x}"
        content: Row = {"action": action, "input": data}
        form = draw.below(3)
        if form == 0:
            transaction = content
        elif form == 1:
            transaction = {"__kind": "EIP1559", "value": content}
        else:
            moved = {"destination": action, "data": data}
            transaction = {"__kind": "EIP7702", "value": moved}
        _call(rows, index, [], "Ethereum.transact", {"transaction": transaction}, failed)
        if not failed:
            topics = [TRANSFER, "0x" + "00" * 12 + draw.hex(20)[2:], "0x" + "00" * 12 + person[2:]]
            log: Row = {"address": token, "topics": topics, "data": draw.hex(32)}
            _event(rows, index, [], "EVM.Log", log if form == 0 else {"log": log})

    def _contract(self, rows: Rows, draw: Draw, index: int, failed: bool) -> None:
        contract = draw.pick(self._people.producers)
        _call(rows, index, [], "Contracts.call", {"dest": contract}, failed)
        if not failed:
            args = {"contract": contract, "data": draw.hex(8)}
            _event(rows, index, [], "Contracts.ContractEmitted", args)

    def _gear(self, rows: Rows, draw: Draw, index: int, failed: bool) -> None:
        program = draw.pick(self._people.producers)
        _call(rows, index, [], "Gear.send_message", {"destination": program}, failed)
        if not failed:
            _event(rows, index, [], "Gear.MessageQueued", {"destination": program})
            message = {"source": program, "payload": draw.hex(4)}
            _event(rows, index, [], "Gear.UserMessageSent", {"message": message})

    def _revive(self, rows: Rows, draw: Draw, index: int, failed: bool) -> None:
        contract = draw.pick(self._people.tokens)
        _call(rows, index, [], "Revive.call", {"dest": contract}, failed)
        if not failed:
            args = {"contract": contract, "data": draw.hex(32), "topics": [TRANSFER, draw.hex(32)]}
            _event(rows, index, [], "Revive.ContractEmitted", args)


def timestamp(block: SimBlock) -> int | None:
    """Return a block's time in milliseconds; the first block of a chain sets none."""
    return None if block.number == 0 else 1000 * block.timestamp


def _extrinsic(rows: Rows, draw: Draw, signer: str | None, failed: bool) -> None:
    signature = {"__kind": "Sr25519", "value": draw.hex(64)}
    signed = {"address": signer, "signature": signature, "signedExtensions": {"nonce": 1}}
    rows["extrinsics"].append(
        {
            "index": len(rows["extrinsics"]),
            "version": 4,
            "success": not failed,
            "hash": draw.hex(32),
            "fee": None if signer is None else str(draw.bits(70)),
            "tip": None if signer is None else str(draw.bits(10)),
            "signature": None if signer is None else signed,
            "error": _ERROR if failed else None,
        }
    )


def _call(
    rows: Rows, index: int, address: list[int], name: str, args: Row, failed: bool = False
) -> None:
    rows["calls"].append(
        {
            "extrinsicIndex": index,
            "address": address,
            "name": name,
            "success": not failed,
            "args": args,
            "origin": None if name == "Timestamp.set" else {"__kind": "system"},
            "error": _ERROR if failed else None,
        }
    )


def _event(
    rows: Rows,
    index: int | None,
    address: list[int] | None,
    name: str,
    args: Row,
    phase: str = "ApplyExtrinsic",
) -> None:
    rows["events"].append(
        {
            "index": len(rows["events"]),
            "extrinsicIndex": index,
            "name": name,
            "phase": phase,
            "callAddress": address,
            "topics": [],
            "args": args,
        }
    )


_ERROR = {"__kind": "Module", "value": {"index": 5, "error": "0x02000000"}}
