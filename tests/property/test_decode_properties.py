"""Decoding against eth-abi and Python's integers, over random events, values and garbage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core import BlockRange
from headwater.decode import DecodedRows, Event, decode_outputs, evm, parse_event, parse_logs
from headwater.decode.columns.integers import format_integers
from headwater.decode.evm.types import (
    AbiType,
    Array,
    Elementary,
    Kind,
    Member,
    Tuple,
    arrow_type,
    canonical,
)
from headwater.decode.lines.logs import read_logs, scan_logs
from headwater.errors import HeadwaterError, UndecodableLogError
from tests.unit.decode.samples import (
    EVERYTHING,
    decode_logs,
    is_single_word,
    line,
    log,
    log_of,
    transfer,
)

# --- random events and values ---------------------------------------------------------------------

bits = st.integers(1, 32).map(lambda count: 8 * count)
static_types = st.one_of(
    st.sampled_from([Elementary(Kind.ADDRESS), Elementary(Kind.BOOL)]),
    bits.map(lambda size: Elementary(Kind.UINT, size)),
    bits.map(lambda size: Elementary(Kind.INT, size)),
    st.integers(1, 32).map(lambda size: Elementary(Kind.FIXED_BYTES, size)),
)
dynamic_types = st.sampled_from([Elementary(Kind.BYTES), Elementary(Kind.STRING)])


def composites(items: st.SearchStrategy[AbiType]) -> st.SearchStrategy[AbiType]:
    return st.one_of(
        st.builds(Array, items, st.one_of(st.none(), st.integers(1, 3))),
        st.lists(items, min_size=1, max_size=3).map(
            lambda types: Tuple(tuple(Member(f"m{at}", one) for at, one in enumerate(types)))
        ),
    )


abi_types: st.SearchStrategy[AbiType] = st.recursive(
    st.one_of(static_types, dynamic_types), composites, max_leaves=4
)


def values_of(abi_type: AbiType) -> st.SearchStrategy[Any]:
    match abi_type:
        case Elementary(Kind.ADDRESS):
            return st.binary(min_size=20, max_size=20).map(lambda raw: f"0x{raw.hex()}")
        case Elementary(Kind.BOOL):
            return st.booleans()
        case Elementary(Kind.UINT, size):
            return st.one_of(st.sampled_from([0, 2**size - 1]), st.integers(0, 2**size - 1))
        case Elementary(Kind.INT, size):
            low, high = -(2 ** (size - 1)), 2 ** (size - 1) - 1
            return st.one_of(st.sampled_from([low, -1, 0, high]), st.integers(low, high))
        case Elementary(Kind.FIXED_BYTES, size):
            return st.binary(min_size=size, max_size=size)
        case Elementary(Kind.BYTES):
            return st.binary(max_size=80)
        case Elementary():
            return st.text(max_size=40)
        case Array(item, length):
            return st.lists(
                values_of(item), min_size=length or 0, max_size=3 if length is None else length
            )
        case Tuple(members):
            return st.tuples(*(values_of(member.type) for member in members))


@st.composite
def events(draw: st.DrawFn) -> Event:
    types = draw(st.lists(abi_types, max_size=5))
    chosen = draw(st.permutations(range(len(types))))
    indexed = set(chosen[: draw(st.integers(0, 3))])
    parameters = ", ".join(
        f"{canonical(one)}{' indexed' if at in indexed else ''} p{at}"
        for at, one in enumerate(types)
    )
    return parse_event(f"Made({parameters})")


@st.composite
def logged(draw: st.DrawFn) -> tuple[Event, list[dict[str, Any]]]:
    event = draw(events())
    row = st.fixed_dictionaries(
        {
            one.name: values_of(one.type)
            if not one.indexed or is_single_word(one.type)
            else st.binary(min_size=32, max_size=32)
            for one in event.parameters
        }
    )
    return event, draw(st.lists(row, min_size=1, max_size=6))


def shown(abi_type: AbiType, value: Any) -> Any:
    """What a decoded value must be in Python, beside the rules of `types`."""
    match abi_type:
        case Elementary(Kind.UINT | Kind.INT):
            column = arrow_type(abi_type)
            if pa.types.is_decimal(column):
                return Decimal(value)
            return str(value) if pa.types.is_string(column) else value
        case Array(item, _):
            return [shown(item, one) for one in value]
        case Tuple(members):
            return {
                member.name: shown(member.type, one)
                for member, one in zip(members, value, strict=True)
            }
        case _:
            return value


@pytest.mark.guarantee("DECODE-1")
@given(logged())
def test_every_value_comes_back_as_eth_abi_encoded_it(
    case: tuple[Event, list[dict[str, Any]]],
) -> None:
    event, rows = case
    logs = [log_of(event, row, index=index) for index, row in enumerate(rows)]
    decoded = decode_logs(evm.events(event), logs).table
    assert decoded["log_index"].to_pylist() == list(range(len(rows)))
    for one in event.parameters:
        whole = one.indexed and not is_single_word(one.type)
        expected = [row[one.name] if whole else shown(one.type, row[one.name]) for row in rows]
        assert decoded[one.name].to_pylist() == expected
    decoded.validate(full=True)


# --- garbage --------------------------------------------------------------------------------------


def both_ways(event: Event, logs: Sequence[dict[str, Any]]) -> DecodedRows:
    """Decode with skipping; where rows are lost, raising must give the coded error and no other."""
    skipping = decode_logs(evm.events(event, on_error="skip"), logs)
    raising = evm.events(event)
    if skipping.skipped:
        with pytest.raises(UndecodableLogError, match="block=7"):
            decode_logs(raising, logs)
    else:
        assert decode_logs(raising, logs).table.equals(skipping.table)
    assert skipping.table.num_rows + skipping.skipped == len(logs)
    skipping.table.validate(full=True)
    return skipping


@given(logged(), st.data())
def test_cut_data_is_an_error_or_the_same_value(
    case: tuple[Event, list[dict[str, Any]]], data: st.DataObject
) -> None:
    event, rows = case
    logs = [log_of(event, row, index=index) for index, row in enumerate(rows)]
    whole = decode_logs(evm.events(event), logs).table
    cut = data.draw(st.integers(0, len(rows) - 1))
    length = data.draw(st.integers(2, len(logs[cut]["data"])))
    logs[cut] = {**logs[cut], "data": logs[cut]["data"][:length]}
    survivors = both_ways(event, logs).table
    kept = whole.filter(pa.array(np.isin(whole["log_index"], survivors["log_index"])))
    assert survivors.to_pylist() == kept.to_pylist()  # bad neighbours change nothing
    assert len(rows) - survivors.num_rows <= 1


@given(logged(), st.data())
def test_garbage_words_give_an_error_or_values_of_the_type(
    case: tuple[Event, list[dict[str, Any]]], data: st.DataObject
) -> None:
    event, rows = case
    logs = [log_of(event, row, index=index) for index, row in enumerate(rows)]
    garbage = st.one_of(
        st.integers(0, 40).map(lambda count: 32 * count),  # offsets that lead somewhere
        st.sampled_from([2**256 - 1, 2**64, 2**63, 2**32, 2**31]),
        st.integers(0, 2**256 - 1),
    )
    for one in logs:
        digits = one["data"][2:]
        for _ in range(data.draw(st.integers(0, 2))):
            if digits:
                at = 64 * data.draw(st.integers(0, len(digits) // 64 - 1))
                digits = digits[:at] + f"{data.draw(garbage):064x}" + digits[at + 64 :]
        one["data"] = f"0x{digits}"
    both_ways(event, logs)


@given(events(), st.lists(st.text(alphabet="0123456789abcdefABCDEFg ", max_size=300), max_size=5))
def test_any_text_as_data_never_gives_another_error(event: Event, texts: list[str]) -> None:
    topics = [event.topic0] + [f"0x{0:064x}"] * len(event.indexed)
    logs = [log(topics, f"0x{text}", index=index) for index, text in enumerate(texts)]
    both_ways(event, logs)


# --- numbers --------------------------------------------------------------------------------------

wide = st.one_of(st.integers(0, 2**256 - 1), st.integers(0, 256).map(lambda bit: 2**bit - 1))


@given(st.lists(wide, min_size=1, max_size=50), st.data())
def test_decimal_text_is_that_of_python(values: list[int], data: st.DataObject) -> None:
    limbs = [
        np.array([value >> 32 * (7 - at) & 0xFFFFFFFF for value in values], np.uint64)
        for at in range(8)
    ]
    assert format_integers(limbs).to_pylist() == [str(value) for value in values]
    signs = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    negative = np.array(signs) & np.array([value > 0 for value in values])
    signed = [-value if sign else value for value, sign in zip(values, negative, strict=True)]
    assert format_integers(limbs, negative).to_pylist() == [str(value) for value in signed]


# --- parsing --------------------------------------------------------------------------------------

hexes = st.binary(max_size=70).map(lambda raw: f"0x{raw.hex()}")
topics_of = st.lists(st.binary(min_size=32, max_size=32).map(lambda raw: f"0x{raw.hex()}"),
                     max_size=4)  # fmt: skip
logs_of_block = st.lists(
    st.builds(log, topics_of, hexes, index=st.integers(0, 10**9 - 1)), max_size=5
)


@given(st.lists(logs_of_block, max_size=6), st.permutations(list(log())))
def test_the_scan_reads_what_the_object_reader_reads(
    blocks: list[list[dict[str, Any]]], order: list[str]
) -> None:
    ordered = [[{key: one[key] for key in order} for one in block] for block in blocks]
    arrays = [json.dumps(block, separators=(",", ":")).encode() for block in ordered]
    scanned, read = scan_logs(arrays), read_logs(arrays, range(len(arrays)))
    assert scanned is not None
    assert scanned[0].tolist() == read[0].tolist()
    assert [one.to_pylist() for one in scanned[1]] == [one.to_pylist() for one in read[1]]
    assert [one.type for one in scanned[1]] == [one.type for one in read[1]]


@given(st.lists(logs_of_block, min_size=1, max_size=3), st.data())
def test_a_changed_byte_is_never_read_differently_by_the_two_readers(
    blocks: list[list[dict[str, Any]]], data: st.DataObject
) -> None:
    arrays = [json.dumps(block, separators=(",", ":")).encode() for block in blocks]
    which = data.draw(st.integers(0, len(arrays) - 1))
    at = data.draw(st.integers(0, len(arrays[which]) - 1))
    changed = data.draw(st.sampled_from([*b'"\\ []{},:0x1fA\n-.e', None]))
    middle = b"" if changed is None else bytes([changed])
    arrays[which] = arrays[which][:at] + middle + arrays[which][at + 1 :]
    lines = [
        b'{"header":{"number":%d,"hash":"0x1","timestamp":5},"logs":%s}' % (number, array)
        for number, array in enumerate(arrays)
    ]

    with patch("headwater.decode.lines.logs.scan_logs", return_value=None):
        expected = outcome(lines)
    assert outcome(lines) == expected


def outcome(lines: list[bytes]) -> object:
    """Return the rows, or what was raised."""
    try:
        return parse_logs(lines).to_pylist()
    except HeadwaterError as error:
        return type(error), str(error)


# --- two outputs of one stream --------------------------------------------------------------------

people = [f"0x{digit * 40}" for digit in "1234"]
transfers = st.builds(
    transfer,
    st.integers(0, 2**256 - 1),
    st.sampled_from(people),
    st.sampled_from(people),
    index=st.integers(0, 9),
    address=st.sampled_from(people),
)
some_people = st.one_of(st.none(), st.lists(st.sampled_from(people), min_size=1, max_size=3))
ranges = st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(5, 9))).map(
    lambda bounds: BlockRange(*bounds)
)


@given(
    st.lists(
        st.lists(transfers, max_size=4, unique_by=lambda one: one["logIndex"]),
        min_size=1,
        max_size=8,
    ),
    st.lists(st.tuples(some_people, some_people, ranges), min_size=1, max_size=3),
)
def test_outputs_of_one_stream_never_see_each_others_rows(
    blocks: list[list[dict[str, Any]]],
    wishes: list[tuple[list[str] | None, list[str] | None, BlockRange]],
) -> None:
    lines = [line(number, logs) for number, logs in enumerate(blocks)]
    outputs = {
        str(at): evm.events(
            "erc20.Transfer", contracts=contracts, params={} if to is None else {"to": to}
        )
        for at, (contracts, to, _) in enumerate(wishes)
    }
    decoded = decode_outputs(outputs, lines, {str(at): [wish[2]] for at, wish in enumerate(wishes)})
    for at, (contracts, to, block_range) in enumerate(wishes):
        expected = [
            (number, one["logIndex"], str(int(one["data"], 16)))
            for number, logs in enumerate(blocks)
            for one in logs
            if number in block_range
            and (contracts is None or one["address"] in contracts)
            and (to is None or f"0x{one['topics'][2][-40:]}" in to)
        ]
        table = decoded.tables[str(at)].select(["block_number", "log_index", "value"])
        assert [tuple(row.values()) for row in table.to_pylist()] == expected
    assert set(decoded.skipped.values()) == {0}


def test_everything_is_the_range_of_these_tests() -> None:
    assert 10**9 in EVERYTHING[0]
