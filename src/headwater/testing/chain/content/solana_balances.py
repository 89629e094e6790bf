"""Balances of a simulated Solana block, so that each one begins where the last one ended.

Every account starts the block with enough for all that it will give away, hence no balance turns
negative. A token account that ends a transaction empty is closed, and one that receives its first
tokens is opened: the rows with a `pre` or a `post` side alone come from that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from headwater.testing.chain.content.solana_scenes import SolanaScene, token_account
from headwater.testing.chain.draw import Draw
from headwater.testing.chain.population import TOKEN_PROGRAM

Row = dict[str, Any]

FEE = 5000
DECIMALS = 6

_SIDE_FIELDS = ("ProgramId", "Mint", "Decimals", "Owner", "Amount")


def lamport_rows(salt: str, scenes: Sequence[SolanaScene]) -> list[Row]:
    """Return the `balances` rows of a block."""
    spent: Counter[str] = Counter()
    for scene in scenes:
        spent[scene.payer] += FEE
        for move in scene.lamport_moves:
            spent[move.source] += move.amount
    held: dict[str, int] = {}
    rows: list[Row] = []
    for index, scene in enumerate(scenes):
        changes: Counter[str] = Counter({scene.payer: -FEE})
        if scene.error is None:
            for move in scene.lamport_moves:
                changes[move.source] -= move.amount
                changes[move.target] += move.amount
        for account, change in changes.items():
            if account not in held:
                held[account] = spent[account] + 890_880 + Draw(salt, account).bits(34)
            before, held[account] = held[account], held[account] + change
            if change:
                rows.append(_lamport_row(index, account, before, held[account]))
    return rows


def token_rows(salt: str, scenes: Sequence[SolanaScene]) -> list[Row]:
    """Return the `tokenBalances` rows of a block."""
    held = _opening_balances(salt, scenes)
    rows: list[Row] = []
    for index, scene in enumerate(scenes):
        touched: dict[tuple[str, str], int] = {}
        for move in scene.token_moves:
            amount = move.amount if scene.error is None else 0
            for owner, change in ((move.source_owner, -amount), (move.target_owner, amount)):
                touched[move.mint, owner] = touched.get((move.mint, owner), 0) + change
        for (mint, owner), change in touched.items():
            before = held[mint, owner]
            after = None if before is None and not change else (before or 0) + change
            if scene.error is None:
                after = after or None
            held[mint, owner] = after
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
    return {
        "transactionIndex": index,
        "account": account,
        "pre": str(before),
        "post": str(after),
    }


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
