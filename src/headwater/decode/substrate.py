"""What a stream can take from Substrate networks: blocks, extrinsics, calls and events.

    substrate.events(name=["Balances.Transfer"], range=20_000_000)
    substrate.evm_logs(address=["0x931715fee2d06333043d11f658c8ce934ac61d0c"])

`transaction_hash` and `transaction_index` are those of the extrinsic; an event outside of any has
none. `args` are JSON. All of these are values: made on the driver, pickled to executors, never
changed; the same lines give the same rows again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from headwater.decode.tables import TableOutput, make_table
from headwater.query.substrate import (
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


def blocks(
    *,
    fields: Iterable[str] | None = None,
    range: object = None,
) -> TableOutput:
    """Return the table of all blocks. docs/schema.md lists the fields and their types.

    Raises:
        QueryError: a field is not known.
    """
    return make_table(SubstrateQuery(include_all_blocks=True), "blocks", fields, {}, range)


def extrinsics(
    *,
    fields: Iterable[str] | None = None,
    range: object = None,
) -> TableOutput:
    """Return the table of all extrinsics. A portal sends them with their calls alone.

    Raises:
        QueryError: a field is not known.
    """
    return make_table(SubstrateQuery(), "extrinsics", fields, {}, range)


def calls(
    *,
    fields: Iterable[str] | None = None,
    range: object = None,
    **filters: Unpack[SubstrateCalls],
) -> TableOutput:
    """Return the table of calls, outer and inner, of these names.

    Raises:
        QueryError: a field or filter is not known, or a value is of the wrong kind.
    """
    return make_table(SubstrateQuery(), "calls", fields, filters, range)


def ethereum_transactions(
    *,
    fields: Iterable[str] | None = None,
    range: object = None,
    **filters: Unpack[SubstrateEthereumTransactions],
) -> TableOutput:
    """Return the table of `Ethereum.transact` calls.

    Raises:
        QueryError: a field or filter is not known, or a value is of the wrong kind.
    """
    return make_table(SubstrateQuery(), "ethereum_transactions", fields, filters, range)


def events(
    *,
    fields: Iterable[str] | None = None,
    range: object = None,
    **filters: Unpack[SubstrateEvents],
) -> TableOutput:
    """Return the table of events of these names.

    Raises:
        QueryError: a field or filter is not known, or a value is of the wrong kind.
    """
    return make_table(SubstrateQuery(), "events", fields, filters, range)


def evm_logs(
    *,
    fields: Iterable[str] | None = None,
    range: object = None,
    **filters: Unpack[SubstrateEvmLogs],
) -> TableOutput:
    """Return the table of `EVM.Log` events.

    Raises:
        QueryError: a field or filter is not known, or a value is of the wrong kind.
    """
    return make_table(SubstrateQuery(), "evm_logs", fields, filters, range)


def contracts_events(
    *,
    fields: Iterable[str] | None = None,
    range: object = None,
    **filters: Unpack[SubstrateContractsEvents],
) -> TableOutput:
    """Return the table of `Contracts.ContractEmitted` events.

    Raises:
        QueryError: a field or filter is not known, or a value is of the wrong kind.
    """
    return make_table(SubstrateQuery(), "contracts_events", fields, filters, range)


def gear_messages_enqueued(
    *,
    fields: Iterable[str] | None = None,
    range: object = None,
    **filters: Unpack[SubstrateGearMessagesEnqueued],
) -> TableOutput:
    """Return the table of messages that wait for a Gear program.

    Raises:
        QueryError: a field or filter is not known, or a value is of the wrong kind.
    """
    return make_table(SubstrateQuery(), "gear_messages_enqueued", fields, filters, range)


def gear_user_messages_sent(
    *,
    fields: Iterable[str] | None = None,
    range: object = None,
    **filters: Unpack[SubstrateGearUserMessagesSent],
) -> TableOutput:
    """Return the table of messages that a Gear program sent.

    Raises:
        QueryError: a field or filter is not known, or a value is of the wrong kind.
    """
    return make_table(SubstrateQuery(), "gear_user_messages_sent", fields, filters, range)


def revive_contract_emitted(
    *,
    fields: Iterable[str] | None = None,
    range: object = None,
    **filters: Unpack[SubstrateReviveContractEmitted],
) -> TableOutput:
    """Return the table of `Revive.ContractEmitted` events.

    Raises:
        QueryError: a field or filter is not known, or a value is of the wrong kind.
    """
    return make_table(SubstrateQuery(), "revive_contract_emitted", fields, filters, range)
