"""Raw tables as data: which there are, their filters, their first columns and their defaults."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.query import BITCOIN, EVM, HYPERLIQUID, SOLANA, SUBSTRATE, TRON


@dataclass(frozen=True, slots=True)
class TableForm:
    """How a table looks: its entity, its family of filters, its first columns, its defaults.

    `name` is that of the function that makes it. `identity` names fields that every row has;
    `joined`: the transaction's name is looked up among the transactions of the block, since the
    item itself has only its index. `flag`: items come by this flag of the family alone.
    """

    name: str
    entity: str
    family: str | None
    identity: tuple[str, ...]
    default: tuple[str, ...]
    joined: bool = False
    flag: str | None = None


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_EVM_FORMS = (
    TableForm(
        "blocks",
        "block",
        None,
        (),
        _words("parent_hash miner size gas_limit gas_used base_fee_per_gas extra_data"),
    ),
    TableForm(
        "transactions",
        "transaction",
        "transactions",
        _words("hash transaction_index"),
        _words("from to nonce value input gas gas_price gas_used effective_gas_price")
        + _words("contract_address type status"),
    ),
    TableForm(
        "logs",
        "log",
        "logs",
        _words("transaction_hash transaction_index log_index"),
        _words("address topics data"),
    ),
    TableForm(
        "traces",
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
        "state_diffs",
        "stateDiff",
        "state_diffs",
        _words("transaction_index address key"),
        _words("kind prev next"),
        joined=True,
    ),
)

_SOLANA_FORMS = (
    TableForm("blocks", "block", None, (), _words("height parent_number parent_hash")),
    TableForm(
        "transactions",
        "transaction",
        "transactions",
        _words("transaction_index"),
        _words("account_keys err fee compute_units_consumed version"),
        joined=True,
    ),
    TableForm(
        "instructions_raw",
        "instruction",
        "instructions",
        _words("transaction_index instruction_address program_id"),
        _words("accounts data is_committed error"),
        joined=True,
    ),
    TableForm(
        "logs",
        "log",
        "logs",
        _words("transaction_index log_index instruction_address program_id"),
        _words("kind message"),
        joined=True,
    ),
    TableForm(
        "balances",
        "balance",
        "balances",
        _words("transaction_index account"),
        _words("pre post"),
        joined=True,
    ),
    TableForm(
        "token_balances",
        "tokenBalance",
        "token_balances",
        _words("transaction_index account"),
        _words("pre_program_id pre_mint pre_decimals pre_owner pre_amount")
        + _words("post_program_id post_mint post_decimals post_owner post_amount"),
        joined=True,
    ),
    TableForm(
        "rewards",
        "reward",
        "rewards",
        _words("pubkey"),
        _words("lamports post_balance reward_type commission"),
    ),
)

_BITCOIN_FORMS = (
    TableForm(
        "blocks", "block", None, (), _words("parent_hash median_time difficulty size weight")
    ),
    TableForm(
        "transactions",
        "transaction",
        "transactions",
        _words("txid transaction_index"),
        _words("size vsize weight version locktime"),
    ),
    TableForm(
        "inputs",
        "input",
        "inputs",
        _words("transaction_index input_index"),
        _words("type txid vout sequence prevout_height prevout_value prevout_script_pub_key_type")
        + _words("prevout_script_pub_key_address"),
        joined=True,
    ),
    TableForm(
        "outputs",
        "output",
        "outputs",
        _words("transaction_index output_index"),
        _words("value script_pub_key_type script_pub_key_address script_pub_key_hex"),
        joined=True,
    ),
)

_TRON_TRANSACTION = (
    _words("hash transaction_index"),
    _words("type parameter ret fee fee_limit energy_usage_total net_usage contract_address result"),
)
_TRON_FORMS = (
    TableForm("blocks", "block", None, (), _words("parent_hash witness_address version")),
    TableForm("transactions", "transaction", "transactions", *_TRON_TRANSACTION),
    TableForm("transfers", "transaction", "transfer_transactions", *_TRON_TRANSACTION),
    TableForm("asset_transfers", "transaction", "transfer_asset_transactions", *_TRON_TRANSACTION),
    TableForm(
        "contract_calls", "transaction", "trigger_smart_contract_transactions", *_TRON_TRANSACTION
    ),
    TableForm(
        "logs",
        "log",
        "logs",
        _words("transaction_index log_index"),
        _words("address topics data"),
        joined=True,
    ),
    TableForm(
        "internal_transactions",
        "internalTransaction",
        "internal_transactions",
        _words("transaction_index internal_transaction_index"),
        _words("hash caller_address transfer_to_address call_value_info note rejected"),
        joined=True,
    ),
)

_HYPERLIQUID_FORMS = (
    TableForm("blocks", "block", None, (), _words("parent_hash")),
    TableForm(
        "fills",
        "fill",
        "fills",
        _words("hash fill_index"),
        _words("user coin px sz side time dir start_position closed_pnl oid tid crossed fee")
        + _words("fee_token builder_fee builder cloid twap_id"),
    ),
)

_EVENT = (
    _words("extrinsic_index index name"),
    _words("phase call_address args"),
)
_CALL = (_words("extrinsic_index address name"), _words("success origin args error"))
_SUBSTRATE_FORMS = (
    TableForm(
        "blocks",
        "block",
        None,
        (),
        _words("parent_hash validator spec_name spec_version"),
    ),
    TableForm(
        "extrinsics",
        "extrinsic",
        "calls",
        _words("hash index"),
        _words("version success fee tip signature error"),
        flag="extrinsic",
    ),
    TableForm("calls", "call", "calls", *_CALL, joined=True),
    TableForm("ethereum_transactions", "call", "ethereum_transactions", *_CALL, joined=True),
    TableForm("events", "event", "events", *_EVENT, joined=True),
    *(
        TableForm(family, "event", family, *_EVENT, joined=True)
        for family in (
            "evm_logs",
            "contracts_events",
            "gear_messages_enqueued",
            "gear_user_messages_sent",
            "revive_contract_emitted",
        )
    ),
)

FORMS = {
    network.type: {form.name: form for form in forms}
    for network, forms in (
        (EVM, _EVM_FORMS),
        (SOLANA, _SOLANA_FORMS),
        (BITCOIN, _BITCOIN_FORMS),
        (TRON, _TRON_FORMS),
        (HYPERLIQUID, _HYPERLIQUID_FORMS),
        (SUBSTRATE, _SUBSTRATE_FORMS),
    )
}
"""The tables of every network, by the name of the function that makes them."""
