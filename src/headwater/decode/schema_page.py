"""The reference page `docs/schema.md`, written from the code so that it cannot go stale.

`python -m headwater.decode.schema_page` writes it to standard output.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping

import pyarrow as pa

from headwater.decode import evm, solana
from headwater.decode import types as abi_types
from headwater.decode.output import Output
from headwater.decode.programs import PROGRAMS
from headwater.decode.vocabulary import FORMS, HEADER, TableForm, column_name, transaction_name
from headwater.decode.wire_columns import column_type, is_wide_quantity
from headwater.query import EVM, SOLANA, Network, Presence

_INTRODUCTION = """\
# Tables and columns

The same thing has the same name in every table of every network.

| column | type | what it is |
|---|---|---|
| `block_number` | int64 | the block; on Solana the slot |
| `block_hash` | string | its hash |
| `timestamp` | timestamp[us, UTC] | its time |
| `transaction_hash` | string | the transaction (EVM) |
| `signature` | string | the transaction (Solana): its first signature |
| `transaction_index` | int32 | its place in the block |
| `log_index` | int32 | the log's place in the block; on Solana in the transaction |
| `trace_address` | list<int32> | the call's place in the transaction: `[]` is the outermost |
| `instruction_address` | list<int32> | its place: `[2]` is top-level, `[2, 0]` called by it |
| `address` | string | the contract of a log or call |
| `program_id` | string | the program of an instruction |

Hashes, addresses and keys are text as the chain writes them: `0x` and lower-case hex, or base58.
Contents (`input`, `data`, code, blooms) are binary.

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
    parts = [_INTRODUCTION + "\n".join(_abi_rows()), _borsh_rows()]
    parts += [_network(EVM, "EVM", _EVM_OUTPUTS), _network(SOLANA, "Solana", _SOLANA_OUTPUTS)]
    return "\n\n".join(parts) + "\n"


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
_FUNCTIONS = {
    "block": "blocks",
    "transaction": "transactions",
    "log": "logs",
    "trace": "traces",
    "stateDiff": "state_diffs",
    "instruction": "instructions_raw",
    "balance": "balances",
    "tokenBalance": "token_balances",
    "reward": "rewards",
}


def _network(network: Network, title: str, outputs: Mapping[str, Callable[[], Output]]) -> str:
    parts = [f"## {title}: decoded"]
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
    parts += [_table(network, form) for form in FORMS[network.type].values()]
    return "\n\n".join(parts)


def _table(network: Network, form: TableForm) -> str:
    prefix = "evm" if network is EVM else "solana"
    names = [*HEADER, *([transaction_name(network)[0]] if form.joined else [])]
    names += [column_name(form.entity, one) for one in form.identity]
    rows = []
    for field in network.entity(form.entity).fields:
        name = column_name(form.entity, field.name)
        if name in HEADER:
            continue
        null = "" if field.presence is Presence.REQUIRED and field.variant is None else "yes"
        chosen = "always" if field.name in form.identity else ""
        chosen = chosen or ("default" if field.name in form.default else "")
        wide = " (decimal on request)" if is_wide_quantity(field) else ""
        rows.append(f"| `{name}` | {_shown(column_type(field))}{wide} | {null} | {chosen} |")
    head = "| column | type | may be null | selected |\n|---|---|---|---|\n"
    listed = ", ".join(f"`{name}`" for name in names)
    return (
        f"### {prefix}.{_FUNCTIONS[form.entity]}\n\nEvery row begins with {listed}.\n\n{head}"
        + "\n".join(rows)
    )


def _shown(kind: pa.DataType) -> str:
    if kind == abi_types.DECIMAL:
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
    sys.stdout.write(schema_page())
