"""What must hold for any bytes at all; one function per target, called with what was drawn.

A target returns if the bytes are harmless: decoded to the right values, or refused with a coded
error. Anything else escapes as an exception, and is a finding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from eth_abi.abi import decode as eth_abi_decode
from eth_abi.exceptions import DecodingError

from headwater.changes.database_changes import read_database_changes
from headwater.core import BlockRange, parse_ranges
from headwater.core.codec import dump_state, load_chain, load_cursor, load_finalized, load_state
from headwater.decode import TableOutput, decode_outputs, evm, load_idl, named_table, solana
from headwater.decode.evm.abi import parse_function
from headwater.decode.tables.table_definitions import TABLE_DEFINITIONS
from headwater.errors import HeadwaterError, UndecodableInstructionError, UndecodableLogError
from headwater.portal import wire
from headwater.query import NETWORKS, BitcoinQuery, Field, Network, Query, TronQuery, WireType
from tests.property.test_decode_properties import outcome, shown
from tests.unit.decode.samples import line, log
from tests.unit.decode.solana_samples import PROGRAM, encode, instruction, slot

EVERYTHING = [BlockRange(0)]
COMPARED = (WireType.NUMBER, WireType.INDEX, WireType.STRING, WireType.BOOL, WireType.BASE58)

# --- the wire -------------------------------------------------------------------------------------


def portal_lines(data: bytes) -> None:
    """Lines come out as they went in, however they were cut; a header is one, or a coded error."""
    cuts, body = data[:3], data[3:]
    splitter, lines, rest = wire.LineSplitter(), [], body
    for cut in cuts:
        lines += splitter.feed(rest[:cut])
        rest = rest[cut:]
    lines += splitter.feed(rest)
    whole = [one for one in body.split(b"\n")[:-1] if one.strip()]
    assert lines == [one for one in whole if not one.isspace()]
    assert splitter.rest == body.split(b"\n")[-1]
    for one in [*lines, splitter.rest]:
        with suppress(HeadwaterError):
            header = wire.read_header(one)
            sent = json.loads(one)["header"]
            assert header.number == sent["number"]
            assert header.hash in (sent["hash"], sent["hash"].lower())  # hex has one spelling
            assert 0 <= header.number < 2**63


def portal_answers(data: bytes) -> None:
    """Every other answer is understood, or refused with a coded error."""
    for read in (wire.read_fork, wire.read_dataset, wire.read_head_answer, wire.read_block_at):
        with suppress(HeadwaterError):
            read(data)
    assert len(wire.explain(data)) <= 500
    text = data.decode("latin-1")
    names = ("x-sqd-finalized-head-number", "x-sqd-finalized-head-hash", "x-sqd-head-number")
    head = wire.read_head(dict.fromkeys(names, text))
    assert head.latest is None or str(head.latest.number) == text.lstrip("0") or not int(text)


# --- EVM ------------------------------------------------------------------------------------------

ABI_CASES = (
    "E(uint256 a, string b, bytes c)",
    "E(uint8[] a, (bool x, bytes y)[] b)",
    "E(int24 a, address b, bool c, bytes7 d)",
    "E(string[2] a, uint256[][] b, (uint64 p, string[] q) c)",
    "E(bytes32[3] a, (int128 x, (address y, bool[] z) w) b)",
    "E((uint8, uint16[2])[2][] a)",
)


@cache
def _event(case: int) -> evm.EventsOutput:
    return evm.events(ABI_CASES[case % len(ABI_CASES)])


def abi_data(data: bytes) -> None:
    """Data of an event: what we decode is what eth-abi decodes, unless it refuses."""
    output, body = _event(data[0] if data else 0), data[1:]
    lines = [line(7, [log([output.event.topic0], f"0x{body.hex()}")])]
    try:
        rows = decode_outputs({"t": output}, lines, {"t": EVERYTHING}).tables["t"].to_pylist()
    except UndecodableLogError as error:
        assert error.facts["block"] == 7
        return
    kinds = [one.type for one in output.event.parameters]
    signature = output.event.signature.partition("(")[2][:-1]
    try:
        theirs = eth_abi_decode(_split(signature), body, strict=False)
    except (DecodingError, UnicodeDecodeError, OverflowError):
        return
    expected = [shown(kind, value) for kind, value in zip(kinds, theirs, strict=True)]
    assert [rows[0][one.name] for one in output.event.parameters] == expected


def _split(signature: str) -> list[str]:
    parts, depth = [""], 0
    for character in signature:
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def evm_logs(data: bytes) -> None:
    """The fast reader of logs never reads anything else than the careful one.

    Of lines that are UTF-8, as the client has seen to; of others they may find different faults.
    """
    lines = data.split(b"\n")
    with patch("headwater.decode.lines.logs.scan_logs", return_value=None):
        expected = outcome(lines)
    found = outcome(lines)
    assert found == expected or data.decode(errors="ignore").encode() != data


# --- Solana ---------------------------------------------------------------------------------------

LAYOUTS: tuple[dict[str, object], ...] = (
    {"a": "u64", "b": "pubkey", "c": "bool"},
    {"a": "string", "b": "vec<u16>", "c": "option<i128>"},
    {"a": "vec<string>", "b": "option<vec<option<u8>>>"},
    {"a": "[u8; 3]", "b": "[vec<i64>; 2]", "c": "bytes"},
    {"a": "u256", "b": "vec<[bool; 2]>", "c": "i256"},
)


@cache
def _instruction(case: int) -> solana.InstructionsOutput:
    layout = {"discriminator": "0x2a", "args": LAYOUTS[case % len(LAYOUTS)]}
    return solana.instructions(program=PROGRAM, layouts={"x": layout})


def borsh_data(data: bytes) -> None:
    """Data of an instruction: what we decode is encoded to the same bytes again."""
    output, body = _instruction(data[0] if data else 0), b"\x2a" + data[1:]
    lines = [slot(3, instructions=[instruction(body)])]
    try:
        table = decode_outputs({"t": output}, lines, {"t": EVERYTHING}).tables["t"]
    except UndecodableInstructionError as error:
        assert error.facts["slot"] == 3
        return
    table.validate(full=True)
    again = b"\x2a" + encode(output.layout.args, table.to_pylist()[0])
    assert body[: len(again)] == again


# --- raw tables -----------------------------------------------------------------------------------


@cache
def _tables(network: Network) -> Mapping[str, TableOutput]:
    title = network.type.removesuffix("Fills")
    return {
        name: named_table(
            f"{title}.{name}", fields=[one.name for one in network.entity(form.entity).fields]
        )
        for name, form in TABLE_DEFINITIONS[network.type].items()
    }


def raw_tables(data: bytes) -> None:
    """A line of any network: tables hold what plain JSON says, or a coded error names the block."""
    network, body = NETWORKS[data[0] % len(NETWORKS) if data else 0], data[1:]
    with suppress(HeadwaterError):
        wire.read_header(body)  # the client has seen to it that a line is JSON in UTF-8
        for name, output in _tables(network).items():
            with suppress(HeadwaterError):
                decoded = decode_outputs({name: output}, [body], {name: EVERYTHING}).tables[name]
                decoded.validate(full=True)
                if not output.query.filters or network.family(
                    output.query.filters[0].family
                ).implied is None:  # fmt: skip
                    _compare(decoded, output, json.loads(body))


def _compare(table: pa.Table, output: TableOutput, block: dict[str, Any]) -> None:
    collection = output.query.network.entity(output.entity).collection
    items = [block["header"]] if collection == "header" else block.get(collection, [])
    assert table.num_rows == len(items)
    names = output.schema.names[len(output.schema.names) - len(output.columns) :]
    for column, field in zip(names, output.columns, strict=True):
        if field.type in COMPARED and not field.nested and not pa.types.is_binary(
            output.schema.field(column).type
        ) and not (field.is_list and pa.types.is_binary(
            output.schema.field(column).type.value_type
        )):  # fmt: skip
            assert table[column].to_pylist() == [_sent(item, field) for item in items]


def _sent(item: dict[str, Any], field: Field) -> Any:
    return item.get(field.wire)


# --- text -----------------------------------------------------------------------------------------


def definitions(data: bytes) -> None:
    """Events, functions, ABIs, IDLs and layouts that users write: a value or a coded error."""
    text = data.decode(errors="replace")
    for make in (lambda: evm.events(text).schema, lambda: parse_function(text),
                 lambda: evm.calls(text, source="traces").schema):  # fmt: skip
        with suppress(HeadwaterError):
            make()
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return
    if not isinstance(document, dict | list):
        return
    with suppress(HeadwaterError):
        abi = evm.abi(document)
        for event in abi.events:
            with suppress(HeadwaterError):
                assert evm.events(event, contracts=[f"0x{'1' * 40}"]).schema
    if isinstance(document, list):
        return
    with suppress(HeadwaterError):
        idl = load_idl(document)
        for name in idl.instructions():
            with suppress(HeadwaterError):
                assert solana.instructions(name, program=PROGRAM, idl=document).schema
    with suppress(HeadwaterError):
        assert solana.instructions(program=PROGRAM, layouts={"x": document}).schema


def stored_text(data: bytes) -> None:
    """Ranges, filters and stored state: a value that is written back the same, or a coded error."""
    text = data.decode(errors="replace")
    with suppress(HeadwaterError):
        parse_ranges(text)
    queries: tuple[tuple[Query, str, str], ...] = (
        (BitcoinQuery(), "outputs", "script_pub_key_address"),
        (TronQuery(), "logs", "address"),
    )
    for query, family, key in queries:
        with suppress(HeadwaterError):
            assert query.add_filter(family, **{key: [text]}).body(0)
    for load in (load_cursor, load_finalized, load_chain):
        with suppress(HeadwaterError):
            load(text)
    with suppress(HeadwaterError):
        state = load_state(text)
        assert load_state(dump_state(state)) == state


def database_changes(data: bytes) -> None:
    """Messages of Substreams: rows, or a coded error."""
    with suppress(HeadwaterError):
        read_database_changes([(7, data)]).validate(full=True)


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    one.__name__: one
    for one in (
        portal_lines,
        portal_answers,
        abi_data,
        evm_logs,
        borsh_data,
        raw_tables,
        definitions,
        stored_text,
        database_changes,
    )
}
