"""What a running pipeline shows over HTTP, and to whom."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry

from headwater import evm
from headwater.core import BlockCursor
from headwater.dashboard import Dashboard, serve
from headwater.dashboard.server import parse_address
from headwater.errors import DashboardAddressError
from headwater.metrics import BatchFacts, StreamRecord
from headwater.stream import StreamHandle, portal_stream
from headwater.targets import duckdb_target
from headwater.testing import simulated_portal
from tests.shared import HANG_S


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> StreamHandle:
    """A stream that has read its range."""
    with simulated_portal(seed=2, blocks=40, finality_depth=10) as portal:
        stream = portal_stream(
            id="shown", portal=portal.url, outputs={"transfers": evm.events(
                "erc20.Transfer", range=(0, 39))},
        )  # fmt: skip
        handle = stream.start(duckdb_target(tmp_path_factory.mktemp("d") / "a.duckdb"))
        assert handle.await_termination(300)
    return handle


@pytest.fixture
def dashboard(handle: StreamHandle) -> Iterator[Dashboard]:
    with Dashboard(0, streams=lambda: {"shown": handle.record}) as server:
        yield server


def get(
    dashboard: Dashboard, path: str, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = HTTPConnection("127.0.0.1", dashboard.port, timeout=HANG_S)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, {key.lower(): value for key, value in answer.getheaders()}, body


def read(dashboard: Dashboard, path: str) -> Any:
    status, _, body = get(dashboard, path)
    assert status == 200
    return json.loads(body)


def test_the_page_needs_nothing_from_elsewhere(dashboard: Dashboard) -> None:
    status, headers, body = get(dashboard, "/")
    assert status == 200
    assert headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in headers["content-security-policy"]
    text = body.decode().replace("http://www.w3.org/2000/svg", "")
    assert "http://" not in text
    assert "https://" not in text


def test_metrics_are_those_of_the_registry(dashboard: Dashboard) -> None:
    status, _, body = get(dashboard, "/metrics")
    assert status == 200
    assert b'headwater_cursor_block{id="shown"} 39.0' in body
    assert b'sqd_processed_block{id="shown"} 39.0' in body


def test_the_api_shows_where_each_stream_stands(dashboard: Dashboard) -> None:
    (shown,) = read(dashboard, "/api/streams")
    assert (shown["id"], shown["status"], shown["cursor"]["number"]) == ("shown", "done", 39)
    assert shown["rows"] == sum(one["rows"] for one in shown["recent_blocks"])
    assert shown["percent"] == 100.0
    assert read(dashboard, "/api/preview?id=shown")["transfers"][0]["block_number"] <= 39
    assert read(dashboard, "/api/preview?id=unknown") == {}


def test_the_routes_of_the_pipes_sdk_answer_in_its_form(dashboard: Dashboard) -> None:
    stats = read(dashboard, "/stats")["payload"]
    assert {"sdk", "runtime", "entrypoint", "usage", "pipes"} == set(stats)
    (pipe,) = stats["pipes"]
    assert {"from", "current", "to", "percent", "etaSeconds"} == set(pipe["progress"])
    assert pipe["progress"]["current"] == 39
    profile = read(dashboard, "/profiler?id=shown&from=1970-01-01T00:00:00.000Z")["payload"]
    assert profile["enabled"] is True
    tree = profile["profiles"][-1]
    assert {"commit", "transform"} <= {one["name"] for one in tree["children"]}
    assert read(dashboard, "/profiler?from=2999-01-01T00:00:00Z")["payload"]["profiles"] == []
    preview = read(dashboard, "/preview/transformation?id=shown")["payload"]
    assert preview["batch"]["to"] == 39
    assert preview["transformation"]["children"][0]["name"] == "transfers"


def test_health_tells_of_a_stream_that_failed() -> None:
    record = StreamRecord("ill", registry=CollectorRegistry())
    with Dashboard(0, streams=lambda: {"ill": record}) as dashboard:
        assert get(dashboard, "/health")[::2] == (200, b"ok")
        record.ended(ValueError("broken"))
        assert get(dashboard, "/health")[::2] == (503, b"failed: ill")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::1"]
)
def test_another_host_name_is_not_answered(dashboard: Dashboard, host: str) -> None:
    """A page elsewhere that makes its name point at this machine reads nothing."""
    status, _, body = get(dashboard, "/api/streams", Host=host)
    assert status == 403
    assert b"shown" not in body


def test_a_page_of_another_origin_reads_nothing(dashboard: Dashboard) -> None:
    for origin in ("https://evil.example", "null", "http://[", "http://localhost.evil.example"):
        assert get(dashboard, "/api/streams", Origin=origin)[0] == 403
    status, headers, _ = get(dashboard, "/stats", Origin="http://localhost:3000")
    assert (status, headers["access-control-allow-origin"]) == (200, "http://localhost:3000")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(dashboard: Dashboard, method: str) -> None:
    assert get(dashboard, "/api/streams", method)[0] == 501


def test_a_head_request_has_no_body_and_an_unknown_path_is_not_found(dashboard: Dashboard) -> None:
    assert get(dashboard, "/stats", "HEAD")[::2] == (200, b"")
    assert get(dashboard, "/etc/passwd")[0] == 404
    assert get(dashboard, "//[")[0] == 404


def test_it_listens_on_ipv6_too() -> None:
    with Dashboard("[::1]:0", streams=dict) as dashboard:
        connection = HTTPConnection("::1", dashboard.port, timeout=HANG_S)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()


def test_a_browser_reads_every_value_of_the_preview_as_it_is() -> None:
    """Integers above 2^53 would be rounded, and NaN is no JSON at all."""
    record = StreamRecord("wide", registry=CollectorRegistry())
    values = {"n": 2**63 - 1, "f": math.nan, "b": b"\x01\xff", "s": 5, "l": [2**60, 1]}
    rows = pa.Table.from_pylist([values])
    cursor = BlockCursor(1, "h")
    record.facts = BatchFacts(1, cursor, 0, None, None, None, None, tables={"t": rows})
    with Dashboard(0, streams=lambda: {"wide": record}) as dashboard:
        _, _, body = get(dashboard, "/api/preview")
    shown = json.loads(body, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert shown["t"][0] == {
        "n": "9223372036854775807", "f": "nan", "b": "0x01ff", "s": 5, "l": [str(2**60), 1],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        (9090, ("127.0.0.1", 9090)),
        ("9090", ("127.0.0.1", 9090)),
        (":9090", ("127.0.0.1", 9090)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_addresses_are_read(address: int | str, parsed: tuple[str, int]) -> None:
    assert parse_address(address) == parsed


@pytest.mark.parametrize("address", ["", "port", "1:2:x", 70_000, True, "localhost:"])
def test_an_address_that_is_none_is_refused_before_anything_starts(
    address: int | str, tmp_path: Path
) -> None:
    stream = portal_stream(
        id="s", portal="http://localhost:1/x", outputs={"t": evm.events("erc20.Transfer")}
    )
    with pytest.raises(DashboardAddressError):
        stream.pipe_to(duckdb_target(tmp_path / "a.duckdb"), dashboard=address)
    assert not list(tmp_path.iterdir())


def test_a_port_in_use_is_an_error_that_names_it(dashboard: Dashboard) -> None:
    with pytest.raises(DashboardAddressError, match=str(dashboard.port)):
        serve(f"127.0.0.1:{dashboard.port}")


def test_files_for_grafana_and_prometheus_ask_for_metrics_that_exist(dashboard: Dashboard) -> None:
    folder = Path(__file__).parents[2] / "monitoring"
    board = json.loads((folder / "grafana.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    rules = (folder / "alerts.yml").read_text(encoding="utf-8")
    asked += re.findall(r"expr: (.+)", rules)
    names = {name for text in asked for name in re.findall(r"headwater_\w+", text)}
    offered = set(
        re.findall(r"^# (?:HELP|TYPE) (\w+)", get(dashboard, "/metrics")[2].decode(), re.M)
    )
    assert len(board["panels"]) == 12
    assert len(names) > 10
    assert {re.sub("_bucket$", "", name) for name in names} <= offered


def test_streams_of_one_process_share_a_dashboard() -> None:
    first = serve(0)
    assert serve(0) is first
    assert get(first, "/health")[0] in (200, 503)
