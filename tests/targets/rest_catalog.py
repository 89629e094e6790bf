"""An Iceberg REST catalog on this machine: the routes that tables need, in front of SQLite."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest, Table

REFUSED = {
    CommitFailedException: 409,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
}
_TABLES = re.compile(r"/v1/namespaces/([^/]+)/tables(?:/([^/]+))?")
_NAMESPACES = re.compile(r"/v1/namespaces(?:/([^/]+))?")


class Server(ThreadingHTTPServer):
    """Answers one request at a time: SQLite's catalog has one connection."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = Lock()
        uri, warehouse = f"sqlite:///{folder}/rest.db", f"file://{folder}"
        self.catalog = load_catalog("rest", type="sql", uri=uri, warehouse=warehouse)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            with self.server.lock:
                found = self.found(urlsplit(self.path).path, body)
            self.send(200, found)
        except tuple(REFUSED) as error:
            status, kind = REFUSED[type(error)], type(error).__name__
            said = {"message": str(error), "type": kind, "code": status}
            self.send(status, {"error": said})

    do_GET = do_POST = do_HEAD = answer  # noqa: N815 - the names of http.server

    def found(self, path: str, body: bytes) -> dict[str, Any]:
        held = self.server.catalog
        if path == "/v1/config":
            return {"defaults": {}, "overrides": {}}
        if match := _TABLES.fullmatch(path):
            return self.tables(unquote(match[1]), match[2], body)
        match = _NAMESPACES.fullmatch(path)
        assert match is not None, path
        if match[1]:
            held.load_namespace_properties(match[1])
            return {"namespace": [match[1]], "properties": {}}
        if body:
            held.create_namespace(tuple(json.loads(body)["namespace"]))
            return {**json.loads(body), "properties": {}}
        return {"namespaces": [list(one) for one in held.list_namespaces()]}

    def tables(self, space: str, name: str | None, body: bytes) -> dict[str, Any]:
        held = self.server.catalog
        if name is None and not body:
            listed = held.list_tables(space)
            return {"identifiers": [{"namespace": [a], "name": b} for a, b in listed]}
        if name is None:
            wanted: Any = CreateTableRequest.model_validate({"location": None, **json.loads(body)})
            made = held.create_table(
                (space, wanted.name),
                wanted.table_schema,
                wanted.location,
                wanted.partition_spec,
                wanted.write_order,
                wanted.properties,
            )
            return shown(made)
        table = held.load_table((space, name))
        if body:
            change = CommitTableRequest.model_validate_json(body)
            held.commit_table(table, change.requirements, change.updates)
            table = held.load_table((space, name))
        return shown(table)

    def send(self, status: int, found: dict[str, Any]) -> None:
        text = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else text)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def rest_catalog(folder: Path) -> Iterator[str]:
    """Serve a catalog whose tables are in a folder; yield its address."""
    folder.mkdir(parents=True)
    server = Server(folder)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        server.catalog.close()


def shown(table: Table) -> dict[str, Any]:
    """Return a table as the specification of REST catalogs has it."""
    return {
        "metadata-location": table.metadata_location,
        "metadata": json.loads(table.metadata.model_dump_json()),
        "config": {},
    }
