"""Layouts of Solana instructions and events: discriminator, arguments, names of accounts.

They come as plain mappings, or from Anchor IDLs of the format before 0.30 and the one since. The
old format names instructions in camelCase and leaves discriminators to a rule: the first eight
bytes of the SHA-256 of `global:` and the snake_case name, of `event:` and the name. The new one
spells them out. Only what is asked for is understood, so that an IDL may use types elsewhere that
have no columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from headwater.decode.solana.borsh import (
    BorshType,
    Enum,
    Member,
    Option,
    Struct,
    Variant,
    make_scalar,
    make_sequence,
    make_struct,
    parse_struct,
)
from headwater.errors import LayoutError

_DISCRIMINATOR = re.compile(r"0x((?:[0-9a-fA-F]{2}){1,32})")
_WIDTHS = (8, 4, 2, 1)  # what portals can filter by


@dataclass(frozen=True, slots=True)
class Account:
    """An account of an instruction. An optional one that is left out is given as the program."""

    name: str
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class DataLayout:
    """How the data of one instruction or event looks."""

    name: str
    discriminator: bytes
    args: Struct
    accounts: tuple[Account, ...] = ()

    @property
    def filter(self) -> tuple[str, str]:
        """The widest filter of a portal that the discriminator allows: `d8`, and its value."""
        width = next(width for width in _WIDTHS if width <= len(self.discriminator))
        return f"d{width}", f"0x{self.discriminator[:width].hex()}"


def parse_layout(name: str, source: object) -> DataLayout:
    """Understand `{"discriminator": "0x03", "args": {"amount": "u64"}, "accounts": ["source"]}`.

    A name of an account that ends with `?` is optional.

    Raises:
        LayoutError: something in it cannot be understood.
    """
    if isinstance(source, DataLayout):
        return source
    if not isinstance(source, Mapping):
        raise LayoutError(f"the layout of {name!r} is no mapping", got=repr(source)[:80])
    unknown = sorted(map(str, source.keys() - {"discriminator", "args", "accounts"}))
    if unknown:
        raise LayoutError(f"the layout of {name!r} has an unknown key", got=", ".join(unknown))
    args, accounts = source.get("args", {}), source.get("accounts", ())
    if not isinstance(args, Mapping):
        raise LayoutError(f"'args' of {name!r} is no mapping of names to types")
    if isinstance(accounts, str) or not all(isinstance(account, str) for account in accounts):
        raise LayoutError(f"'accounts' of {name!r} is no list of names")
    return DataLayout(
        name,
        parse_discriminator(source.get("discriminator"), name),
        parse_struct(args, name),
        tuple(Account(account.removesuffix("?"), account.endswith("?")) for account in accounts),
    )


def parse_discriminator(value: object, name: str) -> bytes:
    """Understand "0x03", bytes, or a list of numbers as IDLs have it."""
    match = _DISCRIMINATOR.fullmatch(value) if isinstance(value, str) else None
    if match:
        return bytes.fromhex(match[1])
    if isinstance(value, list) and all(isinstance(byte, int) and 0 <= byte < 256 for byte in value):
        value = bytes(value)
    if isinstance(value, bytes) and 1 <= len(value) <= 32:
        return value
    raise LayoutError(
        f"the discriminator of {name!r} is 0x and hex digits, or 1 to 32 bytes",
        got=repr(value)[:80],
    )


_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_MAX_DEPTH = 32


def snake_case(name: str) -> str:
    """Return a name as Rust writes it: `swapBaseIn` is `swap_base_in`."""
    return _HUMP.sub("_", name).lower()


def _discriminator(entry: Mapping[str, object], kind: str, name: str) -> bytes:
    """Return the bytes that an entry of an IDL says, or those that Anchor derives from a name."""
    discriminator = entry.get("discriminator")
    if discriminator is not None:
        return parse_discriminator(discriminator, name)
    return sha256(f"{kind}:{name}".encode()).digest()[:8]


@dataclass(frozen=True, slots=True)
class Idl:
    """A program's interface as its IDL describes it."""

    document: Mapping[str, object]

    @property
    def address(self) -> str | None:
        """The program, if the IDL names it."""
        metadata = self.document.get("metadata")
        old = metadata.get("address") if isinstance(metadata, Mapping) else None
        address = self.document.get("address", old)
        return address if isinstance(address, str) else None

    def instructions(self) -> list[str]:
        """Return the names of all instructions, in snake_case."""
        return [snake_case(str(entry.get("name"))) for entry in self._list("instructions")]

    def events(self) -> list[str]:
        """Return the names of all events, as they are written."""
        return [str(entry.get("name")) for entry in self._list("events")]

    def instruction(self, name: str) -> DataLayout:
        """Return the layout of an instruction.

        Raises:
            LayoutError: there is none, or a type of it has no column.
        """
        for entry in self._list("instructions"):
            if snake_case(str(entry.get("name"))) != snake_case(name):
                continue
            code = _discriminator(entry, "global", snake_case(name))
            args = self._members(entry.get("args", []), name, 0)
            return DataLayout(snake_case(name), code, args, tuple(_accounts(entry, name)))
        raise LayoutError(f"the IDL has no instruction {name!r}",
                          valid=", ".join(self.instructions()))  # fmt: skip

    def event(self, name: str) -> DataLayout:
        """Return the layout of an event.

        Raises:
            LayoutError: there is none, or a type of it has no column.
        """
        for entry in self._list("events"):
            if entry.get("name") != name:
                continue
            code = _discriminator(entry, "event", name)
            if "fields" in entry:
                return DataLayout(name, code, self._members(entry["fields"], name, 0))
            content = self._defined(name, name, 0)
            if not isinstance(content, Struct):
                raise LayoutError(f"event {name!r} is no struct")
            return DataLayout(name, code, content)
        raise LayoutError(f"the IDL has no event {name!r}", valid=", ".join(self.events()))

    def _list(self, key: str) -> list[Mapping[str, object]]:
        entries = self.document.get(key) or []
        if not isinstance(entries, list) or not all(
            isinstance(entry, Mapping) for entry in entries
        ):
            raise LayoutError(f"{key!r} of an IDL is a list of objects")
        return entries

    # --- types ------------------------------------------------------------------------------------

    def _members(self, fields: object, where: str, depth: int) -> Struct:
        """Return named members; those of tuples are called f0, f1, …"""
        if not isinstance(fields, list):
            raise LayoutError(f"{where}: fields are a list")
        members = []
        for at, field in enumerate(fields):
            is_named = isinstance(field, Mapping) and "name" in field and "type" in field
            name = snake_case(str(field["name"])) if is_named else f"f{at}"
            kind = field["type"] if is_named else field
            members.append(Member(name, self._type(kind, f"{where}.{name}", depth + 1)))
        return make_struct(members, where)

    def _type(self, source: object, where: str, depth: int) -> BorshType:
        if depth > _MAX_DEPTH:
            raise LayoutError(f"{where}: nested too deeply, or a type that contains itself")
        if isinstance(source, str):
            scalar = make_scalar(source)
            if scalar is not None:
                return scalar
        if isinstance(source, Mapping) and len(source) == 1:
            ((kind, inner),) = source.items()
            if kind == "option":
                return Option(self._type(inner, where, depth + 1))
            if kind == "vec":
                return make_sequence(self._type(inner, where, depth + 1), None, where)
            if kind == "array" and isinstance(inner, Sequence) and len(inner) == 2:
                item, length = inner
                if isinstance(length, int) and length > 0:
                    return make_sequence(self._type(item, where, depth + 1), length, where)
            if kind == "defined":
                name = inner.get("name") if isinstance(inner, Mapping) else inner
                if not (isinstance(inner, Mapping) and inner.get("generics")):
                    return self._defined(str(name), where, depth + 1)
        raise LayoutError(f"{where}: a type that has no column", got=repr(source)[:120])

    def _defined(self, name: str, where: str, depth: int) -> BorshType:
        entry = next((entry for entry in self._list("types") if entry.get("name") == name), None)
        body = None if entry is None else entry.get("type")
        if not isinstance(body, Mapping) or (entry or {}).get("serialization", "borsh") != "borsh":
            raise LayoutError(f"{where}: the IDL does not define {name!r} in Borsh")
        match body.get("kind"):
            case "struct":
                return self._members(body.get("fields") or [], where, depth)
            case "enum":
                return self._enum(body.get("variants"), where, depth)
            case "type" | "alias":
                return self._type(body.get("alias", body.get("value")), where, depth + 1)
            case _:
                raise LayoutError(f"{where}: {name!r} is neither struct nor enum")

    def _enum(self, variants: object, where: str, depth: int) -> Enum:
        if not isinstance(variants, list) or not 0 < len(variants) <= 256:
            raise LayoutError(f"{where}: an enum has 1 to 256 variants")
        parsed = []
        for variant in variants:
            if not isinstance(variant, Mapping):
                raise LayoutError(f"{where}: a variant is an object")
            name, fields = str(variant.get("name")), variant.get("fields")
            content = self._members(fields, f"{where}.{name}", depth) if fields else None
            parsed.append(Variant(name, content))
        names = {"variant", *(variant.name.lower() for variant in parsed)}
        if len(names) <= len(parsed):
            raise LayoutError(f"{where}: two variants have the same name, or one is 'variant'")
        return Enum(tuple(parsed))


def _accounts(entry: Mapping[str, object], where: str, prefix: str = "") -> list[Account]:
    """Return the accounts; those of a group carry its name before their own."""
    listed = entry.get("accounts", [])
    if not isinstance(listed, list):
        raise LayoutError(f"{where}: 'accounts' is a list")
    accounts: list[Account] = []
    for account in listed:
        if not isinstance(account, Mapping):
            raise LayoutError(f"{where}: an account is an object")
        name = prefix + snake_case(str(account.get("name")))
        if "accounts" in account:
            accounts.extend(_accounts(account, where, f"{name}_"))
        else:
            accounts.append(Account(name, bool(account.get("isOptional", account.get("optional")))))
    return accounts


def load_idl(source: object) -> Idl:
    """Read an IDL: a path, the JSON itself, or its parsed form. Runs on the driver.

    Raises:
        LayoutError: it cannot be read, or is no IDL.
    """
    if isinstance(source, Idl):
        return source
    document = source
    if isinstance(source, (str, Path)):
        try:
            is_json = isinstance(source, str) and source.lstrip().startswith("{")
            text = str(source) if is_json else Path(source).read_text(encoding="utf-8")
            document = json.loads(text)
        except OSError as error:
            raise LayoutError(f"the IDL cannot be read: {error.strerror}", path=source) from error
        except (ValueError, RecursionError) as error:
            raise LayoutError("the IDL is not JSON", source=str(source)[:80]) from error
    if not isinstance(document, Mapping) or "instructions" not in document:
        raise LayoutError("an IDL is an object with 'instructions'")
    return Idl(document)
