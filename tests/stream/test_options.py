"""Options of a stream: checked when it is made, and obeyed on the driver and on executors."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest

from headwater import evm
from headwater.core import BlockRange, SpanLimits
from headwater.errors import InvalidOptionError, PortalUnreachableError, PortalUrlError
from headwater.portal import RetryPolicy, Timeouts, portal_address
from headwater.spark.parts import Part, PartReader, TableRows
from headwater.stream import PortalStream, portal_stream
from headwater.targets import MemoryTarget, duckdb_target
from headwater.testing import simulated_portal
from headwater.testing.faults import StallBeforeHeaders

OUTPUT = evm.events("erc20.Transfer")
QUICK: dict[str, Any] = {
    "retry": RetryPolicy(schedule_s=(0.01,), attempts=2),
    "timeouts": Timeouts(headers_s=0.2),
}


def stream_of(portal: str = "http://x/y", **options: Any) -> PortalStream:
    return portal_stream(id="s", portal=portal, outputs={"transfers": OUTPUT}, **options)


@pytest.mark.parametrize("address", ["", "portal.sqd.dev/x", "ftp://x/y", "http://", None, 7])
def test_an_address_that_is_none_is_refused_when_the_stream_is_made(address: Any) -> None:
    with pytest.raises(PortalUrlError, match="E0004"):
        stream_of(address)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("far", 0),
        ("far", "1000"),
        ("first_span", -1),
        ("spans", 500),
        ("poll_interval_s", 0),
        ("poll_interval_s", "1"),
        ("max_bytes", 0),
        ("retry", 5),
        ("timeouts", 10.0),
    ],
)
def test_an_option_that_cannot_work_is_refused_when_the_stream_is_made(
    name: str, value: Any
) -> None:
    with pytest.raises(InvalidOptionError, match="E0007"):
        stream_of(**{name: value})


@pytest.mark.parametrize(
    "limit", [{"blocks": 0}, {"bytes": 0}, {"rows": 1.5}, {"seconds": 0}], ids=str
)
def test_limits_of_spans_that_cannot_work_are_refused(limit: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError, match="E0007"):
        SpanLimits(**limit)


def test_an_option_that_does_not_exist_is_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="farr"):
        stream_of(farr=1)


def test_timeouts_and_attempts_of_a_stream_count_on_the_driver(tmp_path: Path) -> None:
    """The defaults would wait for 20 seconds at a time, and for ever."""
    with simulated_portal(seed=1, blocks=5) as portal:
        portal.sim.faults.add(StallBeforeHeaders(), times=None, route="stream")
        with pytest.raises(PortalUnreachableError, match=r"E3002.*2 times.*timeout_s=0.2"):
            stream_of(portal.url, **QUICK).pipe_to(duckdb_target(tmp_path / "a.duckdb"))


class SeenError(Exception):
    """Ends a run where a span would be read."""


def test_timeouts_and_attempts_of_a_stream_reach_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    wanted = QUICK | {"timeouts": Timeouts(headers_s=77)}

    def read_span(*arguments: object, **named: Any) -> None:
        given.update(named)
        raise SeenError

    monkeypatch.setattr("headwater.stream.assemble.read_span", read_span)
    session: Any = SimpleNamespace(version=pyspark.__version__)
    with (
        simulated_portal(seed=1, blocks=60, finality_depth=5) as portal,
        pytest.raises(SeenError),
    ):
        stream_of(portal.url, far=10, spark=session, **wanted).pipe_to(MemoryTarget())
    assert {name: given[name] for name in wanted} == wanted


def test_timeouts_and_attempts_count_where_a_task_runs() -> None:
    with simulated_portal(seed=1, blocks=30, finality_depth=5) as portal:
        address = portal_address(portal.url)
        ranges = tuple(one.resolve() for one in OUTPUT.ranges)
        rows = TableRows({"transfers": OUTPUT}, {"transfers": ranges})
        made = PartReader(address, OUTPUT.query, rows, dataset=None, **QUICK)
        reader: PartReader = pickle.loads(pickle.dumps(made))
        portal.sim.faults.add(StallBeforeHeaders(), times=None)
        with pytest.raises(PortalUnreachableError, match=r"E3002.*timeout_s=0.2"):
            list(reader.read(Part(0, BlockRange(0, 20))))
