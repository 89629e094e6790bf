"""`evm.calls` and anonymous events: what is asked for, what comes out, what is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pytest
from eth_abi.abi import encode

from headwater.decode import CallsOutput, Decoded, Function, decode_outputs, evm
from headwater.decode.evm.types import canonical
from headwater.errors import (
    AddressError,
    InvalidOptionError,
    ParameterError,
    SignatureError,
    UndecodableCallError,
)
from headwater.testing import ChainSim, Network, Selection
from tests.unit.decode.samples import ALICE, BOB, EVERYTHING, TOKEN, line, log, word

TRANSFER = "transfer(address to, uint256 amount) returns (bool)"


def input_of(function: Function, values: Sequence[Any]) -> str:
    kinds = [canonical(one.type) for one in function.inputs]
    return function.sighash + encode(kinds, values).hex()


def transaction(index: int, data: str, **fields: Any) -> dict[str, Any]:
    base = {"transactionIndex": index, "hash": f"0x{index:064x}", "from": ALICE, "to": TOKEN,
            "status": 1}  # fmt: skip
    return base | {"input": data, "sighash": data[:10] if len(data) >= 10 else None} | fields


def trace(index: int, data: str, output: str | None, **fields: Any) -> dict[str, Any]:
    action = {"from": ALICE, "to": TOKEN, "input": data, "sighash": data[:10]}
    return {"transactionIndex": index, "traceAddress": [0, index], "type": "call", "error": None,
            "action": action, "result": {"output": output}} | fields  # fmt: skip


def decode(output: CallsOutput, lines: list[bytes]) -> Decoded:
    decoded = decode_outputs({"t": output}, lines, {"t": EVERYTHING})
    decoded.tables["t"].validate(full=True)
    assert decoded.tables["t"].schema == output.schema
    return decoded


def rows_of(output: CallsOutput, lines: list[bytes]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = decode(output, lines).tables["t"].to_pylist()
    return rows


def test_calls_of_transactions() -> None:
    output = evm.calls(TRANSFER, contracts=[TOKEN], decimals=["amount"])
    asked = json.loads(output.query.body(0))
    assert asked["transactions"] == [{"to": [TOKEN], "sighash": ["0xa9059cbb"]}]
    data = input_of(output.function, [BOB, 7])
    other = "0x11223344" + data[10:]
    given = [
        line(
            1,
            transactions=[
                transaction(0, data),
                transaction(1, other),
                transaction(2, data, to=BOB),
                transaction(3, data, status=0),
                transaction(4, "0x"),
            ],
        )
    ]
    first, second = rows_of(output, given)
    assert list(first) == ["block_number", "block_hash", "timestamp", "transaction_hash",
                           "transaction_index", "address", "sender", "success", "to",
                           "amount"]  # fmt: skip
    assert (first["to"], first["amount"], first["success"]) == (BOB, Decimal(7), True)
    assert (second["transaction_index"], second["success"]) == (3, False)


def test_calls_of_traces_have_what_they_returned() -> None:
    output = evm.calls(TRANSFER, source="traces", contracts=TOKEN)
    data = input_of(output.function, [BOB, 2**255])
    traces = [
        trace(0, data, word(1)),
        trace(1, data, None, error="Reverted"),
        trace(2, data, word(0)),
        trace(3, data, word(1), type="create"),
    ]
    transactions = [{"transactionIndex": at, "hash": f"0x{at:064x}"} for at in range(3)]
    rows = rows_of(output, [line(9), line(10, traces=traces, transactions=transactions)])
    assert [row["result"] for row in rows] == [True, None, False]
    assert [row["success"] for row in rows] == [True, False, True]
    assert [row["trace_address"] for row in rows] == [[0, 0], [0, 1], [0, 2]]
    assert [row["transaction_hash"] for row in rows] == [f"0x{at:064x}" for at in range(3)]
    assert {row["amount"] for row in rows} == {str(2**255)}


def test_a_function_without_inputs_or_outputs_and_dynamic_ones() -> None:
    ping = evm.calls("ping()")
    assert len(rows_of(ping, [line(1, transactions=[transaction(0, ping.function.sighash)])])) == 1
    batch = evm.calls("multi((address to, bytes data)[] calls) returns (bytes[])", source="traces")
    data = input_of(batch.function, [[(ALICE, b"abc"), (BOB, b"")]])
    given = trace(0, data, "0x" + encode(["bytes[]"], [[b"x", b""]]).hex())
    (row,) = rows_of(batch, [line(1, traces=[given])])
    assert row["calls"] == [{"to": ALICE, "data": b"abc"}, {"to": BOB, "data": b""}]
    assert (row["result"], row["transaction_hash"]) == ([b"x", b""], None)


def test_names_that_are_taken_are_prefixed() -> None:
    output = evm.calls("f(address sender, bool ok) returns (bool ok, uint8 success)",
                       source="traces")  # fmt: skip
    assert output.schema.names[-4:] == ["arg_sender", "ok", "result_ok", "result_success"]
    with pytest.raises(SignatureError, match="rename"):
        evm.calls("f(address sender, bool arg_sender)")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"input": "0xa9059cbb" + "00" * 20}, "shorter"),
        ({"input": "0xa9059cbb" + "ff" * 64}, "wider than an address"),
        ({"input": "0xa9059cbb" + "0" * 127}, "odd"),
        ({"input": "0xa9059cbb" + "zz" * 64}, "not hex"),
        ({"input": None, "sighash": "0xa9059cbb"}, "absent"),
        ({"input": "0x1122334455", "sighash": "0xa9059cbb"}, "sighash"),
    ],
)
def test_malformed_calls_are_named_or_skipped(change: Mapping[str, Any], reason: str) -> None:
    good = input_of(evm.calls(TRANSFER).function, [BOB, 1])
    given = [line(5, transactions=[transaction(0, good), transaction(3, good) | dict(change)])]
    with pytest.raises(UndecodableCallError, match=reason) as caught:
        decode(evm.calls(TRANSFER), given)
    facts = caught.value.facts
    assert (facts["block"], facts["transaction_index"], facts["contract"]) == (5, 3, TOKEN)
    skipping = decode(evm.calls(TRANSFER, on_error="skip"), given)
    assert (skipping.tables["t"].num_rows, skipping.skipped["t"]) == (1, 1)


def test_malformed_outputs_are_named_with_their_place() -> None:
    output = evm.calls(TRANSFER, source="traces")
    data = input_of(output.function, [BOB, 1])
    given = [line(5, traces=[trace(0, data, None, error="x"), trace(1, data, word(1)),
                             trace(2, data, "0x")])]  # fmt: skip
    with pytest.raises(UndecodableCallError, match="output is shorter") as caught:
        decode(output, given)
    assert caught.value.facts["trace_address"] == [0, 2]
    skipping = decode(evm.calls(TRANSFER, source="traces", on_error="skip"), given)
    assert (skipping.tables["t"]["result"].to_pylist(), skipping.skipped["t"]) == ([None, True], 1)


def test_calls_of_the_simulator_are_found_and_pickle() -> None:
    chain = ChainSim(seed=3)
    blocks = chain.extend(40)
    for source in ("transactions", "traces"):
        output = pickle.loads(pickle.dumps(evm.calls(TRANSFER, source=source)))
        selection = Selection(Network.EVM, json.loads(output.query.body(0)))
        lines = [one for block in blocks if (one := selection.line(chain, block))]
        rows = rows_of(output, lines)
        assert rows
        assert all(row["transaction_hash"] for row in rows)


def test_options_are_checked() -> None:
    with pytest.raises(InvalidOptionError):
        evm.calls(TRANSFER, source="logs")  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError):
        evm.calls(TRANSFER, on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(ParameterError):
        evm.calls(TRANSFER, decimals=["to"])
    with pytest.raises(AddressError):
        evm.calls(TRANSFER, contracts=[])


# --- anonymous events -----------------------------------------------------------------------------

NOTE = "LogNote(bytes4 indexed sig, address indexed usr, bytes32 indexed a, bytes32 indexed b, \
bytes data) anonymous"


def test_an_anonymous_event_has_its_first_parameter_in_topic0() -> None:
    output = evm.events(NOTE, contracts=[TOKEN], params={"usr": ALICE})
    assert json.loads(output.query.body(0))["logs"] == [
        {"address": [TOKEN], "topic1": [f"0x{ALICE[2:]:0>64}"]}
    ]
    topics = ["0x" + b"abcd".ljust(32, b"\0").hex(), f"0x{ALICE[2:]:0>64}", word(1), word(2)]
    data = "0x" + encode(["bytes"], [b"xyz"]).hex()
    logs = [log(topics, data), log(topics[:3], data, index=1),
            log([topics[0], f"0x{BOB[2:]:0>64}", *topics[2:]], data, index=2),
            log(topics, data, address=BOB, index=3)]  # fmt: skip
    table = decode_outputs({"t": output}, [line(1, logs)], {"t": EVERYTHING}).tables["t"]
    (row,) = table.to_pylist()
    assert (row["sig"], row["usr"], row["data"]) == (b"abcd", ALICE, b"xyz")


def test_an_anonymous_event_needs_contracts_and_may_have_no_topics() -> None:
    with pytest.raises(AddressError, match="anonymous"):
        evm.events(NOTE)
    with pytest.raises(SignatureError, match="at most 4"):
        evm.events("E(bool indexed, bool indexed, bool indexed, bool indexed, bool indexed) "
                   "anonymous", contracts=TOKEN)  # fmt: skip
    plain = evm.events("E(uint8 a) anonymous", contracts=TOKEN)
    logs = [log([], word(5)), log([word(1)], word(6), index=1)]
    table = decode_outputs({"t": plain}, [line(1, logs)], {"t": EVERYTHING}).tables["t"]
    assert table["a"].to_pylist() == [5]
