"""How fast are a million mixed operations folded, beside a dictionary and one operation at a time?

Both start from the same Arrow table and end with one row per key and hot block; their outlines are
compared. The plain fold is `tests.change_model`; its time is also given without the conversion to
dictionaries, which it needs and a columnar fold does not. Other load lowers all figures alike, so
read the ratios. Exit code 1 below the limit.

    .venv/bin/python -m benchmarks.bench_changes
"""

from __future__ import annotations

import platform
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from tests.change_model import fold_one_by_one

from headwater.changes import FieldOperation, add, fold, from_columns, max_, min_, set_if_null, sub

LIMIT = 20
ROUNDS = 5
OPERATIONS, HOLDERS, BLOCKS = 1_000_000, 100_000, 5_000


def transfers(chance: random.Random, rows: int) -> pa.Table:
    """Transfers among holders; amounts mostly below 2^90, three in a hundred of full width."""
    holders = [f"0x{chance.getrandbits(160):040x}" for _ in range(HOLDERS)]
    return pa.table(
        {
            "block_number": np.sort(np.array(chance.choices(range(BLOCKS), k=rows))),
            "log_index": np.arange(rows),
            "id": [f"0x{chance.getrandbits(128):032x}-{row}" for row in range(rows)],
            "from": chance.choices(holders, k=rows),
            "to": chance.choices(holders, k=rows),
            "value": [
                str(chance.getrandbits(chance.randrange(1, 90) if chance.random() < 0.97 else 256))
                for _ in range(rows)
            ],
        }
    )


def mixed_operations(rows: int) -> pa.Table:
    """A third upserts of receivers, of senders, then inserts; a tenth of these updated, deleted."""
    chance = random.Random(7)
    source = transfers(chance, rows * 10 // 32)
    tenth = source.take(pa.array(sorted(chance.sample(range(source.num_rows), rows // 32))))
    common: dict[str, Any] = {"ordinal": "log_index"}
    received = {"amount": add("value"), "largest": max_("value"), "first": set_if_null("id")}
    sent: dict[str, FieldOperation | str] = {
        "amount": sub("value"),
        "smallest": min_("value"),
        "last": "set",
    }
    named = source.append_column("last", source["id"])
    parts = [
        from_columns(source, table="transfer", operation="insert", key=["id"],
                     fields=["from", "to", "value"], **common),
        from_columns(source, table="balance", operation="upsert", key={"owner": "to"},
                     fields=received, **common),
        from_columns(named, table="balance", operation="upsert", key={"owner": "from"},
                     fields=sent, **common),
        from_columns(tenth, table="transfer", operation="update", key=["id"],
                     fields={"seen": add("log_index")}, **common),
        from_columns(tenth.slice(0, tenth.num_rows), table="transfer", operation="delete",
                     key=["id"], **common),
    ]  # fmt: skip
    table = pa.concat_tables(parts)
    order = np.lexsort((table["ordinal"].to_numpy(), table["block_number"].to_numpy()))
    return table.take(pa.array(order)).combine_chunks()


def seconds(work: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def main() -> int:
    pa.set_cpu_count(1)
    table = mixed_operations(OPERATIONS)
    print(f"{table.num_rows:,} operations, {HOLDERS:,} holders, {BLOCKS:,} blocks,")
    print(
        f"Python {platform.python_version()}, {platform.machine()}, CPU time of one core, best of"
    )
    print(f"{ROUNDS} (the plain fold: of 1)\n")
    print("| blocks | rows | fold | plain | ratio | plain, from dictionaries | ratio |")
    print("|---|---|---|---|---|---|---|")
    ratios = []
    for name, finalized in (("all final", BLOCKS), ("1,000 hot", BLOCKS - 1000), ("all hot", None)):
        ours = seconds(lambda f=finalized: fold(table, finalized=f), ROUNDS)  # type: ignore[misc]
        converted = seconds(table.to_pylist, 1)
        changes = table.to_pylist()
        begin = time.process_time()
        plain = fold_one_by_one(changes, finalized=finalized)
        alone = time.process_time() - begin
        folded = fold(table, finalized=finalized)
        outline = ["table", "operation", "ordinal", "block_number"]
        expected = pa.table({key: [one[key] for one in plain] for key in outline})
        assert folded.select(outline).to_pydict() == expected.to_pydict()
        ratios.append((converted + alone) / ours)
        print(
            f"| {name} | {folded.num_rows:,} | {ours:.2f} s | {converted + alone:.1f} s | "
            f"{ratios[-1]:.0f}x | {alone:.1f} s | {alone / ours:.1f}x |"
        )
        del changes, plain
    print(f"\nlimit {LIMIT}x for final blocks")
    return 0 if ratios[0] >= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
