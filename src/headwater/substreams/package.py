"""Substreams packages (.spkg): read, checked, resolved for a network, and hashed as the sink does.

A package holds modules, their binaries, the types of what they put out, and what it tells a sink.
`Package.read` takes a file, an address or bytes, with zstd or without. `resolve` applies a network
and parameters in the order in which the sink does, because they are part of a module's hash, and
that hash is the key under which substreams-sink-sql keeps its cursor.

Runs on the driver, before anything is asked of an endpoint.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from google.protobuf.message import DecodeError as WireError

from headwater.errors import ModuleChoiceError, PackageError, PortalUrlError, TransportError
from headwater.portal.transport import HttpTransport, Request
from headwater.substreams.descriptors import TypeSet, build_classes
from headwater.substreams.outputs import DATABASE_CHANGES

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

UNSET_BLOCK = 2**64 - 1
_ZSTD = b"\x28\xb5\x2f\xfd"
_REDIRECTS = 5
_SIZE = 1 << 30
_SINK_CONFIGS = ("sf.substreams.sink.sql.v1.Service", "sf.substreams.sink.sql.service.v1.Service")
_ENGINES = {1: "postgres", 2: "clickhouse"}
PACKAGE_CLASSES = build_classes(
    {
        "Entry": "key 1 str, value 2 str",
        "BlockEntry": "key 1 str, value 2 u64",
        "Network": "*initial_blocks 1 BlockEntry, *params 2 Entry",
        "NetworkEntry": "key 1 str, value 2 Network",
        "Meta": "version 1 str, url 2 str, name 3 str, doc 4 str, description 5 str",
        "SinkConfig": "type_url 1 str, value 2 bytes",
        "Service": "schema 1 str, engine 7 u32",
        "Binary": "type 1 str, content 2 bytes",
        "MapKind": "output_type 1 str",
        "StoreKind": "update_policy 1 u32, value_type 2 str",
        "IndexKind": "output_type 1 str",
        "Output": "type 1 str",
        "Source": "type 1 str",
        "Named": "module_name 1 str, mode 2 u32",
        "Params": "value 1 str",
        "Foundational": "identifier 1 str",
        "FromParams": "unused 1 str",
        "Filter": "module 1 str, ?query_string 2 str, query_from_params 3 FromParams",
        "Input": "|source 1 Source, |map 2 Named, |store 3 Named, |params 4 Params, "
        "|foundational_store 5 Foundational",
        "Module": "name 1 str, kind_map 2 MapKind, kind_store 3 StoreKind, binary_index 4 u32, "
        "binary_entrypoint 5 str, *inputs 6 Input, output 7 Output, initial_block 8 u64, "
        "block_filter 9 Filter, kind_block_index 10 IndexKind",
        "ModuleMeta": "package_index 1 u64, doc 2 str",
        "Modules": "*modules 1 Module, *binaries 2 Binary",
        "Package": "*proto_files 1 bytes, version 5 u64, modules 6 Modules, "
        "*module_meta 7 ModuleMeta, *package_meta 8 Meta, "
        "network 9 str, sink_config 10 SinkConfig, sink_module 11 str, *networks 13 NetworkEntry",
    }
)
"""The messages of a package, by short names; fields that are not listed are kept as they are."""


@dataclass(frozen=True, slots=True)
class SinkConfig:
    """What a package tells a SQL sink: statements that create its tables, and the engine."""

    schema: str = ""
    engine: str = ""


@dataclass(frozen=True)
class Package:
    """A package. Made by `Package.read`; `data` is what an endpoint is sent.

    `resolve` returns the same package with the modules as they are for a network and parameters.
    """

    data: bytes
    network: str = ""

    @classmethod
    def read(cls, source: str | Path | bytes | Package) -> Package:
        """Read a package from a file, from an http(s) address, or from its bytes.

        Raises:
            PackageError: it cannot be read, or is no package with modules.
        """
        if isinstance(source, Package):
            return source
        if isinstance(source, bytes):
            raw = source
        elif isinstance(source, str) and re.match(r"https?://", source):
            raw = _download(source)
        else:
            raw = _read_file(Path(source))
        if raw.startswith(_ZSTD):
            raw = _unpacked(raw)
        package = cls(raw)
        package._check()
        return replace(package, network=package._message.network)

    @cached_property
    def _message(self) -> Any:
        try:
            return PACKAGE_CLASSES["Package"].FromString(self.data)
        except WireError as error:
            raise PackageError(
                "the bytes are no package", bytes=len(self.data), reason=error
            ) from None

    def _check(self) -> None:
        modules, binaries = self._modules, len(self._message.modules.binaries)
        if not modules:
            raise PackageError("the package has no modules", bytes=len(self.data))
        for name, module in modules.items():
            kinds = [kind for kind in ("map", "store", "block_index") if _is(module, kind)]
            lacking = [parent for parent in _parents(module) if parent not in modules]
            if not name or len(kinds) != 1 or module.binary_index >= binaries or lacking:
                raise PackageError(
                    "a module has no name, no kind, no binary, or inputs that are not there",
                    module=name,
                    kind=", ".join(kinds) or "none",
                    binary=f"{module.binary_index} of {binaries}",
                    missing=", ".join(lacking) or "nothing",
                )
        if len(modules) < len(self._message.modules.modules):
            raise PackageError("two modules have one name", modules=", ".join(modules))

    # --- what it holds ----------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Its name and version."""
        meta = self._message.package_meta
        return f"{meta[0].name} {meta[0].version}".strip() if meta else ""

    @cached_property
    def types(self) -> TypeSet:
        """The message types that it brings along."""
        return TypeSet(self._message.proto_files)

    @cached_property
    def _modules(self) -> dict[str, Any]:
        return {module.name: module for module in self._message.modules.modules}

    @property
    def map_modules(self) -> list[str]:
        """The modules whose output can be streamed."""
        return [name for name, module in self._modules.items() if _is(module, "map")]

    @cached_property
    def sink_config(self) -> SinkConfig | None:
        """What it tells a SQL sink, if it does.

        Raises:
            PackageError: the bytes are no such message.
        """
        config = self._message.sink_config
        if config.type_url.rpartition("/")[2] not in _SINK_CONFIGS:
            return None
        try:
            service = PACKAGE_CLASSES["Service"].FromString(config.value)
        except WireError as error:
            raise PackageError("the sink configuration cannot be read", reason=error) from None
        return SinkConfig(service.schema, _ENGINES.get(service.engine, ""))

    def choose(self, module: str | None = None) -> str:
        """Return the module that a sink reads: the given one, else the one the package names.

        Raises:
            ModuleChoiceError: there is no such map module, or the package names none.
        """
        wanted = module or self._message.sink_module
        if wanted not in self.map_modules:
            raise ModuleChoiceError(
                "the package has no such map module" if wanted else "no module was named",
                module=wanted or "none",
                known=", ".join(self.map_modules) or "none",
            )
        return wanted

    def output_type(self, module: str) -> str:
        """Return the full name of what a map module puts out."""
        chosen = self._modules[self.choose(module)]
        return str(chosen.output.type or chosen.kind_map.output_type).removeprefix("proto:")

    def puts_out_changes(self, module: str) -> bool:
        """Tell whether a module puts out changes to rows, rather than messages of its own."""
        return self.output_type(module) in DATABASE_CHANGES

    def initial_block(self, module: str) -> int:
        """Return where a module begins."""
        return int(self._modules[self.choose(module)].initial_block)

    @property
    def modules_bytes(self) -> bytes:
        """The modules as a message: what the oldest protocol is sent instead of the package."""
        return bytes(self._message.modules.SerializeToString())

    # --- what it becomes for a network and parameters ---------------------------------------------

    def resolve(
        self,
        network: str = "",
        params: Mapping[str, str] | None = None,
        first_block: int = 0,
    ) -> Package:
        """Return the package for a network, with parameters of modules.

        First the network's own parameters and initial blocks, then the given ones; then modules
        without an initial block take that of their inputs, or `first_block`.

        Raises:
            ModuleChoiceError: a parameter is for a module that is not there, or takes none.
            PackageError: inputs of a module without an initial block begin at different blocks.
        """
        message = PACKAGE_CLASSES["Package"].FromString(self.data)
        modules = {module.name: module for module in message.modules.modules}
        chosen = network or message.network
        special = {entry.key: entry.value for entry in message.networks}.get(chosen)
        if special is not None:
            for entry in special.initial_blocks:
                if entry.key in modules:
                    modules[entry.key].initial_block = entry.value
            for entry in special.params:
                if entry.key in modules:
                    _set_params(modules, entry.key, entry.value)
        for name, value in (params or {}).items():
            _set_params(modules, name, value)
        for name in _in_order(modules):
            _begin(modules, modules[name], first_block)
        return replace(self, data=message.SerializeToString(), network=chosen)

    def module_hash(self, module: str) -> str:
        """Return the hash of a module: the key of the sink's cursor. Call it after `resolve`.

        Raises:
            PackageError: it reads a foundational store, whose part in the hash is not known.
        """
        self.choose(module)
        return _Hashes(self._message.modules).of(module).hex()


def _is(module: Any, kind: str) -> bool:
    return bool(module.HasField(f"kind_{kind}"))


def _parents(module: Any) -> list[str]:
    """Return the modules that a module reads, and the one that filters its blocks."""
    names = []
    for input_ in module.inputs:
        which = input_.WhichOneof("message")
        if which in ("map", "store"):
            names.append(getattr(input_, which).module_name)
    if module.HasField("block_filter") and module.block_filter.module:
        names.append(module.block_filter.module)
    return names


def _set_params(modules: Mapping[str, Any], name: str, value: str) -> None:
    inputs = modules[name].inputs if name in modules else ()
    places = [input_ for input_ in inputs if input_.HasField("params")]
    if not places:
        able = [
            module.name
            for module in modules.values()
            if any(input_.HasField("params") for input_ in module.inputs)
        ]
        raise ModuleChoiceError(
            "a parameter is for a module that takes none",
            module=name,
            known=", ".join(able) or "none",
        )
    places[0].params.value = value


def _in_order(modules: Mapping[str, Any]) -> list[str]:
    """Return the names of modules, each after all that it reads.

    Raises:
        PackageError: a module reads itself.
    """
    read = {
        name: [parent for parent in _parents(module) if parent in modules]
        for name, module in modules.items()
    }
    try:
        return list(TopologicalSorter(read).static_order())
    except CycleError as error:
        path = " > ".join(reversed(error.args[1]))
        raise PackageError("a module reads itself", path=path) from None


def _begin(modules: Mapping[str, Any], module: Any, first_block: int) -> None:
    """Say where a module begins that does not say so: where its inputs begin, which know it."""
    if module.initial_block != UNSET_BLOCK:
        return
    inputs = [parent for parent in _parents(module) if parent in modules]
    begins = {int(modules[parent].initial_block) for parent in inputs}
    if len(begins) > 1:
        raise PackageError(
            "the inputs of a module without an initial block begin at different blocks",
            module=module.name,
            blocks=", ".join(map(str, sorted(begins))),
        )
    module.initial_block = begins.pop() if begins else first_block


class _Hashes:
    """The hashes of a package's modules, each worked out after those that the module reads."""

    def __init__(self, modules: Any) -> None:
        self._modules = {module.name: module for module in modules.modules}
        self._binaries = modules.binaries
        self._known: dict[str, bytes] = {}
        self._older: dict[str, set[str]] = {}
        for name in _in_order(self._modules):
            direct = _parents(self._modules[name])
            self._older[name] = set(direct).union(*(self._older[parent] for parent in direct))

    def of(self, module: str) -> bytes:
        """Return the hash of a module."""
        if module not in self._known:
            for name in self._older[module]:
                self.of(name)
            content = self._content(module)
            self._known[module] = hashlib.sha1(content, usedforsecurity=False).digest()
        return self._known[module]

    def _content(self, name: str) -> bytes:
        module = self._modules[name]
        kind = next(kind for kind in ("map", "store", "block_index") if _is(module, kind))
        binary = self._binaries[module.binary_index]
        parts = [
            b"initial_block", int(module.initial_block).to_bytes(8, "little"),
            b"kind", kind.encode(),
            b"binary", binary.type.encode(), binary.content,
            b"inputs", *self._inputs(module),
        ]  # fmt: skip
        if module.HasField("block_filter"):
            parts += [b"block_filter_module!", self._known[module.block_filter.module]]
            parts += [b"block_filter_query!", _query(module).encode()]
        older = self._older[name]
        parts += [
            b"ancestors",
            *(self._known[ancestor] for ancestor in self._modules if ancestor in older),
        ]
        parts += [b"entrypoint", module.binary_entrypoint.encode()]
        return b"".join(parts)

    def _inputs(self, module: Any) -> list[bytes]:
        parts: list[bytes] = []
        for input_ in module.inputs:
            match input_.WhichOneof("message"):
                case "source":
                    parts += [b"source", input_.source.type.encode()]
                case "params":
                    parts += [b"params", input_.params.value.encode()]
                case "map" | "store" as kind:
                    parts.append(kind.encode())
                case _:
                    raise PackageError(
                        "an input has no part in the hash that is known", module=module.name
                    )
        return parts


def _query(module: Any) -> str:
    query = module.block_filter
    if not query.HasField("query_from_params"):
        return str(query.query_string)
    return next((input_.params.value for input_ in module.inputs if input_.HasField("params")), "")


def _unpacked(raw: bytes) -> bytes:
    """Return what zstd has packed, within the bound: a few kilobytes can hold many gigabytes."""
    unpacked = b""
    while raw:
        unpacker = zstd.ZstdDecompressor()
        try:
            unpacked += unpacker.decompress(raw, max_length=_SIZE + 1 - len(unpacked))
        except zstd.ZstdError as error:
            raise PackageError("the package is not whole zstd", reason=error) from None
        if len(unpacked) > _SIZE:
            raise PackageError("the package is too large", limit=_SIZE)
        if not unpacker.eof:
            raise PackageError("the package is not whole zstd", reason="it was cut")
        raw = unpacker.unused_data
    return unpacked


def _read_file(path: Path) -> bytes:
    try:
        return path.expanduser().read_bytes()
    except OSError as error:
        raise PackageError("the file cannot be read", path=path, reason=error.strerror) from None


def _download(url: str) -> bytes:
    """Get a package over HTTP. It may be at another place, which must not be a less safe one."""
    for _ in range(_REDIRECTS):
        folder, _, query = url.partition("?")
        folder, _, name = folder.rpartition("/")
        try:
            transport = HttpTransport(f"{folder}?{query}" if query else folder)
        except PortalUrlError as error:
            raise PackageError(error.message.replace("portal", "package")) from None
        try:
            response = transport.send(Request("GET", name))
            if response.status in (301, 302, 303, 307, 308):
                response.close()
                after = urljoin(url, response.headers.get("location", ""))
                if url.startswith("https://") and not after.startswith("https://"):
                    raise PackageError("the address leads away from https", host=transport.address)
                url = after
                continue
            body = bytearray()
            for chunk in response.chunks():
                body += chunk
                if len(body) > _SIZE:
                    response.close()
                    raise PackageError("the package is too large", limit=_SIZE)
        except TransportError as error:
            raise PackageError(
                "the package cannot be fetched", address=transport.address, reason=error.message
            ) from None
        finally:
            transport.close()
        if response.status != 200:
            raise PackageError(
                "the package cannot be fetched", address=transport.address, status=response.status
            )
        return bytes(body)
    raise PackageError("the address leads to others without end", redirects=_REDIRECTS)
