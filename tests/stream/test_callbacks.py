"""Asynchronous user code is refused wherever it can be given, and nothing is lost to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from headwater import create_target, evm, pipe_to_iterator
from headwater.core import Batch, PipeState
from headwater.effects import kafka
from headwater.errors import AsyncCallbackError, InvalidOptionError
from headwater.portal import RetryPolicy
from headwater.runtime import ALONE, Runtime
from headwater.stream import PortalStream, portal_stream
from headwater.targets import (
    Capabilities,
    clickhouse_target,
    delta_target,
    duckdb_target,
    iceberg_target,
    parquet_target,
    postgres_target,
)
from headwater.targets.contract import Delivery
from headwater.testing import PortalServer, simulated_portal


async def _nothing(*arguments: object, **named: object) -> None:
    """What the examples of asynchronous libraries look like."""


nothing: Any = _nothing


def _later(*arguments: object, **named: object) -> Any:
    """A plain function that returns something to await."""
    return _nothing()


later: Any = _later


none: Any = lambda: None  # noqa: E731 - any signature, for the type checker
one: Any = lambda value: None  # noqa: E731


class Hooks:
    """A transformer with one asynchronous hook."""

    def __init__(self, name: str) -> None:
        setattr(self, name, nothing)

    def transform(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        return data


class Contract:
    """A target of one's own with one asynchronous method: the cursor moved, and nothing else."""

    capabilities: Capabilities[Delivery] = Capabilities()

    def __init__(self, name: str) -> None:
        setattr(self, name, nothing)

    def bind(self, stream_id: str, runtime: Runtime = ALONE) -> None: ...

    def recover(self) -> PipeState:
        return PipeState()

    def commit(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None: ...

    def roll_back(self, state: PipeState) -> None: ...

    def close(self) -> None: ...


def stream_of(url: str = "http://x/y") -> PortalStream:
    return portal_stream(
        id="s",
        portal=url,
        outputs={"transfers": evm.events("erc20.Transfer", range=(0, 5))},
        far=10**9,
        poll_interval_s=0.01,
        retry=RetryPolicy(attempts=1),
    )


def ignore(*arguments: object) -> None:
    """A callback that is as it should be."""


GIVEN: dict[str, Callable[[], Any]] = {
    "pipe": lambda: stream_of().pipe(nothing),
    "pipe_batches": lambda: stream_of().pipe_batches(nothing),
    "transform": lambda: stream_of().pipe_batches(Hooks("transform")),
    "start": lambda: stream_of().pipe_batches(Hooks("start")),
    "fork": lambda: stream_of().pipe_batches(Hooks("fork")),
    "stop": lambda: stream_of().pipe_batches(Hooks("stop")),
    "on_finalized": lambda: stream_of().on_finalized("transfers", nothing),
    "create_target write": lambda: create_target(write=nothing),
    "create_target fork": lambda: create_target(write=ignore, fork=nothing),
    "pipe_to_iterator": lambda: pipe_to_iterator(stream_of(), None, nothing),
    "on_event": lambda: stream_of().pipe_to(duckdb_target(":memory:"), on_event=nothing),
    **{
        f"{make.__name__} {name}": lambda make=make, place=place, name=name: make(  # type: ignore[misc]
            place, tables=["transfers"], **{name: nothing}
        )
        for make, place, names in (
            (duckdb_target, ":memory:", ("on_before_rollback", "on_after_rollback")),
            (postgres_target, "postgresql://x/y", ("on_before_rollback", "on_after_rollback")),
            (
                clickhouse_target,
                "http://127.0.0.1:1/x",
                ("on_rollback", "on_before_rollback", "on_after_rollback"),
            ),
        )
        for name in ("on_data", "on_start", *names)
    },
    **{
        f"{make.__name__} on_data": lambda make=make: make(  # type: ignore[misc]
            "lake", tables=["transfers"], on_data=nothing
        )
        for make in (iceberg_target, delta_target, parquet_target)
    },
    **{
        f"contract {name}": lambda name=name: stream_of().pipe_to(Contract(name))  # type: ignore[misc]
        for name in ("bind", "recover", "commit", "roll_back", "close")
    },
    "key of kafka": lambda: kafka("topic", {"bootstrap.servers": "127.0.0.1:1"}, key=nothing),
}


@pytest.mark.parametrize("place", GIVEN)
def test_a_coroutine_function_is_refused_when_it_is_given(place: str) -> None:
    with pytest.raises(AsyncCallbackError, match="E0015"):
        GIVEN[place]()


@pytest.fixture(scope="module")
def portal() -> Iterator[PortalServer]:
    with simulated_portal(seed=11, blocks=20, finality_depth=5) as server:
        yield server


@pytest.mark.parametrize("name", ["on_data", "on_start"])
def test_an_awaitable_result_is_refused_before_anything_is_committed(
    name: str, portal: PortalServer, tmp_path: Path
) -> None:
    target = duckdb_target(tmp_path / "a.duckdb", tables=["transfers"], **{name: later})
    with pytest.raises(AsyncCallbackError, match=f"E0015.*{name} returned a coroutine"):
        stream_of(portal.url).pipe_to(target)
    reader = duckdb_target(tmp_path / "a.duckdb")
    if name == "on_data":
        assert reader.query("SELECT * FROM sync").num_rows == 0


def test_an_awaitable_result_of_a_transform_is_refused(
    portal: PortalServer, tmp_path: Path
) -> None:
    with pytest.raises(AsyncCallbackError, match="E0015"):
        stream_of(portal.url).pipe_batches(later).pipe_to(duckdb_target(tmp_path / "a.duckdb"))
    assert duckdb_target(tmp_path / "a.duckdb").query("SELECT * FROM sync").num_rows == 0


def test_an_awaitable_result_of_write_is_refused(portal: PortalServer) -> None:
    with pytest.raises(AsyncCallbackError, match="write returned a coroutine"):
        stream_of(portal.url).pipe_to(create_target(write=later))


def test_an_awaitable_result_of_an_observer_is_refused(
    portal: PortalServer, tmp_path: Path
) -> None:
    with pytest.raises(AsyncCallbackError, match="on_event returned a coroutine"):
        stream_of(portal.url).pipe_to(duckdb_target(tmp_path / "a.duckdb"), on_event=later)


def test_messages_are_kept_if_deliver_returns_something_to_await(
    portal: PortalServer, tmp_path: Path
) -> None:
    stream = stream_of(portal.url).on_finalized("transfers", later)
    with pytest.raises(AsyncCallbackError, match="deliver returned a coroutine"):
        stream.pipe_to(duckdb_target(tmp_path / "a.duckdb"))
    reader = duckdb_target(tmp_path / "a.duckdb")
    kept = reader.query("SELECT * FROM headwater_outbox_transfers").num_rows
    assert kept == reader.query("SELECT * FROM transfers").num_rows > 0


BAD: dict[str, Callable[[], Any]] = {
    "on_event": lambda: stream_of().pipe_to(duckdb_target(":memory:"), on_event=none),
    "write": lambda: create_target(write=none),
    "fork": lambda: create_target(write=ignore, fork=none),
    "on_fork": lambda: pipe_to_iterator(stream_of(), None, none),
    "on_data": lambda: duckdb_target(":memory:", tables=["t"], on_data=one),
    "on_start": lambda: duckdb_target(":memory:", on_start=none),
    "on_before_rollback": lambda: duckdb_target(":memory:", on_before_rollback=one),
    "on_rollback": lambda: clickhouse_target(
        "http://127.0.0.1:1/x", on_rollback=lambda storage: None
    ),
    "deliver": lambda: stream_of().on_finalized("transfers", none),
}


@pytest.mark.parametrize("name", BAD)
def test_other_arguments_are_refused_when_a_callback_is_given(name: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"E0007.*{name}"):
        BAD[name]()
