"""Message types without a compiler: from a short text, and from the files of a package.

`build_classes` makes classes of messages that Headwater knows by heart; `TypeSet` holds the files
that a package brings along and finds a module's output type in them. Both use pools of their own,
so that no other library's descriptors can clash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError as WireError

from headwater.errors import PackageError

_KINDS = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "str": _KINDS.TYPE_STRING,
    "bytes": _KINDS.TYPE_BYTES,
    "bool": _KINDS.TYPE_BOOL,
    "u32": _KINDS.TYPE_UINT32,
    "i32": _KINDS.TYPE_INT32,
    "u64": _KINDS.TYPE_UINT64,
    "i64": _KINDS.TYPE_INT64,
    "s32": _KINDS.TYPE_SINT32,
    "s64": _KINDS.TYPE_SINT64,
    "f32": _KINDS.TYPE_FIXED32,
    "f64": _KINDS.TYPE_FIXED64,
    "sf32": _KINDS.TYPE_SFIXED32,
    "sf64": _KINDS.TYPE_SFIXED64,
    "float": _KINDS.TYPE_FLOAT,
    "double": _KINDS.TYPE_DOUBLE,
}
_OF_RUNTIME = {
    module.DESCRIPTOR.name: module.DESCRIPTOR.serialized_pb
    for module in (
        any_pb2, descriptor_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2,
        timestamp_pb2, wrappers_pb2,
    )
}  # fmt: skip


def build_classes(definitions: Mapping[str, str]) -> dict[str, Any]:
    """Return a class for every message, by its full name.

    A definition lists fields as `name number type`, separated by commas. `*` before a name makes
    it repeated, `?` optional, `|` a member of the message's oneof.
    """
    pool = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(name="headwater.proto", syntax="proto3")
    renamed = {name: name.replace(".", "_") for name in definitions}
    for name, fields in definitions.items():
        describe(file.message_type.add(name=renamed[name]), fields, renamed)
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(renamed[name]))
        for name in definitions
    }


def describe(
    message: descriptor_pb2.DescriptorProto, fields: str, renamed: Mapping[str, str] | None = None
) -> None:
    """Add fields to a message type, as `build_classes` reads them; `renamed` are other types.

    A type that is none of these is written with its full name; `enum:` before it makes it an enum.
    """
    names = renamed or {}
    if "|" in fields:
        message.oneof_decl.add(name="message")  # made-up ones for `?` come after it
    for text in filter(str.strip, fields.split(",")):
        name, number, kind = text.split()
        field = message.field.add(
            name=name.lstrip("*?|"), number=int(number), label=_KINDS.LABEL_OPTIONAL
        )
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
        elif kind.startswith("enum:"):
            field.type, field.type_name = _KINDS.TYPE_ENUM, f".{kind[5:]}"
        else:
            field.type, field.type_name = _KINDS.TYPE_MESSAGE, f".{names.get(kind, kind)}"
        if name[0] == "*":
            field.label = _KINDS.LABEL_REPEATED
        elif name[0] in "|?":
            field.oneof_index = 0 if name[0] == "|" else len(message.oneof_decl)
        if name[0] == "?":
            message.oneof_decl.add(name=f"_{field.name}")
            field.proto3_optional = True


class TypeSet:
    """The message types of a package. A value: it pickles, and is never changed."""

    def __init__(self, files: Iterable[bytes]) -> None:
        self.files = tuple(files)

    def __reduce__(self) -> tuple[Any, ...]:
        return TypeSet, (self.files,)

    @cached_property
    def _by_name(self) -> dict[str, descriptor_pb2.FileDescriptorProto]:
        """The files by name; of those that come twice the first, of google/protobuf our own."""
        files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
        for raw in (*_OF_RUNTIME.values(), *self.files):
            try:
                file = descriptor_pb2.FileDescriptorProto.FromString(raw)
            except WireError as error:
                raise PackageError("a file of types cannot be read", reason=error) from None
            files.setdefault(file.name, file)
        return files

    @cached_property
    def _homes(self) -> dict[str, str]:
        """The file of every message, by its full name."""
        return {
            ".".join(filter(None, (file.package, path))): name
            for name, file in self._by_name.items()
            for path in _paths(file.message_type)
        }

    @property
    def messages(self) -> list[str]:
        """The full names of all messages."""
        return sorted(self._homes)

    def imports(self, message: str) -> list[str]:
        """Return the files that the file of a message imports."""
        return list(self._by_name[self._home(message)].dependency)

    def descriptor(self, message: str) -> Descriptor:
        """Return a message type.

        Raises:
            PackageError: the package does not bring it along, or not all that it is made of.
        """
        home = self._home(message)
        pool = descriptor_pool.DescriptorPool()
        self._add(pool, home, set())
        try:
            return pool.FindMessageTypeByName(message)
        except KeyError:
            raise PackageError("the package lacks a type", type=message) from None

    def _home(self, message: str) -> str:
        if message not in self._homes:
            near = [name for name in self.messages if not name.startswith("google.protobuf.")]
            raise PackageError(
                "the package does not bring the type of the output along",
                type=message,
                known=", ".join(near) or "none",
            )
        return self._homes[message]

    def _add(self, pool: descriptor_pool.DescriptorPool, name: str, added: set[str]) -> None:
        """Add a file after those that it imports. One that is missing is left out: what it holds
        may not be needed (annotations are read without it).
        """
        if name in added:
            return
        added.add(name)
        file = descriptor_pb2.FileDescriptorProto()
        file.CopyFrom(self._by_name[name])
        dependencies = [dependency for dependency in file.dependency if dependency in self._by_name]
        for dependency in dependencies:
            self._add(pool, dependency, added)
        if len(dependencies) < len(file.dependency):
            lacking = sorted(set(file.dependency) - set(dependencies))
            del file.dependency[:], file.public_dependency[:], file.weak_dependency[:]
            file.dependency.extend(dependencies)
        else:
            lacking = []
        try:
            pool.AddSerializedFile(file.SerializeToString())
            pool.FindFileByName(name)
        except (TypeError, KeyError, ValueError) as error:
            raise PackageError(
                "a file of types cannot be used",
                file=name,
                lacking=", ".join(lacking) or "nothing",
                reason=str(error).splitlines()[0],
            ) from None


def _paths(messages: Iterable[Any], prefix: str = "") -> Iterable[str]:
    for message in messages:
        yield prefix + message.name
        yield from _paths(message.nested_type, f"{prefix}{message.name}.")
