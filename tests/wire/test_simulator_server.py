"""The simulated portal over real sockets: what a client meets, byte by byte."""

import base64
import contextlib
import gzip
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from headwater.cli import main
from headwater.errors import InvalidOptionError
from headwater.testing import (
    Asked,
    ChainSim,
    Delay,
    DropAfter,
    DropBeforeHeaders,
    DuplicateBlock,
    EmptyAnswer,
    EmptySample,
    Fault,
    FinalityRegressed,
    ForeignBlock,
    GarbageLine,
    InvalidUtf8,
    LiveChain,
    MissingBlock,
    Network,
    NewestFirst,
    NoHeadHeaders,
    NonBlockLine,
    NoPreviousBlocks,
    PortalServer,
    PortalSim,
    RetryAfter,
    SampleBelowFinality,
    SampleOfOne,
    ShuffledSample,
    StallAfter,
    StallBeforeHeaders,
    Status,
    SwappedBlocks,
    TornLine,
    WrongFinalityHash,
    simulated_portal,
)
from headwater.testing.faults import FAULTS, RETRYABLE_STATUSES
from tests.shared import HANG_S

QUERY = {
    "type": "evm",
    "fields": {"block": {"number": True, "hash": True, "parentHash": True}},
    "includeAllBlocks": True,
}


class Answer:
    """A whole answer, or what arrived of it before the connection broke."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {key.lower(): value for key, value in response.getheaders()}
        self.broken: Exception | None = None
        try:
            self.body = response.read()
        except http.client.IncompleteRead as error:
            self.body, self.broken = error.partial, error
        except OSError as error:
            self.body, self.broken = b"", error

    @property
    def numbers(self) -> list[int]:
        return [json.loads(line)["header"]["number"] for line in self.body.splitlines()]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One connection to a server, kept alive."""

    def __init__(self, portal: PortalServer, timeout: float = 10.0) -> None:
        address = urlsplit(portal.url)
        self.path = address.path
        self.connection = http.client.HTTPConnection(
            str(address.hostname), address.port, timeout=timeout
        )

    def send(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        self.connection.request(method, path, raw, headers or {})
        return Answer(self.connection.getresponse())

    def get(self, route: str) -> Answer:
        return self.send("GET", f"{self.path}/{route}")

    def ask(self, from_block: int = 0, *, route: str = "stream", **query: Any) -> Answer:
        return self.send(
            "POST", f"{self.path}/{route}", {**QUERY, "fromBlock": from_block, **query}
        )

    def control(self, action: str, body: Any = None) -> Answer:
        return self.send("GET" if body is None else "POST", f"/control/{action}", body)


@pytest.fixture
def portal() -> Iterator[PortalServer]:
    with simulated_portal(seed=7, blocks=50, finality_depth=20) as server:
        yield server


@pytest.fixture
def client(portal: PortalServer) -> Iterator[Client]:
    with contextlib.closing(Client(portal).connection) as connection:
        one = Client(portal)
        one.connection = connection
        yield one


def hit(portal: PortalServer, client: Client, fault: Fault, **query: Any) -> Answer:
    portal.sim.faults.add(fault)
    answer = client.ask(**query)
    assert portal.ledger[-1].fault == str(fault)
    return answer


# --- routes ---------------------------------------------------------------------------------------


def test_every_route_answers_over_one_connection(portal: PortalServer, client: Client) -> None:
    chain = portal.chain
    assert client.get("metadata?expand[]=metadata").json["metadata"]["kind"] == "evm"
    assert client.get("head").json == {"number": 49, "hash": chain.head.hash}
    assert client.get("finalized-head").json["number"] == 29
    when = chain.canonical(7, 7)[0].timestamp
    assert client.get(f"timestamps/{when}/block").json == {"block_number": 7}
    assert client.ask(40).numbers == list(range(40, 50))
    assert client.ask(20, route="finalized-stream").numbers == list(range(20, 30))
    assert client.control("state").json["head"]["number"] == 49
    assert client.connection.sock is not None


def test_blocks_are_chunked_and_carry_the_head(portal: PortalServer, client: Client) -> None:
    answer = client.ask()
    assert answer.headers["transfer-encoding"] == "chunked"
    assert answer.headers["content-type"] == "application/jsonl"
    assert answer.headers["x-sqd-head-number"] == "49"
    assert answer.headers["x-sqd-finalized-head-number"] == "29"
    assert answer.numbers == list(range(50))


def test_every_status_has_its_form(portal: PortalServer, client: Client) -> None:
    nothing = client.ask(50, parentBlockHash=portal.chain.head.hash)
    assert (nothing.status, nothing.body) == (204, b"")
    assert nothing.headers["x-sqd-head-number"] == "49"
    conflict = client.ask(50, parentBlockHash="0x1")
    assert conflict.status == 409
    assert len(conflict.json["previousBlocks"]) == 50
    assert client.get("timestamps/99999999999/block").status == 404
    assert client.get("nowhere").status == 404
    assert client.send("GET", "/datasets/other/head").status == 404
    assert client.send("GET", "/").status == 404
    assert client.get("stream").status == 405
    refused = client.send("POST", f"{client.path}/stream", b"{")
    assert refused.status == 400
    assert b"JSON" in refused.body
    assert client.send("POST", f"{client.path}/stream", b" " * 300_000).status == 400


def test_a_huge_upload_is_cut_off(portal: PortalServer, client: Client) -> None:
    headers = {"content-length": str(1 << 30)}
    assert client.send("POST", f"{client.path}/stream", None, headers).status == 413


def test_gzip_arrives_compressed(portal: PortalServer, client: Client) -> None:
    plain = client.ask().body
    path, body = f"{client.path}/stream", {**QUERY, "fromBlock": 0}
    answer = client.send("POST", path, body, {"accept-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert gzip.decompress(answer.body) == plain


def test_several_clients_are_served_at_once(portal: PortalServer) -> None:
    found: list[list[int]] = []

    def read() -> None:
        one = Client(portal)
        with contextlib.closing(one.connection):
            found.extend(one.ask(first).numbers for first in range(50))

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted([list(range(first, 50)) for first in range(50)] * 6)
    assert len(portal.ledger) == 300


def test_other_datasets_live_on_the_same_port(portal: PortalServer, client: Client) -> None:
    other = ChainSim(3, network=Network.SOLANA)
    url = portal.add_dataset(PortalSim(other, dataset="solana"))
    assert url.endswith("/datasets/solana")
    found = client.send("GET", "/datasets/solana/metadata").json
    assert found["dataset"] == "solana"
    assert client.send("POST", "/control/extend?dataset=solana", {"count": 4}).status == 200
    assert other.head.height == other.canonical()[0].height + 4
    assert client.send("GET", "/control/state?dataset=none").status == 404
    with pytest.raises(InvalidOptionError):
        portal.add_dataset(PortalSim(other, dataset="solana"))


# --- faults, at the byte level --------------------------------------------------------------------


@pytest.mark.parametrize("reset", [False, True])
def test_a_connection_dropped_before_the_headers(
    portal: PortalServer, client: Client, reset: bool
) -> None:
    expected = ConnectionResetError if reset else http.client.RemoteDisconnected
    portal.sim.faults.add(DropBeforeHeaders(reset=reset))
    with pytest.raises(expected):
        client.ask()
    client.connection.close()
    assert client.ask().status == 200


def test_a_body_dropped_after_exactly_so_many_bytes(portal: PortalServer, client: Client) -> None:
    whole = client.ask().body
    answer = hit(portal, client, DropAfter(777))
    assert isinstance(answer.broken, http.client.IncompleteRead)
    assert answer.body == whole[:777]


def test_a_body_of_known_length_dropped_early(portal: PortalServer, client: Client) -> None:
    answer = hit(portal, client, DropAfter(10), from_block=50, parentBlockHash="0x1")
    assert answer.status == 409
    assert len(answer.body) == 10
    assert answer.broken is not None


def test_a_body_reset_in_the_middle(portal: PortalServer, client: Client) -> None:
    portal.sim.faults.add(DropAfter(777, reset=True))
    with contextlib.suppress(ConnectionResetError):  # may come before or after the headers
        assert client.ask().broken is not None
    client.connection.close()
    assert client.ask().broken is None


@pytest.mark.parametrize("fault", [StallBeforeHeaders(), StallAfter(100)], ids=str)
def test_a_stall_hangs_until_the_client_gives_up(portal: PortalServer, fault: Fault) -> None:
    portal.sim.faults.add(fault)
    impatient = Client(portal, timeout=0.2)
    with contextlib.closing(impatient.connection):
        try:
            broken = impatient.ask().broken
        except TimeoutError as error:
            broken = error
    assert isinstance(broken, TimeoutError)
    again = Client(portal)
    with contextlib.closing(again.connection):
        assert again.ask().status == 200


def test_a_slow_answer_is_slow(portal: PortalServer, client: Client) -> None:
    began = time.monotonic()
    assert hit(portal, client, Delay(0.15)).status == 200
    assert time.monotonic() - began >= 0.15


@pytest.mark.parametrize("code", [400, 404, 500, *RETRYABLE_STATUSES])
def test_any_status_can_be_sent(portal: PortalServer, client: Client, code: int) -> None:
    answer = hit(portal, client, Status(code, RetryAfter.SECONDS, seconds=3))
    assert (answer.status, answer.headers["retry-after"]) == (code, "3")
    assert "retry-after" not in hit(portal, client, Status(code)).headers
    assert client.ask().status == 200


def test_lines_go_wrong_on_the_wire(portal: PortalServer, client: Client) -> None:
    honest = client.ask().body.splitlines(keepends=True)
    torn = hit(portal, client, TornLine(at=3)).body
    assert torn.startswith(b"".join(honest[:3]))
    assert not torn.endswith(b"\n")
    assert hit(portal, client, GarbageLine(at=3)).body.splitlines()[3].startswith(b"<html>")
    assert b"\xff\xfe" in hit(portal, client, InvalidUtf8(at=3)).body
    assert b'"error"' in hit(portal, client, NonBlockLine(at=3)).body
    assert hit(portal, client, DuplicateBlock(at=3)).body.splitlines(True)[4] == honest[3]
    assert hit(portal, client, MissingBlock(at=3)).body == b"".join(honest[:3] + honest[4:])
    assert hit(portal, client, SwappedBlocks(at=3)).numbers[2:6] == [2, 4, 3, 5]
    assert hit(portal, client, ForeignBlock(at=3)).body.splitlines(True)[3] != honest[3]
    empty = hit(portal, client, EmptyAnswer())
    assert (empty.status, empty.body) == (200, b"")


def test_conflicts_go_wrong_on_the_wire(portal: PortalServer, client: Client) -> None:
    def conflict(fault: Fault) -> Any:
        answer = hit(portal, client, fault, from_block=45, parentBlockHash="0x1")
        assert answer.status == 409
        return [one["number"] for one in answer.json.get("previousBlocks", [{"number": -1}])]

    assert conflict(EmptySample()) == []
    assert conflict(SampleOfOne()) == [44]
    assert conflict(NewestFirst()) == list(range(44, -1, -1))
    assert sorted(conflict(ShuffledSample())) == list(range(45))
    assert conflict(SampleBelowFinality()) == list(range(29))
    assert conflict(NoPreviousBlocks()) == [-1]


def test_heads_go_wrong_on_the_wire(portal: PortalServer, client: Client) -> None:
    name = "x-sqd-finalized-head-hash"
    assert hit(portal, client, WrongFinalityHash()).headers[name] != client.ask().headers[name]
    old = hit(portal, client, FinalityRegressed(by=9)).headers
    assert old["x-sqd-finalized-head-number"] == "20"
    assert name not in hit(portal, client, NoHeadHeaders()).headers


def test_this_file_meets_every_fault_there_is() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [kind.__name__ for kind in FAULTS.values() if f"{kind.__name__}(" not in text] == []


# --- control --------------------------------------------------------------------------------------


def test_the_chain_is_driven_from_outside(portal: PortalServer, client: Client) -> None:
    old = portal.chain.head
    assert client.control("extend", {"count": 5}).json["head"]["number"] == 54
    state = client.control("fork", {"depth": 6, "length": 8}).json
    assert state["forks"] == [{"ancestor": 48, "depth": 6}]
    assert state["head"]["number"] == 56
    assert client.ask(50, parentBlockHash=old.hash).status == 409
    assert client.control("finalize", {"number": 52}).json["finalized"]["number"] == 52
    assert client.control("fork", {"depth": 20}).status == 400
    assert client.control("fork", {"depth": 20, "force": True}).status == 200


def test_replicas_and_faults_are_set_from_outside() -> None:
    with simulated_portal(seed=7, blocks=50, replicas=2) as portal:
        one = Client(portal)
        with contextlib.closing(one.connection):
            one.control("replica", {"index": 1, "follow": "lagging", "behind": 10})
            assert [one.get("head").json["number"] for _ in range(2)] == [49, 39]
            one.control("replica", {"index": 1, "pin": 2})
            assert [one.get("head").json["number"] for _ in range(3)] == [39, 39, 49]
            one.control("replica", {"index": 1, "finality": "hidden", "follow": "frozen"})
            one.control("replica", {"index": 1, "pin": 1})
            assert one.get("finalized-head").json is None
            one.control("replica", {"index": 1, "follow": "live"})
            when = {"route": "head", "nth": 2, "from_block": None}
            state = one.control("faults", {"fault": "status", "code": 529, "when": when}).json
            assert state["faults"] == ["status-529"]
            assert [one.get("head").status for _ in range(3)] == [200, 529, 200]
            one.control("faults", {"fault": "torn-line", "when": {"times": None}})
            assert one.control("faults", {"clear": True}).json["faults"] == []


def test_the_ledger_is_read_from_outside(portal: PortalServer, client: Client) -> None:
    client.ask(3)
    client.get("head")
    found = client.control("ledger").json
    assert [(one["route"], one["status"]) for one in found] == [("stream", 200), ("head", 200)]
    assert found[0]["from_block"] == 3


@pytest.mark.parametrize(
    ("action", "body", "status"),
    [
        ("extend", b"{", 400),
        ("extend", [], 400),
        ("extend", {"count": "many"}, 400),
        ("extend", {"blocks": 3}, 400),
        ("finalize", {}, 400),
        ("pause", {}, 400),
        ("replica", {"index": 9}, 400),
        ("replica", {"follow": "nobody"}, 400),
        ("faults", {"fault": "gremlins"}, 400),
        ("faults", {"fault": "torn-line", "when": {"nth": "third"}}, 400),
        ("dance", {}, 404),
        ("dance", None, 404),
    ],
)
def test_a_control_request_that_makes_no_sense_changes_nothing(
    portal: PortalServer, client: Client, action: str, body: Any, status: int
) -> None:
    before = client.control("state").json
    answer = client.control(action, body)
    assert answer.status == status
    assert answer.json["error"]
    assert client.control("state").json == before


# --- auth, life and death -------------------------------------------------------------------------


def test_with_a_password_only_those_who_know_it_are_let_in() -> None:
    with simulated_portal(seed=7, auth=("user", "secret")) as portal:
        one = Client(portal)
        with contextlib.closing(one.connection):
            refused = one.get("head")
            assert refused.status == 401
            assert refused.headers["www-authenticate"].startswith("Basic")
            for pair, status in (("user:wrong", 401), ("user:secret", 200)):
                token = base64.b64encode(pair.encode()).decode()
                headers = {"authorization": f"Basic {token}"}
                assert one.send("GET", f"{one.path}/head", None, headers).status == status
        assert len(portal.ledger) == 1


def test_a_server_that_stops_waits_for_no_client_that_hangs_waits_or_idles() -> None:
    before = set(threading.enumerate())  # of portals that other tests of this process share
    with simulated_portal(seed=7, blocks=200, no_content_delay=3600) as portal:
        arrived = threading.Semaphore(0)

        def notice(asked: Asked) -> bool:
            arrived.release()
            return False

        portal.sim.faults.add(Status(500), where=notice, times=None)
        portal.sim.faults.add(StallBeforeHeaders()).add(StallAfter(10))
        idle = socket.create_connection(("127.0.0.1", urlsplit(portal.url).port or 0))
        clients = [Client(portal) for _ in range(3)]
        outcomes: list[str] = []

        def hang(one: Client, first: int) -> None:
            try:
                outcomes.append("broken" if one.ask(first).broken else "answered")
            except (http.client.HTTPException, OSError):
                outcomes.append("refused")

        threads = []
        for turn, one in enumerate(clients):
            thread = threading.Thread(target=hang, args=(one, 200 if turn == 2 else 0))
            thread.start()
            threads.append(thread)
            assert arrived.acquire(timeout=HANG_S)
    for thread in threads:
        thread.join()
    for one in clients:
        one.connection.close()
    idle.close()
    assert len(outcomes) == 3
    assert set(threading.enumerate()) <= before


def test_a_request_for_the_next_block_is_held_until_the_chain_moves() -> None:
    with simulated_portal(seed=7, blocks=30, no_content_delay=60) as portal:
        chain, answers = portal.chain, list[Answer]()

        def ask() -> None:
            one = Client(portal, timeout=HANG_S)
            answers.append(one.ask(30, parentBlockHash=chain.canonical(29)[0].hash))
            one.connection.close()

        for change in (portal.extend, lambda: portal.fork(2)):
            waiting = threading.Thread(target=ask)
            asked = len(portal.ledger)
            waiting.start()
            while len(portal.ledger) == asked:
                time.sleep(0.001)  # until the request has been seen, and found no block
            assert portal.ledger[-1].status == 204
            change()
            waiting.join()
            portal.fork(1, 0)  # the head is block 29 again
        assert [(one.status, one.numbers) for one in answers[:1]] == [(200, [30])]
        assert answers[1].status == 409


def test_a_stopped_server_frees_its_port_and_an_occupied_one_is_an_error() -> None:
    with simulated_portal(seed=7) as portal:
        port = urlsplit(portal.url).port or 0
        with pytest.raises(InvalidOptionError), simulated_portal(seed=7, port=port):
            pass
    with simulated_portal(seed=7, port=port) as again:
        assert urlsplit(again.url).port == port


def test_a_live_chain_grows_forks_and_finalizes_above_finality() -> None:
    def run() -> ChainSim:
        chain = ChainSim(5)
        live = LiveChain(chain, seed=5, finality_depth=4, fork_rate=0.4)
        for _ in range(300):
            before = chain.finalized
            forked = live.step()
            assert forked is None or before is None or forked.ancestor.number >= before.number
        return chain

    chain = run()
    assert chain.head.number == 300
    assert chain.finalized is not None
    assert chain.finalized.number == 296
    assert {fork.depth for fork in chain.forks} >= {1, 2, 3, 4}
    assert run().head == chain.head
    with pytest.raises(InvalidOptionError):
        LiveChain(chain, interval=0)


def test_a_live_chain_moves_by_itself_and_can_be_paused_from_outside() -> None:
    chain = ChainSim(5)
    live = LiveChain(chain, interval=0.002, finality_depth=5)
    with PortalServer(PortalSim(chain), live=live) as portal:
        one = Client(portal)
        with contextlib.closing(one.connection):
            while one.get("head").json["number"] < 20:
                pass
            assert one.control("pause", {"paused": True}).json["paused"]
            assert not one.control("pause", {"paused": False}).json["paused"]
            while one.get("head").json["number"] < 30:
                pass
    assert not live.paused
    assert not any("live-chain" in thread.name for thread in threading.enumerate())


def test_a_portal_is_driven_from_python_too(portal: PortalServer, client: Client) -> None:
    old = portal.chain.head
    assert [block.number for block in portal.extend(2)] == [50, 51]
    assert portal.fork(4).number == 47
    assert portal.finalize(48).number == 48
    assert client.ask(50, parentBlockHash=old.hash).status == 409


def test_a_portal_may_have_no_finality_at_first() -> None:
    with simulated_portal(seed=7, blocks=5, finality_depth=20) as portal:
        assert portal.chain.finalized is None


# --- the command ----------------------------------------------------------------------------------


def headwater(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "from headwater.cli import main; main()", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_as_in_the_foreground,
    )


def _as_in_the_foreground() -> None:
    """Hear of SIGINT, which shells have processes in the background ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_simulate_serves_what_it_says_and_stops_by_itself() -> None:
    options = ["--for", "2", "--interval", "0.05", "--blocks", "60", "--fork-rate", "0.4"]
    with contextlib.ExitStack() as open_until_the_end:
        processes = [
            open_until_the_end.enter_context(
                headwater("simulate", *options, "--replicas", "2", "--network", network)
            )
            for network in ("evm", "solana")
        ]
        for process in processes:
            assert process.stdout is not None
            url = process.stdout.readline().split()[1]
            process.stdout.readline()
            curl = process.stdout.readline()
            query = re.search(r"-d '(.*)' \|", curl)
            assert query is not None
            with urllib.request.urlopen(
                f"{url}/stream", query[1].encode(), timeout=HANG_S
            ) as answer:
                assert answer.status == HTTPStatus.OK
                assert len(answer.read().splitlines()) > 50
        for process in processes:
            out, err = process.communicate(timeout=HANG_S)
            assert process.returncode == 0
            assert err == ""
            assert re.search(r"stopped: head \d+, finalized \d+, forks \d+ .*, requests 200:1", out)


@pytest.mark.parametrize("terminal", [False, True])
def test_simulate_shows_lines_or_on_a_terminal_a_table(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    options = ["--for", "0.3", "--interval", "0.01", "--fork-rate", "0.5", "--blocks", "30"]
    monkeypatch.setattr(sys, "argv", ["headwater", "simulate", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert ("requests by status" in out) == terminal
    assert ("replaced" in out) == terminal
    assert "stopped: head" in out


def test_main_turns_a_coded_error_into_exit_code_1(
    portal: PortalServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port = str(urlsplit(portal.url).port)
    monkeypatch.setattr(sys, "argv", ["headwater", "simulate", "--port", port])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("[E0007] port must be free")


def test_simulate_ends_cleanly_when_interrupted() -> None:
    with headwater("simulate") as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("head "):
            pass
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=HANG_S)
    assert (process.returncode, err) == (0, "")
    assert "stopped:" in out


def test_a_coded_error_is_a_short_message_and_exit_code_1(portal: PortalServer) -> None:
    with headwater("simulate", "--port", str(urlsplit(portal.url).port)) as process:
        _, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 1
    assert err.startswith("[E0007] port must be free")
    assert "Traceback" not in err


def test_help_teaches_with_an_example() -> None:
    with headwater("simulate", "--help") as process:
        out, _ = process.communicate(timeout=HANG_S)
    assert "headwater simulate --seed 7" in out
    assert "--fork-rate" in out
