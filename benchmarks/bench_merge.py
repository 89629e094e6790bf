"""Hot blocks merged into tables of DuckDB, by this version and by another one, in turns.

    .venv/bin/python benchmarks/bench_merge.py [src of another version] [rounds]

The history target applies upserts (add, max, min, set-if-null and set) of random keys to tables of
10,000, 100,000 and 1,000,000 rows: 100 hot blocks of 1,000 changes in one commit, as a stream
catches up, and 10 hot blocks of 1,000 and of 100 changes in commits of their own, as it follows the
head. Each measurement is a process of its own; CPU seconds per block, the least of the rounds. A
digest of the tables and their history must agree.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

SIZES = (10_000, 100_000, 1_000_000)
CASES = {
    "100 together, 1,000 changes": (100, 1_000, True),
    "alone, 1,000 changes": (10, 1_000, False),
    "alone, 100 changes": (10, 100, False),
}
OWN = Path(__file__).resolve().parent.parent / "src"


def upserts(block: int, keys: Any) -> pa.Table:
    """Return the changes of one block: one upsert of each key."""
    from headwater.changes import FieldOperation, add, from_columns, max_, min_, set_if_null

    size = len(keys)
    numbers = np.arange(size) * 7919 + block
    rows = pa.table(
        {
            "block_number": np.full(size, block),
            "log_index": np.arange(size),
            "owner": [f"0x{key * 2654435761 % 2**64:040x}" for key in keys.tolist()],
            "value": [str(one) for one in numbers.tolist()],
            "last": [f"{one:032x}-{block}" for one in numbers.tolist()],
        }
    )
    fields: dict[str, FieldOperation | str] = {
        "amount": add("value"),
        "largest": max_("value"),
        "first": set_if_null("last"),
        "smallest": min_("value"),
        "last": "set",
    }
    return from_columns(
        rows, table="balance", operation="upsert", key=["owner"], fields=fields, ordinal="log_index"
    )


def measure(size: int) -> dict[str, tuple[float, str]]:
    """Return CPU seconds per block, and a digest, of each case; runs in a process of its own."""
    from bench_history import TABLES, Stream
    from headwater.targets import history_target

    chance, found = np.random.default_rng(7), {}
    with tempfile.TemporaryDirectory() as folder:
        stream = Stream(history_target(str(Path(folder) / "bench.duckdb"), tables=TABLES))
        stream.commit([(1, upserts(1, np.arange(size)))], 1)
        newest = 1
        for name, (blocks, changes, together) in CASES.items():
            numbers = range(newest + 1, newest + 1 + blocks)
            given = [(at, upserts(at, chance.choice(size, changes, False))) for at in numbers]
            begin = time.process_time()
            for commit in [given] if together else [[one] for one in given]:
                stream.commit(commit, 1)
            spent = (time.process_time() - begin) / blocks
            digest = stream.target.query(
                "SELECT (SELECT md5(string_agg(md5(b::VARCHAR), '' ORDER BY owner)) FROM balance b)"
                " || (SELECT md5(string_agg(md5(concat_ws(',', op, pk, prev_value, block_num)), ''"
                " ORDER BY id)) FROM substreams_history) AS d"
            )
            found[name] = (spent, digest["d"][0].as_py())
            newest = numbers[-1]
        stream.target.close()
    return found


def run(source: Path, size: int) -> dict[str, tuple[float, str]]:
    environment = os.environ | {"PYTHONPATH": str(source)}
    command = [sys.executable, __file__, "--measure", str(size)]
    made = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, tuple[float, str]] = json.loads(made.stdout.splitlines()[-1])
    return found


def main() -> int:
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(int(sys.argv[2]))))
        return 0
    other = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    print("| rows | hot blocks | other version | this version | ratio |\n|---|---|---|---|---|")
    for size in SIZES:
        ours, theirs = [], []
        for _ in range(rounds):
            theirs += [run(other, size)] if other else []
            ours.append(run(OWN, size))
        for name in CASES:
            assert len({one[name][1] for one in ours + theirs}) == 1, "all versions leave the same"
            mine = min(one[name][0] for one in ours) * 1000
            before = min((one[name][0] for one in theirs), default=0.0) * 1000
            against = (f"{before:.1f} ms", f"{before / mine:.1f}x") if other else ("", "")
            print(
                f"| {size:,} | {name} | {against[0]} | {mine:.1f} ms | {against[1]} |", flush=True
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
