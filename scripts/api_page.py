"""The generated part of docs/api.md: every public name with its import, signature and purpose.

`scripts/check_docs.py` compares it with the page, and renews it with `--write`.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from types import ModuleType
from typing import Any

MODULES = {
    "headwater": "What most programs need.",
    "headwater.targets": "Where data goes: targets, their settings, and the contract.",
    "headwater.effects": "Side effects of final blocks.",
    "headwater.changes": "The change model.",
    "headwater.testing": "The simulator: chains, portals, faults.",
}


def api_reference() -> str:
    """Return one section per module, one entry per public name."""
    parts = []
    for name, purpose in MODULES.items():
        module = import_module(name)
        parts.append(f"## {name}\n\n{purpose}")
        parts += [_entry(module, one) for one in sorted(module.__all__, key=str.lower)]
    return "\n\n".join(parts)


def _entry(module: ModuleType, name: str) -> str:
    found = getattr(module, name)
    lines = [f"### {module.__name__}.{name}", "", _import(module, name, found), ""]
    lines.append(_purpose(found))
    if inspect.ismodule(found):
        lines += ["", *_members(found, found.__all__)]
    elif inspect.isclass(found):
        own = [one for one, value in vars(found).items() if _is_method(one, value)]
        lines += [""] * bool(own) + _members(found, own)
    return "\n".join(lines).rstrip()


def _import(module: ModuleType, name: str, found: Any) -> str:
    shown = f"from {module.__name__} import {name}"
    signature = "" if inspect.ismodule(found) else _signature(found)
    return f"```text\n{shown}\n" + (f"{name}{signature}\n" if signature else "") + "```"


def _signature(found: Any) -> str:
    """Return parameters and defaults; types are in the docstrings and in the editor."""
    if not callable(found) or _is_protocol(found):
        return ""
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return ""
    plain = [
        one.replace(annotation=inspect.Parameter.empty)
        for one in signature.parameters.values()
        if not one.name.startswith("_")
    ]
    text = str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))
    return re.sub(r"<(?:function |class ')?([\w.]+)[^>]*>", r"\1", text)


def _is_protocol(found: Any) -> bool:
    return bool(getattr(found, "_is_protocol", False))


def _purpose(found: Any) -> str:
    """Return the first paragraph of the docstring, on one line."""
    text = inspect.getdoc(found) if callable(found) or inspect.ismodule(found) else None
    paragraph = (text or "A value.").split("\n\n", 1)[0]
    return " ".join(paragraph.split())


def _is_method(name: str, value: Any) -> bool:
    inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    inner = inner.fget if isinstance(inner, property) else inner
    return not name.startswith("_") and inspect.isfunction(inner) and bool(inner.__doc__)


def _members(owner: Any, names: list[str]) -> list[str]:
    rows = ["| name | what it is |", "|---|---|"] if names else []
    for name in sorted(names):
        value = inspect.getattr_static(owner, name)
        inner = value.fget if isinstance(value, property) else getattr(owner, name)
        shown = name if isinstance(value, property) or not callable(inner) else f"{name}(…)"
        rows.append(f"| `{shown}` | {_purpose(inner)} |".replace("\n", " "))
    return rows
