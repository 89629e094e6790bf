"""Garbage, bounded: decoders give values or the coded error, and never anything else.

The other direction is here too: whatever a plain Borsh encoder writes comes back.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.decode import decode_outputs, evm, solana
from headwater.decode.columns.bytes_text import decode_base58, encode_base58
from headwater.decode.solana.borsh import (
    BorshType,
    Enum,
    FixedBytes,
    Member,
    Option,
    Scalar,
    Struct,
    Variant,
    arrow_type,
    make_sequence,
)
from headwater.decode.solana.borsh import Sequence as Items
from headwater.decode.solana.data_layout import DataLayout
from headwater.errors import (
    BlockContentError,
    HeadwaterError,
    UndecodableCallError,
    UndecodableInstructionError,
)
from headwater.query import base58
from tests.unit.decode.samples import EVERYTHING, line
from tests.unit.decode.solana_samples import PROGRAM, decode, encode, instruction, slot

# --- Borsh ----------------------------------------------------------------------------------------

INTEGERS = [f"{sign}{bits}" for sign in "ui" for bits in (8, 16, 32, 64, 128, 256)]
scalars = st.sampled_from(
    [*INTEGERS, "bool", "f32", "f64", "string", "bytes", "pubkey", "long_string"]
).map(Scalar)


def structs(items: st.SearchStrategy[BorshType]) -> st.SearchStrategy[Struct]:
    return st.lists(items, min_size=1, max_size=3).map(
        lambda types: Struct(tuple(Member(f"m{at}", one) for at, one in enumerate(types)))
    )


def enums(items: st.SearchStrategy[BorshType]) -> st.SearchStrategy[Enum]:
    contents = st.lists(st.one_of(st.none(), structs(items)), min_size=1, max_size=4)
    return contents.map(
        lambda listed: Enum(tuple(Variant(f"V{at}", one) for at, one in enumerate(listed)))
    )


def composites(items: st.SearchStrategy[BorshType]) -> st.SearchStrategy[BorshType]:
    plain = items.filter(lambda one: not isinstance(one, Option))  # null in null is one null
    return st.one_of(
        plain.map(Option),
        st.builds(make_sequence, items, st.one_of(st.none(), st.integers(1, 3)), st.just("a list")),
        structs(items),
        enums(items),
    )


types = st.recursive(
    st.one_of(scalars, st.integers(1, 5).map(FixedBytes)), composites, max_leaves=5
)


def values_of(borsh: BorshType) -> st.SearchStrategy[Any]:  # noqa: C901 - a plain table
    match borsh:
        case Scalar("bool"):
            return st.booleans()
        case Scalar("f32" | "f64"):
            return st.floats(allow_nan=False, width=32 if borsh.name == "f32" else 64)
        case Scalar("string" | "long_string"):
            return st.text(max_size=8)
        case Scalar("bytes"):
            return st.binary(max_size=8)
        case Scalar("pubkey"):
            return st.binary(min_size=32, max_size=32).map(base58.encode)
        case Scalar():
            signed, bits = borsh.name[0] == "i", int(borsh.name[1:])
            low = -(2 ** (bits - 1)) if signed else 0
            high = 2 ** (bits - signed) - 1
            return st.one_of(st.sampled_from([low, high, 0]), st.integers(low, high))
        case FixedBytes(size):
            return st.binary(min_size=size, max_size=size)
        case Option(item):
            return st.one_of(st.none(), values_of(item))
        case Items(item, length):
            return st.lists(
                values_of(item), min_size=length or 0, max_size=3 if length is None else length
            )
        case Struct(members):
            return st.fixed_dictionaries({one.name: values_of(one.type) for one in members})
        case Enum(variants):
            if all(one.content is None for one in variants):
                return st.sampled_from([one.name for one in variants])
            held = [one for one in variants if one.content is not None]
            return st.one_of(
                *(
                    st.fixed_dictionaries({
                        "variant": st.just(one.name),
                        **{each.name: values_of(each.content) if each is one and each.content
                           else st.none() for each in held},
                    })
                    for one in variants
                )
            )  # fmt: skip


def shown(borsh: BorshType, value: Any) -> Any:
    """What a decoded value must be in Python."""
    if value is None:
        return None
    match borsh:
        case Scalar() if borsh.integer is not None:
            kind = arrow_type(borsh)
            if pa.types.is_decimal(kind):
                return Decimal(value)
            return str(value) if pa.types.is_string(kind) else value
        case Option(item):
            return shown(item, value)
        case Items(item, _):
            return [shown(item, one) for one in value]
        case Struct(members):
            return {one.name: shown(one.type, value[one.name]) for one in members}
        case Enum(variants) if isinstance(value, dict):
            return {"variant": value["variant"], **{
                one.name: shown(one.content, value[one.name])
                for one in variants if one.content is not None}}  # fmt: skip
        case _:
            return value


@st.composite
def cases(draw: st.DrawFn) -> tuple[DataLayout, list[dict[str, Any]]]:
    args = draw(structs(types))
    layout = DataLayout("made", draw(st.binary(min_size=1, max_size=9)), args)
    return layout, draw(st.lists(values_of(args), min_size=1, max_size=5))


def lines_with(datas: list[bytes]) -> list[bytes]:
    items = [instruction(data, at) for at, data in enumerate(datas)]
    return [slot(3, instructions=items)]


@given(cases())
def test_every_value_comes_back_as_borsh_encoded_it(
    case: tuple[DataLayout, list[dict[str, Any]]],
) -> None:
    layout, rows = case
    output = solana.instructions(program=PROGRAM, layouts={"made": layout})
    datas = [layout.discriminator + encode(layout.args, row) for row in rows]
    table = decode(output, lines_with(datas)).tables["t"]
    for one in layout.args.members:
        assert table[one.name].to_pylist() == [shown(one.type, row[one.name]) for row in rows]


@given(cases(), st.data())
def test_changed_instructions_are_an_error_or_values_of_the_type(
    case: tuple[DataLayout, list[dict[str, Any]]], data: st.DataObject
) -> None:
    layout, rows = case
    datas = []
    for row in rows:
        raw = bytearray(encode(layout.args, row))
        for _ in range(data.draw(st.integers(0, 2)) if raw else 0):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        datas.append(layout.discriminator + bytes(raw[: data.draw(st.integers(0, len(raw)))]))
    lines = lines_with(datas)
    skipping = decode(
        solana.instructions(program=PROGRAM, layouts={"x": layout}, on_error="skip"), lines
    )
    assert skipping.tables["t"].num_rows + skipping.skipped["t"] == len(rows)
    raising = solana.instructions(program=PROGRAM, layouts={"x": layout})
    if skipping.skipped["t"]:
        with pytest.raises(UndecodableInstructionError, match=r"slot=3, transaction_index=\d"):
            decode(raising, lines)
    else:
        assert decode(raising, lines).tables["t"].to_pylist() == skipping.tables["t"].to_pylist()


# --- base58 ---------------------------------------------------------------------------------------


@given(st.lists(st.one_of(st.binary(max_size=80), st.integers(0, 20).map(bytes)), max_size=8))
def test_base58_is_that_of_plain_python(values: list[bytes]) -> None:
    texts = pa.array([base58.encode(one) for one in values], pa.string())
    assert decode_base58(texts, np.arange(len(values))).to_pylist() == values


def rows_of_bytes(size: int) -> st.SearchStrategy[list[bytes]]:
    return st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=5)


@given(st.integers(1, 70).flatmap(rows_of_bytes))
def test_bytes_as_base58_are_those_of_plain_python(values: list[bytes]) -> None:
    matrix = np.frombuffer(b"".join(values), np.uint8).reshape(len(values), -1)
    assert encode_base58(matrix).to_pylist() == [base58.encode(one) for one in values]


# --- calls and tables -----------------------------------------------------------------------------

hexes = st.text(alphabet="0123456789abcdefABCDEFg ", max_size=200)


@given(st.lists(hexes, max_size=4), st.sampled_from(["transactions", "traces"]))
def test_any_input_of_a_call_is_an_error_or_a_row(texts: list[str], source: Any) -> None:
    signature = "f(uint8 a, string[] b, (bool, bytes32) c) returns (int24)"
    output = evm.calls(signature, source=source)
    data = [output.function.sighash + text for text in texts]
    items = [
        {"transactionIndex": at, "hash": "0x1", "from": "0x", "to": "0x", "status": 1,
         "traceAddress": [at], "type": "call", "error": None, "input": one,
         "sighash": one[:10], "result": {"output": f"0x{one[4:]}"},
         "action": {"from": "0x", "to": "0x", "input": one, "sighash": one[:10]}}
        for at, one in enumerate(data)
    ]  # fmt: skip
    lines = [line(7, **{source: items})]
    skipping = decode_outputs({"t": evm.calls(signature, source=source, on_error="skip")}, lines,
                              {"t": EVERYTHING})  # fmt: skip
    assert skipping.tables["t"].num_rows + skipping.skipped["t"] == len(texts)
    if skipping.skipped["t"]:
        with pytest.raises(UndecodableCallError, match="block=7"):
            decode_outputs({"t": output}, lines, {"t": EVERYTHING})


junk: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=6),
              st.floats(allow_nan=False), hexes.map(lambda text: f"0x{text}")),
    lambda inner: st.one_of(st.lists(inner, max_size=2),
                            st.dictionaries(st.text(max_size=4), inner, max_size=2)),
    max_leaves=4,
)  # fmt: skip


@given(st.sampled_from(["value", "nonce", "input", "accessList", "status", "from", "l1FeeScalar"]),
       junk)  # fmt: skip
def test_any_value_of_a_field_is_an_error_or_a_row(wire: str, value: Any) -> None:
    fields = ["value", "nonce", "input", "access_list", "status", "from", "l1_fee_scalar"]
    item = {"transactionIndex": 0, "hash": "0x1", "from": "0x2", "value": "0x1", "nonce": 1,
            "input": "0x", wire: value}  # fmt: skip
    try:
        lines = [line(7, transactions=[item])]
    except (UnicodeEncodeError, ValueError):
        return
    try:
        output = evm.transactions(fields=fields)
        table = decode_outputs({"t": output}, lines, {"t": EVERYTHING}).tables["t"]
    except BlockContentError as error:
        place = error.facts["block"]
    else:
        table.validate(full=True)
        place = table["block_number"].to_pylist()[0]
    assert place == 7


@given(st.binary(max_size=60), st.integers(0, 200), st.integers(0, 200))
def test_any_bytes_in_a_line_are_an_error_or_rows(raw: bytes, start: int, length: int) -> None:
    good = slot(3, instructions=[instruction(b"\x03" + bytes(8), programId=solana.TOKEN)])
    broken = good[:start] + raw + good[start + length :]
    output = solana.instructions("spl_token.transfer")
    try:
        decode_outputs({"t": output}, [broken], {"t": EVERYTHING}).tables["t"].validate(full=True)
    except HeadwaterError:
        return
    json.loads(broken.decode(errors="replace"))  # strings that nobody asked for are skipped
