"""Planted secrets of one whole run are found nowhere: not in logs, plans, event logs or metrics."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

from headwater.testing import simulated_portal
from tests.shared import HANG_S
from tests.targets import clickhouse_places, lake_places, postgres_places

PASSWORDS = {
    one: f"pl4nted-{one}"
    for one in ("user", "portal", "key", "pg", "ch", "hook", "token", "queue", "bucket")
}


def test_a_run_shows_no_planted_secret_anywhere(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    user, password, key = PASSWORDS["user"], PASSWORDS["portal"], PASSWORDS["key"]
    postgres = postgres_places.database()
    clickhouse = clickhouse_places.database()
    lake = lake_places.bucket()
    with simulated_portal(seed=7, blocks=400, auth=(user, password)) as portal:
        url = portal.url.replace("://", f"://{user}:{password}@") + f"?key={key}"
        places = {
            "postgres": postgres.replace("postgres@", f"postgres:{PASSWORDS['pg']}@"),
            "malformed": f"postgresql://me:{PASSWORDS['pg']}/x@h/db",
            "clickhouse": clickhouse,
            "refused": clickhouse.replace("://", f"://default:{PASSWORDS['ch']}@"),
            "path": PASSWORDS["hook"],
            "key": key,
            "secret": PASSWORDS["token"],
            "token": PASSWORDS["token"],
            "queue": PASSWORDS["queue"],
            "bucket": PASSWORDS["bucket"],
            "uri": lake.uri,
            "options": json.dumps(lake.options),
        }
        ran = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("secrets_run.py")), str(tmp_path)],
            input=json.dumps(places),
            env={**os.environ, "SECRET_PORTAL": url},
            capture_output=True,
            text=True,
            start_new_session=True,
            timeout=HANG_S,
            check=False,
        )
    seen = (tmp_path / "seen.txt").read_text()
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert seen.count("True") >= 4, "the run did what it should"
    assert "lakes True" in seen
    assert "no error" not in seen
    events = "".join(one.read_text() for one in (tmp_path / "events").rglob("*") if one.is_file())
    assert "SparkListenerSQLExecutionStart" in events
    assert "portalEnv" in ran.stderr, "a warning names the way to hide an address from Spark"
    basic = base64.b64encode(f"{user}:{password}".encode()).decode()
    keys = [lake_places.ACCESS_KEY, lake_places.SECRET_KEY]
    secrets = [*PASSWORDS.values(), *keys, quote(PASSWORDS["key"], safe=""), basic]
    for place, text in (("seen", seen), ("events", events), ("printed", ran.stdout + ran.stderr)):
        for secret in secrets:
            at = text.find(secret)
            assert at < 0, f"{place}: …{text[max(0, at - 300) : at + 100]}…"
