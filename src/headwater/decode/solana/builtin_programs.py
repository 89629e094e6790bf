"""Instructions of well-known Solana programs, as data: `solana.instructions("system.transfer")`.

Token-2022 understands the instructions of SPL Token in the same layouts.
"""

from __future__ import annotations

from collections.abc import Mapping

from headwater.decode.solana.data_layout import DataLayout, parse_layout

TOKEN = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA"
TOKEN_2022 = "TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb"
SYSTEM = "11111111111111111111111111111111"

_MINT = "decimals:u8 mint_authority:pubkey freeze_authority:option<pubkey>"
_TOKEN: Mapping[str, tuple[int, str, str]] = {
    "initialize_mint": (0, _MINT, "mint rent"),
    "initialize_account": (1, "", "account mint owner rent"),
    "initialize_multisig": (2, "m:u8", "multisig rent"),
    "transfer": (3, "amount:u64", "source destination authority"),
    "approve": (4, "amount:u64", "source delegate owner"),
    "revoke": (5, "", "source owner"),
    "set_authority": (6, "authority_type:u8 new_authority:option<pubkey>",
                      "account current_authority"),
    "mint_to": (7, "amount:u64", "mint account mint_authority"),
    "burn": (8, "amount:u64", "account mint authority"),
    "close_account": (9, "", "account destination authority"),
    "freeze_account": (10, "", "account mint freeze_authority"),
    "thaw_account": (11, "", "account mint freeze_authority"),
    "transfer_checked": (12, "amount:u64 decimals:u8", "source mint destination authority"),
    "approve_checked": (13, "amount:u64 decimals:u8", "source mint delegate owner"),
    "mint_to_checked": (14, "amount:u64 decimals:u8", "mint account mint_authority"),
    "burn_checked": (15, "amount:u64 decimals:u8", "account mint authority"),
    "initialize_account2": (16, "owner:pubkey", "account mint rent"),
    "sync_native": (17, "", "account"),
    "initialize_account3": (18, "owner:pubkey", "account mint"),
    "initialize_multisig2": (19, "m:u8", "multisig"),
    "initialize_mint2": (20, _MINT, "mint"),
    "initialize_immutable_owner": (22, "", "account"),
}  # fmt: skip
_SEEDED = "base:pubkey seed:long_string"
_SYSTEM: Mapping[str, tuple[int, str, str]] = {
    "create_account": (0, "lamports:u64 space:u64 owner:pubkey", "source new_account"),
    "assign": (1, "owner:pubkey", "account"),
    "transfer": (2, "lamports:u64", "source destination"),
    "create_account_with_seed": (3, f"{_SEEDED} lamports:u64 space:u64 owner:pubkey",
                                 "source new_account base_account?"),
    "advance_nonce_account": (4, "", "nonce_account recent_blockhashes authority"),
    "withdraw_nonce_account": (5, "lamports:u64",
                               "nonce_account destination recent_blockhashes rent authority"),
    "initialize_nonce_account": (6, "authority:pubkey", "nonce_account recent_blockhashes rent"),
    "authorize_nonce_account": (7, "new_authority:pubkey", "nonce_account authority"),
    "allocate": (8, "space:u64", "account"),
    "allocate_with_seed": (9, f"{_SEEDED} space:u64 owner:pubkey", "account base_account"),
    "assign_with_seed": (10, f"{_SEEDED} owner:pubkey", "account base_account"),
    "transfer_with_seed": (11, "lamports:u64 seed:long_string owner:pubkey",
                           "source base_account destination"),
    "upgrade_nonce_account": (12, "", "nonce_account"),
}  # fmt: skip


def _layouts(table: Mapping[str, tuple[int, str, str]], width: int) -> dict[str, DataLayout]:
    return {
        name: parse_layout(
            name,
            {
                "discriminator": number.to_bytes(width, "little"),
                "args": dict(arg.split(":", 1) for arg in args.split()),
                "accounts": accounts.split(),
            },
        )
        for name, (number, args, accounts) in table.items()
    }


PROGRAMS: Mapping[str, tuple[str, Mapping[str, DataLayout]]] = {
    "spl_token": (TOKEN, _layouts(_TOKEN, 1)),
    "token_2022": (TOKEN_2022, _layouts(_TOKEN, 1)),
    "system": (SYSTEM, _layouts(_SYSTEM, 4)),
}
