"""One run with planted secrets, in a process of its own. Called by `test_secrets_on_spark`.

What the run can show (reprs, plans, metrics, answers of Spark's interface, traces, command lines)
goes to the file that it is given; Spark's event log and everything that is printed are looked at
by the test.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import IO, Any

from prometheus_client import generate_latest

from headwater import evm, portal_stream
from headwater.dashboard import Dashboard
from headwater.effects import kafka, webhook
from headwater.effects.message import Message
from headwater.metrics import REGISTRY
from headwater.portal import RetryPolicy
from headwater.spark import local_session
from headwater.targets import delta_target, iceberg_target, parquet_target
from headwater.targets.clickhouse import ClickHouseClient, clickhouse_target, table
from headwater.targets.lake.paths import Place
from headwater.targets.postgres import postgres_target
from headwater.targets.postgres import table as postgres_table

OPTIONS = {"event": "erc20.Transfer", "from_block": "0", "to_block": "60", "partitions": "2"}


class Receiver(BaseHTTPRequestHandler):
    received = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        Receiver.received += 1
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """The receiver knows the address anyway."""


def lake_target(kind: str, uri: str, options: dict[str, str], folder: Path) -> Any:
    if kind == "delta":
        return delta_target(uri, options=options)
    if kind == "parquet":
        return parquet_target(uri, options=options)
    folder.mkdir()
    address = f"sqlite:///{folder}/catalog.db"
    catalog = {"name": "lake", "type": "sql", "uri": address, "warehouse": uri, **options}
    return iceberg_target(catalog, tables=["transfers"])


def write_lakes(
    portal: str, spark: Any, uri: str, options: dict[str, str], folder: Path, seen: IO[str]
) -> None:
    """Have executors write files to S3, with credentials; show targets, logs and all files."""
    outputs = {"transfers": evm.events("erc20.Transfer", range=(0, 60))}
    for kind in ("iceberg", "delta", "parquet"):
        target = lake_target(kind, f"{uri}/{kind}", options, folder / kind)
        stream = portal_stream(id="s", portal=portal, outputs=outputs, spark=spark, far=20)
        stream.pipe_to(target, on_event=lambda event: print(repr(event)[:2000], file=seen))
        print(repr(target), vars(target), file=seen)
    place = Place.of(uri, options)
    names = [one.name for one in place.files()]
    print("lakes", {one.partition("/")[0] for one in names} >= {"delta", "parquet"}, file=seen)
    for name in names:
        print(name, place.read(name), file=seen)
    print(repr(place), place, (folder / "iceberg/catalog.db").read_bytes(), file=seen)


def main(folder: Path, places: dict[str, str]) -> None:
    logging.basicConfig(level=logging.DEBUG)
    logging.getLogger("py4j").setLevel(logging.INFO)
    seen = (folder / "seen.txt").open("w")
    spark = local_session(
        "secrets",
        **{
            "spark.master": "local[2,4]",
            "spark.ui.enabled": True,
            "spark.ui.port": 0,
            "spark.eventLog.enabled": True,
            "spark.eventLog.dir": f"file://{folder}/events",
            "spark.eventLog.compress": False,
        },
    )
    portal = os.environ["SECRET_PORTAL"]
    for name, address in (("portal_env", "SECRET_PORTAL"), ("portal", portal)):
        frame = spark.read.format("headwater").options(**OPTIONS, **{name: address}).load()
        frame.createOrReplaceTempView("transfers")
        rows = spark.sql("SELECT count(*) AS n FROM transfers WHERE log_index > 0")
        print(rows.collect()[0]["n"] > 0, file=seen)
        print(rows._jdf.queryExecution().toString(), repr(frame), file=seen)
    listed = ", ".join(f"{key} '{value}'" for key, value in OPTIONS.items())
    spark.sql(f"CREATE TEMPORARY VIEW by_sql USING headwater OPTIONS (portal '{portal}', {listed})")
    spark.sql("SELECT count(*) FROM by_sql").collect()

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    Thread(target=server.serve_forever, daemon=True).start()
    hook = webhook(
        f"http://127.0.0.1:{server.server_port}/{places['path']}?key={places['key']}",
        secret=places["secret"],
        headers={"Authorization": places["token"]},
    )
    queue = kafka(
        "t",
        {"bootstrap.servers": "127.0.0.1:1", "sasl.password": places["queue"],
         "message.timeout.ms": 300},
        timeout_s=2,
    )  # fmt: skip
    outputs = {"transfers": evm.events("erc20.Transfer", range=(0, 60))}
    stream = portal_stream(id="s", portal=portal, outputs=outputs, spark=spark, far=20)
    stream = stream.on_finalized("transfers", hook)
    click = clickhouse_target(places["clickhouse"], tables=[table("transfers")])
    post = postgres_target(
        places["postgres"], tables=[postgres_table("transfers", append_only=True)]
    )
    for target in (post, click):
        stream.pipe_to(target, on_event=lambda event: print(repr(event)[:2000], file=seen))
        print(repr(target), vars(target), file=seen)
    write_lakes(portal, spark, places["uri"], json.loads(places["options"]), folder, seen)
    print(repr(stream), repr(hook), vars(hook), repr(queue), vars(queue), file=seen)
    print(generate_latest(REGISTRY).decode(), file=seen)
    with Dashboard(0) as dashboard:
        for route in ("", "metrics", "api/streams", "api/preview?id=s", "stats", "profiler?id=s"):
            with urllib.request.urlopen(f"{dashboard.url}{route}", timeout=60) as answer:
                print(answer.read().decode(), file=seen)
    print("received", Receiver.received > 0, file=seen)

    key = places["bucket"]
    storage = {"s3.endpoint": "http://127.0.0.1:1", "s3.region": "r", "s3.connect-timeout": "1",
               "s3.access-key-id": key, "s3.secret-access-key": key}  # fmt: skip
    wrong = portal.replace("/datasets/", "/nowhere/")
    once = RetryPolicy(attempts=1)
    for attempt in (
        lambda: list(portal_stream(id="x", portal=wrong, outputs=outputs, retry=once)),
        lambda: spark.read.format("headwater").options(**OPTIONS, portal=wrong).load(),
        lambda: postgres_target(places["malformed"]).recover(),
        lambda: queue([Message("k", "s", "transfers", 1, "0x1", 0, "{}")]),
        lambda: parquet_target("s3://b/p", options=storage).recover(),
        lambda: delta_target("s3://b/p", options=storage).recover(),
        lambda: lake_target("iceberg", "s3://b/p", storage, folder / "refused").recover(),
        lambda: ClickHouseClient(places["refused"]).run("SELECT 1"),
        lambda: clickhouse_target(places["refused"], tables=[table("transfers")]).recover(),
    ):
        try:
            attempt()
            print("no error", file=seen)
        except Exception:  # noqa: BLE001 - whatever it is, its text is looked at
            traceback.print_exc(file=seen)
    ui, application = spark.sparkContext.uiWebUrl, spark.sparkContext.applicationId
    for route in ("sql?details=true&length=100", "environment", "jobs", "stages"):
        url = f"{ui}/api/v1/applications/{application}/{route}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            print(answer.read().decode(), file=seen)
    group = os.getpgrp()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(process.name)) == group:
                print((process / "cmdline").read_bytes(), file=seen)
        except OSError:
            continue
    spark.stop()
    seen.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.stdin.read()))
