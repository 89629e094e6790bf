"""Defines the raw tables of every network: filters, first columns and default columns."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.query import BITCOIN, EVM, HYPERLIQUID, SOLANA, SUBSTRATE, TRON


@dataclass(frozen=True, slots=True)
class TableDefinition:
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


def _blocks(default: str) -> TableDefinition:
    return TableDefinition("blocks", "block", None, (), tuple(default.split()))


def _items(
    name: str,
    entity: str,
    identity: str,
    default: str,
    *,
    family: str | None = None,
    joined: bool = False,
    flag: str | None = None,
) -> TableDefinition:
    """Return a table of items; its family of filters is called like it, unless it says which."""
    first, chosen = tuple(identity.split()), tuple(default.split())
    return TableDefinition(name, entity, family or name, first, chosen, joined, flag)


_EVM_TABLES = (
    _blocks("parent_hash miner size gas_limit gas_used base_fee_per_gas extra_data"),
    _items(
        "transactions",
        "transaction",
        "hash transaction_index",
        "from to nonce value input gas gas_price gas_used effective_gas_price contract_address "
        "type status",
    ),
    _items("logs", "log", "transaction_hash transaction_index log_index", "address topics data"),
    _items(
        "traces",
        "trace",
        "transaction_index trace_address type",
        "error create_from create_value create_result_address call_call_type call_from call_to "
        "call_value call_sighash call_input call_result_output suicide_address "
        "suicide_refund_address suicide_balance reward_author reward_value reward_type",
        joined=True,
    ),
    _items(
        "state_diffs", "stateDiff", "transaction_index address key", "kind prev next", joined=True
    ),
)

_SOLANA_TABLES = (
    _blocks("height parent_number parent_hash"),
    _items(
        "transactions",
        "transaction",
        "transaction_index",
        "account_keys err fee compute_units_consumed version",
        joined=True,
    ),
    _items(
        "instructions_raw",
        "instruction",
        "transaction_index instruction_address program_id",
        "accounts data is_committed error",
        family="instructions",
        joined=True,
    ),
    _items(
        "logs",
        "log",
        "transaction_index log_index instruction_address program_id",
        "kind message",
        joined=True,
    ),
    _items("balances", "balance", "transaction_index account", "pre post", joined=True),
    _items(
        "token_balances",
        "tokenBalance",
        "transaction_index account",
        "pre_program_id pre_mint pre_decimals pre_owner pre_amount "
        "post_program_id post_mint post_decimals post_owner post_amount",
        joined=True,
    ),
    _items("rewards", "reward", "pubkey", "lamports post_balance reward_type commission"),
)

_BITCOIN_TABLES = (
    _blocks("parent_hash median_time difficulty size weight"),
    _items(
        "transactions",
        "transaction",
        "txid transaction_index",
        "size vsize weight version locktime",
    ),
    _items(
        "inputs",
        "input",
        "transaction_index input_index",
        "type txid vout sequence prevout_height prevout_value prevout_script_pub_key_type "
        "prevout_script_pub_key_address",
        joined=True,
    ),
    _items(
        "outputs",
        "output",
        "transaction_index output_index",
        "value script_pub_key_type script_pub_key_address script_pub_key_hex",
        joined=True,
    ),
)

_TRON_TRANSACTION = (
    "transaction",
    "hash transaction_index",
    "type parameter ret fee fee_limit energy_usage_total net_usage contract_address result",
)
_TRON_TABLES = (
    _blocks("parent_hash witness_address version"),
    _items("transactions", *_TRON_TRANSACTION),
    _items("transfers", *_TRON_TRANSACTION, family="transfer_transactions"),
    _items("asset_transfers", *_TRON_TRANSACTION, family="transfer_asset_transactions"),
    _items("contract_calls", *_TRON_TRANSACTION, family="trigger_smart_contract_transactions"),
    _items("logs", "log", "transaction_index log_index", "address topics data", joined=True),
    _items(
        "internal_transactions",
        "internalTransaction",
        "transaction_index internal_transaction_index",
        "hash caller_address transfer_to_address call_value_info note rejected",
        joined=True,
    ),
)

_HYPERLIQUID_TABLES = (
    _blocks("parent_hash"),
    _items(
        "fills",
        "fill",
        "hash fill_index",
        "user coin px sz side time dir start_position closed_pnl oid tid crossed fee fee_token "
        "builder_fee builder cloid twap_id",
    ),
)

_CALL = ("call", "extrinsic_index address name", "success origin args error")
_EVENT = ("event", "extrinsic_index index name", "phase call_address args")
_SUBSTRATE_TABLES = (
    _blocks("parent_hash validator spec_name spec_version"),
    _items(
        "extrinsics",
        "extrinsic",
        "hash index",
        "version success fee tip signature error",
        family="calls",
        flag="extrinsic",
    ),
    _items("calls", *_CALL, joined=True),
    _items("ethereum_transactions", *_CALL, joined=True),
    _items("events", *_EVENT, joined=True),
    _items("evm_logs", *_EVENT, joined=True),
    _items("contracts_events", *_EVENT, joined=True),
    _items("gear_messages_enqueued", *_EVENT, joined=True),
    _items("gear_user_messages_sent", *_EVENT, joined=True),
    _items("revive_contract_emitted", *_EVENT, joined=True),
)

TABLE_DEFINITIONS = {
    network.type: {definition.name: definition for definition in tables}
    for network, tables in (
        (EVM, _EVM_TABLES),
        (SOLANA, _SOLANA_TABLES),
        (BITCOIN, _BITCOIN_TABLES),
        (TRON, _TRON_TABLES),
        (HYPERLIQUID, _HYPERLIQUID_TABLES),
        (SUBSTRATE, _SUBSTRATE_TABLES),
    )
}
"""The tables of every network, by the name of the function that makes them."""
