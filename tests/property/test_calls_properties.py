"""Calls against eth-abi: random inputs and outputs, from transactions and from traces."""

from __future__ import annotations

from typing import Any

from eth_abi.abi import encode
from hypothesis import given
from hypothesis import strategies as st

from headwater.decode import Function, decode_outputs, evm, parse_function
from headwater.decode.evm.types import canonical
from tests.property.test_decode_properties import abi_types, shown, values_of
from tests.unit.decode.evm.test_calls import trace, transaction
from tests.unit.decode.samples import EVERYTHING, line


@st.composite
def functions(draw: st.DrawFn) -> Function:
    inputs, outputs = (draw(st.lists(abi_types, max_size=3)) for _ in range(2))
    taken = ", ".join(f"{canonical(one)} i{at}" for at, one in enumerate(inputs))
    given_back = ", ".join(f"{canonical(one)} o{at}" for at, one in enumerate(outputs))
    return parse_function(f"made({taken})" + (f" returns ({given_back})" if outputs else ""))


@st.composite
def called(draw: st.DrawFn) -> tuple[Function, list[dict[str, Any]]]:
    function = draw(functions())
    both = (*function.inputs, *function.outputs)
    row = st.fixed_dictionaries({one.name: values_of(one.type) for one in both})
    return function, draw(st.lists(row, min_size=1, max_size=4))


def encoded(parameters: Any, row: dict[str, Any]) -> str:
    kinds = [canonical(one.type) for one in parameters]
    return encode(kinds, [row[one.name] for one in parameters]).hex()


@given(called())
def test_inputs_and_outputs_come_back_as_eth_abi_encoded_them(
    case: tuple[Function, list[dict[str, Any]]],
) -> None:
    function, rows = case
    inputs = [function.sighash + encoded(function.inputs, row) for row in rows]
    outputs = [f"0x{encoded(function.outputs, row)}" for row in rows]
    sent = line(
        7,
        transactions=[transaction(at, data) for at, data in enumerate(inputs)],
        traces=[trace(at, data, out) for at, (data, out) in
                enumerate(zip(inputs, outputs, strict=True))],
    )  # fmt: skip
    for source, parameters in (
        ("transactions", function.inputs),
        ("traces", (*function.inputs, *function.outputs)),
    ):
        output = evm.calls(function, source=source)  # type: ignore[arg-type]
        table = decode_outputs({"t": output}, [sent], {"t": EVERYTHING}).tables["t"]
        table.validate(full=True)
        for one in parameters:
            expected = [shown(one.type, row[one.name]) for row in rows]
            assert table[one.name].to_pylist() == expected
