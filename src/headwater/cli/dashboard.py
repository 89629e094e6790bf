"""`headwater dashboard`: the streams of several running pipelines on one page."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from typing import Annotated, Any
from urllib.parse import urlencode, urlsplit

import typer

from headwater.cli.target_options import say
from headwater.dashboard import Dashboard
from headwater.errors import InvalidOptionError

TIMEOUT_S = 3.0


def dashboard(
    pipelines: Annotated[
        list[str], typer.Argument(help="Addresses of running pipelines: localhost:9090 …")
    ],
    port: Annotated[str, typer.Option("--port", help="Where to serve the page.")] = "9099",
) -> None:
    """Show the streams of several pipelines on one page, until Ctrl-C.

    Each pipeline serves its own page already (`pipe_to(target, dashboard=9090)`, or `headwater run
    --port 9090`); this one asks them all once a second.

        headwater dashboard localhost:9090 localhost:9091
    """
    asked = [Pipeline(one) for one in pipelines]
    with Dashboard(port, streams=lambda: ask_all(asked)) as page:
        say(f"dashboard: {page.url}")
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            return


class Pipeline:
    """A pipeline that serves its streams at an address."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address if "//" in address else f"//{address}")
        try:
            port = parts.port
        except ValueError:
            port = None
        if not parts.hostname or port is None or parts.scheme not in ("", "http"):
            raise InvalidOptionError("not the address of a pipeline: host:port", got=address)
        self.name, self._host, self._port = f"{parts.hostname}:{port}", parts.hostname, port

    def get(self, path: str) -> Any:
        """Ask the pipeline; raise OSError or ValueError if it does not answer as it should."""
        connection = HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        except HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            connection.close()


class RemoteStream:
    """A stream of another process, as the page asks for it."""

    facts = None

    def __init__(self, pipeline: Pipeline, shown: dict[str, Any]) -> None:
        self.id = f"{shown['id']} @ {pipeline.name}"
        self.portal, self.status = shown.get("portal", ""), shown["status"]
        self._pipeline, self._shown = pipeline, shown

    def snapshot(self) -> dict[str, Any]:
        """Return what the pipeline said."""
        return {**self._shown, "id": self.id}

    def preview(self, rows: int = 5) -> dict[str, Any]:
        """Ask the pipeline for its latest rows."""
        try:
            found = self._pipeline.get(f"/api/preview?{urlencode({'id': self._shown['id']})}")
        except (OSError, ValueError):
            return {}
        return {name: several[:rows] for name, several in found.items()}

    def profiles(self) -> list[Any]:
        """Return nothing: profiles are shown by the pipeline itself."""
        return []


def ask_all(pipelines: Sequence[Pipeline]) -> Mapping[str, RemoteStream]:
    """Ask every pipeline for its streams; one that does not answer is shown as failed."""
    with ThreadPoolExecutor(max_workers=max(1, len(pipelines))) as pool:
        return {one.id: one for several in pool.map(_ask, pipelines) for one in several}


def _ask(pipeline: Pipeline) -> list[RemoteStream]:
    try:
        return [RemoteStream(pipeline, one) for one in pipeline.get("/api/streams")]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [RemoteStream(pipeline, _silent(str(error) or type(error).__name__))]


def _silent(reason: str) -> dict[str, Any]:
    """Return what is shown of a pipeline that does not answer."""
    nothing = dict.fromkeys(
        ("cursor", "finalized", "head", "lag_blocks", "lag_seconds", "from_block", "to_block",
         "percent", "eta_seconds", "trouble")
    )  # fmt: skip
    zero = dict.fromkeys(("blocks_per_second", "rows_per_second", "blocks", "rows", "forks"), 0)
    lists: dict[str, Any] = {
        name: [] for name in ("recent_blocks", "recent_forks", "messages", "samples")
    }
    return {
        "id": "?", "portal": "", "target": "", "status": "failed", "began": 0, "now": time.time(),
        "error": f"the pipeline does not answer: {reason}", **nothing, **zero, **lists,
    }  # fmt: skip
