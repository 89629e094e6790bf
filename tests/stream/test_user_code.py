"""Failures of user code: what its author is shown, and mistakes that are refused at the start."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.functions import udf

from headwater import create_target, duckdb_target, evm, history_target, portal_stream
from headwater.changes import TableSchema, add, from_columns
from headwater.errors import EvolveError, InvalidOptionError, MessageRowsError
from headwater.stream.user_code import failure_text, headline
from headwater.testing import PortalServer, simulated_portal
from tests.cli.test_run import MAIN
from tests.shared import HANG_S

PROGRAM = """
from headwater import duckdb_target, evm, portal_stream

def pick(rows):
    return rows["transfer"]

def clean(data):
    return {{"transfers": pick(data)}}

def write(tx, data):
    tx.insert("transfers", pick(data))

stream = portal_stream(
    id="x28", portal="{portal}", far=10**9,
    outputs={{"transfers": evm.events("erc20.Transfer", range=(0, 39))}}){piped}
target = duckdb_target("x28.duckdb"{options})
if __name__ == "__main__":
    stream.pipe_to(target)
"""
BROKEN = {
    "transform": {"piped": ".pipe_batches(clean)", "options": ""},
    "commit": {"piped": "", "options": ', tables=["transfers"], on_data=write'},
}
FRAMES = {"transform": ["in clean", "in pick"], "commit": ["in write", "in pick"]}


@pytest.fixture
def portal() -> Iterator[PortalServer]:
    with simulated_portal(seed=11, blocks=40, finality_depth=10) as server:
        yield server


def ran(command: list[str], folder: Path) -> str:
    """Return what a program that fails has printed."""
    ended = subprocess.run(
        [sys.executable, *command], cwd=folder, text=True, check=False, timeout=HANG_S,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert ended.returncode == 1, ended.stdout
    return ended.stdout


@pytest.mark.parametrize("stage", BROKEN)
@pytest.mark.parametrize("how", ["headwater run", "pipe_to"])
def test_a_callback_that_fails_shows_its_own_frames_and_the_blocks(
    how: str, stage: str, portal: PortalServer, tmp_path: Path
) -> None:
    (tmp_path / "x28.py").write_text(PROGRAM.format(portal=portal.url, **BROKEN[stage]))
    command = ["-c", MAIN, "run", "x28.py"] if how == "headwater run" else ["x28.py"]
    shown = ran(command, tmp_path)
    trace = shown[shown.index("Traceback") :].splitlines()
    assert trace.count("KeyError: 'transfer'") == 1
    frames = [line for line in trace if line.startswith("  File ")]
    assert [line.partition(", ")[2].partition(", ")[2] for line in frames[-2:]] == FRAMES[stage]
    assert all("x28.py" in line for line in frames[-2:])
    if how == "headwater run":
        assert len(frames) == 2, "no frame of Headwater's"
        assert "failed at block" not in shown
        assert "error=KeyError: 'transfer'" in shown, "the log says the type"
    assert not any("pipeline.py" in line for line in frames)
    (note,) = (line for line in trace if line.startswith(f"{stage}: "))
    assert note.startswith(f"{stage}: stream 'x28', blocks 0..")
    assert note.endswith(", on the driver")
    assert ("outputs transfers" in note) == (stage == "commit")


def stream_of(portal: str = "http://x/y", **options: Any) -> Any:
    return portal_stream(
        id="s",
        portal=portal,
        far=10**9,
        outputs={"transfers": evm.events("erc20.Transfer", range=(0, 39), **options)},
    )


@pytest.mark.usefixtures("spark")
def test_a_function_that_fails_on_an_executor_shows_its_own_frames(
    portal: PortalServer, tmp_path: Path
) -> None:
    @udf("string")
    def shout(value):  # type: ignore[no-untyped-def]  # Spark infers from hints, and warns
        return value.no_such_method()

    def clean(data: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"transfers": data["transfers"].withColumn("loud", shout("from"))}

    handle = stream_of(portal.url).pipe(clean).start(duckdb_target(tmp_path / "a.duckdb"))
    with pytest.raises(Exception, match="no_such_method") as failed:
        handle.await_termination(HANG_S)
    lines = failure_text(failed.value).splitlines()
    assert [line.partition(", in ")[2] for line in lines if line.startswith("  File ")] == ["shout"]
    assert lines[-2].startswith("AttributeError: 'str' object has no attribute 'no_such_method'")
    place = "commit: stream 's', blocks 0..29, outputs transfers, on an executor"
    assert lines[-1] == place, "rows of a span are computed when they are committed"
    assert headline(failed.value).startswith("AttributeError: ")


@pytest.mark.usefixtures("spark")
def test_a_wrong_column_is_said_once(
    portal: PortalServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def clean(data: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"transfers": data["transfers"].where("amount > 3")}

    handle = stream_of(portal.url).pipe(clean).start(duckdb_target(tmp_path / "a.duckdb"))
    with pytest.raises(Exception, match="UNRESOLVED_COLUMN") as failed:
        handle.await_termination(HANG_S)
    assert "QueryContextLogger" not in capfd.readouterr().err
    shown = failure_text(failed.value)
    assert "in clean" in shown
    assert "pipeline.py" not in shown


def test_an_address_is_no_target_and_is_not_shown() -> None:
    for given in ("postgresql://me:secret@db/chain", ["postgresql://me:secret@db/chain"]):
        with pytest.raises(InvalidOptionError, match=r"postgres_target\(…\)") as refused:
            stream_of().pipe_to(given)
        assert "secret" not in str(refused.value)


def test_an_outbox_of_an_unknown_output_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    stream = stream_of().on_finalized("transfer", print)
    with pytest.raises(MessageRowsError, match=r"output=transfer, outputs=transfers"):
        stream.pipe_to(duckdb_target(tmp_path / "a.duckdb"))
    assert not (tmp_path / "a.duckdb").exists()


def test_what_was_given_is_shown_in_short() -> None:
    outputs: Any = [evm.events("erc20.Transfer")] * 5
    with pytest.raises(InvalidOptionError) as refused:
        portal_stream(id="s", portal="http://x/y", outputs=outputs)
    assert len(str(refused.value)) < 400
    assert len(str(refused.value.facts["got"])) > 400, "all of it is there for a program"


def test_a_change_of_a_filter_is_called_one(portal: PortalServer, tmp_path: Path) -> None:
    from dataclasses import replace

    target = tmp_path / "a.duckdb"
    stream_of(portal.url).pipe_to(duckdb_target(target))
    narrow = stream_of(portal.url, contracts=["0x" + "11" * 20])
    with pytest.raises(EvolveError, match="its contracts or another filter") as refused:
        replace(narrow, on_config_change="evolve").pipe_to(duckdb_target(target))
    assert "columns_gone" not in str(refused.value)


def test_a_stream_that_fails_before_it_knows_its_cursor_names_no_block(
    portal: PortalServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear Sir or Madam")
    with pytest.raises(Exception, match="E2511"):
        stream_of(portal.url).pipe_to(duckdb_target(letter))
    assert "block -1" not in capsys.readouterr().err


def test_a_commit_of_changes_that_fails_says_why_and_where(
    portal: PortalServer, tmp_path: Path
) -> None:
    """A batch of a change log is prepared before it is committed, and has no context then."""

    def counted(data: Any) -> Any:
        rows = data["transfers"].toArrow()
        fields = {"n": add("log_index")}
        changes = from_columns(
            rows, table="counts", operation="upsert", key=["address"], fields=fields
        )
        return {"counts": changes}

    def fail(sql: str) -> None:
        if "counts" in sql and "INSERT" in sql:
            raise LookupError("no place is left")

    schema = TableSchema("counts", key=["address"], columns={"address": "text", "n": "integer"})
    target: Any = history_target(str(tmp_path / "a.duckdb"), tables=[schema])
    target.on_statement = fail
    with pytest.raises(LookupError, match="no place is left") as failed:
        stream_of(portal.url).pipe_batches(counted).pipe_to(target)
    assert re.match(r"commit: stream 's', blocks \d+\.\.\d+, ", failed.value.__notes__[0])


def test_what_a_target_of_ones_own_raises_stays_what_it_is(portal: PortalServer) -> None:
    def write(read: Any) -> None:
        for batch in read(None):
            raise LookupError(batch.ctx.id)

    with pytest.raises(LookupError, match="s") as failed:
        stream_of(portal.url).pipe_to(create_target(write=write, fork=lambda previous: None))
    assert failure_text(failed.value).splitlines()[-1] == "LookupError: s"
