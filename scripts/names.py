"""Names in backticks: what pages and docstrings name must exist.

A span is checked where its form says what it names: a command, a path or a file, a dotted name, a
call, a CamelCase name, a word with underscores, a code of an error. So are paths, commands and
imports within longer spans, and in lines of fenced blocks. A name that follows the path of a module
is one of that module. SQL, values, addresses and single words are left alone, and so are the names
of others that have such a form, which `FOREIGN` lists.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path

CODE = ("src", "tests", "scripts", "benchmarks", "examples")
IDENTIFIER = r"[A-Za-z_]\w*"
FENCE = re.compile(r"^( *)(`{3,}).*?^\1\2 *$", re.M | re.S)
SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.S)
COMMAND = re.compile(r"(?:^|&& |; )(make|headwater) ([a-z][a-z-]*)\b(?![./:])(?: ([a-z-]+))?")
PROGRAM = re.compile(r"python (?:-m ((?:headwater|tests|scripts)[\w.]*)|([\w/]+\.py))")
FILE = re.compile(
    r"[\w.<>-]+\.(py|md|sh|toml|ya?ml)|[\w.<>-]+(/[\w.<>-]+)*(/|/[\w.<>-]+\.[a-z]{2,4})"
)
TEST = re.compile(r"([\w/]+\.py)::(\w+)(?:::(\w+))?")
PLACE = re.compile(rf"(?<![\w/.:~*-])(?:docs|{'|'.join(CODE)})/[\w./*<>-]*[\w*>/]")
IMPORT = re.compile(r"\bfrom ((?:headwater|tests|scripts)[\w.]*) import ([\w, ]+)")
FOLDER = re.compile(r"([a-z]+)(?:/[\w.-]+)+")
LINE = re.compile(
    r"^ *(?:\$ )?((?:make|headwater|python|from (?:headwater|tests)) ?[a-z-].*|.*\bpytest\b.*)$",
    re.M,
)
DOTTED_TEXT = re.compile(r"\w+(?:\.\w+)+")
DOTTED = re.compile(rf"({IDENTIFIER}(?:\.{IDENTIFIER})+)(\(.*\))?")
CALL = re.compile(rf"({IDENTIFIER})\(.*\)")
CLASS = re.compile(r"[A-Z][a-z]\w*")
WORD = re.compile(r"\w*_\w*[a-z]\w*|HEADWATER_\w+|E\d{4}")
CLOSED = {"ABC", "Enum", "Generic", "IntEnum", "Protocol", "StrEnum", "object"}
"""Bases that give a class no member that pages name."""

FOREIGN = {
    "Spark": "create_auto_cdc_flow DataStreamReader.name decimal foreachBatch lastProgress spark.*"
    " SupportsRowLevelOperations Trigger.AvailableNow Trigger.Once try_cast",
    "Arrow, Delta, Iceberg": ".pyiceberg.yaml decimal128 get_add_actions manage_snapshots"
    " expire_snapshots fast_forward remove_orphan_files rewrite_data_files to_pylist"
    " truncate userMetadata",
    "ClickHouse": "CollapsingMergeTree DateTime64 FixedString http_receive_timeout intDiv"
    " LowCardinality Map Nullable query_retries select_sequential_consistency",
    "the Pipes SDK": "contractFactory createTarget evmPortalStream pipeTo pipeToIterator"
    " rollbackChain solanaInstructionDecoder",
    "Substreams": "_blocks_ _cursor_ _sink_info_ old_value substreams.yaml",
    "others": "prometheus_client.* ProxyCreation pyarrow.* pytest.* Recreate SafeSetup",
    "files that programs write": ".fuzz/<target>/ headwater-demo/ simulated/"
    " _headwater/<stream>/<epoch>-<change>-<writer>.json",
}
"""Names of others that look like names of ours; `x.*` stands for all that begin with `x.`."""

OTHERS = {name for names in FOREIGN.values() for name in names.split()}


@dataclass
class Index:
    """What a tree defines: files, modules, classes with their members, words, targets, commands."""

    root: Path
    modules: dict[str, set[str]] = field(default_factory=dict)
    members: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    bases: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    defined: set[str] = field(default_factory=lambda: set(dir(builtins)))
    texts: set[str] = field(default_factory=set)
    words: set[str] = field(default_factory=set)
    docstrings: list[tuple[str, int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for folder in CODE:
            for path in sorted((self.root / folder).rglob("*.py")):
                self._read(path)

    def _read(self, path: Path) -> None:
        """Take in what a module defines and, of src/, what its texts and docstrings say."""
        place = path.relative_to(self.root)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        name = ".".join(place.with_suffix("").parts).removeprefix("src.").removesuffix(".__init__")
        self.modules[name] = {defined for inner in tree.body for defined in defines(inner)}
        self.defined |= {*name.split("."), *self.modules[name]}
        ours, docstrings = place.parts[0] == "src", set()
        for node in ast.walk(tree):
            if not isinstance(node, ast.Assign | ast.AnnAssign):  # names of functions are their own
                self.defined |= defines(node)
            if isinstance(node, ast.ClassDef):
                self._read_class(node)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                docstrings.add(node.value)
                if ours and isinstance(node.value.value, str):
                    self.docstrings.append((place.as_posix(), node.lineno, node.value.value))
            elif (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and node not in docstrings
            ):
                self.words.update(re.findall(r"\w+", node.value))
                if ours:
                    self.texts |= {node.value, *DOTTED_TEXT.findall(node.value)}

    def _read_class(self, node: ast.ClassDef) -> None:
        """Take in the members of a class: those of its body, and what its methods assign."""
        self.bases[node.name] |= {ast.unparse(base).split("[")[0] for base in node.bases}
        for member in node.body:
            self.members[node.name] |= defines(member)
        for inner in ast.walk(node):
            if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                self.members[node.name].add(inner.attr)
        self.defined |= self.members[node.name]

    @cached_property
    def paths(self) -> set[str]:
        """All files and folders of the tree, and every end of their paths."""
        ends: set[str] = set()
        for top in self.root.iterdir():
            if top.name in (".ci", ".github") or not top.name.startswith((".", "build")):
                for path in [top, *top.rglob("*")]:
                    parts = path.relative_to(self.root).parts
                    ends.update("/".join(parts[at:]) for at in range(len(parts)))
        return ends

    @cached_property
    def commands(self) -> dict[str, set[str]]:
        """The targets of `make`, and the commands of `headwater`."""
        makefile = (self.root / "Makefile").read_text(encoding="utf-8")
        folder = self.root / "src/headwater/cli"
        cli = (folder / "__init__.py").read_text(encoding="utf-8")
        homes = re.findall(r'^    "([a-z-]+)": \("(\w+)", "(\w+)"\)', cli, re.M)
        commands = {
            "make": set(re.findall(r"^([a-z-]+):", makefile, re.M)),
            "$": set(re.findall(r"\$\(([A-Z]+)\)", makefile)),
            "headwater": {name for name, _, _ in homes},
        }
        for name, module, what in homes:
            if what == "app":
                text = (folder / f"{module}.py").read_text("utf-8")
                declared = re.findall(
                    r'^@app\.command\((?:"([\w-]+)")?.*\)\n(?:@.*\n)*def (\w+)', text, re.M
                )
                commands[name] = {told or function for told, function in declared}
        return commands

    def knows(self, name: str) -> bool:
        """Whether a name is defined, is a text of the package by itself, or is foreign."""
        return name in self.defined or name in self.texts or name in OTHERS

    def has_word(self, word: str) -> bool:
        """Whether the code has a word; tables that streams share have a prefix or a suffix."""
        forms = word, word.removeprefix("headwater_"), "__" + word.rpartition("__")[2]
        return any(form in self.defined or form in self.words for form in forms)

    def has_folder(self, name: str) -> bool:
        """Whether a folder is one of the tree's, or one of the package's."""
        return name in (*CODE, "docs") or f"headwater.{name}" in self.modules

    def has_path(self, path: str) -> bool:
        """Whether a path, in which <x> stands for any name, is the end of one of the tree."""
        pattern = re.sub(r"<[^>]*>", "*", path).removeprefix("./").rstrip("/")
        if "*" in pattern:
            return any(fnmatchcase(end, pattern) for end in self.paths)
        return pattern in self.paths

    def has_member(self, cls: str, name: str) -> bool:
        """Whether a class of ours has a member, itself or by a base; foreign bases have any."""
        return name in self.members[cls] or any(
            base not in CLOSED and (base not in self.bases or self.has_member(base, name))
            for base in self.bases[cls] - {cls}
        )

    def has_dotted(self, name: str) -> bool:
        """Whether a full name leads to a module, or through one to what it defines."""
        parts = name.split(".")
        at = next(at for at in range(len(parts), -1, -1) if ".".join(parts[:at]) in self.modules)
        names, rest = self.modules[".".join(parts[:at])], parts[at:]
        if len(rest) > 1 and rest[0] in self.bases:
            return self.has_member(rest[0], rest[1])
        return not rest or rest[0] in names

    def exports(self, module: str, name: str) -> bool:
        """Whether a module has a name: its own, of a module in it, or imported when it is used."""
        own = name in self.modules.get(module, ()) or f"{module}.{name}" in self.modules
        return own or (module in self.modules and name in self.texts)

    def defines_in(self, path: str, name: str) -> bool:
        """Whether a module, named by the end of its path, defines a name at its top."""
        ending = "." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return any(
            name in names for module, names in self.modules.items() if f".{module}".endswith(ending)
        )


@cache
def index_of(root: Path) -> Index:
    """Return the index of a tree, read once."""
    return Index(root)


def defines(node: ast.AST) -> set[str]:
    """Return the names that a node of a tree defines by itself."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {node.name}
        case ast.Import() | ast.ImportFrom():
            return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        case ast.Assign(targets=targets):
            return {name for target in targets for name in bound(target)}
        case ast.AnnAssign(target=target):
            return bound(target)
        case ast.arg(arg=name) | ast.keyword(arg=str(name)):
            return {name}
        case ast.If() | ast.Try():
            return {name for inner in node.body for name in defines(inner)}
        case _:
            return set()


def bound(target: ast.expr) -> set[str]:
    """Return the names that a target of an assignment binds."""
    return {
        inner.id if isinstance(inner, ast.Name) else inner.attr
        for inner in ast.walk(target)
        if isinstance(inner, ast.Name | ast.Attribute)
    }


def problem(span: str, index: Index) -> str | None:
    """Return what is wrong with the names of a span; None where all exist, or none is ours."""
    wrong = next(line_problems(span, index), None)
    if wrong or COMMAND.search(span):
        return wrong
    if match := PROGRAM.match(span):
        exists = index.has_path(match[2]) if match[2] else match[1] in index.modules
        return None if exists else "no such program"
    if match := TEST.fullmatch(span):
        known = index.defines_in(match[1], match[2])
        known = known and (not match[3] or index.has_member(match[2], match[3]))
        return None if known else "no such test"
    folder = FOLDER.fullmatch(span)
    if FILE.fullmatch(span) or (folder and index.has_folder(folder[1])):
        return None if index.has_path(span) else "no such path"
    if match := DOTTED.fullmatch(span):
        return dotted_problem(match[1], index)
    if match := CALL.fullmatch(re.sub(r"^(\.|\w+=)", "", span)):
        exists = match[1].isupper() or index.knows(match[1])
        return None if exists else f"no function or class {match[1]}"
    if CLASS.fullmatch(span):
        return None if index.knows(span) or span in index.paths else f"no class {span}"
    if WORD.fullmatch(span):
        return None if index.has_word(span) else "the code has no such name"
    return None


def line_problems(span: str, index: Index) -> Iterator[str]:
    """Yield what is wrong with the paths, commands and imports of a line."""
    for path in PLACE.findall(span):
        if not index.has_path(path):
            yield f"no such path{'' if span == path else ': ' + path}"
    for match in COMMAND.finditer(span):
        if wrong := command_problem(match, span, index):
            yield wrong
    for match in IMPORT.finditer(span):
        for name in match[2].replace(",", " ").split():
            if not index.exports(match[1], name):
                yield f"{match[1]} has no {name}"


def command_problem(match: re.Match[str], span: str, index: Index) -> str | None:
    """Return what is wrong with a command of `make` or `headwater`, or with its options."""
    program, command, inner = match.groups()
    if command not in index.commands[program]:
        return f"no {program} {command}"
    if program == "headwater" and inner and inner not in index.commands.get(command, {inner}):
        return f"no headwater {command} {inner}"
    unknown = set(re.findall(r" ([A-Z]+)=", span)) - index.commands["$"]
    if program == "make" and unknown:
        return f"no variable {min(unknown)}"
    for option in re.findall(r"(?<!\S)\[?(--[a-z-]+)", span):
        if option not in index.texts and not index.knows(option[2:].replace("-", "_")):
            return f"no option {option}"
    return None


def dotted_problem(name: str, index: Index) -> str | None:
    """Return what is wrong with a dotted name: of a module, of a class, of a public namespace."""
    first, second = name.split(".")[:2]
    if f"{first}.*" in OTHERS or name in index.texts:
        return None
    if first in index.modules:
        return None if index.has_dotted(name) else f"no {name}"
    if first in index.bases:
        return None if index.has_member(first, second) else f"{first} has no {second}"
    if CLASS.fullmatch(first):
        return f"no class {first}"
    unknown = [part for part in name.split(".")[1:] if not index.knows(part)]
    return f"{first} has no {unknown[0]}" if unknown else None


def text_problems(text: str, index: Index) -> Iterator[tuple[int, str]]:
    """Yield what is wrong with a text, each with its line, counted from 0."""
    own = set(re.findall(r"^# ([\w.-]+)$", text, re.M)) | OTHERS  # files that it lists
    prose = FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)
    path, end = "", 0
    for match in SPAN.finditer(prose):
        span, line = " ".join(match[2].split()), prose.count("\n", 0, match.start())
        wrong = None if span in own else problem(span, index)
        if path and not prose[end : match.start()].strip() and re.match(r"[\w.]+$", span):
            name = span.split(".")[0]
            wrong = wrong or (None if index.defines_in(path, name) else f"not in {path}")
        path, end = span if span.endswith(".py") and not wrong else "", match.end()
        if wrong:
            yield line, f"`{span}`: {wrong}"
    for block in FENCE.finditer(text):
        for match in LINE.finditer(block[0]):
            if wrong := problem(match[1], index):
                yield text.count("\n", 0, block.start() + match.start()), wrong


def name_problems(root: Path, pages: Iterable[Path]) -> list[str]:
    """Find names in backticks that do not exist: of pages, and of docstrings in src/."""
    index = index_of(root)
    texts = [
        *((page.as_posix(), 1, page.read_text("utf-8")) for page in pages),
        *index.docstrings,
    ]
    return [
        f"{place.removeprefix(f'{root}/')}:{first + line}: {wrong}"
        for place, first, text in texts
        for line, wrong in text_problems(text, index)
    ]
