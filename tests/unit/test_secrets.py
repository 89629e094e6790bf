"""Users, passwords and keys: nothing that holds one shows it, whatever becomes of its address."""

from __future__ import annotations

import logging
import pickle
import pprint
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from threading import Thread

import pytest

from headwater import evm, portal_stream
from headwater.effects import kafka, webhook
from headwater.effects.message import Message
from headwater.errors import HeadwaterError, SourceOptionError
from headwater.portal import PortalClient, RetryPolicy
from headwater.stream.substreams import substreams_stream
from headwater.substreams.endpoint import API_KEY, API_TOKEN, Credentials
from headwater.targets import delta_target, history_target, iceberg_target, parquet_target
from headwater.targets.admin import open_admin
from headwater.targets.clickhouse import ClickHouseSettings, clickhouse_target
from headwater.targets.duckdb import DuckDBSettings
from headwater.targets.postgres import postgres_target
from headwater.testing import simulated_portal
from headwater.testing.substreams import DB_OUT

SECRETS = ("s3cr3t", "w0rd")
OUTPUTS = {"transfers": evm.events("erc20.Transfer")}
STORAGE = {"s3.access-key-id": "s3cr3t", "s3.secret-access-key": "w0rd", "s3.region": "r"}


def texts(thing: object) -> Iterator[str]:
    """Every text that a log, a debugger or a report makes of a thing, three levels deep."""
    yield from (str(thing), repr(thing), f"{thing}", f"{thing!r:>90}", pprint.pformat(thing))
    held = [*getattr(thing, "__dict__", {}).values()]
    held += [getattr(thing, one, None) for one in getattr(thing, "__slots__", ())]
    for one in held:
        if not callable(one) and str(type(one).__module__).startswith("headwater"):
            yield from texts(one) if type(one).__name__ != "Secret" else (repr(one), f"{one}")
        else:
            yield repr(one)


def check(thing: object) -> None:
    for text in texts(thing):
        assert not [secret for secret in SECRETS if secret in text], text


def whole_trace(error: BaseException) -> str:
    """What the greediest of handlers prints: all causes, and what each frame of ours holds."""
    lines: list[str] = []
    found: BaseException | None = error
    while found is not None:
        told = traceback.TracebackException.from_exception(found, capture_locals=True)
        kept = [one for one in told.stack if one.filename != __file__]
        lines += [*traceback.StackSummary.from_list(kept).format(), *told.format_exception_only()]
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return "".join(lines)


@pytest.mark.parametrize(
    "make",
    [
        lambda: portal_stream(id="s", portal="https://s3cr3t:w0rd@h/d?key=s3cr3t", outputs=OUTPUTS),
        lambda: clickhouse_target("http://me:s3cr3t@h/db?password=w0rd")._client,
        lambda: postgres_target("postgresql://me:s3cr3t@h/db"),
        lambda: postgres_target("host=h user=me password='s3cr3t w0rd'"),
        lambda: open_admin("postgresql://me:s3cr3t@h/db"),
        lambda: open_admin("http://me:s3cr3t@h/db"),
        lambda: webhook(
            "https://h/s3cr3t?key=w0rd", secret="s3cr3t", headers={"Authorization": "w0rd"}
        ),
        lambda: kafka("t", {"bootstrap.servers": "h", "sasl.password": "s3cr3t"}),
        lambda: history_target("postgresql://me:s3cr3t@h/db", tables=["t"]),
        lambda: delta_target("s3://b/p", options=STORAGE),
        lambda: parquet_target("s3://b/p", options=STORAGE),
        lambda: iceberg_target(
            {"type": "rest", "uri": "http://me:w0rd@h", "token": "s3cr3t", **STORAGE}, tables=["t"]
        ),
        lambda: substreams_stream(
            id="s",
            endpoint="h:443",
            package=DB_OUT.package(),
            credentials=Credentials.read(headers={"x-api-key": "s3cr3t"}),
        ),
        lambda: Credentials.read(environment={API_KEY: "s3cr3t", API_TOKEN: "w0rd"}),
    ],
)
def test_no_text_of_what_holds_an_address_shows_its_secrets(make: Callable[[], object]) -> None:
    check(make())
    assert "s3cr3t" not in repr(DuckDBSettings(config={"motherduck_token": "s3cr3t"}))


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://me:s3cr3t/w0rd@h/db",
        "postgresql://me:s3cr3t@w0rd@h/db",
        "postgresql://me:12/s3cr3t@h/db",
        "postgresql://me:%zzs3cr3t@h/db",
        "postgresql://me:s3cr3t@h:w0rd/db",
        "postgresql://[s3cr3t",
        "postgresql://me:x@h/db?s3cr3t=1",
        "postgresql:me:s3cr3t@h",
        "host=h password=my s3cr3t",
        "host=h password=my s3cr3t=w0rd",
        "host=h password='s3cr3t",
        "host=h port=s3cr3t",
    ],
)
def test_a_malformed_postgres_address_is_refused_without_repeating_it(dsn: str) -> None:
    with pytest.raises(HeadwaterError) as caught:
        postgres_target(dsn).recover()
    shown = "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert not [secret for secret in SECRETS if secret in shown], shown


def test_servers_that_are_not_there_are_reported_without_secrets() -> None:
    """Also where a handler prints the causes of an error and what their frames hold."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    once = RetryPolicy(attempts=1)
    portal = PortalClient(f"http://s3cr3t:w0rd@127.0.0.1:{port}/d?key=s3cr3t", retry=once)
    clickhouse = clickhouse_target(
        f"http://me:s3cr3t@127.0.0.1:{port}/?password=w0rd", settings=ClickHouseSettings(attempts=1)
    )
    postgres = postgres_target(f"postgresql://me:s3cr3t@127.0.0.1:{port}/db?connect_timeout=2")
    hook = webhook(f"http://127.0.0.1:{port}/s3cr3t?key=w0rd", secret="s3cr3t")
    message = Message("k", "s", "o", 1, "0x1", 0, "{}")
    for attempt in (portal.head, clickhouse.recover, postgres.recover, lambda: hook([message])):
        with pytest.raises(HeadwaterError) as caught:
            attempt()
        shown = whole_trace(caught.value)
        assert not [secret for secret in SECRETS if secret in shown], shown
    for one in (portal, clickhouse, postgres, hook):
        one.close()


def answer_with(refusal: str) -> tuple[socket.socket, int]:
    """Listen; answer every request with a body that repeats what was asked."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection:
                    asked = connection.recv(65536).decode()
                    body = refusal + asked
                    head = f"HTTP/1.1 404 Not Found\r\nContent-Length: {len(body)}\r\n"
                    connection.sendall(f"{head}Connection: close\r\n\r\n{body}".encode())

    Thread(target=serve, daemon=True).start()
    return server, server.getsockname()[1]


def test_a_server_that_repeats_the_request_does_not_bring_it_into_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    server, port = answer_with("Cannot do this: ")
    with server:
        portal = PortalClient(f"http://me:s3cr3t@127.0.0.1:{port}/d?key=w0rd&api=s3cr3t")
        clickhouse = clickhouse_target(f"http://me:s3cr3t@127.0.0.1:{port}/?password=w0rd")
        hook = webhook(f"http://127.0.0.1:{port}/s3cr3t?key=w0rd", secret="s3cr3t")
        message = Message("k", "s", "o", 1, "0x1", 0, "{}")
        for attempt in (portal.head, clickhouse.recover, lambda: hook([message])):
            with pytest.raises(HeadwaterError) as caught:
                attempt()
            for text in (str(caught.value), caplog.text):
                assert not [secret for secret in SECRETS if secret in text], text
        for one in (portal, clickhouse, hook):
            one.close()


def test_a_secret_travels_and_compares_but_is_shown_only_when_asked() -> None:
    from headwater.address import Secret

    @dataclass
    class Holder:
        key: Secret[str]

    secret = Secret("s3cr3t")
    holder = Holder(secret)
    for text in (f"{secret}", "%s %r" % (secret, secret), f"{secret:>20}", f"{holder}"):  # noqa: UP031
        assert "s3cr3t" not in text
    assert "s3cr3t" not in str(asdict(holder))
    assert pickle.loads(pickle.dumps(secret)) == secret
    assert secret != Secret("other")
    assert secret != "s3cr3t"
    assert len({secret, Secret("s3cr3t"), Secret(b"s3cr3t")}) == 2
    assert secret.reveal() == "s3cr3t"


def test_the_data_source_takes_an_address_from_the_environment_and_warns_otherwise(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from headwater.spark.datasource import load_source

    given = {"event": "erc20.Transfer", "to_block": "50", "partitions": "1"}
    with simulated_portal(seed=7, blocks=120, auth=("me", "s3cr3t")) as portal:
        address = portal.url.replace("://", "://me:s3cr3t@") + "?key=w0rd"
        monkeypatch.setenv("A_PORTAL", address)
        check(load_source({**given, "portal_env": "A_PORTAL"}))
        assert "portalEnv" not in caplog.text
        load_source({**given, "portal": address})
        assert "name it by portalEnv" in caplog.text
    assert not [secret for secret in SECRETS if secret in caplog.text]
    with pytest.raises(SourceOptionError, match="lacks the variable"):
        load_source({**given, "portal_env": "NO_SUCH_VARIABLE"})
    with pytest.raises(SourceOptionError, match="give one of portal, portalEnv"):
        load_source({**given, "portal": "http://h/d", "portal_env": "A_PORTAL"})
