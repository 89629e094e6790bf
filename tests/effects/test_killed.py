"""A stream whose process is killed in the middle of deliveries, for real, and started again."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from headwater.testing import simulated_portal
from tests.stream.truth import transfers

PROGRAM = """
import sys
from headwater import evm, portal_stream
from headwater.targets import duckdb_target

def deliver(messages):
    with open(sys.argv[3], "a") as file:
        for one in messages:
            row = f"{one.block_number} {one.block_hash} {one.row['log_index']}"
            file.write(f"\\n{one.key} {row} received")
            file.flush()

stream = portal_stream(
    id="s", portal=sys.argv[1], far=10**9,
    outputs={"transfers": evm.events("erc20.Transfer", range=(0, 60))},
)
stream.on_finalized("transfers", deliver, batch_size=3).pipe_to(duckdb_target(sys.argv[2]))
"""


def deliveries(inbox: Path) -> list[list[str]]:
    """Return key and row of each line that is whole: a kill can cut a write at a page's end."""
    lines = inbox.read_text().splitlines()
    whole = [line.removesuffix(" received") for line in lines if line.endswith(" received")]
    return [line.split(" ", 1) for line in whole]


@pytest.mark.guarantee("OUTBOX-2")
def test_kill_nine_between_deliveries_repeats_some_and_loses_none(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.touch()
    with simulated_portal(seed=3, blocks=80, finality_depth=10) as portal:
        command = [
            sys.executable,
            "-c",
            PROGRAM,
            portal.url,
            str(tmp_path / "a.duckdb"),
            str(inbox),
        ]
        for count in (5, 60):
            process = subprocess.Popen(command)
            while process.returncode is None and len(deliveries(inbox)) < count:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.02)
            process.send_signal(signal.SIGKILL)
            process.wait()
        subprocess.run(command, check=True)
        wanted = [
            f"{number} {block_hash} {index}"
            for number, block_hash, index, *_ in transfers(
                portal.chain, portal.chain.canonical(0, 60)
            )
        ]
    received = deliveries(inbox)
    by_key = dict(received)
    assert list(by_key.values()) == wanted, "the first time each key came, in order"
    assert all(by_key[key] == row for key, row in received), "a key stands for one row"
