"""How cost grows: with outputs, with children of a factory, with the length of tables.

    OPENBLAS_NUM_THREADS=1 python benchmarks/path/growth.py [plot.png]

(a) A fresh process backfills the same logs into one to four outputs, by the default path into
nothing: CPU seconds of the process and all that it started, beside one output. (b) Decoding of
Swap logs of which half are of children, as 10 to 100 thousand children are known: CPU time per log.
(c) A block of 200 rows at the head, and the undo of 20 such blocks, in PostgreSQL tables with a
primary key that hold 10 thousand to 3 million rows of earlier blocks: the median by the clock.
Linear or flat is right; exit code 1 if (a) or (b) or (c) grows faster than its limit.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

import psycopg
import pyarrow as pa
from bench_path import Bench, Machine

from bench_factory import SWAP, address, cost, make_lines, of_children
from headwater.core import Batch, BlockHeader, Head, PipeState
from headwater.decode import evm, parse_logs
from headwater.targets import postgres_target
from headwater.targets.contract import Delivery
from headwater.targets.postgres import table
from headwater.testing.servers import postgres_server
from template_portal import template_portal

LOGS, PER_BLOCK = 500_000, 100
OUTPUTS = (1, 2, 4)
CHILDREN = (10_000, 30_000, 100_000)
LENGTHS = (10_000, 100_000, 1_000_000, 3_000_000)
ROWS, UNDONE, ROUNDS = 200, 20, 15
LIMITS = {"outputs": 4.4, "children": 1.6, "block": 2.0, "undo": 2.0}  # the last beside the first

TITLES = {
    "outputs": f"Backfill of {LOGS:,} logs",
    "children": "Decoding of a log",
    "block": f"Commit of a block of {ROWS} rows",
    "undo": f"Undo of {UNDONE} blocks of {ROWS} rows",
}
AXES = {
    "outputs": "outputs",
    "children": "children of the factory",
    "block": "rows of the PostgreSQL table",
    "undo": "rows of the PostgreSQL table",
}


def outputs() -> Iterator[tuple[int, float]]:
    """Yield the CPU seconds of a backfill for a number of outputs."""
    with template_portal(LOGS // PER_BLOCK + 50, PER_BLOCK) as portal:
        for count in OUTPUTS:
            seen = Bench("noop", portal, "", LOGS, count, Machine()).run(1, "none")
            yield count, sum(seen.cpu[0].values())


def children() -> Iterator[tuple[int, float]]:
    """Yield the nanoseconds that a log takes for a number of children."""
    chance = random.Random(1)
    everybody = [address(chance) for _ in range(max(CHILDREN))]
    for count in CHILDREN:
        known = everybody[:count]
        logs = parse_logs(make_lines(evm.events(SWAP), known))
        index, made = of_children(known, [])
        spent = cost(index.bind(made, 2_000_000)["swaps"], logs)
        yield count, 1e9 * spent / logs.num_rows


def lengths() -> Iterator[tuple[int, float, float]]:
    """Yield the milliseconds of a block and of an undo for a length of the table."""
    with postgres_server() as dsn:
        for length in LENGTHS:
            name = f"t{length}"
            key = ["block_number", "log_index"]
            target = postgres_target(dsn, tables=[table(name, key=key)])
            target.bind(name)
            state = PipeState().advance([header(0)], Head(header(0).cursor))
            assert target.recover() == PipeState()
            target.commit([batch(state, name, 0)], state)
            with psycopg.connect(dsn, autocommit=True) as link:
                link.execute(
                    f"INSERT INTO {name} SELECT 0, i + {ROWS}, repeat('x', 60), i "  # noqa: S608
                    f"FROM generate_series(1, {length}) i"
                )
                link.execute("VACUUM ANALYZE")
            blocks, undos = [], []
            for _ in range(ROUNDS):
                safe, number = state, state.number
                for following in range(number + 1, number + 1 + UNDONE):
                    state = state.advance([header(following)], Head(header(0).cursor))
                    made = batch(state, name, following)
                    blocks.append(timed(target.commit, [made], state))
                undos.append(timed(target.roll_back, safe))
                state = safe
            target.close()
            yield length, 1000 * median(blocks), 1000 * median(undos)


def timed(work: Callable[..., object], *arguments: object) -> float:
    started = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - started


def header(number: int) -> BlockHeader:
    return BlockHeader(number, f"0x{number:064x}", f"0x{number - 1:064x}")


def batch(state: PipeState, name: str, number: int) -> Batch[Delivery]:
    rows = pa.table(
        {
            "block_number": pa.array([number] * ROWS, pa.int64()),
            "log_index": pa.array(range(ROWS), pa.int64()),
            "text": ["x" * 60] * ROWS,
            "value": pa.array(range(ROWS), pa.int64()),
        }
    )
    head = Head(header(0).cursor)
    return Batch((header(number),), head, state, state.rollback_chain[-1:], Delivery({name: rows}))


def main() -> int:
    pa.set_cpu_count(1)
    grown: dict[str, dict[int, float]] = {"outputs": dict(outputs()), "children": dict(children())}
    both = list(lengths())
    grown["block"] = {length: block for length, block, _ in both}
    grown["undo"] = {length: undo for length, _, undo in both}
    units = {"outputs": "CPU-s", "children": "ns per log", "block": "ms", "undo": "ms"}
    print("| what grows | " + " | ".join(["first", "", "", "last"]) + " | last beside first |")
    print("|---|---|---|---|---|---|")
    missed = []
    for name, found in grown.items():
        cells = [f"{size:,}: {value:,.1f} {units[name]}" for size, value in found.items()]
        values = list(found.values())
        ratio = values[-1] / values[0]
        cells += [""] * (4 - len(cells))
        print(f"| {name} | {' | '.join(cells)} | {ratio:.2f}x (limit {LIMITS[name]}) |")
        missed += [name] if ratio > LIMITS[name] else []
    if len(sys.argv) > 1:
        plot(grown, units, Path(sys.argv[1]))
    return 1 if missed else 0


def short(size: int) -> str:
    """Return a number as it is read on an axis."""
    for unit, name in ((1_000_000, " M"), (1000, " k")):
        if size >= unit:
            return f"{size / unit:g}{name}"
    return str(size)


def plot(grown: dict[str, dict[int, float]], units: dict[str, str], file: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(15, 3.8))
    for axis, (name, found) in zip(axes, grown.items(), strict=True):
        sizes, values = list(found), list(found.values())
        right = [values[0] * (size / sizes[0] if name == "outputs" else 1) for size in sizes]
        shape = "linear" if name == "outputs" else "flat"
        axis.plot(sizes, right, "--", color="0.6", label=f"{shape}, from the first point")
        axis.plot(sizes, values, "o-", color="C0", label="measured")
        for size, value in found.items():
            axis.annotate(f"{value:,.1f}", (size, value), (0, 7), textcoords="offset points",
                          ha="center", fontsize=9)  # fmt: skip
        if name != "outputs":
            axis.set_xscale("log")
        axis.set_xticks(sizes, list(map(short, sizes)), fontsize=8)
        axis.minorticks_off()
        axis.set_ylim(0, 1.35 * max(*values, *right))
        axis.margins(x=0.15)
        axis.set_title(TITLES[name], fontsize=10)
        axis.set_xlabel(AXES[name], fontsize=9)
        axis.set_ylabel(units[name], fontsize=9)
        axis.legend(loc="lower right", fontsize=8)
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
