"""Outputs of Tron: blocks, transactions, logs and internal transactions.

    tron.contract_calls(contract=["TR7N…"], sighash=["a9059cbb"], range=84_000_000)
    tron.logs(address=["TR7N…"], topic0=["ddf2…"])

Addresses in filters are `T…` or hex; in columns they are hex of 21 bytes, `41…`, those of logs too.
Amounts are sun. What a transaction does is in its `parameter`, as JSON. All of these are values:
made on the driver, pickled to executors, never changed; the same lines give the same rows again.
The functions raise `QueryError` if a field or filter is not known, or a value is of the wrong kind.
"""

from __future__ import annotations

from typing import Unpack

from headwater.core import Ranges
from headwater.decode.tables.raw_table import Fields, TableOutput, make_table
from headwater.query.networks.tron import (
    TronInternalTransactions,
    TronLogs,
    TronQuery,
    TronTransactions,
    TronTransferAssetTransactions,
    TronTransferTransactions,
    TronTriggerSmartContractTransactions,
)

__all__ = [
    "TableOutput",
    "asset_transfers",
    "blocks",
    "contract_calls",
    "internal_transactions",
    "logs",
    "transactions",
    "transfers",
]


def blocks(*, fields: Fields = None, range: Ranges = None) -> TableOutput:
    """Return the table of all blocks. docs/schema.md lists the fields and their types."""
    return make_table(TronQuery, "blocks", fields, {}, range)


def transactions(
    *, fields: Fields = None, range: Ranges = None, **filters: Unpack[TronTransactions]
) -> TableOutput:
    """Return the table of transactions of these types, or of all."""
    return make_table(TronQuery, "transactions", fields, filters, range)


def transfers(
    *, fields: Fields = None, range: Ranges = None, **filters: Unpack[TronTransferTransactions]
) -> TableOutput:
    """Return the table of transactions that transfer TRX."""
    return make_table(TronQuery, "transfers", fields, filters, range)


def asset_transfers(
    *,
    fields: Fields = None,
    range: Ranges = None,
    **filters: Unpack[TronTransferAssetTransactions],
) -> TableOutput:
    """Return the table of transactions that transfer TRC-10 tokens."""
    return make_table(TronQuery, "asset_transfers", fields, filters, range)


def contract_calls(
    *,
    fields: Fields = None,
    range: Ranges = None,
    **filters: Unpack[TronTriggerSmartContractTransactions],
) -> TableOutput:
    """Return the table of transactions that call contracts."""
    return make_table(TronQuery, "contract_calls", fields, filters, range)


def logs(
    *, fields: Fields = None, range: Ranges = None, **filters: Unpack[TronLogs]
) -> TableOutput:
    """Return the table of logs, not decoded, that match the filters of `TronQuery.add_logs`."""
    return make_table(TronQuery, "logs", fields, filters, range)


def internal_transactions(
    *, fields: Fields = None, range: Ranges = None, **filters: Unpack[TronInternalTransactions]
) -> TableOutput:
    """Return the table of what contracts sent and called."""
    return make_table(TronQuery, "internal_transactions", fields, filters, range)
