"""The client over a real socket: every status, every trap, every version of the protocol."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from threading import Thread
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from headwater.address import Secret
from headwater.errors import (
    InvalidOptionError,
    ModuleFailedError,
    PlaintextEndpointError,
    QuotaExceededError,
    SubstreamsEndpointError,
    SubstreamsMessageError,
    SubstreamsRefusedError,
    SubstreamsUnreachableError,
)
from headwater.portal import Notice, NoticeKind, SystemClock
from headwater.substreams.client import Dialling, Order, SubstreamsClient, pause_s
from headwater.substreams.endpoint import Credentials, Endpoint
from headwater.substreams.messages import (
    CLASSES,
    Message,
    Outputs,
    Progress,
    SessionInit,
    StageProgress,
    UndoSignal,
)
from headwater.testing.substreams import (
    DB_OUT,
    EndpointServer,
    EndsWith,
    FallsSilent,
    GrowsHuge,
    ModuleFails,
    SendsGarbage,
    simulated_endpoint,
)

ORDER = Order(DB_OUT.name, DB_OUT.package(), b"modules")


class QuickClock(SystemClock):
    """Real time, but pauses are only noted."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


class HandClock(QuickClock):
    """Stands still, or goes on by `step` whenever somebody looks; a pause makes it stand still."""

    def __init__(self) -> None:
        super().__init__()
        self.at = self.step = 0.0

    def monotonic(self) -> float:
        self.at += self.step
        return self.at

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.step = 0.0


class Caller:
    """A client, what it heard, and what it told its operator."""

    def __init__(self, server: EndpointServer, order: Order = ORDER, **options: Any) -> None:
        self.clock: QuickClock = options.pop("clock", QuickClock())
        self.notices: list[Notice] = []
        options = {
            "credentials": Credentials(),
            "dialling": Dialling(idle_s=20),
            **options,
        }
        self.client = SubstreamsClient(
            options.pop("endpoint", Endpoint.parse(server.url)),
            order,
            clock=self.clock,
            random=lambda: 0.5,
            on_notice=self.notices.append,
            **options,
        )

    def read(self, stop: int = 10, **place: Any) -> list[Message]:
        try:
            return list(self.client.read(stop=stop, **place))
        finally:
            self.client.close()

    def kinds(self) -> list[NoticeKind]:
        return [notice.kind for notice in self.notices]


def numbers(messages: list[Message]) -> list[int]:
    found = [message for message in messages if isinstance(message, Outputs)]
    return [item.clock.number for message in found for item in message.items]


@pytest.fixture
def server() -> Iterator[EndpointServer]:
    with simulated_endpoint(seed=1, blocks=30, bundle=3) as running:
        yield running


# --- versions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoken", "tried"), [((4, 3, 2), [4]), ((3, 2), [3]), ((2,), [2]), ((4,), [4])]
)
def test_the_newest_version_that_the_endpoint_speaks_is_used(
    spoken: tuple[int, ...], tried: list[int]
) -> None:
    with simulated_endpoint(seed=1, blocks=30, bundle=4, versions=spoken) as server:
        heard = Caller(server).read()
        assert numbers(heard) == list(range(10))
        assert [session.version for session in server.sessions] == tried
        sizes = [len(one.items) for one in heard if isinstance(one, Outputs)]
        assert sizes == ([4, 4, 2] if tried == [4] else [1] * 10)
        assert isinstance(heard[0], SessionInit)
        assert isinstance(heard[1], Progress)
        assert heard[1].stages == (StageProgress(("db_out",), None, 1),)


def test_not_found_at_the_first_message_is_an_older_version_and_later_it_is_fatal() -> None:
    with simulated_endpoint(seed=1, blocks=30, bundle=4) as server:
        server.faults.add(EndsWith(0, "UNIMPLEMENTED"))
        with pytest.raises(SubstreamsRefusedError, match="UNIMPLEMENTED"):
            Caller(server).read()
        server.faults.add(EndsWith(-1, "NOT_FOUND"), EndsWith(-1, "UNIMPLEMENTED"))
        assert numbers(Caller(server).read()) == list(range(10))
        assert [session.version for session in server.sessions] == [4, 4, 3, 2]
        server.faults.add(EndsWith(1, "NOT_FOUND"))
        with pytest.raises(SubstreamsRefusedError, match="NOT_FOUND"):
            Caller(server).read()


def test_no_version_at_all_is_fatal() -> None:
    with simulated_endpoint(seed=1, blocks=30, versions=()) as server:
        caller = Caller(server)
        with pytest.raises(SubstreamsRefusedError, match="UNIMPLEMENTED"):
            caller.read()


def test_a_forced_version_is_the_only_one_tried() -> None:
    with simulated_endpoint(seed=1, blocks=30, versions=(4, 2)) as server:
        caller = Caller(server, dialling=Dialling(version=2))
        assert numbers(caller.read()) == list(range(10))
        assert server.sessions[0].version == 2
        assert server.sessions[0].package_bytes == len(b"modules"), "v2 is sent modules"


def test_what_is_asked_is_what_was_ordered(server: EndpointServer) -> None:
    order = Order(
        "db_out", b"\x28\x01", b"", {"db_out": "x=1"}, "mainnet", production=False, final_only=True
    )
    Caller(server, order).read(start=2)
    (asked,) = server.sessions
    assert (asked.params, asked.network, asked.production) == ({"db_out": "x=1"}, "mainnet", False)
    assert (asked.final_only, asked.start, asked.stop, asked.package_bytes) == (True, 2, 10, 2)


# --- statuses -------------------------------------------------------------------------------------

FATAL = ["UNAUTHENTICATED", "PERMISSION_DENIED", "INVALID_ARGUMENT", "FAILED_PRECONDITION"]
RETRIED = [
    "INTERNAL", "UNKNOWN", "DEADLINE_EXCEEDED", "ABORTED", "UNAVAILABLE", "CANCELLED",
    "RESOURCE_EXHAUSTED", "DATA_LOSS", "OUT_OF_RANGE",
]  # fmt: skip


@pytest.mark.parametrize("status", FATAL)
def test_a_status_that_a_new_session_cannot_mend_is_raised(
    server: EndpointServer, status: str
) -> None:
    server.faults.add(EndsWith(1, status, "because"))
    caller = Caller(server)
    with pytest.raises(SubstreamsRefusedError, match=f"{status}.*because"):
        caller.read()
    assert len(server.sessions) == 1


@pytest.mark.parametrize("status", RETRIED)
@pytest.mark.guarantee("WIRE-8")
def test_any_other_status_is_followed_by_a_session_from_the_cursor(
    server: EndpointServer, status: str
) -> None:
    server.faults.add(EndsWith(0, status), EndsWith(2, status), EndsWith(1, status))
    caller = Caller(server)
    assert numbers(caller.read()) == list(range(10)), "each block once, in order"
    assert len(server.sessions) == 4
    assert server.sessions[1].cursor == ""
    assert server.sessions[2].cursor


@pytest.mark.parametrize("words", ["Quota exceeded for today", "QUOTA EXCEEDED", "quota exceeded"])
def test_a_spent_quota_is_not_asked_again_however_it_is_spelt(
    server: EndpointServer, words: str
) -> None:
    server.faults.add(EndsWith(1, "RESOURCE_EXHAUSTED", words))
    with pytest.raises(QuotaExceededError, match=r"(?i)quota exceeded"):
        Caller(server).read()
    assert len(server.sessions) == 1


def test_a_cut_on_purpose_is_no_failure_and_needs_no_pause(server: EndpointServer) -> None:
    server.faults.add(*[EndsWith(1, "UNAVAILABLE", "cut")] * 3)
    caller = Caller(server, dialling=Dialling(max_retries=0))
    assert numbers(caller.read()) == list(range(10))
    assert caller.clock.slept == []
    assert caller.kinds() == [NoticeKind.RECONNECTED] * 3


@pytest.mark.parametrize("status", ["UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED"])
def test_a_session_that_is_cut_behind_the_last_block_is_not_dialled_again(
    server: EndpointServer, status: str
) -> None:
    """No session can begin at the end of its range: an endpoint would refuse it for good."""
    messages = sum(isinstance(one, Outputs) for one in Caller(server).read())
    server.faults.add(EndsWith(messages, status, "cut"))
    before = len(server.sessions)
    assert numbers(Caller(server).read()) == list(range(10))
    assert len(server.sessions) == before + 1
    assert server.faults.next() is None, "the fault has struck"


def test_retries_are_bounded_only_while_no_block_arrives(server: EndpointServer) -> None:
    bad, late = EndsWith(0, "INTERNAL"), EndsWith(1, "INTERNAL")
    server.faults.add(bad, late, bad, late, bad, late)
    caller = Caller(server, dialling=Dialling(max_retries=2))
    assert numbers(caller.read()) == list(range(10))
    assert NoticeKind.RECOVERED in caller.kinds()
    server.faults.add(bad, bad, bad)
    with pytest.raises(SubstreamsUnreachableError, match=r"3 sessions in a row.*INTERNAL"):
        Caller(server, dialling=Dialling(max_retries=2)).read()


def test_pauses_grow_by_half_to_a_minute_and_half_of_each_is_chance(
    server: EndpointServer,
) -> None:
    server.faults.add(*[EndsWith(0, "INTERNAL")] * 4)
    caller = Caller(server)
    caller.read()
    assert caller.clock.slept == [0.5, 0.75, 1.125, 1.6875]
    assert pause_s(100, lambda: 0.5) == 60
    assert [pause_s(1, lambda: 0.0), pause_s(1, lambda: 1.0)] == [0.25, 0.75]


def test_an_endpoint_that_is_not_there_is_dialled_as_often_as_allowed() -> None:
    with simulated_endpoint(seed=1, blocks=5) as server:
        pass
    caller = Caller(server, dialling=Dialling(max_retries=2))
    with pytest.raises(SubstreamsUnreachableError, match="UNAVAILABLE"):
        caller.read()


def test_a_failed_module_is_shown_with_its_reason_and_logs(server: EndpointServer) -> None:
    server.faults.add(ModuleFails(1, "map_x", "division by zero", ("first", "last")))
    with pytest.raises(ModuleFailedError, match=r"map_x failed: division by zero.*first \| last"):
        Caller(server).read()
    assert len(server.sessions) == 1


@pytest.mark.parametrize("length", [0, 9000, 90_000])
def test_a_module_that_fails_in_a_status_alone_is_shown_with_its_reason(
    server: EndpointServer, length: int
) -> None:
    said = (
        "step new irr: handler step new: execute modules: applying executor results: execute: maps "
        'wasm call: block 12: module "db_out": general wasm execution failed: wasm execution '
        f"failed deterministically: {'at ' * (length // 3)}panic in the wasm: division by zero"
    )
    server.faults.add(EndsWith(1, "INVALID_ARGUMENT", said))
    with pytest.raises(ModuleFailedError, match=r"E3104.*db_out failed.*division by zero") as end:
        Caller(server).read()
    assert ("block 12: general" in str(end.value)) == (not length)
    assert len(server.sessions) == 1


def test_an_endpoint_that_speaks_no_tls_is_told_from_one_that_is_away(
    server: EndpointServer,
) -> None:
    there = Endpoint.parse(server.url.removeprefix("http://"))
    caller = Caller(server, endpoint=there)
    with pytest.raises(PlaintextEndpointError, match=r"E3110.*http://.*--plaintext"):
        caller.read()
    assert caller.clock.slept == []


# --- traps ----------------------------------------------------------------------------------------


@pytest.mark.guarantee("WIRE-8")
def test_silence_ends_a_session_and_the_next_goes_on_from_the_cursor(
    server: EndpointServer,
) -> None:
    server.faults.add(FallsSilent(2))
    clock = HandClock()
    caller = Caller(server, clock=clock, dialling=Dialling(idle_s=0.3))
    heard: list[Message] = []
    for message in caller.client.read(stop=10):
        heard.append(message)
        silent = sum(isinstance(one, Outputs) for one in heard) == 2 and not caller.notices
        clock.step = 0.1 if silent else 0.0  # time passes while nothing comes
    caller.client.close()
    assert numbers(heard) == list(range(10))
    assert len(server.sessions) == 2
    assert "0.3 s of silence" in str(caller.notices[0])


def test_progress_is_no_silence_and_no_data(server: EndpointServer) -> None:
    """At the head only progress arrives; it keeps the session, and resets no counter."""
    clock = HandClock()
    caller = Caller(server, clock=clock, dialling=Dialling(idle_s=0.3))
    reading = caller.client.read(start=28)
    heard = iter(reading)
    found: list[Message] = []
    while sum(isinstance(one, Progress) for one in found) < 12:
        found.append(next(heard))
        clock.at += 0.2
    reading.abort()
    assert list(heard) == []
    caller.client.close()
    assert len(server.sessions) == 1
    assert numbers(found) == [28, 29]


def test_a_message_may_be_larger_than_grpc_allows_by_itself(server: EndpointServer) -> None:
    server.faults.add(GrowsHuge(1, 5 << 20))
    heard = Caller(server).read()
    assert numbers(heard) == list(range(10))
    assert max(one.size for one in heard if isinstance(one, Outputs)) > 5 << 20


def test_the_client_says_that_it_reads_compressed_messages() -> None:
    """Endpoints refuse one that does not. gRPC's own servers do not show the header."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        reading = SubstreamsClient(Endpoint.parse(f"http://127.0.0.1:{port}"), ORDER).read(stop=10)
        Thread(target=lambda: list(reading), daemon=True).start()
        listening.settimeout(60)
        connection, _ = listening.accept()
        with connection:
            connection.settimeout(60)
            connection.sendall(bytes(3) + b"\x04" + bytes(5))  # HTTP/2: empty settings
            name, heard = b"\x14grpc-accept-encoding", b""
            while len(heard.partition(name)[2]) < 40:
                more = connection.recv(1 << 16)
                assert more, "the client hung up before it asked"
                heard += more
            reading.abort()
    accepted = heard.partition(name)[2]  # its length, and what it says
    assert b"gzip" in accepted[1 : 1 + accepted[0]]


def test_a_clean_end_is_the_end_of_the_range_also_below_its_last_number(
    server: EndpointServer,
) -> None:
    """The last numbers of a range may have no block."""
    server.faults.add(EndsWith(2, "OK"))
    caller = Caller(server)
    assert numbers(caller.read()) == list(range(6))
    assert len(server.sessions) == 1
    assert not caller.notices


def test_bytes_that_are_no_message_stop_the_stream(server: EndpointServer) -> None:
    server.faults.add(SendsGarbage(1))
    with pytest.raises(SubstreamsMessageError, match="cannot be read"):
        Caller(server).read()


CLOCK = {"id": "aa", "number": 3}


def said(**content: Any) -> bytes:
    """Return a message of the fourth version."""
    return bytes(CLASSES["v4.Response"](**content).SerializeToString())


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (said(block_scoped_datas={"items": [{"clock": CLOCK}]}), "no cursor or no hash"),
        (said(block_scoped_datas={"items": [{"cursor": "c"}]}), "no cursor or no hash"),
        (said(block_scoped_datas={"items": [{"clock": CLOCK, "cursor": "c", "is_partial": True}]}),
         "a part of a block"),
        (said(block_undo_signal={"last_valid_block": CLOCK}), "an undo signal has no cursor"),
    ],
)  # fmt: skip
def test_a_message_that_lacks_what_each_has_stops_the_stream(
    server: EndpointServer, data: bytes, complaint: str
) -> None:
    server.faults.add(SendsGarbage(1, data))
    with pytest.raises(SubstreamsMessageError, match=f"E3105.*{complaint}"):
        Caller(server).read()
    assert len(server.sessions) == 1


@pytest.mark.parametrize(
    "data",
    [b"", b"\x52\x00", b"\x5a\x00", b"\xfa\x01\x00", said(block_scoped_datas={})],
    ids=["nothing", "a store's snapshot", "its end", "a field to come", "no blocks"],
)
def test_a_message_that_was_not_asked_for_is_passed_over(
    server: EndpointServer, data: bytes
) -> None:
    server.faults.add(SendsGarbage(1, data))
    assert numbers(Caller(server).read()) == list(range(10))
    assert len(server.sessions) == 1


def test_a_session_that_ends_while_the_head_is_followed_is_begun_anew(
    server: EndpointServer,
) -> None:
    """Without a stop there is no end: one that comes cleanly is a cut."""
    server.faults.add(EndsWith(1, "OK"))
    caller = Caller(server)
    reading = caller.client.read(start=25)
    found: list[Message] = []
    for message in reading:
        found.append(message)
        if 29 in numbers(found):
            break
    reading.abort()
    caller.client.close()
    assert numbers(found) == [25, 26, 27, 28, 29]
    assert len(server.sessions) == 2


@pytest.mark.guarantee("UNDO-1")
def test_the_first_message_after_an_orphaned_cursor_is_an_undo(server: EndpointServer) -> None:
    heard = Caller(server).read(stop=30)
    outputs = [item for one in heard if isinstance(one, Outputs) for item in one.items]
    junction = server.chain.fork(3)
    again = Caller(server).read(stop=31, cursor=outputs[-1].cursor)
    data = [one for one in again if isinstance(one, Outputs | UndoSignal)]
    assert isinstance(data[0], UndoSignal)
    assert data[0].last_valid.number == junction.number == 26
    assert numbers(again) == [27, 28, 29, 30]


# --- who asks -------------------------------------------------------------------------------------


def test_over_plaintext_no_credential_is_sent(server: EndpointServer) -> None:
    known = Credentials(Secret("the-api-key"), Secret("the-token"), (("x-tag", Secret("a:b:c")),))
    Caller(server, credentials=known).read()
    sent = server.sessions[0].headers
    assert "x-api-key" not in sent
    assert "authorization" not in sent
    assert sent["x-tag"] == "a:b:c", "a value may hold colons"


def make_certificate() -> tuple[bytes, bytes]:
    """Return a certificate for localhost that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(
        encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.public_bytes(encoding), private


def test_over_tls_the_key_is_sent_and_a_refusal_does_not_show_it() -> None:
    certificate, key = make_certificate()
    with simulated_endpoint(blocks=30, tls=(key, certificate), api_key="the-api-key") as server:
        dialling = Dialling(roots=certificate)
        good = Credentials(Secret("the-api-key"), Secret("the-token"))
        assert numbers(Caller(server, credentials=good, dialling=dialling).read()) == [*range(10)]
        assert "authorization" not in server.sessions[0].headers, "a key is enough"
        wrong = Credentials(Secret("another-key"))
        caller = Caller(server, credentials=wrong, dialling=dialling)
        with pytest.raises(SubstreamsRefusedError, match="UNAUTHENTICATED") as refused:
            caller.read()
        assert "another-key" not in str(refused.value)
        assert "another-key" not in repr(wrong)
        token = Credentials(None, Secret("the-token"))
        with pytest.raises(SubstreamsRefusedError):
            Caller(server, credentials=token, dialling=dialling).read()
        assert server.sessions[-1].headers["authorization"] == "Bearer the-token"


def test_credentials_come_from_the_environment() -> None:
    known = {"SUBSTREAMS_API_KEY": " k1 ", "MY_TOKEN": "t1"}
    read = Credentials.read(token_variable="MY_TOKEN", environment=known)
    assert read.metadata(plaintext=False) == [("x-api-key", "k1")]
    assert Credentials.read(environment={}).metadata(plaintext=False) == []
    with pytest.raises(InvalidOptionError, match="headers"):
        Credentials.read(headers={"": "x"})


@pytest.mark.parametrize("name", ["x note", "x-note-bin", "é"])
@pytest.mark.parametrize("value", ["sécret", "sec\nret"])
def test_what_grpc_cannot_send_is_refused_before_a_session_and_unseen(
    name: str, value: str
) -> None:
    """Each session would fail the same, without end."""
    for given in ({name: "secret"}, {"x-note": value}):
        with pytest.raises(InvalidOptionError, match="E0007") as caught:
            Credentials.read(headers=given, environment={})
        assert "secret" not in str(caught.value)
        assert value not in str(caught.value)
    with pytest.raises(InvalidOptionError, match="SUBSTREAMS_API_KEY") as caught:
        Credentials.read(environment={"SUBSTREAMS_API_KEY": value})
    assert value not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "address", "plaintext"),
    [
        ("eth.example:443", "eth.example:443", False),
        ("https://eth.example", "eth.example:443", False),
        ("http://127.0.0.1:9000/", "127.0.0.1:9000", True),
        ("http://[::1]", "[::1]:80", True),
    ],
)
def test_an_endpoint_is_understood(text: str, address: str, plaintext: bool) -> None:
    assert Endpoint.parse(text) == Endpoint(address, plaintext)


@pytest.mark.parametrize("text", ["eth.example", "ftp://x:1", "https://u:secret@x:1", "x:0", ":9"])
def test_an_endpoint_that_cannot_be_understood_is_refused_unseen(text: str) -> None:
    with pytest.raises(SubstreamsEndpointError) as refused:
        Endpoint.parse(text)
    assert "secret" not in str(refused.value)


def test_a_network_s_endpoint_may_be_configured() -> None:
    known = {"SUBSTREAMS_ENDPOINTS_CONFIG_BASE_MAINNET": "base.example:443"}
    assert Endpoint.parse("", "base-mainnet", known) == Endpoint("base.example:443")
    with pytest.raises(SubstreamsEndpointError, match="SUBSTREAMS_ENDPOINTS_CONFIG_MAINNET"):
        Endpoint.parse("", "mainnet", known)


@pytest.mark.parametrize("options", [{"idle_s": 0}, {"max_retries": -1}, {"version": 5}])
def test_a_way_of_dialling_that_cannot_work_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError):
        Dialling(**options)
