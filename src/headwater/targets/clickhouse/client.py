"""Speaks to ClickHouse over HTTP: sends statements and Arrow, and tries again what it may.

Runs on the driver and on executors; it pickles. Every statement has an id. Before a statement that
changes something is tried again, the server is asked to end the first try, so that two of them
never run at once. What is given by name fills the gaps `<name>` of a statement.
"""

from __future__ import annotations

import json
import logging
import secrets
import socket
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

import pyarrow as pa
import urllib3

from headwater.address import HttpAddress, Secret, UrlError, hide
from headwater.errors import (
    ClickHouseConnectionError,
    ClickHouseDiskFullError,
    ClickHouseServerError,
    ClickHouseTableError,
    ClickHouseWriterError,
    InvalidOptionError,
)
from headwater.runtime import Wait, sleep
from headwater.targets.clickhouse.sql import TableName, compose, literal, quote
from headwater.targets.database import Patience
from headwater.targets.text import Part

FENCED = "headwater"  # what a refusal says that comes from a condition of ours
_THROWN, _DISK_FULL = 395, 243  # the numbers of such a refusal, and of a disk without room
TIMEOUT_S = 3600.0  # of a statement; a dead connection is noticed earlier
_TRANSIENT = frozenset(
    {3, 159, 164, 202, 203, 209, 210, 216, 225, 236, 241, 242, 252, 285, 319, 394, 999}
)
_TOO_MANY = 252  # parts, which will be merged; or partitions, which stay as many
_NO_ROOM = ("No space left on device", "Disk quota exceeded")  # under several numbers
_FIRST_ATTEMPTS = 8  # until the server has answered once: the address may be wrong
logger = logging.getLogger("headwater.targets.clickhouse")
_PORTS = {"http": 8123, "https": 8443}
SMALL_BYTES = 1 << 20
_ANYWHERE = {"database": "default"}  # also where the client's own database is not there yet
_DEFAULTS = {"wait_end_of_query": "1", "http_response_buffer_size": "1048576"}


class ClickHouseClient:
    """One server, by its address: `http://user:password@host:8123/database?setting=value`.

    User and password may also stand among the settings; they are sent as headers, never in a URL.
    `on_statement` is called with each statement before it is sent. A server that is away is waited
    for `attempts` times or, if that is None and it has answered before, for `wait_s` seconds; by
    `wait`, on executors by a sleep.
    `compression` is that of inserted rows: none if the server is on this machine, else "zstd".
    """

    def __init__(
        self, url: str, *, attempts: int | None = 8, settings: Mapping[str, str] | None = None
    ) -> None:
        try:
            address = HttpAddress.parse(url, _PORTS)
        except UrlError as error:
            raise InvalidOptionError(
                "ClickHouse is reached by HTTP, http://user:password@host:8123/database, and its "
                f"address cannot be used: {error}"
            ) from None
        host = f"[{address.host}]" if ":" in address.host else address.host
        options = dict(parse_qsl(address.query.reveal()))
        user, password = options.pop("user", ""), options.pop("password", "")
        self.on_statement: Callable[[str], None] | None = None
        self.wait: Wait = sleep
        self.attempts = attempts
        self.wait_s = 0.0
        self._reached = False
        self.database = unquote(address.path.reveal().strip("/")) or "default"
        self.prefix = "headwater-"
        self.compression = None if _is_here(address.host) else "zstd"
        self._server = f"{address.scheme}://{host}:{address.port}/"
        self._user = address.user or Secret(user)
        self._password = address.password or Secret(password)
        self._settings = {**options, **(settings or {})}
        self._pool: urllib3.PoolManager | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pool": None, "on_statement": None, "wait": sleep}

    def copy(
        self, wait: Wait | None = None, on_statement: Callable[[str], None] | None = None
    ) -> ClickHouseClient:
        """Return a client of the same server, with connections of its own and what is handed in."""
        other = object.__new__(ClickHouseClient)
        handed = {"wait": wait or self.wait, "on_statement": on_statement}
        other.__dict__.update(self.__getstate__() | handed)
        return other

    def close(self) -> None:
        """Close the connections; the next statement opens new ones."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.clear()

    # --- statements -------------------------------------------------------------------------------

    def run(
        self,
        sql: str,
        params: Mapping[str, object] | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        **parts: Part,
    ) -> None:
        """Run a statement for its effect; one that may run twice without harm."""
        sql = compose(sql, **parts) if parts else sql
        self._send(sql, params, settings, kill=True)

    def rows(
        self,
        sql: str,
        params: Mapping[str, object] | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        **parts: Part,
    ) -> list[dict[str, Any]]:
        """Return the rows of a query, for our own use: integers of 64 bits and texts.

        They come in one JSON document, so that no rows can be told from no answer.
        """
        sql = compose(sql, **parts) if parts else sql
        wanted = {"output_format_json_quote_64bit_integers": "0", **(settings or {})}
        body = self._send(f"{sql} FORMAT JSON", params, wanted)
        try:
            rows: list[dict[str, Any]] = json.loads(body)["data"]
        except (ValueError, KeyError) as error:
            raise self._lost("the answer is not whole") from error
        return rows

    def text(self, sql: str) -> str:
        """Return the answer to a statement that allows no FORMAT: values between tabs."""
        return self._send(sql).decode()

    def query(
        self, sql: str, params: Mapping[str, object] | None = None, **parts: Part
    ) -> pa.Table:
        """Return the rows of a query.

        Integers too wide for Arrow come as decimal text; a column of texts that are not UTF-8, as
        bytes.
        """
        sql = (compose(sql, **parts) if parts else sql).rstrip().rstrip(";")
        wanted = {"output_format_arrow_string_as_string": "0"}
        body = self._send(f"{sql} FORMAT ArrowStream", params, wanted)
        if not body:  # no rows come with their schema
            raise self._lost("the answer is not whole")
        frame = _with_texts(pa.ipc.open_stream(body).read_all())
        if any(pa.types.is_fixed_size_binary(field.type) for field in frame.schema):
            kinds = self.rows(f"DESCRIBE TABLE ({sql})", params)
            return _with_wide_integers(frame, {row["name"]: row["type"] for row in kinds})
        return frame

    def insert(self, target: str, frame: pa.Table, token: str | None) -> None:
        """Insert rows; `target` is the table with its columns."""
        if frame.num_rows:
            self.insert_body(target, self._stream(frame), token)

    def insert_body(self, target: str, body: pa.Buffer, token: str | None) -> None:
        """Insert the rows of an Arrow stream as one block, so all or none.

        `target` is what follows INSERT INTO: a table and its columns, or `into`.

        With a token the insert is tried again, and the server drops what it has stored already.
        Without one a lost connection is an error: the rows may have been stored or not.
        """
        settings = {
            "input_format_null_as_default": "0",
            "optimize_on_insert": "0",
            "async_insert": "0",
            "max_insert_block_size": "1000000000",
            "max_insert_threads": "1",
            "min_insert_block_size_rows": "1000000000",
            "min_insert_block_size_bytes": "1000000000000",
            "deduplicate_blocks_in_dependent_materialized_views": "0",
            "allow_suspicious_low_cardinality_types": "1",  # the table has them already
            "allow_suspicious_fixed_string_types": "1",
        }
        if body.size < SMALL_BYTES and "max_threads" not in self._settings:
            settings["max_threads"] = "1"  # threads cost more than a block's rows and conditions
        if token is None:
            settings |= every_row()
        else:
            settings |= {"insert_deduplicate": "1", "insert_deduplication_token": token}
        sql = f"INSERT INTO {target} FORMAT ArrowStream"
        self._send(sql, None, settings, body, kill=True, once=token is None)

    def existing(self, database: str, names: Collection[str]) -> set[str]:
        """Return which of some tables there are; their database may be missing, too."""
        rows = self.rows(
            "SELECT name FROM system.tables WHERE database = {database:String} "
            "AND name IN {names:Array(String)}",
            {"database": database, "names": sorted(names)},
            settings=_ANYWHERE,
        )
        return {row["name"] for row in rows}

    def has(self, name: TableName) -> bool:
        """Tell whether there is a table; refused if the client's own database is missing."""
        sql = "SELECT 1 AS n FROM system.tables "
        sql += "WHERE database = {database:String} AND name = {name:String}"
        return bool(self.rows(sql, name.params))

    def databases(self) -> list[str]:
        """Return the names of the server's databases, as far as the user may see them."""
        sql = "SELECT name FROM system.databases ORDER BY name"
        return [row["name"] for row in self.rows(sql, settings=_ANYWHERE)]

    def create_database(self, name: str) -> None:
        """Create a database if it is not there; asking first needs no right to create one."""
        if name not in self.databases():
            self.run(f"CREATE DATABASE IF NOT EXISTS {quote(name)}", settings=_ANYWHERE)

    def end(self, which: str) -> None:
        """Have the server end the statements that meet a condition, and wait for their end.

        One whose rows are still being sent ends when the server's `http_receive_timeout` is over.
        """
        self._send(_kill(which), None, _ANYWHERE)

    def _stream(self, frame: pa.Table) -> pa.Buffer:
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=self.compression)
        with pa.ipc.new_stream(sink, frame.schema, options=options) as writer:
            writer.write_table(frame.combine_chunks())
        return sink.getvalue()

    # --- the wire ---------------------------------------------------------------------------------

    def _send(
        self,
        sql: str,
        params: Mapping[str, object] | None = None,
        settings: Mapping[str, str] | None = None,
        body: pa.Buffer | None = None,
        *,
        kill: bool = False,
        once: bool = False,
    ) -> bytes:
        """Send a statement until it is answered; `kill` the first try, or send it `once` alone."""
        if self.on_statement is not None:
            self.on_statement(sql)
        query_id = self.prefix + secrets.token_hex(8)
        fields = _DEFAULTS | self._settings | dict(settings or {}) | {"query_id": query_id}
        fields |= {f"param_{name}": _escape(value) for name, value in (params or {}).items()}
        fields.setdefault("database", self.database)
        attempts = 1 if once else self.attempts
        first = attempts is None and not self._reached
        patience = Patience(_FIRST_ATTEMPTS if first else attempts, self.wait_s, self.wait)
        while True:
            try:
                if patience.failures and kill:
                    self._post(_kill(f"query_id = {literal(query_id)}"), None, self._settings)
                answer = self._post(sql, body, fields)
            except (ClickHouseConnectionError, ClickHouseDiskFullError) as error:
                if patience.ends():
                    raise
                logger.warning("statement.retried attempt=%d error=%s", patience.failures, error)
                patience.wait("the database is away or busy, trying again")
            else:
                self._reached = True
                return answer

    def _post(self, sql: str, body: pa.Buffer | None, fields: Mapping[str, str]) -> bytes:
        if self._pool is None:
            self._pool = urllib3.PoolManager(
                maxsize=4,
                retries=False,
                timeout=urllib3.Timeout(connect=10, read=TIMEOUT_S),
                socket_options=[
                    *urllib3.connection.HTTPConnection.default_socket_options,
                    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
                ],
            )
        query = dict(fields) if body is None else {**fields, "query": sql}
        try:
            answer = self._pool.request(
                "POST",
                f"{self._server}?{urlencode(query)}",
                body=sql.encode() if body is None else body,
                headers=self._login(),
                redirect=False,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            # without the cause: its frames hold the password, and some tools print what they hold
            raise self._lost(type(error).__name__) from None
        if answer.length_remaining is None and not answer.chunked:
            raise self._lost("the answer ended inside its headers")  # which Python does not notice
        code = int(answer.headers.get("X-ClickHouse-Exception-Code") or 0)
        if answer.status == 200 and not code:
            return bytes(answer.data)
        reason = hide(answer.data[:600].decode(errors="replace").strip(), (self._password,))
        if code == _THROWN and f"DB::Exception: {FENCED}: " in reason:
            raise ClickHouseWriterError(
                "another writer, or an operator, has taken the stream over; nothing was changed",
                reason=reason.split(f"{FENCED}: ")[1].split(":")[0],
            )
        if code == _DISK_FULL or any(phrase in reason for phrase in _NO_ROOM):
            raise ClickHouseDiskFullError(
                "the server's disk is full", server=self._server, reason=reason
            )
        if code == _TOO_MANY and "Too many partitions" in reason:
            raise ClickHouseTableError(
                "an insert has rows of more partitions than the server allows: partition by larger "
                "ranges, or add ?max_partitions_per_insert_block=0 to the address",
                reason=reason,
            )
        if code in _TRANSIENT or (not code and answer.status >= 500):
            raise ClickHouseConnectionError(
                "the server cannot do it now", server=self._server, reason=reason
            )
        raise ClickHouseServerError(
            "the server refuses a statement", number=code or answer.status, reason=reason
        )

    def _login(self) -> dict[str, str]:
        login = {"X-ClickHouse-User": self._user, "X-ClickHouse-Key": self._password}
        return {name: secret.reveal() for name, secret in login.items() if secret.reveal()}

    def _lost(self, reason: str) -> ClickHouseConnectionError:
        return ClickHouseConnectionError(
            "the server cannot be reached, or was lost", server=self._server, reason=reason
        )


def _kill(which: str) -> str:
    """Return the statement that ends others; it leaves itself alone."""
    return f"KILL QUERY WHERE {which} AND query_id != queryID() SYNC FORMAT Null"


def every_row() -> dict[str, str]:
    """Return settings of an insert whose rows are stored in any case, all of them.

    Some servers drop a block that is like an earlier one, whatever the settings say; a random token
    tells the two apart on all of them.
    """
    return {
        "insert_deduplicate": "0",
        "insert_deduplication_token": secrets.token_hex(16),
        "optimize_on_insert": "0",
    }


def refused_as(error: ClickHouseServerError, *numbers: int) -> bool:
    """Tell whether the server has given one of these reasons."""
    return error.facts.get("number") in numbers


def _is_here(host: str) -> bool:
    """Tell whether a host is this machine, where compressing costs more than sending."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _escape(value: object) -> str:
    """Write a value as a parameter: the server reads backslashes as escapes."""
    if isinstance(value, list | tuple):
        inner = (f"'{_escape(item)}'" if isinstance(item, str) else str(item) for item in value)
        return f"[{','.join(inner)}]"
    text = str(value).replace("\\", "\\\\")
    return text.replace("\t", "\\t").replace("\n", "\\n").replace("\0", "\\0").replace("'", "\\'")


def _with_texts(frame: pa.Table) -> pa.Table:
    """Turn bytes into texts, column by column, where they are some."""
    for place, field in enumerate(frame.schema):
        wanted = _text_type(field.type)
        if wanted != field.type:
            with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
                frame = frame.set_column(place, field.name, frame.column(place).cast(wanted))
    return frame


def _text_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_binary(kind):
        return pa.string()
    return pa.list_(_text_type(kind.value_type)) if pa.types.is_list(kind) else kind


def _with_wide_integers(frame: pa.Table, kinds: Mapping[str, str]) -> pa.Table:
    """Replace integers of 128 and 256 bits, which come as bytes, by their decimal text."""
    for place, name in enumerate(frame.column_names):
        kind = kinds.get(name, "").removeprefix("Nullable(").removesuffix(")")
        if kind in ("UInt128", "UInt256", "Int128", "Int256"):
            signed = kind.startswith("I")
            texts = [
                None if raw is None else str(int.from_bytes(raw, "little", signed=signed))
                for raw in frame.column(place).to_pylist()
            ]
            frame = frame.set_column(place, name, pa.array(texts, pa.string()))
    return frame


def ignoring_refusal() -> suppress:
    """Ignore a refusal of the server: for what is useful, but not needed."""
    return suppress(ClickHouseServerError)
