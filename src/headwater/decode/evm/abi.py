"""Parses events and functions as users write them, each into one value.

Text as in Solidity, a JSON ABI entry, or a built-in name. Events have their canonical signature and
topic0, functions their signature and the four bytes that calls begin with. `evm.abi` reads a whole
JSON ABI. Runs on the driver, when outputs are defined; events and functions pickle.

    usdc = evm.abi("usdc.json")
    evm.events(usdc.event("Transfer"))
    evm.calls(usdc.function("transfer(address,uint256)"))
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from Crypto.Hash import keccak

from headwater.decode.evm.builtin_events import KNOWN_EVENTS
from headwater.decode.evm.types import (
    MAX_INDEXED,
    AbiType,
    Array,
    Member,
    Parameter,
    Tuple,
    canonical,
    head_words,
    parse_elementary,
    parse_event_text,
    parse_function_text,
)
from headwater.errors import SignatureError

_BUILT_IN = re.compile(r"\w+\.\w+")
_SUFFIX = re.compile(r"\[(\d*)\]")
_IDENTIFIER = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)
_MAX_DEPTH = 32
MAX_HEAD_WORDS = 1 << 20  # 32 MiB: far beyond what the gas of a block can pay for


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a contract. Two events are equal when names, types and indexing are."""

    name: str
    parameters: tuple[Parameter, ...]
    signature: str
    topic0: str  # the hash of the signature; logs of an anonymous event do not carry it
    anonymous: bool = False

    @property
    def first_topic(self) -> int:
        """The topic that holds the first indexed parameter."""
        return 0 if self.anonymous else 1

    @property
    def indexed(self) -> tuple[Parameter, ...]:
        """The parameters in topics, from `first_topic` on."""
        return tuple(parameter for parameter in self.parameters if parameter.indexed)

    @property
    def unindexed(self) -> tuple[Parameter, ...]:
        """The parameters in the data."""
        return tuple(parameter for parameter in self.parameters if not parameter.indexed)


def parse_event(source: str | Mapping[str, object] | Event) -> Event:
    """Understand an event as a user may write it.

    Called by `evm.events`; the same source always gives an equal event.

    Raises:
        SignatureError: the source cannot be understood; the message says where.
    """
    if isinstance(source, Event):
        return source
    if isinstance(source, Mapping):
        name, inputs, _ = _parse_entry(source, "event")
        return _build_event(name, inputs, source.get("anonymous") is True, name)
    if not isinstance(source, str):
        raise SignatureError("an event is text or a JSON ABI entry", got=type(source).__name__)
    text = source.strip()
    if text.startswith(("{", "[")):
        return parse_event(_load_entry(text))
    if _BUILT_IN.fullmatch(text):
        return _build_event(*parse_event_text(_known(text)), text)
    return _build_event(*parse_event_text(source), source)


def keccak256(message: bytes) -> bytes:
    """Return the 32-byte digest that Ethereum calls keccak256, which SHA-3 is not."""
    return keccak.new(digest_bits=256, data=message).digest()


def _build_event(name: str, written: tuple[Parameter, ...], anonymous: bool, source: str) -> Event:
    parameters = _name(written)
    _refuse_repeated([parameter.name for parameter in parameters], source)
    limit = MAX_INDEXED + anonymous
    if sum(parameter.indexed for parameter in parameters) > limit:
        raise SignatureError(f"an event has at most {limit} indexed parameters", event=source)
    if sum(head_words(parameter.type) for parameter in parameters) > MAX_HEAD_WORDS:
        raise SignatureError("a fixed array is larger than any log", event=source)
    signature = f"{name}({','.join(canonical(parameter.type) for parameter in parameters)})"
    topic0 = f"0x{keccak256(signature.encode()).hex()}"
    return Event(name, parameters, signature, topic0, anonymous)


def _name(parameters: Sequence[Parameter], prefix: str = "arg") -> tuple[Parameter, ...]:
    return tuple(
        replace(parameter, name=parameter.name or f"{prefix}{at}")
        for at, parameter in enumerate(parameters)
    )


def _refuse_repeated(names: list[str], source: str, kind: str = "event") -> None:
    """Column names must differ, and Spark does not tell From and from apart."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise SignatureError(
                f"two parameters are called {name!r}; names do not change the {kind}, so rename "
                "one",
                **{kind: source},
            )
        seen.add(name.lower())


def _known(name: str) -> str:
    if name not in KNOWN_EVENTS:
        raise SignatureError(
            f"there is no built-in event {name!r}; there are {', '.join(KNOWN_EVENTS)}"
        )
    return KNOWN_EVENTS[name]


# --- JSON ABI -------------------------------------------------------------------------------------


def _load_entry(text: str) -> Mapping[str, object]:
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError) as error:
        position = getattr(error, "pos", 0)
        raise SignatureError(f"position {position}: not JSON", event=text[:200]) from error
    if isinstance(entry, list):
        objects = [item for item in entry if isinstance(item, dict)]
        events = [str(item.get("name")) for item in objects if item.get("type") == "event"]
        raise SignatureError(
            f"this is a whole ABI; give one entry of it, of the events {', '.join(events)}, or "
            "read it with evm.abi"
        )
    if not isinstance(entry, dict):
        raise SignatureError("a JSON ABI entry is an object", event=text[:200])
    return entry


def _parse_entry(
    entry: Mapping[str, object], kind: str
) -> tuple[str, tuple[Parameter, ...], tuple[Parameter, ...]]:
    """Return name, inputs and outputs of a JSON ABI entry of this kind; events have no outputs."""
    name, parts = entry.get("name"), ("inputs", "outputs") if kind == "function" else ("inputs",)
    if entry.get("type", kind) != kind:
        raise SignatureError(f"this ABI entry is no {kind}", type=entry.get("type"), name=name)
    if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
        raise SignatureError("an ABI entry needs a name", got=repr(name))
    parsed: dict[str, tuple[Parameter, ...]] = {}
    for part in parts:
        items = entry.get(part, [])
        if not isinstance(items, list):
            raise SignatureError(f"{part!r} of an ABI entry is a list", **{kind: name})
        parsed[part] = tuple(
            _parse_input(item, f"{name}.{part}[{at}]", 0) for at, item in enumerate(items)
        )
    return name, parsed["inputs"], parsed.get("outputs", ())


def _parse_input(item: object, where: str, depth: int) -> Parameter:
    if not isinstance(item, Mapping) or not isinstance(item.get("type"), str):
        raise SignatureError(f"{where} is no object with a 'type'", got=repr(item)[:80])
    name, indexed = item.get("name") or "", item.get("indexed", False)
    if not isinstance(name, str) or not isinstance(indexed, bool):
        raise SignatureError(f"{where}: 'name' is text, 'indexed' is true or false")
    return Parameter(name, _parse_json_type(item, where, depth), indexed)


def _parse_json_type(item: Mapping[str, object], where: str, depth: int) -> AbiType:
    text = str(item["type"])
    base, bracket, rest = text.partition("[")
    suffix = bracket + rest
    lengths = _SUFFIX.findall(suffix)
    if "".join(f"[{length}]" for length in lengths) != suffix or depth + len(lengths) > _MAX_DEPTH:
        raise SignatureError(f"{where}: not a type: {text[:80]!r}")
    parsed: AbiType
    if base == "tuple":
        parsed = _parse_components(item.get("components"), where, depth)
    else:
        elementary = parse_elementary(base)
        if elementary is None:
            raise SignatureError(f"{where}: unknown type {base!r}")
        parsed = elementary
    for length in lengths:
        if length and int(length) == 0:
            raise SignatureError(f"{where}: an array of length 0 holds nothing: {text!r}")
        parsed = Array(parsed, int(length) if length else None)
    return parsed


def _parse_components(components: object, where: str, depth: int) -> Tuple:
    if not isinstance(components, list) or not components:
        raise SignatureError(f"{where}: a tuple needs 'components'")
    members = [
        _parse_input(component, f"{where}.components[{at}]", depth + 1)
        for at, component in enumerate(components)
    ]
    named = tuple(
        Member(member.name or f"arg{at}", member.type) for at, member in enumerate(members)
    )
    _refuse_repeated([member.name for member in named], where)
    return Tuple(named)


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
    if isinstance(source, str) and not source.strip().startswith("{"):
        return _build_function(*parse_function_text(source), source)
    try:
        entry = json.loads(source) if isinstance(source, str) else source
    except (ValueError, RecursionError) as error:
        raise SignatureError("not JSON", function=str(source)[:200]) from error
    if not isinstance(entry, Mapping):
        raise SignatureError("a function is text or a JSON ABI entry", got=type(entry).__name__)
    name, inputs, outputs = _parse_entry(entry, "function")
    return _build_function(name, inputs, outputs, name)


def _build_function(
    name: str, taken: tuple[Parameter, ...], returned: tuple[Parameter, ...], source: str
) -> Function:
    inputs, outputs = _name(taken), _name(returned, "result")
    if len(outputs) == 1 and not returned[0].name:
        outputs = (replace(outputs[0], name="result"),)
    for group in (inputs, outputs):
        _refuse_repeated([parameter.name for parameter in group], source, "function")
        if sum(head_words(parameter.type) for parameter in group) > MAX_HEAD_WORDS:
            raise SignatureError("a fixed array is larger than any call", function=source)
    signature = f"{name}({','.join(canonical(parameter.type) for parameter in inputs)})"
    sighash = f"0x{keccak256(signature.encode())[:4].hex()}"
    return Function(name, inputs, outputs, signature, sighash)


_Named = TypeVar("_Named", Event, Function)


@dataclass(frozen=True, slots=True)
class Abi:
    """A contract's interface; `events` and `functions` are in the order of the file."""

    events: tuple[Event, ...]
    functions: tuple[Function, ...]

    def event(self, name: str) -> Event:
        """Return an event by name, or by full signature where the name is overloaded.

        Raises:
            SignatureError: there is none, or several of this name.
        """
        return _find(self.events, "event", name)

    def function(self, name: str) -> Function:
        """Return a function by name, or by full signature where the name is overloaded.

        Raises:
            SignatureError: there is none, or several of this name.
        """
        return _find(self.functions, "function", name)


def load_abi(source: str | Path | Sequence[object] | Mapping[str, object]) -> Abi:
    """Read an ABI: a path, the JSON itself, or its parsed form; build artefacts with "abi" too.

    Runs on the driver, when outputs are defined.

    Raises:
        SignatureError: it is no ABI, or an entry of it cannot be understood.
    """
    document = _load_document(source) if isinstance(source, (str, Path)) else source
    if isinstance(document, Mapping):
        document = document.get("abi")
    if not isinstance(document, Sequence) or isinstance(document, (str, bytes)):
        raise SignatureError("an ABI is a list of entries, or an object that has one as 'abi'")
    entries = [entry for entry in document if isinstance(entry, Mapping)]
    return Abi(
        tuple(parse_event(entry) for entry in entries if entry.get("type") == "event"),
        tuple(parse_function(entry) for entry in entries if entry.get("type") == "function"),
    )


def _load_document(source: str | Path) -> object:
    is_json = isinstance(source, str) and source.lstrip().startswith(("[", "{"))
    try:
        text = str(source) if is_json else Path(source).read_text(encoding="utf-8")
        return json.loads(text)
    except OSError as error:
        raise SignatureError(f"the ABI cannot be read: {error.strerror}", path=source) from error
    except (ValueError, RecursionError) as error:
        raise SignatureError("the ABI is not JSON", source=str(source)[:80]) from error


def _find(items: Sequence[_Named], kind: str, name: str) -> _Named:
    wanted = name.replace(" ", "")
    matches = [item for item in items if wanted in (item.name, item.signature)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        shown = ", ".join(item.signature for item in matches)
        raise SignatureError(f"{name!r} is overloaded; give one of the signatures {shown}")
    known = ", ".join(item.signature for item in items) or "none"
    raise SignatureError(f"the ABI has no {kind} {name!r}; it has {known}")
