"""`evm.abi`: the events and functions of a JSON ABI, by name.

usdc = evm.abi("usdc.json")
evm.events(usdc.event("Transfer"))
evm.calls(usdc.function("transfer(address,uint256)"))
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from headwater.decode.abi import Event, parse_event
from headwater.decode.functions import Function, parse_function
from headwater.errors import SignatureError

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
    document = _load(source) if isinstance(source, (str, Path)) else source
    if isinstance(document, Mapping):
        document = document.get("abi")
    if not isinstance(document, Sequence) or isinstance(document, (str, bytes)):
        raise SignatureError("an ABI is a list of entries, or an object that has one as 'abi'")
    entries = [one for one in document if isinstance(one, Mapping)]
    return Abi(
        tuple(parse_event(one) for one in entries if one.get("type") == "event"),
        tuple(parse_function(one) for one in entries if one.get("type") == "function"),
    )


def _load(source: str | Path) -> object:
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
    found = [one for one in items if wanted in (one.name, one.signature)]
    if len(found) == 1:
        return found[0]
    if found:
        shown = ", ".join(one.signature for one in found)
        raise SignatureError(f"{name!r} is overloaded; give one of the signatures {shown}")
    known = ", ".join(one.signature for one in items) or "none"
    raise SignatureError(f"the ABI has no {kind} {name!r}; it has {known}")
