"""`headwater doctor`: whether this machine, a portal and a database are as streams need them."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table
from rich.text import Text

from headwater import __version__
from headwater.cli.target_options import AsJson, console, say, say_json
from headwater.dashboard.server import PORT, parse_address
from headwater.errors import DuckDBFileError, HeadwaterError
from headwater.portal import PortalClient, Request, Response, RetryPolicy, open_transport
from headwater.targets.admin import kind_of, open_admin

Level = Literal["ok", "warn", "fail"]
LITTLE_SPACE, NO_SPACE = 10 << 30, 1 << 30
SKEW_S = 30
OLDEST_POSTGRES = 14
PACKAGES = ("pyspark", "pyarrow", "duckdb", "psycopg", "urllib3")
GRANTS = ("SELECT", "INSERT", "CREATE TABLE", "ALTER DELETE")
_STYLE = {"ok": "green", "warn": "yellow", "fail": "red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, its condition, and its remedy."""

    name: str
    level: Level
    says: str
    fix: str = ""


Check = Iterator[Finding]


def _judged(name: str, good: bool, says: str, fix: str, otherwise: Level = "fail") -> Finding:
    """Return a finding that needs its remedy only if it is not good."""
    return Finding(name, "ok", says) if good else Finding(name, otherwise, says, fix)


def doctor(
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            envvar="HEADWATER_TARGET",
            show_envvar=True,
            help="A database: postgresql://…, http://… (ClickHouse), or the path of a DuckDB file.",
        ),
    ] = None,
    portal: Annotated[str | None, typer.Option("--portal", help="A dataset's address.")] = None,
    port: Annotated[str, typer.Option("--port", help="Where a dashboard is to listen.")] = str(
        PORT
    ),
    quick: Annotated[bool, typer.Option("--quick", help="Start no Spark.")] = False,
    as_json: AsJson = False,
    state_schema: Annotated[
        str | None, typer.Option("--state-schema", help="Schema of the state, if not the default.")
    ] = None,
) -> None:
    """Look whether everything is there that streams need, and say how to mend what is not.

    Python, packages, Java, Spark with the Python of its executors, disk space, the dashboard's
    port; the portal and the database, if they are given. Nothing is changed or created. The exit
    code is 1 if something fails.

        headwater doctor

        headwater doctor --quick --target chain.duckdb --portal https://portal.sqd.dev/datasets/base-mainnet

        headwater doctor --target postgresql://localhost/chain --json
    """
    checks: list[tuple[str, Callable[[], Check]]] = [
        ("Python", _python),
        ("Java", lambda: _java(quick=quick)),
        ("disk", lambda: _disk(target)),
        ("port", lambda: _port(port)),
    ]
    if portal is not None:
        checks.append(("portal", lambda: _portal(portal)))
    if target is not None:
        checks.append(("database", lambda: _database(target, state_schema)))
    findings = [finding for name, check in checks for finding in _looked(name, check)]
    if as_json:
        say_json([asdict(finding) for finding in findings])
    else:
        _show(findings)
    if any(finding.level == "fail" for finding in findings):
        raise typer.Exit(1)


def _looked(name: str, check: Callable[[], Check]) -> list[Finding]:
    """Return what a check finds; a coded error is a finding that fails."""
    findings: list[Finding] = []
    try:
        findings.extend(check())
    except HeadwaterError as error:
        facts = ", ".join(f"{key}={value}" for key, value in error.facts.items())
        says = f"[{error.code}] {error.message}{f' ({facts})' if facts else ''}"
        findings.append(Finding(name, "fail", says, error.fix))
    return findings


def _show(findings: list[Finding]) -> None:
    table = Table("", "looked at", "finding", "what to do")
    for finding in findings:
        level = Text(finding.level, style=_STYLE[finding.level])
        table.add_row(
            level, Text(finding.name), Text(finding.says, overflow="fold"), Text(finding.fix)
        )
    console().print(table)
    bad = sum(finding.level == "fail" for finding in findings)
    say(f"{bad} of {len(findings)} fail." if bad else "Nothing fails.", "red" if bad else "green")


# --- this machine ---------------------------------------------------------------------------------


def _python() -> Check:
    yield Finding("Python", "ok", f"{platform.python_version()} ({sys.executable})")
    yield Finding("headwater", "ok", __version__)
    extras = {"duckdb": "duckdb", "psycopg": "postgres"}
    for package in PACKAGES:
        try:
            yield Finding(package, "ok", version(package))
        except PackageNotFoundError:
            extra = extras.get(package)
            fix = f"pip install 'headwater[{extra}]', if you need it" if extra else "install it"
            yield Finding(package, "warn" if extra else "fail", "not installed", fix)


def _java(*, quick: bool) -> Check:
    from headwater.spark.jvm import find_java

    java = find_java()
    yield Finding("Java", "ok", f"{java.version} ({java.executable})")
    if quick:
        yield Finding("Spark", "ok", "not started (--quick)")
        return
    yield from _spark()


def _spark() -> Check:
    """Start Spark, and have a worker import headwater."""
    from headwater.spark import active_session, local_session

    began, is_own = time.monotonic(), active_session() is None
    session = local_session("headwater doctor")
    started = time.monotonic() - began
    yield Finding(
        "Spark", "ok", f"{session.version}, {session.sparkContext.master}, {started:.0f} s"
    )
    fix = (
        "give executors the Python of the driver: set PYSPARK_PYTHON or spark.pyspark.python to "
        "one that has headwater installed in the same version"
    )
    try:
        ((python, installed),) = session.sparkContext.parallelize([0], 1).map(_in_worker).collect()
    except Exception as error:  # noqa: BLE001 - whatever Spark wraps it in
        last = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        yield Finding("executors' Python", "fail", last[0], fix)
    else:
        same = (tuple(python), installed) == (sys.version_info[:2], __version__)
        says = f"{'.'.join(map(str, python))}, headwater {installed}"
        yield _judged("executors' Python", same, says, fix)
    finally:
        if is_own:
            session.stop()


def _in_worker(_: int) -> tuple[tuple[int, ...], str]:
    """Run on an executor: say which Python and which headwater it has."""
    import headwater

    return sys.version_info[:2], headwater.__version__


def _disk(target: str | None) -> Check:
    places = {"temporary files": Path(tempfile.gettempdir())}
    if spark := os.environ.get("SPARK_LOCAL_DIRS"):
        places["Spark's files"] = Path(spark.split(",")[0])
    if target is not None and kind_of(target) == "duckdb":
        places["the DuckDB file"] = Path(target).resolve().parent
    for name, folder in places.items():
        if not folder.is_dir():
            yield Finding("disk", "fail", f"{name}: {folder} is not there", "create the folder")
            continue
        free = shutil.disk_usage(folder).free
        says = f"{name}: {free / 2**30:,.0f} GiB free in {folder}"
        otherwise: Level = "warn" if free > NO_SPACE else "fail"
        fix = "make room, or choose another folder"
        yield _judged("disk", free > LITTLE_SPACE, says, fix, otherwise)


def _port(address: str) -> Check:
    host, port = parse_address(address)
    try:
        with socket.create_server((host, port)):
            yield Finding("port", "ok", f"{host}:{port} is free for a dashboard")
    except OSError as error:
        fix = "choose another with dashboard= or --port; 0 takes a free one"
        yield Finding("port", "warn", f"{host}:{port}: {error.strerror}", fix)


# --- the portal -----------------------------------------------------------------------------------


class _DatedTransport:
    """Notes what time the portal has."""

    def __init__(self, address: str) -> None:
        self.date: str | None = None
        self._transport = open_transport(address)
        self.close = self._transport.close

    def send(self, request: Request) -> Response:
        """Send a request."""
        response = self._transport.send(request)
        self.date = response.headers.get("date", self.date)
        return response


def _portal(address: str) -> Check:
    transport = _DatedTransport(address)
    with PortalClient(transport, retry=RetryPolicy(attempts=1)) as client:
        began = time.monotonic()
        head = client.head()
        spent = 1000 * (time.monotonic() - began)
        if head is None:
            yield Finding("portal", "warn", "the dataset has no block yet", "wait for its first")
        else:
            yield Finding("portal", "ok", f"head {head.number:,}, answered in {spent:.0f} ms")
        try:
            dataset = client.metadata()
            yield Finding("dataset", "ok", f"{dataset.name}, {dataset.kind or 'kind unknown'}, "
                          f"from block {dataset.start_block:,}")  # fmt: skip
        except HeadwaterError:
            yield Finding("dataset", "warn", "the portal has no metadata", "an old one; it works")
        final = client.finalized_head()
        if final is None:
            fix = "streams read near the head and undo up to rollback_cap blocks; choose it well"
            yield Finding("finality", "warn", "the portal reports no final block", fix)
        elif head is not None:
            behind = max(0, head.number - final.number)
            yield Finding("finality", "ok", f"{final.number:,}, {behind:,} blocks below the head")
    if transport.date is not None:
        off = time.time() - parsedate_to_datetime(transport.date).timestamp()
        says = f"{off:+.0f} s against the portal's"
        fix = "set the clock (NTP); lag in seconds is wrong by as much"
        yield _judged("clock", abs(off) <= SKEW_S, says, fix, "warn")


# --- the database ---------------------------------------------------------------------------------


def _database(address: str, schema: str | None) -> Check:
    match kind_of(address):
        case "duckdb":
            yield from _duckdb(address)
        case "postgres":
            yield from _postgres(address, schema)
        case _:
            yield from _clickhouse(address, schema)


def _duckdb(path: str) -> Check:
    file = Path(path)
    if not file.exists():
        may = file.resolve().parent.is_dir() and os.access(file.resolve().parent, os.W_OK)
        says = f"{file} is not there yet and {'can' if may else 'cannot'} be created"
        yield _judged("database", may, says, "create the folder, or give the right to write it")
        return
    try:
        streams = len(open_admin(path).streams())
    except DuckDBFileError:
        fix = "one process at a time can write the file; headwater status asks that process"
        yield Finding("database", "warn", "another process holds the file", fix)
        return
    yield Finding("database", "ok", f"DuckDB {version('duckdb')}, {streams} streams")
    may = os.access(file, os.W_OK)
    says = f"may {'' if may else 'not '}write it"
    yield _judged("rights", may, says, "give the right to write the file and its folder")


def _postgres(address: str, schema: str | None) -> Check:
    from headwater.targets import postgres_target
    from headwater.targets.postgres.dialect import DEFAULT_SCHEMA

    name = schema or DEFAULT_SCHEMA
    (row,) = (
        postgres_target(address)
        .query(
            "SELECT current_setting('server_version') AS version, "
            "current_setting('server_version_num')::int / 10000 AS major, "
            "pg_is_in_recovery() AS replica, current_setting('synchronous_commit') AS durable, "
            "current_setting('wal_level') AS wal, "
            "CASE WHEN to_regnamespace($1) IS NULL "
            "THEN has_database_privilege(current_database(), 'CREATE') "
            "ELSE has_schema_privilege($1, 'CREATE') END AS creates",
            [name],
        )
        .to_pylist()
    )
    says = f"PostgreSQL {row['version']}, wal_level {row['wal']}"
    fix = f"take PostgreSQL {OLDEST_POSTGRES} or newer"
    yield _judged("database", row["major"] >= OLDEST_POSTGRES, says, fix)
    if row["replica"]:
        yield Finding("rights", "fail", "it is a read-only replica", "give the primary's address")
    else:
        fix = f"GRANT CREATE ON SCHEMA {name} TO the user, or run headwater setup as one who may"
        says = f"may {'' if row['creates'] else 'not '}create tables in {name}"
        yield _judged("rights", row["creates"], says, fix)
    if row["durable"] == "off":
        fix = "set synchronous_commit to on: after a crash of the server commits may be gone"
        yield Finding("durability", "warn", "synchronous_commit is off", fix)


def _clickhouse(address: str, schema: str | None) -> Check:
    from headwater.targets.clickhouse import ClickHouseClient
    from headwater.targets.clickhouse.sql import quote

    open_admin(address, schema=schema).streams()  # says what is wrong with the address
    client = ClickHouseClient(address)
    try:
        (row,) = client.rows("SELECT version() AS version, currentUser() AS user")
        yield Finding("database", "ok", f"ClickHouse {row['version']}")
        name = schema or client.database
        try:
            lacking = [
                grant
                for grant in GRANTS
                if client.text(f"CHECK GRANT {grant} ON {quote(name)}.*").strip() != "1"
            ]
        except HeadwaterError:  # a server before 24.9 does not know the statement
            yield Finding("rights", "warn", "this server does not tell", "try: headwater setup")
            return
        says = f"lacks {', '.join(lacking)}" if lacking else f"{', '.join(GRANTS)} on {name}"
        fix = f"GRANT {', '.join(lacking)} ON {name}.* TO {row['user']}"
        yield _judged("rights", not lacking, says, fix)
    finally:
        client.close()
