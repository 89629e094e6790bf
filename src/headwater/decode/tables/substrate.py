"""Outputs of Substrate networks: blocks, extrinsics, calls and events.

    substrate.events(name=["Balances.Transfer"], range=20_000_000)
    substrate.evm_logs(address=["0x931715fee2d06333043d11f658c8ce934ac61d0c"])

`transaction_hash` and `transaction_index` are those of the extrinsic; an event outside of any has
none. `args` are JSON. All of these are values: made on the driver, pickled to executors, never
changed; the same lines give the same rows again. The functions raise `QueryError` if a field or
filter is not known, or a value is of the wrong kind.
"""

from __future__ import annotations

from typing import Unpack

from headwater.core import Ranges
from headwater.decode.tables.raw_table import Fields, TableOutput, make_table
from headwater.query.networks.substrate import (
    SubstrateCalls,
    SubstrateContractsEvents,
    SubstrateEthereumTransactions,
    SubstrateEvents,
    SubstrateEvmLogs,
    SubstrateGearMessagesEnqueued,
    SubstrateGearUserMessagesSent,
    SubstrateQuery,
    SubstrateReviveContractEmitted,
)

__all__ = [
    "TableOutput",
    "blocks",
    "calls",
    "contracts_events",
    "ethereum_transactions",
    "events",
    "evm_logs",
    "extrinsics",
    "gear_messages_enqueued",
    "gear_user_messages_sent",
    "revive_contract_emitted",
]


def blocks(*, fields: Fields = None, range: Ranges = None) -> TableOutput:
    """Return the table of all blocks. docs/schema.md lists the fields and their types."""
    return make_table(SubstrateQuery, "blocks", fields, {}, range)


def extrinsics(*, fields: Fields = None, range: Ranges = None) -> TableOutput:
    """Return the table of all extrinsics. A portal sends them with their calls alone."""
    return make_table(SubstrateQuery, "extrinsics", fields, {}, range)


def calls(
    *, fields: Fields = None, range: Ranges = None, **filters: Unpack[SubstrateCalls]
) -> TableOutput:
    """Return the table of calls, outer and inner, of these names."""
    return make_table(SubstrateQuery, "calls", fields, filters, range)


def ethereum_transactions(
    *,
    fields: Fields = None,
    range: Ranges = None,
    **filters: Unpack[SubstrateEthereumTransactions],
) -> TableOutput:
    """Return the table of `Ethereum.transact` calls."""
    return make_table(SubstrateQuery, "ethereum_transactions", fields, filters, range)


def events(
    *, fields: Fields = None, range: Ranges = None, **filters: Unpack[SubstrateEvents]
) -> TableOutput:
    """Return the table of events of these names."""
    return make_table(SubstrateQuery, "events", fields, filters, range)


def evm_logs(
    *, fields: Fields = None, range: Ranges = None, **filters: Unpack[SubstrateEvmLogs]
) -> TableOutput:
    """Return the table of `EVM.Log` events."""
    return make_table(SubstrateQuery, "evm_logs", fields, filters, range)


def contracts_events(
    *, fields: Fields = None, range: Ranges = None, **filters: Unpack[SubstrateContractsEvents]
) -> TableOutput:
    """Return the table of `Contracts.ContractEmitted` events."""
    return make_table(SubstrateQuery, "contracts_events", fields, filters, range)


def gear_messages_enqueued(
    *,
    fields: Fields = None,
    range: Ranges = None,
    **filters: Unpack[SubstrateGearMessagesEnqueued],
) -> TableOutput:
    """Return the table of messages that wait for a Gear program."""
    return make_table(SubstrateQuery, "gear_messages_enqueued", fields, filters, range)


def gear_user_messages_sent(
    *,
    fields: Fields = None,
    range: Ranges = None,
    **filters: Unpack[SubstrateGearUserMessagesSent],
) -> TableOutput:
    """Return the table of messages that a Gear program sent."""
    return make_table(SubstrateQuery, "gear_user_messages_sent", fields, filters, range)


def revive_contract_emitted(
    *,
    fields: Fields = None,
    range: Ranges = None,
    **filters: Unpack[SubstrateReviveContractEmitted],
) -> TableOutput:
    """Return the table of `Revive.ContractEmitted` events."""
    return make_table(SubstrateQuery, "revive_contract_emitted", fields, filters, range)
