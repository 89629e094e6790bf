"""Outputs of Bitcoin: blocks, transactions, what they spend and what they pay.

    bitcoin.outputs(script_pub_key_address=["bc1q…"], range=800_000)
    bitcoin.inputs(type=["coinbase"], fields=["coinbase"])

Amounts are satoshis, exactly. A transaction is named by its txid in `transaction_hash`; an input
says which output it spends with `txid` and `vout`. All of these are values: made on the driver,
pickled to executors, never changed; the same lines give the same rows again. The functions raise
`QueryError` if a field or filter is not known, or a value is of the wrong kind, and
`ParameterError` if `decimals` names a column that cannot be one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from headwater.core import Ranges
from headwater.decode.tables.raw_table import Fields, TableOutput, make_table
from headwater.query.networks.bitcoin import BitcoinInputs, BitcoinOutputs, BitcoinQuery

__all__ = ["TableOutput", "blocks", "inputs", "outputs", "transactions"]


def blocks(
    *, fields: Fields = None, range: Ranges = None, decimals: Iterable[str] = ()
) -> TableOutput:
    """Return the table of all blocks. docs/schema.md lists the fields and their types."""
    return make_table(BitcoinQuery, "blocks", fields, {}, range, decimals)


def transactions(*, fields: Fields = None, range: Ranges = None) -> TableOutput:
    """Return the table of all transactions."""
    return make_table(BitcoinQuery, "transactions", fields, {}, range)


def inputs(
    *, fields: Fields = None, range: Ranges = None, **filters: Unpack[BitcoinInputs]
) -> TableOutput:
    """Return the table of inputs that match the filters of `BitcoinQuery.add_inputs`."""
    return make_table(BitcoinQuery, "inputs", fields, filters, range)


def outputs(
    *, fields: Fields = None, range: Ranges = None, **filters: Unpack[BitcoinOutputs]
) -> TableOutput:
    """Return the table of outputs that match the filters of `BitcoinQuery.add_outputs`."""
    return make_table(BitcoinQuery, "outputs", fields, filters, range)
