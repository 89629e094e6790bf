"""A stream whose outputs have changed says so before it writes anything."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater import bitcoin, evm, portal_stream, solana, substrate, tron
from headwater.decode import Output
from headwater.errors import ConfigChangedError, InvalidOptionError, StoredStateError
from headwater.stream import PortalStream
from headwater.stream.config import Config
from headwater.targets import duckdb_target, postgres_target
from headwater.testing import PortalServer, simulated_portal
from tests.stream.test_stream import HEAD_ONLY
from tests.targets.postgres_places import database

TRANSFERS = evm.events("erc20.Transfer", range=(0, 20))
Targets = Callable[[], Any]
NEAR: dict[str, Any] = dict(HEAD_ONLY)


@pytest.fixture(scope="module")
def portal() -> Iterator[PortalServer]:
    with simulated_portal(seed=11, blocks=60, finality_depth=15) as server:
        yield server


@pytest.fixture(params=["duckdb", "postgres"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Targets:
    if request.param == "duckdb":
        return lambda: duckdb_target(tmp_path / "a.duckdb")
    dsn = database()
    return lambda: postgres_target(dsn)


def stream(portal: PortalServer, outputs: Mapping[str, Output], **options: Any) -> PortalStream:
    return portal_stream(id="one", portal=portal.url, outputs=outputs, **NEAR, **options)


def counts(target: Any) -> tuple[int, int]:
    found = target.query(
        "SELECT (SELECT count(*) FROM transfers) AS a, (SELECT max(current_number) FROM sync) AS b"
    )
    row = found.to_pylist()[0]
    return row["a"], int(row["b"])


@pytest.mark.guarantee("CONFIG-1")
def test_another_question_under_the_same_id_is_refused_before_anything_is_written(
    portal: PortalServer, target: Targets
) -> None:
    stream(portal, {"transfers": TRANSFERS}).pipe_to(target())
    before = counts(target())
    other = evm.events("erc20.Transfer", contracts=["0x" + "1" * 40], range=(0, 40))
    swaps = evm.events("erc20.Approval", range=(0, 40))
    with pytest.raises(ConfigChangedError, match=r"E0012.*changed=transfers, added=swaps.*reset"):
        stream(portal, {"transfers": other, "swaps": swaps}).pipe_to(target())
    with pytest.raises(ConfigChangedError, match=r"removed=transfers"):
        stream(portal, {"swaps": swaps}).pipe_to(target())
    assert counts(target()) == before


def test_what_does_not_change_the_question_is_no_change(
    portal: PortalServer, target: Targets
) -> None:
    """A longer range, options, transforms, the order of outputs."""
    approvals = evm.events("erc20.Approval", range=(0, 20))
    stream(portal, {"transfers": TRANSFERS, "approvals": approvals}).pipe_to(target())
    longer = evm.events("erc20.Transfer", range=(0, 40))
    again = stream(portal, {"approvals": approvals, "transfers": longer}, max_bytes=10_000)
    again.pipe(lambda data: data).pipe_to(target())
    assert counts(target())[1] == 40


def test_another_factory_of_an_event_in_a_union_is_a_change() -> None:
    made = [evm.factory("0x" + digit * 40, "Made(address child)", child="child") for digit in "12"]

    def config(*contracts: evm.Factory | None) -> Config:
        events = (evm.events("erc20.Transfer", contracts=one) for one in contracts)
        return Config.of({"all": evm.union(*events)})

    assert config(made[0], None).differences(config(made[1], None)) == {"changed": "all"}
    assert config(made[0], None).differences(config(None, None)) == {"changed": "all"}
    assert not config(made[0], None).differences(config(made[0], None))


def test_rows_of_children_that_count_from_another_point_are_a_change() -> None:
    """What release 0.2 has stored, which knew "log" alone, is what `since="log"` asks for now."""
    address, created = "0x" + "11" * 20, "Made(address indexed by, address child)"

    def config(**options: Any) -> Config:
        above = evm.factory(address, created, child="child", **options)
        below = evm.factory(above, created, child="child", columns=["by"], **options)
        swaps = evm.events("Swap(uint256 amount)", contracts=above)
        return Config.of({
            "events": swaps, "calls": evm.calls("f(uint256 x)", contracts=below),
            "union": evm.union(swaps, evm.events("erc20.Transfer")),
        })  # fmt: skip

    stored = {
        "events": "d0e08a8d9d56874db187271e12e6113b",
        "calls": "c98a5c405ddf9e2e73911a5c4158b027",
        "union": "db91dc164d7a67a39ec7305ca8dde6f2",
    }
    assert config(since="log").outputs == stored
    assert config().differences(config(since="log")) == {"changed": "calls, events, union"}
    assert config().counts_from(config(since="log"))["events"] == "log -> transaction"
    assert config().rows == config(since="block").rows == config(since="log").rows
    assert not config().differences(config(since="transaction"))


def test_what_release_0_2_stored_is_the_same_question_now_that_places_have_more_bits() -> None:
    """It kept them in 32 bits with a sign. A parameter called like one has its own type."""
    stored: dict[str, tuple[Output, str]] = {
        "logs": (evm.logs(), "334903618558a80b5c9e178964eda2da"),
        "traces": (evm.traces(), "ee50e41dbc3b280ad194f5b1e2a9dfba"),
        "calls": (evm.calls("f(uint32 log_index, uint64 x)"), "78edc02fa0997663b7bb0e4724bec54c"),
        "tokens": (solana.instructions("spl_token.transfer"), "a4de32b3115d3bf3d1e9bad9882b03e9"),
        "solana": (solana.logs(), "a930ac2fce6390810b23cc124078cf80"),
        "tron": (tron.logs(), "8803e84c02a5438133aeb7ab39c9ec06"),
        "bitcoin": (bitcoin.inputs(), "1a8b9f663cd93da4eb4b0884f0cdbbab"),
        "substrate": (substrate.events(), "d1aa2db3ef1552f10da77aeee82dbcf4"),
    }
    now = Config.of({name: output for name, (output, _) in stored.items()})
    assert now.outputs == {name: known for name, (_, known) in stored.items()}
    assert {now.columns[name]["transaction_index"] for name in stored} == {"int32"}
    assert (now.columns["logs"]["log_index"], now.columns["calls"]["log_index"]) == (
        "int32", "int64",
    )  # fmt: skip
    for output, _ in stored.values():
        assert output.schema.field("transaction_index").type == pa.int64()


def test_what_an_event_of_a_union_does_with_bad_rows_is_part_of_the_question() -> None:
    def config(*on_error: Any) -> Config:
        events = (evm.events("erc20.Transfer", on_error=one) for one in on_error)
        return Config.of({"all": evm.union(*events)})

    assert config("raise", "skip").differences(config("raise", "raise")) == {"changed": "all"}
    assert not config("raise", "skip").differences(config("raise", "skip"))


@pytest.mark.parametrize("how", ["warn", "ignore"])
def test_a_change_that_is_allowed_goes_on_from_the_cursor_and_is_said_once(
    portal: PortalServer, target: Targets, how: Any, caplog: pytest.LogCaptureFixture
) -> None:
    stream(portal, {"transfers": TRANSFERS}).pipe_to(target())
    caplog.set_level(logging.WARNING, "headwater.stream")
    both = {
        "transfers": evm.events("erc20.Transfer", range=(0, 40)),
        "approvals": evm.events("erc20.Approval", range=(0, 40)),
    }
    stream(portal, both, on_config_change=how).pipe_to(target())
    assert ("config.changed id=one" in caplog.text) is (how == "warn")
    caplog.clear()
    stream(portal, both).pipe_to(target())
    assert caplog.text == ""
    assert counts(target())[1] == 40


def test_a_stream_that_never_committed_may_change(portal: PortalServer, tmp_path: Path) -> None:
    def fails(data: Any) -> Any:
        raise OSError("user code")

    path = tmp_path / "a.duckdb"
    with pytest.raises(OSError, match="user code"):
        stream(portal, {"transfers": TRANSFERS}).pipe(fails).pipe_to(duckdb_target(path))
    approvals = evm.events("erc20.Approval", range=(0, 20))
    stream(portal, {"transfers": approvals}).pipe_to(duckdb_target(path))
    assert counts(duckdb_target(path))[1] == 20


def test_what_is_stored_holds_no_address_and_no_secret(
    portal: PortalServer, target: Targets
) -> None:
    address = portal.url.replace("http://", "http://user:secret@")
    portal_stream(id="one", portal=address, outputs={"transfers": TRANSFERS}, **NEAR).pipe_to(
        target()
    )
    (row,) = target().query("SELECT * FROM headwater_config").to_pylist()
    assert row["stream_id"] == "one"
    assert json.loads(row["config"])["outputs"].keys() == {"transfers"}
    assert "secret" not in row["config"]
    assert "127.0.0.1" not in row["config"]


def test_a_text_that_cannot_be_read_is_said(portal: PortalServer) -> None:
    with pytest.raises(StoredStateError, match="configuration cannot be read"):
        Config.load('{"version": 99, "outputs": {}}')
    with pytest.raises(InvalidOptionError, match="on_config_change is"):
        stream(portal, {"transfers": TRANSFERS}, on_config_change="panic")
