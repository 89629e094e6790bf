"""A simulated Solana block in the portal's wire form: every field of every entity.

A transaction is a scene first: its instructions and what they move. Programs and encodings are the
real ones where a program is public (System, SPL Token); the one that is made up is Anchor-like:
8-byte discriminators, and events as `Program data`.

Balances begin where the last ones ended. Every account starts the block with enough for all that it
will give away, hence no balance turns negative. A token account that ends a transaction empty is
closed, and one that receives its first tokens is opened: the rows with a `pre` or a `post` side
alone come from that.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import blake2b, sha256
from typing import Any

from headwater.query import base58
from headwater.testing.chain.content.block import BlockContent, Row
from headwater.testing.chain.population import (
    SYSTEM_PROGRAM,
    TOKEN_PROGRAM,
    ContentSettings,
    Draw,
    Population,
)


@dataclass(frozen=True, slots=True)
class TokenMove:
    """Tokens that go from one token account to another."""

    mint: str
    source_owner: str
    target_owner: str
    amount: int


@dataclass(frozen=True, slots=True)
class LamportMove:
    """Lamports that go from one account to another."""

    source: str
    target: str
    amount: int


@dataclass(slots=True)
class Step:
    """One instruction with the instructions that it calls, and the messages that it logs."""

    program: str
    accounts: list[str]
    data: bytes
    messages: list[tuple[str, str]] = field(default_factory=list)
    children: list[Step] = field(default_factory=list)


@dataclass(slots=True)
class SolanaScene:
    """All that one transaction does; `error` is the transaction's `err` if it failed."""

    payer: str
    steps: list[Step]
    token_moves: list[TokenMove] = field(default_factory=list)
    lamport_moves: list[LamportMove] = field(default_factory=list)
    error: Any = None


def play(draw: Draw, people: Population, settings: ContentSettings) -> SolanaScene:
    """Draw one transaction's story."""
    scene = draw.pick(_SCENES)(draw, people, settings)
    if draw.chance(settings.failed_share):
        custom = {"InstructionError": [len(scene.steps) - 1, {"Custom": 6000 + draw.below(10)}]}
        builtin = {"InstructionError": [0, "InsufficientFunds"]}
        scene.error = draw.pick((custom, builtin, "InsufficientFundsForFee"))
    return scene


@lru_cache(maxsize=8192)
def token_account(mint: str, owner: str) -> str:
    """Return the account in which an owner holds a token."""
    return base58.encode(blake2b(f"{mint}/{owner}".encode(), digest_size=32).digest())


def discriminator(name: str) -> bytes:
    """Return the 8 bytes by which an Anchor program knows an instruction."""
    return sha256(f"global:{name}".encode()).digest()[:8]


def token_transfer_data(amount: int) -> bytes:
    """Return the data of an SPL Token transfer."""
    return b"\x03" + amount.to_bytes(8, "little")


def system_transfer_data(lamports: int) -> bytes:
    """Return the data of a System transfer."""
    return b"\x02\0\0\0" + lamports.to_bytes(8, "little")


def _payment(draw: Draw, people: Population, settings: ContentSettings) -> SolanaScene:
    move = LamportMove(draw.pick(people.accounts), draw.pick(people.accounts), draw.bits(32))
    step = Step(SYSTEM_PROGRAM, [move.source, move.target], system_transfer_data(move.amount))
    return SolanaScene(move.source, [step], lamport_moves=[move])


def _token_transfers(draw: Draw, people: Population, settings: ContentSettings) -> SolanaScene:
    payer = draw.pick(people.accounts)
    scene = SolanaScene(payer, [])
    for _ in range(draw.count(settings.transfers_per_transaction)):
        target = draw.pick(people.accounts)
        move = TokenMove(draw.pick(people.tokens), payer, target, _amount(draw, settings))
        scene.token_moves.append(move)
        scene.steps.append(_transfer_step(move))
    if not scene.steps:
        scene.steps.append(Step(people.program, [payer], discriminator("ping")))
    return scene


def _swap(draw: Draw, people: Population, settings: ContentSettings) -> SolanaScene:
    """Swap through the Anchor-like program: a payment first, two inner transfers, an event."""
    payer, pool = draw.pick(people.accounts), people.program
    sold = TokenMove(draw.pick(people.tokens), payer, pool, _amount(draw, settings))
    bought = TokenMove(draw.pick(people.tokens), pool, payer, _amount(draw, settings))
    tip = LamportMove(payer, draw.pick(people.producers), draw.bits(16))
    amounts = sold.amount.to_bytes(8, "little") + bought.amount.to_bytes(8, "little")
    accounts = [
        payer,
        token_account(sold.mint, payer),
        token_account(sold.mint, pool),
        token_account(bought.mint, pool),
        token_account(bought.mint, payer),
        TOKEN_PROGRAM,
    ]
    event = sha256(b"event:Swapped").digest()[:8] + amounts
    swap = Step(pool, accounts, discriminator("swap") + amounts)
    swap.messages = [
        ("log", "Program log: Instruction: Swap"),
        ("data", f"Program data: {b64encode(event).decode()}"),
    ]
    swap.children = [_transfer_step(sold), _transfer_step(bought)]
    if draw.chance(0.3):
        fee = Step(pool, accounts[:2], discriminator("collect_fee") + b"\x01")
        fee.messages = [("log", "Program log: Instruction: CollectFee")]
        fee.children = [swap.children.pop()]
        swap.children.append(fee)
    pay = Step(SYSTEM_PROGRAM, [payer, tip.target], system_transfer_data(tip.amount))
    return SolanaScene(payer, [pay, swap], [sold, bought], [tip])


def _deposit(draw: Draw, people: Population, settings: ContentSettings) -> SolanaScene:
    payer = draw.pick(people.accounts)
    move = TokenMove(draw.pick(people.tokens), payer, people.program, _amount(draw, settings))
    source, target = token_account(move.mint, payer), token_account(move.mint, people.program)
    data = discriminator("deposit") + move.amount.to_bytes(8, "little")
    step = Step(people.program, [payer, source, target, TOKEN_PROGRAM], data)
    step.messages = [("log", "Program log: Instruction: Deposit"), ("other", "slot hash refreshed")]
    step.children = [_transfer_step(move)]
    return SolanaScene(payer, [step], [move])


_SCENES: tuple[Callable[[Draw, Population, ContentSettings], SolanaScene], ...] = (
    *(_payment, _token_transfers, _token_transfers, _token_transfers, _swap, _swap, _deposit),
)


def _transfer_step(move: TokenMove) -> Step:
    source = token_account(move.mint, move.source_owner)
    target = token_account(move.mint, move.target_owner)
    step = Step(
        TOKEN_PROGRAM, [source, target, move.source_owner], token_transfer_data(move.amount)
    )
    step.messages = [("log", "Program log: Instruction: Transfer")]
    return step


def _amount(draw: Draw, settings: ContentSettings) -> int:
    return draw.bits(62 if draw.chance(settings.huge_value_share) else 20 + draw.below(20))


FEE = 5000
DECIMALS = 6

_SIDE_FIELDS = ("ProgramId", "Mint", "Decimals", "Owner", "Amount")


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
        return lamport_rows(self._salt, self._scenes)

    @cached_property
    def _token_balances(self) -> list[Row]:
        return token_rows(self._salt, self._scenes)

    @cached_property
    def _rewards(self) -> list[Row]:
        """The leader's fees; now and then a vote's reward and rent, which is negative."""
        if not self._scenes:
            return []
        draw = Draw(self._salt, "rewards")
        leader, *voters = self._people.producers
        rows = [_reward_row(leader, FEE * len(self._scenes) // 2, "Fee", draw)]
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
        "fee": str(FEE),
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


def lamport_rows(salt: str, scenes: Sequence[SolanaScene]) -> list[Row]:
    """Return the `balances` rows of a block."""
    spent: Counter[str] = Counter()
    for scene in scenes:
        spent[scene.payer] += FEE
        for move in scene.lamport_moves:
            spent[move.source] += move.amount
    balances: dict[str, int] = {}
    rows: list[Row] = []
    for index, scene in enumerate(scenes):
        changes: Counter[str] = Counter({scene.payer: -FEE})
        if scene.error is None:
            for move in scene.lamport_moves:
                changes[move.source] -= move.amount
                changes[move.target] += move.amount
        for account, change in changes.items():
            if account not in balances:
                balances[account] = spent[account] + 890_880 + Draw(salt, account).bits(34)
            before, balances[account] = balances[account], balances[account] + change
            if change:
                rows.append(_lamport_row(index, account, before, balances[account]))
    return rows


def token_rows(salt: str, scenes: Sequence[SolanaScene]) -> list[Row]:
    """Return the `tokenBalances` rows of a block."""
    balances = _opening_balances(salt, scenes)
    rows: list[Row] = []
    for index, scene in enumerate(scenes):
        touched: dict[tuple[str, str], int] = {}
        for move in scene.token_moves:
            amount = move.amount if scene.error is None else 0
            for owner, change in ((move.source_owner, -amount), (move.target_owner, amount)):
                touched[move.mint, owner] = touched.get((move.mint, owner), 0) + change
        for (mint, owner), change in touched.items():
            before = balances[mint, owner]
            after = None if before is None and not change else (before or 0) + change
            if scene.error is None:
                after = after or None
            balances[mint, owner] = after
            if before is not None or after is not None:
                sides = {**_side("pre", mint, owner, before), **_side("post", mint, owner, after)}
                account = token_account(mint, owner)
                rows.append({"transactionIndex": index, "account": account, **sides})
    return rows


def _opening_balances(
    salt: str, scenes: Iterable[SolanaScene]
) -> dict[tuple[str, str], int | None]:
    """Return what each token account holds before the block; None if it does not exist."""
    spent: Counter[tuple[str, str]] = Counter()
    for scene in scenes:
        for move in scene.token_moves:
            if scene.error is None:
                spent[move.mint, move.source_owner] += move.amount
            spent[move.mint, move.target_owner] += 0
            spent[move.mint, move.source_owner] += 0
    opening: dict[tuple[str, str], int | None] = {}
    for place, total in spent.items():
        draw = Draw(salt, *place)
        extra = 0 if draw.chance(0.3) else draw.bits(40)
        opening[place] = total + extra or None
    return opening


def _lamport_row(index: int, account: str, before: int, after: int) -> Row:
    return {"transactionIndex": index, "account": account, "pre": str(before), "post": str(after)}


def _side(side: str, mint: str, owner: str, amount: int | None) -> Row:
    if amount is None:
        return {side + name: None for name in _SIDE_FIELDS}
    return {
        side + "ProgramId": TOKEN_PROGRAM,
        side + "Mint": mint,
        side + "Decimals": DECIMALS,
        side + "Owner": owner,
        side + "Amount": str(amount),
    }
