"""A simulated Solana block in the portal's wire form: every field of every entity."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from headwater.query import base58
from headwater.testing.chain.content import solana_balances
from headwater.testing.chain.content.block import BlockContent, Row
from headwater.testing.chain.content.solana_scenes import SolanaScene, Step, play
from headwater.testing.chain.draw import Draw


class SolanaContent(BlockContent):
    """The contents of one block."""

    families = ("transactions", "instructions", "logs", "balances", "tokenBalances", "rewards")

    @property
    def _salt(self) -> str:
        return f"{self._seed}/{self._block.hash}"

    def _header(self) -> Row:
        block = self._block
        return {
            "number": block.number,
            "hash": block.hash,
            "height": block.height,
            "parentNumber": block.parent_number,
            "parentHash": block.parent_hash,
            "timestamp": block.timestamp,
        }

    @cached_property
    def _transactions(self) -> list[Row]:
        pairs = enumerate(zip(self._keys, self._scenes, strict=True))
        return [_transaction_row(index, key, scene) for index, (key, scene) in pairs]

    @cached_property
    def _instructions(self) -> list[Row]:
        return [
            _instruction_row(index, address, step, scene)
            for index, scene in enumerate(self._scenes)
            for address, step in _steps(scene.steps)
        ]

    @cached_property
    def _logs(self) -> list[Row]:
        rows: list[Row] = []
        for index, scene in enumerate(self._scenes):
            messages = (
                (address, step.program, kind, message)
                for address, step in _steps(scene.steps)
                for kind, message in step.messages
            )
            rows.extend(
                {
                    "transactionIndex": index,
                    "logIndex": log_index,
                    "instructionAddress": address,
                    "programId": program,
                    "kind": kind,
                    "message": message,
                }
                for log_index, (address, program, kind, message) in enumerate(messages)
            )
        return rows

    @cached_property
    def _balances(self) -> list[Row]:
        return solana_balances.lamport_rows(self._salt, self._scenes)

    @cached_property
    def _token_balances(self) -> list[Row]:
        return solana_balances.token_rows(self._salt, self._scenes)

    @cached_property
    def _rewards(self) -> list[Row]:
        """The leader's fees; now and then a vote's reward and rent, which is negative."""
        if not self._scenes:
            return []
        draw = Draw(self._salt, "rewards")
        leader, *voters = self._people.producers
        rows = [_reward_row(leader, solana_balances.FEE * len(self._scenes) // 2, "Fee", draw)]
        if draw.chance(0.2):
            rows.append(_reward_row(voters[0], draw.bits(24), "Voting", draw, commission=5))
        if draw.chance(0.2):
            rows.append(_reward_row(draw.pick(self._people.accounts), -890_880, "Rent", draw))
        return rows

    @cached_property
    def _scenes(self) -> list[SolanaScene]:
        return [play(Draw(key), self._people, self._settings) for key in self._keys]


def _steps(steps: list[Step], parent: tuple[int, ...] = ()) -> Iterator[tuple[list[int], Step]]:
    """Walk instructions in execution order, each with its address."""
    for position, step in enumerate(steps):
        address = (*parent, position)
        yield list(address), step
        yield from _steps(step.children, address)


def _transaction_row(index: int, key: str, scene: SolanaScene) -> Row:
    draw = Draw(key, "wire")
    involved: dict[str, None] = {scene.payer: None}
    programs: dict[str, None] = {}
    for _, step in _steps(scene.steps):
        involved.update(dict.fromkeys(step.accounts))
        programs[step.program] = None
    accounts = [account for account in involved if account not in programs]
    versioned = draw.chance(0.5) and len(accounts) > 2
    loaded = accounts[-1:] if versioned else []
    static = accounts[: len(accounts) - len(loaded)]
    lookup = {
        "accountKey": base58.encode(draw.octets(32)),
        "readonlyIndexes": [],
        "writableIndexes": [draw.below(200)],
    }
    return {
        "transactionIndex": index,
        "version": 0 if versioned else "legacy",
        "accountKeys": [*static, *programs],
        "addressTableLookups": [lookup] if versioned else [],
        "numReadonlySignedAccounts": 0,
        "numReadonlyUnsignedAccounts": len(programs),
        "numRequiredSignatures": 1,
        "recentBlockhash": base58.encode(draw.octets(32)),
        "signatures": [base58.encode(draw.octets(64))],
        "err": scene.error,
        "computeUnitsConsumed": str(sum(1 for _ in _steps(scene.steps)) * 4500),
        "fee": str(solana_balances.FEE),
        "loadedAddresses": {"readonly": [], "writable": loaded},
        "hasDroppedLogMessages": False,
    }


def _instruction_row(index: int, address: list[int], step: Step, scene: SolanaScene) -> Row:
    failing = isinstance(scene.error, dict) and scene.error["InstructionError"][0] == address[0]
    data = step.data
    return {
        "transactionIndex": index,
        "instructionAddress": address,
        "programId": step.program,
        "accounts": step.accounts,
        "data": base58.encode(data),
        "computeUnitsConsumed": None if step.program.startswith("1111") else "4500",
        "error": scene.error["InstructionError"][1] if failing and len(address) == 1 else None,
        "isCommitted": scene.error is None,
        "hasDroppedLogMessages": False,
        **{
            f"d{width}": "0x" + data[:width].hex() if len(data) >= width else None
            for width in (1, 2, 4, 8)
        },
    }


def _reward_row(
    pubkey: str, lamports: int, kind: str, draw: Draw, commission: int | None = None
) -> Row:
    return {
        "pubkey": pubkey,
        "lamports": str(lamports),
        "postBalance": str(10**9 + draw.bits(34)),
        "rewardType": kind,
        "commission": commission,
    }
