"""What one simulated Solana transaction does: its instructions and what they move.

Programs and encodings are the real ones where a program is public (System, SPL Token); the one that
is made up is Anchor-like: 8-byte discriminators, and events as `Program data`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b, sha256
from typing import Any

from headwater.query import base58
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
