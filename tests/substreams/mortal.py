"""A process whose children read a stream and kill themselves before a statement, as `kill -9` does.

It reads one JSON document per line: where to read, where to write, and the number of the statement
to die at. It has imported everything and opened nothing, so a child costs milliseconds. For each it
says how the child ended: "killed", "done", or what went wrong.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import duckdb  # noqa: F401 - so that children need not import it
import psycopg  # noqa: F401

from headwater import clickhouse_target
from headwater.stream.substreams import substreams_stream
from headwater.substreams import client
from headwater.substreams.client import Dialling
from headwater.targets import DuckDBSettings, PostgresSettings, history_target
from tests.substreams.scripted import TABLES


def target_of(kind: str, address: str) -> Any:
    """Return a target that is not opened yet."""
    if kind == "clickhouse":
        return clickhouse_target(address)
    if kind == "postgres":
        return history_target(address, tables=TABLES, settings=PostgresSettings(lock_wait_s=20))
    settings = DuckDBSettings(config={"threads": 1})
    return history_target(Path(address), tables=TABLES, settings=settings)


def live(order: dict[str, Any]) -> None:
    """Read up to a block; die before the statement whose turn it is."""
    target, left = target_of(order["kind"], order["address"]), order["statements"]

    def on_statement(sql: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    target.on_statement = on_statement
    stream = substreams_stream(
        id="one",
        endpoint=order["endpoint"],
        package=order["package"],
        stop=order["stop"],
        dialling=Dialling(idle_s=0.5),
    )
    stream.pipe_to(target, progress=False)


def main() -> None:
    """Fork a child per line."""
    client.FIRST_PAUSE_S = 0.002
    for line in sys.stdin:
        child = os.fork()
        if not child:
            try:
                live(json.loads(line))
            except BaseException:  # noqa: BLE001 - the test shows it
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        said = {0: "done", -signal.SIGKILL: "killed"}.get(code, f"ended with {code}")
        print(said, flush=True)  # noqa: T201 - it talks to the test


if __name__ == "__main__":
    main()
