"""The generated part of docs/api.md: each public name with its signature, parameters and errors.

`scripts/check_docs.py` compares it with the page, and renews it with `--write`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MODULES = {
    "headwater": "What most programs need.",
    "headwater.targets": "Where data goes: targets, their settings, and the contract.",
    "headwater.effects": "Side effects of final blocks.",
    "headwater.changes": "The change model.",
    "headwater.testing": "The simulator: chains, portals, faults.",
}
WIDTH = 88  # of a signature: what a page shows without scrolling
_SECTION = re.compile(r"^(Args|Raises):\n((?:[ ]{4,}.*\n?|\n)+)", re.MULTILINE)
_ITEM = re.compile(r"^ {4}(\w[\w, ]*): (.*(?:\n {8,}.*)*)", re.MULTILINE)
_PROGRAM = re.compile(r"```python\n(.*?)```", re.DOTALL)


def api_reference() -> str:
    """Return one section per module, one entry per public name."""
    parts = []
    for name, purpose in MODULES.items():
        module = import_module(name)
        parts.append(f"## {name}\n\n{purpose}")
        parts += [_entry(module, public) for public in sorted(module.__all__, key=str.lower)]
    return "\n\n".join(parts)


def _entry(module: ModuleType, name: str) -> str:
    value = getattr(module, name)
    shown = f"from {module.__name__} import {name}"
    if not inspect.ismodule(value) and (signature := _signature(name, value)):
        shown += f"\n\n{signature}"
    lines = [f"### {module.__name__}.{name}", "", f"```text\n{shown}\n```", "", _purpose(value)]
    lines += _details(value)
    if inspect.ismodule(value):
        lines += ["", *_members(value, value.__all__)]
    elif inspect.isclass(value):
        own = [method for method, held in vars(value).items() if _is_method(method, held)]
        lines += [""] * bool(own) + _members(value, own)
    if programs := _programs(name):
        lines += ["", f"Programs: {programs}."]
    return "\n".join(lines).rstrip()


def _signature(name: str, value: Any) -> str:
    """Return the call with types and defaults, in lines that fit; nothing of a protocol."""
    if not callable(value) or getattr(value, "_is_protocol", False):
        return ""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    parameters = [
        parameter
        for parameter in signature.parameters.values()
        if not parameter.name.startswith("_") and parameter.name != "self"
    ]
    returned = signature.return_annotation
    known = inspect.isclass(value) or returned is inspect.Signature.empty
    end = ")" if known else f") -> {_plain(str(returned)).strip(chr(39))}"
    shown = list(_shown(parameters))
    line = f"{name}({', '.join(shown)}{end}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {parameter}," for parameter in shown), end])


def _shown(parameters: list[inspect.Parameter]) -> Iterator[str]:
    named = False
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            named = True
        if parameter.kind is parameter.KEYWORD_ONLY and not named:
            named = True
            yield "*"
        yield _plain(str(parameter))


def _plain(text: str) -> str:
    """Return a text without quotes around types, places in memory and private modules."""
    text = re.sub(r"<(?:function |class ')?([\w.]+)[^>]*>", r"\1", text)
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    if "object at 0x" in text or len(text) > WIDTH - 5:
        text = re.sub(r" = \w+\(.*\)$", " = …", text)
    return text


def _doc(value: Any) -> str:
    text = inspect.getdoc(value) if callable(value) or inspect.ismodule(value) else None
    return text or "A value."


def _purpose(value: Any) -> str:
    """Return the paragraphs of the docstring before its sections and examples."""
    paragraphs = []
    for paragraph in _SECTION.sub("", _doc(value)).split("\n\n"):
        if paragraph.startswith(("    ", "\n    ")):
            break
        paragraphs.append(" ".join(paragraph.split()))
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def _details(value: Any) -> list[str]:
    """Return the parameters and the errors that the docstring names, as lists."""
    lines = []
    for title, body in _SECTION.findall(_doc(value)):
        lines += ["", "Raises:" if title == "Raises" else "Parameters:", ""]
        lines += [f"- `{name}`: {' '.join(text.split())}" for name, text in _ITEM.findall(body)]
    return lines


def _members(owner: Any, names: list[str]) -> list[str]:
    lines = []
    for name in sorted(names):
        value = inspect.getattr_static(owner, name)
        inner = value.fget if isinstance(value, property) else getattr(owner, name)
        is_call = not isinstance(value, property) and inspect.isroutine(inner)
        shown = _signature(name, inner) if is_call else ""
        lines += ["", f"#### {name}", "", *([f"```text\n{shown}\n```", ""] if shown else [])]
        lines += [_purpose(inner), *_details(inner)]
    return lines[1:]


def _is_method(name: str, value: Any) -> bool:
    inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    inner = inner.fget if isinstance(inner, property) else inner
    return not name.startswith("_") and inspect.isfunction(inner) and bool(inner.__doc__)


@cache
def _texts() -> tuple[tuple[str, str], ...]:
    """Return what tests run: the examples, and the programs of pages, with a link to each."""
    examples = [
        (f"[{path.name}](../examples/{path.name})", path.read_text("utf-8"))
        for path in sorted((ROOT / "examples").glob("*.py"))
    ]
    pages = []
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name = path.relative_to(ROOT / "docs").as_posix()
        programs = "\n".join(_PROGRAM.findall(path.read_text("utf-8")))
        if programs and name != "api.md":
            pages.append((f"[{name.removesuffix('.md')}]({name})", programs))
    return (*examples, *pages)


def _programs(name: str) -> str:
    """Return links to programs that use a name."""
    used = re.compile(rf"\b{name}\b")
    return ", ".join([link for link, text in _texts() if used.search(text)][:3])
