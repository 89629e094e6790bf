"""Packages: read from anywhere, checked, resolved as the sink does, hashed to published values."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from headwater.errors import ModuleChoiceError, PackageError
from headwater.substreams.package import PACKAGE_CLASSES, UNSET_BLOCK, Package
from headwater.testing.substreams.modules import (
    DB_OUT,
    ModuleSpec,
    build_file,
    build_package,
    changes_file,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAPPER = ModuleSpec("map_it", "x.Out")


def package(*modules: ModuleSpec, **options: object) -> Package:
    return Package.read(build_package(modules or [MAPPER], **options))  # type: ignore[arg-type]


def test_hashes_equal_the_published_ones() -> None:
    first = ModuleSpec("mod1", "x", initial_block=100)
    second = ModuleSpec(
        "mod2", "x", inputs=(("params", "my param"), ("map", "mod1")), initial_block=100
    )
    both = package(first, second)
    assert both.module_hash("mod1") == "a9f22492be1fb13050c07f1502d5a6e78577dd80"
    assert both.module_hash("mod2") == "6aca30692dfa835efe09fbf51b0a1735ea3b3155"
    alone = package(ModuleSpec("any name", "x", entrypoint="test_mapper"))
    assert alone.module_hash("any name") == "00dec0cb7de44da55d670835234fcd6d9c801fc9"


def test_parameters_networks_filters_and_order_enter_the_hash_and_names_do_not() -> None:
    filtered = ModuleSpec("m", "x", block_filter=("index", "a"))
    index = ModuleSpec("index", "x", kind="block_index")
    one = package(index, filtered).module_hash("m")
    other = package(index, ModuleSpec("m", "x", block_filter=("index", "b"))).module_hash("m")
    from_params = ModuleSpec(
        "m", "x", inputs=(("params", "a"), ("source", "b")), block_filter=("index", None)
    )
    assert len({one, other, package(index, from_params).module_hash("m")}) == 3
    renamed = package(ModuleSpec("i2", "y", kind="block_index", entrypoint="index"),
                      ModuleSpec("m2", "y", entrypoint="m", block_filter=("i2", "a")))  # fmt: skip
    assert renamed.module_hash("m2") == one
    odd = ModuleSpec("m", "x", inputs=(("foundational_store", "f"),))
    with pytest.raises(PackageError, match=r"E0051.*hash"):
        package(odd).module_hash("m")


def test_a_network_comes_before_parameters_and_those_before_initial_blocks() -> None:
    reads = ModuleSpec("reads", "x", inputs=(("params", "own"),), initial_block=7)
    after = ModuleSpec("after", "x", inputs=(("map", "reads"),), initial_block=UNSET_BLOCK)
    given = package(
        reads, after, network="one",
        networks={"two": ({"reads": 50}, {"reads": "of two", "unknown": "left out"})},
    )  # fmt: skip
    plain = given.resolve()
    assert (plain.network, plain.initial_block("after")) == ("one", 7)
    two = given.resolve("two")
    assert (two.initial_block("reads"), two.initial_block("after")) == (50, 50)
    mine = given.resolve("two", {"reads": "mine"})
    assert len({one.module_hash("after") for one in (plain, two, mine)}) == 3
    assert b"mine" in mine.modules_bytes
    assert b"of two" not in mine.modules_bytes
    assert package(ModuleSpec("m", "x", initial_block=UNSET_BLOCK)).resolve(
        first_block=3
    ).initial_block("m") == 3  # fmt: skip
    with pytest.raises(ModuleChoiceError, match=r"E0052.*takes none.*known=reads"):
        given.resolve(params={"after": "x"})


def test_inputs_that_begin_apart_are_refused() -> None:
    given = package(
        ModuleSpec("a", "x", initial_block=1),
        ModuleSpec("b", "x", initial_block=2),
        ModuleSpec("c", "x", inputs=(("map", "a"), ("map", "b")), initial_block=UNSET_BLOCK),
    )
    with pytest.raises(PackageError, match=r"different blocks.*blocks=1, 2"):
        given.resolve()


def test_the_module_is_chosen_as_the_sink_chooses_it() -> None:
    store = ModuleSpec("store", "x", kind="store")
    named = package(store, MAPPER, ModuleSpec("other", "x.Other"), sink_module="other")
    assert named.choose() == "other"
    assert named.choose("map_it") == "map_it"
    assert named.output_type("map_it") == "x.Out"
    for wanted in ("store", "no such"):
        with pytest.raises(ModuleChoiceError, match=r"E0052.*known=map_it, other"):
            named.choose(wanted)
    with pytest.raises(ModuleChoiceError, match="no module was named"):
        package().choose()


def test_the_sink_configuration_is_read_by_its_bare_type() -> None:
    config = Package.read(DB_OUT.package()).sink_config
    assert config is not None
    assert (config.engine, "CREATE TABLE transfer" in config.schema) == ("postgres", True)
    assert package().sink_config is None
    assert Package.read(DB_OUT.package()).puts_out_changes("db_out")
    assert not package().puts_out_changes("map_it")


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"", "no modules"),
        (b"\xff\xff", "no package"),
        (b"\x28\xb5\x2f\xfdnot zstd", "zstd"),
        (build_package([MAPPER, MAPPER]), "one name"),
        (build_package([ModuleSpec("m", "x", inputs=(("map", "gone"),))]), "missing=gone"),
        (build_package([ModuleSpec("", "x")]), "no name"),
    ],
)
def test_what_is_no_package_is_refused(raw: bytes, complaint: str) -> None:
    with pytest.raises(PackageError, match=f"E0051.*{complaint}"):
        Package.read(raw)


def test_a_package_that_unpacks_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred kilobytes of zstd can be a gigabyte."""
    monkeypatch.setattr("headwater.substreams.package._SIZE", 1 << 16)
    raw = DB_OUT.package()
    assert Package.read(zstd.compress(raw[:100]) + zstd.compress(raw[100:])).data == raw
    for bomb in (zstd.compress(bytes(1 << 20)), zstd.compress(bytes(1 << 15)) * 3):
        with pytest.raises(PackageError, match=r"E0051.*too large"):
            Package.read(bomb)
    with pytest.raises(PackageError, match=r"E0051.*not whole"):
        Package.read(zstd.compress(raw)[:-9])


def test_modules_that_read_many_others_are_resolved_in_a_moment() -> None:
    """Each way from one to another was gone: twice as many with every module."""
    names = [f"m{number}" for number in range(120)]
    inputs = [names[max(0, at - 2) : at] for at in range(len(names))]
    wide = package(*(
        ModuleSpec(name, "x", inputs=tuple(("map", one) for one in read),
                   initial_block=UNSET_BLOCK)
        for name, read in zip(names, inputs, strict=True)
    ))  # fmt: skip
    assert wide.resolve(first_block=7).initial_block(names[-1]) == 7
    assert len(wide.module_hash(names[-1])) == 40


def test_a_long_row_of_modules_is_resolved() -> None:
    row = [ModuleSpec("m0", "x", initial_block=UNSET_BLOCK)]
    row += [ModuleSpec(f"m{n}", "x", inputs=(("map", f"m{n - 1}"),), initial_block=UNSET_BLOCK)
            for n in range(1, 1200)]  # fmt: skip
    long = package(*row[::-1])
    assert long.resolve(first_block=3).initial_block("m1199") == 3
    assert len(long.module_hash("m1199")) == 40


def test_a_module_that_reads_itself_is_refused() -> None:
    loop = package(ModuleSpec("a", "x", inputs=(("map", "a"),), initial_block=UNSET_BLOCK))
    for ask in (loop.resolve, lambda: loop.module_hash("a")):
        with pytest.raises(PackageError, match=r"reads itself.*a > a"):
            ask()


def test_types_come_from_the_package_whatever_it_leaves_out_or_brings_twice() -> None:
    own = build_file("own.proto", "own", {"Out": "at 1 google.protobuf.Timestamp, n 2 u64"},
                     imports=["google/protobuf/timestamp.proto", "left/out.proto"])  # fmt: skip
    foreign = build_file("google/protobuf/timestamp.proto", "google.protobuf", {"Timestamp": ""})
    types = package(files=[own, foreign, own, changes_file()]).types
    assert [one.name for one in types.descriptor("own.Out").fields] == ["at", "n"]
    with pytest.raises(PackageError, match=r"E0051.*own.Nothing.*known=.*own.Out"):
        types.descriptor("own.Nothing")
    broken = build_file("b.proto", "b", {"B": "a 1 left.Out"}, imports=["left/out.proto"])
    with pytest.raises(PackageError, match=r"E0051.*lacking=left/out.proto"):
        package(files=[broken]).types.descriptor("b.B")
    with pytest.raises(PackageError, match=r"E0051.*cannot be read"):
        package(files=[b"\xff"]).types.descriptor("b.B")


class _Handler(BaseHTTPRequestHandler):
    answers: dict[str, tuple[int, dict[str, str], bytes]]

    def do_GET(self) -> None:
        status, headers, body = self.answers[self.path]
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def web() -> Iterator[tuple[str, type[_Handler]]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", _Handler
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_package_is_read_from_a_file_and_from_an_address(
    tmp_path: Path, web: tuple[str, type[_Handler]]
) -> None:
    raw = DB_OUT.package()
    plain, packed = tmp_path / "a.spkg", tmp_path / "a.spkg.zst"
    plain.write_bytes(raw)
    packed.write_bytes(zstd.compress(raw))
    assert Package.read(plain).data == Package.read(str(packed)).data == raw
    with pytest.raises(PackageError, match=r"E0051.*No such file"):
        Package.read(tmp_path / "b.spkg")
    url, handler = web
    handler.answers = {
        "/p/a.spkg.zst?key=s3cret": (200, {}, zstd.compress(raw)),
        "/moved": (302, {"location": "/p/a.spkg.zst?key=s3cret"}, b""),
        "/round": (302, {"location": "/round"}, b""),
        "/gone": (404, {}, b"no"),
    }
    assert Package.read(f"{url}/p/a.spkg.zst?key=s3cret").data == raw
    assert Package.read(f"{url}/moved").data == raw
    for path, complaint in (("round", "without end"), ("gone", "status=404")):
        with pytest.raises(PackageError, match=f"E0051.*{complaint}"):
            Package.read(f"{url}/{path}")
    with pytest.raises(PackageError, match=r"E0051.*cannot be fetched") as caught:
        Package.read("http://127.0.0.1:1/p.spkg?key=s3cret")
    assert "s3cret" not in str(caught.value)


def test_packages_for_tests_have_what_real_clients_look_for() -> None:
    """Metadata for each module, and the types of what is said to a SQL sink."""
    message = PACKAGE_CLASSES["Package"].FromString(DB_OUT.package())
    assert len(message.module_meta) == len(message.modules.modules) == 1
    names = {
        f"{file.package}.{one.name}"
        for file in map(FileDescriptorProto.FromString, message.proto_files)
        for one in file.message_type
    }
    assert {message.sink_config.type_url, DB_OUT.output_type} <= names
