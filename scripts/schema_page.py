"""Write docs/schema.md from the catalogues and the types of columns. Run it after changing them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pyarrow as pa

from headwater.decode import evm, solana
from headwater.decode.columns.field_columns import HEADER, column_name, column_type, decimal_type
from headwater.decode.columns.integers import DECIMAL
from headwater.decode.columns.transaction_names import transaction_name
from headwater.decode.output import Output
from headwater.decode.solana.builtin_programs import PROGRAMS
from headwater.decode.tables.table_definitions import TABLE_DEFINITIONS, TableDefinition
from headwater.query import QUERIES, SOLANA, Network, Presence, WireType

PAGE = Path(__file__).resolve().parent.parent / "docs" / "schema.md"

_INTRODUCTION = """\
# Tables and columns

The same thing has the same name in every table of every network.

| column | type | what it is |
|---|---|---|
| `block_number` | int64 | the block; on Solana the slot |
| `block_hash` | string | its hash |
| `timestamp` | timestamp[us, UTC] | its time |
| `transaction_hash` | string | the transaction; on Bitcoin its txid, on Substrate the extrinsic |
| `signature` | string | the transaction (Solana): its first signature |
| `transaction_index` | int64 | its place in the block: 32 bits without a sign |
| `log_index` | int64 | the same of a log; on Solana and Tron its place in the transaction |
| `trace_address` | list<int32> | the call's place in the transaction: `[]` is the outermost |
| `instruction_address` | list<int32> | its place: `[2]` is top-level, `[2, 0]` called by it |
| `address` | string | the contract of a log or call |
| `program_id` | string | the program of an instruction |
| `call_address` | list<int32> | its place in the extrinsic: `[]` is the outermost (Substrate) |
| `event_index`, `fill_index` | int32 | its place in the block |
| `input_index`, `output_index` | int32 | its place in the transaction (Bitcoin) |
| `internal_transaction_index` | int32 | its place in the transaction (Tron) |

Some nodes add logs of their own to a block and number them from the end: a `log_index` of
4294967266 is one of those.

Hashes, addresses and keys are text as the portal writes them, hex in lower case: `0x…` on EVM,
Hyperliquid and Substrate, without `0x` on Bitcoin and Tron, base58 on Solana. Addresses of Tron
have 21 bytes, `41…`, in every table. Contents (`input`, `data`, code, scripts) are binary.

Columns of a factory's event, `factory_<name>`, come last. A table of children
([factories](decoding.md#children-of-factories)) holds their rows from the start of the transaction
that announces each.

## Time and money

Every column of time is a timestamp with microseconds in UTC, whatever the network counts in:

| network | a portal sends | the column |
|---|---|---|
{{times}}

A block without a time (the first of a Substrate network) has null. So has an optional time that no
calendar holds: senders on Tron may write any number into `transaction_timestamp`.

Amounts are whole numbers of the smallest coin: wei, lamports, sun, and satoshis, though a portal
sends bitcoins (`5.56` becomes `556000000`). Hyperliquid's prices, sizes and fees are doubles on the
portal's server; with `decimals=["px", "sz"]` they become `decimal(38,18)`, exactly as written.

## Numbers

No number is ever rounded or cut. What fits a native type by its declaration has it; the rest is
exact decimal text, or `decimal(38,0)` for columns named in `decimals=[…]`, where a value of more
digits is an error.

| EVM, in events and calls | column |
|---|---|
"""

_ABI = ("bool", "address", "string", "bytes", "uint8", "uint24", "int32", "uint32", "int64")
_ABI_WIDE = ("uint64", "uint96", "uint112", "uint128", "int128", "uint256")


def schema_page() -> str:
    """Return the whole page. Pure; a test holds docs/schema.md to it."""
    introduction = _INTRODUCTION.replace("{{times}}", "\n".join(_time_rows()))
    parts = [introduction + "\n".join(_abi_rows()), _borsh_rows()]
    parts += [_network(prefix, query.network) for prefix, query in QUERIES.items()]
    return "\n\n".join(parts) + "\n"


def _time_rows() -> Iterable[str]:
    for prefix, query in QUERIES.items():
        title, network = _title(prefix), query.network
        for entity in network.entities:
            for field in entity.fields:
                if field.type in (WireType.SECONDS, WireType.MILLISECONDS):
                    name = column_name(network, entity.wire, field.name)
                    yield f"| {title} | `{entity.wire}.{field.wire}`: {field.type} | `{name}` |"


def _abi_rows() -> Iterable[str]:
    event = evm.events(
        f"E({', '.join(f'{kind} {kind}_' for kind in (*_ABI, *_ABI_WIDE))}, bytes32[] hashes)"
    )
    for kind in (*_ABI, *_ABI_WIDE):
        yield f"| {kind} | {_shown(event.schema.field(f'{kind}_').type)} |"
    yield f"| T[], T[n] | list: `bytes32[]` is {_shown(event.schema.field('hashes').type)} |"
    yield "| tuple | struct |"


def _borsh_rows() -> str:
    kinds = ("u8", "i32", "u32", "i64", "u64", "u128", "i128", "f64", "bool", "string", "pubkey",
             "bytes", "option<u32>", "vec<u16>", "[u8; 32]")  # fmt: skip
    layout = {"discriminator": "0x00", "args": {f"a{at}": one for at, one in enumerate(kinds)}}
    output = solana.instructions(program=solana.SYSTEM, layouts={"x": layout})
    rows = [
        f"| {kind} | {_shown(output.schema.field(f'a{at}').type)} |"
        for at, kind in enumerate(kinds)
    ]
    rows.append("| struct | struct |")
    rows.append(
        "| enum | its variant's name; with fields: struct of `variant` and a member per variant |"
    )
    return "\n".join(["| Solana, in instructions and events | column |", "|---|---|", *rows])


_EVM_OUTPUTS: Mapping[str, Callable[[], Output]] = {
    'evm.events("erc20.Transfer")': lambda: evm.events("erc20.Transfer"),
    'evm.union(evm.events("erc20.Transfer"), evm.events("erc20.Approval"))': lambda: evm.union(
        evm.events("erc20.Transfer"), evm.events("erc20.Approval")
    ),
    'evm.calls("transfer(address to, uint256 amount)")': lambda: evm.calls(
        "transfer(address to, uint256 amount)"
    ),
    'evm.calls("transfer(address to, uint256 amount) returns (bool)", source="traces")': (
        lambda: evm.calls("transfer(address to, uint256 amount) returns (bool)", source="traces")
    ),
}
_SOLANA_OUTPUTS: Mapping[str, Callable[[], Output]] = {
    'solana.instructions("spl_token.transfer")': lambda: solana.instructions("spl_token.transfer"),
    "solana.events(…), from logs": lambda: solana.events(
        program=solana.SYSTEM, layouts={"x": {"discriminator": "0x00"}}
    ),
}
_OUTPUTS = {"evm": _EVM_OUTPUTS, "solana": _SOLANA_OUTPUTS}


def _title(prefix: str) -> str:
    return "EVM" if prefix == "evm" else prefix.capitalize()


def _network(prefix: str, network: Network) -> str:
    title, outputs = _title(prefix), _OUTPUTS.get(prefix, {})
    parts = [f"## {title}: decoded"] if outputs else []
    for name, make in outputs.items():
        schema = make().schema
        columns = ", ".join(f"`{one.name}` {_shown(one.type)}" for one in schema)
        parts.append(f"**{name}**: {columns}.")
    if network is SOLANA:
        listed = "; ".join(
            f"`{program}.…`: {', '.join(layouts)}"
            for program, (_, layouts) in PROGRAMS.items()
            if program != "token_2022"
        )
        parts.append(f"Built in: {listed}. `token_2022.…` has what `spl_token.…` has.")
    parts.append(f"## {title}: raw tables")
    forms: dict[str, list[TableDefinition]] = {}
    for form in TABLE_DEFINITIONS[network.type].values():
        forms.setdefault(form.entity, []).append(form)
    parts += [_table(network, prefix, alike) for alike in forms.values()]
    return "\n\n".join(parts)


def _table(network: Network, prefix: str, alike: list[TableDefinition]) -> str:
    """Return the section of tables that hold the same items, filtered in different ways."""
    form = alike[0]
    names = [*HEADER, *([transaction_name(network).column] if form.joined else [])]
    names += [column_name(network, form.entity, one) for one in form.identity]
    rows = []
    for field in network.entity(form.entity).fields:
        name = column_name(network, form.entity, field.name)
        if name in HEADER:
            continue
        null = "" if field.presence is Presence.REQUIRED and field.variant is None else "yes"
        chosen = "always" if field.name in form.identity else ""
        chosen = chosen or ("default" if field.name in form.default else "")
        wide = " (decimal on request)" if decimal_type(field) is not None else ""
        field_name = "" if field.name == name else f" (field `{field.name}`)"
        rows.append(
            f"| `{name}`{field_name} | {_shown(column_type(field))}{wide} | {null} | {chosen} |"
        )
    head = "| column | type | may be null | selected |\n|---|---|---|---|\n"
    listed = ", ".join(f"`{name}`" for name in names)
    title = ", ".join(f"{prefix}.{one.name}" for one in alike)
    return f"### {title}\n\nEvery row begins with {listed}.\n\n{head}" + "\n".join(rows)


def _shown(kind: pa.DataType) -> str:
    if kind == DECIMAL:
        return "decimal(38,0)"
    if pa.types.is_list(kind):
        return f"list<{_shown(kind.value_type)}>"
    if pa.types.is_struct(kind):
        inner = ", ".join(f"{one.name}: {_shown(one.type)}" for one in kind)
        return f"struct<{inner}>"
    if pa.types.is_floating(kind):
        return "float64" if kind == pa.float64() else "float32"
    return str(kind).replace("timestamp[us, tz=UTC]", "timestamp")


if __name__ == "__main__":
    PAGE.write_text(schema_page(), encoding="utf-8")
    print(f"wrote {PAGE}")
