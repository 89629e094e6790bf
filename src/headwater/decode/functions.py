"""Functions of contracts: what a user may write, and the one value it becomes.

Text as in Solidity or a JSON ABI entry; both give a `Function` with its canonical signature and the
four bytes that calls begin with. Runs on the driver, when outputs are defined; functions pickle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headwater.decode.abi import MAX_HEAD_WORDS, Parameter, parse_parameters, refuse_repeated
from headwater.decode.keccak import keccak256
from headwater.decode.signature import ParsedFunction, ParsedParameter, parse_function_text
from headwater.decode.types import canonical, head_words
from headwater.errors import SignatureError


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a contract; overloads differ in `signature` and `sighash`."""

    name: str
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    signature: str
    sighash: str


def parse_function(source: str | Mapping[str, object] | Function) -> Function:
    """Understand a function as a user may write it. Called by `evm.calls` and `evm.abi`.

    Raises:
        SignatureError: the source cannot be understood; the message says where.
    """
    if isinstance(source, Function):
        return source
    if isinstance(source, Mapping):
        return _build(_parse_entry(source), str(source.get("name")))
    if not isinstance(source, str):
        raise SignatureError("a function is text or a JSON ABI entry", got=type(source).__name__)
    if source.strip().startswith("{"):
        try:
            return parse_function(json.loads(source))
        except (ValueError, RecursionError) as error:
            raise SignatureError("not JSON", function=source[:200]) from error
    return _build(parse_function_text(source), source)


def _build(parsed: ParsedFunction, source: str) -> Function:
    inputs = _name(parsed.inputs, "arg")
    results = ["result"] if len(parsed.outputs) == 1 else None
    outputs = _name(parsed.outputs, "result", results)
    for group in (inputs, outputs):
        refuse_repeated([one.name for one in group], source, "function")
        if sum(head_words(one.type) for one in group) > MAX_HEAD_WORDS:
            raise SignatureError("a fixed array is larger than any call", function=source)
    signature = f"{parsed.name}({','.join(canonical(one.type) for one in inputs)})"
    sighash = f"0x{keccak256(signature.encode())[:4].hex()}"
    return Function(parsed.name, inputs, outputs, signature, sighash)


def _name(
    parameters: Sequence[ParsedParameter], prefix: str, names: Sequence[str] | None = None
) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(one.name or (names[at] if names else f"{prefix}{at}"), one.type, indexed=False)
        for at, one in enumerate(parameters)
    )


def _parse_entry(entry: Mapping[str, object]) -> ParsedFunction:
    name, inputs, outputs = entry.get("name"), entry.get("inputs", []), entry.get("outputs", [])
    if entry.get("type", "function") != "function":
        raise SignatureError("this ABI entry is no function", type=entry.get("type"), name=name)
    if not isinstance(name, str) or not name.isidentifier():
        raise SignatureError("an ABI entry needs a name", got=repr(name))
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise SignatureError("'inputs' and 'outputs' of an ABI entry are lists", function=name)
    return ParsedFunction(
        name,
        parse_parameters(inputs, f"{name}.inputs"),
        parse_parameters(outputs, f"{name}.outputs"),
    )
