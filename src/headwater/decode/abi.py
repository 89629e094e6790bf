"""Events: what a user may write, and the one value it becomes.

Text as in Solidity, a JSON ABI entry, or a built-in name; all give an `Event` with its canonical
signature and topic0. Runs on the driver, when outputs are defined; events pickle.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from headwater.decode.contracts import KNOWN_EVENTS
from headwater.decode.keccak import keccak256
from headwater.decode.signature import (
    MAX_INDEXED,
    ParsedEvent,
    ParsedParameter,
    parse_elementary,
    parse_text,
)
from headwater.decode.types import AbiType, Array, Member, Tuple, canonical, head_words
from headwater.errors import SignatureError

_BUILT_IN = re.compile(r"\w+\.\w+")
_SUFFIX = re.compile(r"\[(\d*)\]")
_IDENTIFIER = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)
_MAX_DEPTH = 32
MAX_HEAD_WORDS = 1 << 20  # 32 MiB: far beyond what the gas of a block can pay for


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an event. `name` is never empty: an unnamed one is arg0, arg1, …"""

    name: str
    type: AbiType
    indexed: bool


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
        return tuple(one for one in self.parameters if one.indexed)

    @property
    def unindexed(self) -> tuple[Parameter, ...]:
        """The parameters in the data."""
        return tuple(one for one in self.parameters if not one.indexed)


def parse_event(source: str | Mapping[str, object] | Event) -> Event:
    """Understand an event as a user may write it.

    Called by `evm.events`; the same source always gives an equal event.

    Raises:
        SignatureError: the source cannot be understood; the message says where.
    """
    if isinstance(source, Event):
        return source
    if isinstance(source, Mapping):
        return _build(_parse_entry(source), str(source.get("name")))
    if not isinstance(source, str):
        raise SignatureError("an event is text or a JSON ABI entry", got=type(source).__name__)
    text = source.strip()
    if text.startswith(("{", "[")):
        return parse_event(_load_entry(text))
    if _BUILT_IN.fullmatch(text):
        return _build(parse_text(_known(text)), text)
    return _build(parse_text(source), source)


def _build(parsed: ParsedEvent, source: str) -> Event:
    parameters = tuple(
        Parameter(one.name or f"arg{index}", one.type, one.indexed)
        for index, one in enumerate(parsed.parameters)
    )
    refuse_repeated([one.name for one in parameters], source)
    limit = MAX_INDEXED + parsed.anonymous
    if sum(one.indexed for one in parameters) > limit:
        raise SignatureError(f"an event has at most {limit} indexed parameters", event=source)
    if sum(head_words(one.type) for one in parameters) > MAX_HEAD_WORDS:
        raise SignatureError("a fixed array is larger than any log", event=source)
    signature = f"{parsed.name}({','.join(canonical(one.type) for one in parameters)})"
    topic0 = f"0x{keccak256(signature.encode()).hex()}"
    return Event(parsed.name, parameters, signature, topic0, parsed.anonymous)


def refuse_repeated(names: list[str], source: str, kind: str = "event") -> None:
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
        events = [str(one.get("name")) for one in entry if _is_event(one)]
        raise SignatureError(
            f"this is a whole ABI; give one entry of it, of the events {', '.join(events)}, or "
            "read it with evm.abi"
        )
    if not isinstance(entry, dict):
        raise SignatureError("a JSON ABI entry is an object", event=text[:200])
    return entry


def _is_event(entry: object) -> bool:
    return isinstance(entry, dict) and entry.get("type") == "event"


def _parse_entry(entry: Mapping[str, object]) -> ParsedEvent:
    name, inputs = entry.get("name"), entry.get("inputs", [])
    if entry.get("type", "event") != "event":
        raise SignatureError("this ABI entry is no event", type=entry.get("type"), name=name)
    if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
        raise SignatureError("an ABI entry needs a name", got=repr(name))
    if not isinstance(inputs, list):
        raise SignatureError("'inputs' of an ABI entry is a list", event=name)
    return ParsedEvent(
        name,
        parse_parameters(inputs, f"{name}.inputs"),
        entry.get("anonymous") is True,
    )


def parse_parameters(items: list[object], where: str) -> tuple[ParsedParameter, ...]:
    """Understand 'inputs' or 'outputs' of a JSON ABI entry; `where` names them in errors."""
    return tuple(_parse_input(item, f"{where}[{at}]", 0) for at, item in enumerate(items))


def _parse_input(item: object, where: str, depth: int) -> ParsedParameter:
    if not isinstance(item, Mapping) or not isinstance(item.get("type"), str):
        raise SignatureError(f"{where} is no object with a 'type'", got=repr(item)[:80])
    name, indexed = item.get("name") or "", item.get("indexed", False)
    if not isinstance(name, str) or not isinstance(indexed, bool):
        raise SignatureError(f"{where}: 'name' is text, 'indexed' is true or false")
    return ParsedParameter(name, _parse_json_type(item, where, depth), indexed)


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
    named = tuple(Member(one.name or f"arg{at}", one.type) for at, one in enumerate(members))
    refuse_repeated([member.name for member in named], where)
    return Tuple(named)
