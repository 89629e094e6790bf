"""One vocabulary: which columns every table of an entity begins with, and what they are called.

The same thing has the same name in every table of every network: `block_number` (a slot on Solana),
`block_hash`, `timestamp`, `transaction_hash` or `signature`, `transaction_index`, `log_index`,
`trace_address`, `instruction_address`. docs/schema.md is written from this.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.query import EVM, SOLANA, Network

HEADER = ("block_number", "block_hash", "timestamp")

_RENAMED = {
    ("block", "number"): "block_number",
    ("block", "hash"): "block_hash",
    ("transaction", "hash"): "transaction_hash",
}


@dataclass(frozen=True, slots=True)
class TableForm:
    """How the table of an entity looks: its family of filters, its first columns, its defaults.

    `identity` names fields that every row has; `joined`: the transaction's name is looked up among
    the transactions of the block, since the item itself has only its index.
    """

    entity: str
    family: str | None
    identity: tuple[str, ...]
    default: tuple[str, ...]
    joined: bool = False


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_EVM_FORMS = (
    TableForm(
        "block",
        None,
        (),
        _words("parent_hash miner size gas_limit gas_used base_fee_per_gas extra_data"),
    ),
    TableForm(
        "transaction",
        "transactions",
        _words("hash transaction_index"),
        _words("from to nonce value input gas gas_price gas_used effective_gas_price")
        + _words("contract_address type status"),
    ),
    TableForm(
        "log",
        "logs",
        _words("transaction_hash transaction_index log_index"),
        _words("address topics data"),
    ),
    TableForm(
        "trace",
        "traces",
        _words("transaction_index trace_address type"),
        _words("error create_from create_value create_result_address call_call_type call_from")
        + _words("call_to call_value call_sighash call_input call_result_output")
        + _words("suicide_address suicide_refund_address suicide_balance")
        + _words("reward_author reward_value reward_type"),
        joined=True,
    ),
    TableForm(
        "stateDiff",
        "state_diffs",
        _words("transaction_index address key"),
        _words("kind prev next"),
        joined=True,
    ),
)

_SOLANA_FORMS = (
    TableForm("block", None, (), _words("height parent_number parent_hash")),
    TableForm(
        "transaction",
        "transactions",
        _words("transaction_index"),
        _words("account_keys err fee compute_units_consumed version"),
        joined=True,
    ),
    TableForm(
        "instruction",
        "instructions",
        _words("transaction_index instruction_address program_id"),
        _words("accounts data is_committed error"),
        joined=True,
    ),
    TableForm(
        "log",
        "logs",
        _words("transaction_index log_index instruction_address program_id"),
        _words("kind message"),
        joined=True,
    ),
    TableForm(
        "balance", "balances", _words("transaction_index account"), _words("pre post"), joined=True
    ),
    TableForm(
        "tokenBalance",
        "token_balances",
        _words("transaction_index account"),
        _words("pre_program_id pre_mint pre_decimals pre_owner pre_amount")
        + _words("post_program_id post_mint post_decimals post_owner post_amount"),
        joined=True,
    ),
    TableForm(
        "reward",
        "rewards",
        _words("pubkey"),
        _words("lamports post_balance reward_type commission"),
    ),
)

FORMS = {
    EVM.type: {form.entity: form for form in _EVM_FORMS},
    SOLANA.type: {form.entity: form for form in _SOLANA_FORMS},
}


def column_name(entity: str, field: str) -> str:
    """Return the column of a field: its own name, but for a block's and a transaction's."""
    return _RENAMED.get((entity, field), field)


def transaction_name(network: Network) -> tuple[str, str]:
    """Return the column that names a transaction, and the field that it is taken from."""
    return ("signature", "signatures") if network is SOLANA else ("transaction_hash", "hash")
