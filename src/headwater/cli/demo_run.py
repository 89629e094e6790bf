"""The demo's program: a stream as a user writes it, its listener, the check, and the picture."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Timer
from typing import Any

import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from pyspark.sql import DataFrame

from headwater.core import BlockCursor, PipeState, SpanLimits
from headwater.decode import evm
from headwater.decode.evm.abi import parse_event
from headwater.errors import InvalidOptionError
from headwater.metrics.facts import in_words
from headwater.pipeline import Event, RolledBack
from headwater.portal import portal_address
from headwater.spark.session import local_session
from headwater.stream import PortalStream, StopRequested, portal_stream
from headwater.targets.duckdb import DuckDBTarget, duckdb_target
from headwater.targets.duckdb.dialect import TableName
from headwater.targets.sql.side_tables import CONFIG
from headwater.targets.text import compose
from headwater.testing import ChainSim, simulated_portal
from headwater.testing.chain.content.evm_scenes import APPROVAL, TRANSFER
from headwater.testing.oracle import DisagreementError, Oracle, Rows

STREAM_ID = "headwater-demo"
INTERVAL_S = 0.4
FINALITY_DEPTH = 12
DEEPEST = 7
EVENTS = {"transfers": "erc20.Transfer", "approvals": "erc20.Approval"}
_SIMULATED = {"transfers": (TRANSFER, "from", "to"), "approvals": (APPROVAL, "owner", "spender")}
_FIELDS = ("logIndex", "transactionIndex", "transactionHash", "address", "topics", "data")
_TOP_TOKENS = (
    'SELECT address AS token, count(*) AS transfers, count(DISTINCT "from") AS senders '
    "FROM transfers GROUP BY address ORDER BY transfers DESC, address LIMIT 5"
)


def make_room(out: Path) -> None:
    """Create the folder, and remove what an earlier demo left; refuse to remove anything else."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidOptionError(
            f"--out must be a directory that can be written: {error.strerror}", got=out
        ) from None
    database = out / "chain.duckdb"
    if database.exists() and not _is_ours(duckdb_target(database)):
        raise InvalidOptionError(
            "--out holds a chain.duckdb that the demo did not make, so it is left alone; "
            "name another directory",
            got=out,
        )
    for name in ("forks.png", "chain.duckdb", "chain.duckdb.wal"):
        (out / name).unlink(missing_ok=True)


def _is_ours(target: DuckDBTarget) -> bool:
    """Tell whether a file holds the demo's stream and nothing else."""
    names = _first_column(target, "SELECT table_name FROM duckdb_tables()")
    if "sync" not in names:
        return not names
    claimed = _first_column(target, "SELECT table_name FROM sync__tables")
    known = {"sync", "sync__tables", CONFIG, *claimed, *(f"{name}__snapshots" for name in claimed)}
    streams = _first_column(target, "SELECT id FROM sync UNION SELECT id FROM sync__tables")
    return streams <= {STREAM_ID} and names <= known


def _first_column(target: DuckDBTarget, statement: str) -> set[str]:
    return set(target.query(statement).column(0).to_pylist())


# --- the program: what a user would write, and a listener -----------------------------------------


def without_self_payments(data: Mapping[str, DataFrame]) -> Mapping[str, DataFrame]:
    """Drop what an account sends to itself: plain Spark SQL."""
    if "transfers" not in data or not {"from", "to"} <= set(data["transfers"].columns):
        return data  # other events, chosen for a real portal
    return {**data, "transfers": data["transfers"].where("`from` <> `to`")}


def run_simulated(out: Path, *, blocks: int, seconds: float, seed: int, port: int) -> bool:
    """Run against a simulated chain; tell whether every table is what the chain says."""
    with simulated_portal(seed, blocks=blocks, finality_depth=FINALITY_DEPTH, port=port) as portal:
        target = duckdb_target(out / "chain.duckdb")
        chain = portal.chain
        watcher = Watcher(target, list(EVENTS), ChainMover(chain, seed, seconds))
        typer.echo(
            f"a simulated chain of {blocks:,} blocks is served at {portal.url}; Spark starts",
            err=True,
        )
        local_session(STREAM_ID)
        span = max(100, blocks // 6)  # small, so that one sees it move
        stream = portal_stream(
            id=STREAM_ID,
            portal=portal.url,
            outputs={name: evm.events(event, range=0) for name, event in EVENTS.items()},
            far=min(200, blocks // 3),
            first_span=span,
            spans=SpanLimits(blocks=span),
        )
        state = watcher.follow(stream)
        if state.cursor is None:
            typer.echo("stopped before anything was written")
            return False
        problem = compare(target, chain, state)
        equal = f"{watcher.rows:,} rows in 2 tables equal the chain up to {state.cursor}"
        typer.echo(f"{problem or equal}\n\nasked of the tables: which tokens were moved most often")
        for row in target.query(_TOP_TOKENS).to_pylist():
            typer.echo("  {token}  {transfers:,} transfers by {senders:,} senders".format(**row))
        watcher.finish(out)
    typer.echo("try next: headwater simulate --fork-rate 0.3; the program in docs/quickstart.md")
    return problem is None


def run_on_portal(
    out: Path, portal: str, *, events: Sequence[str], contracts: Sequence[str], seconds: float
) -> bool:
    """Follow the head of a chain for a while. Its truth is not known here: nothing is checked."""
    portal_address(portal)  # refused before anything is started, if it is none
    outputs = {
        f"{name[:1].lower()}{name[1:]}s": evm.events(event, contracts=contracts, range="latest")
        for event in events
        for name in (parse_event(event).name,)
    }
    if len(outputs) < len(events):
        raise InvalidOptionError("two events of one name would share a table", got=list(events))
    target = duckdb_target(out / "chain.duckdb")
    typer.echo(f"Spark starts; then the head is followed for {seconds:.0f} s", err=True)
    local_session(STREAM_ID)
    watcher = Watcher(target, list(outputs))
    timer = Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()
    try:
        state = watcher.follow(portal_stream(id=STREAM_ID, portal=portal, outputs=outputs))
    finally:
        timer.cancel()
    if state.cursor is None:
        typer.echo("no block arrived in this time: check the address, or allow more --seconds")
        return False
    watcher.finish(out)
    return True


@dataclass(frozen=True, slots=True)
class Undone:
    """A fork that was undone: the block to go back to, the blocks with rows above it, the rows."""

    safe: BlockCursor
    blocks: Sequence[BlockCursor]
    rows: int


class Watcher:
    """Runs the stream, and is its listener: tells of forks and keeps what the picture shows.

    `moved` is called after each event with the cursor of the tables.
    """

    def __init__(
        self,
        target: DuckDBTarget,
        tables: Sequence[str],
        moved: Callable[[BlockCursor], None] = lambda cursor: None,
    ) -> None:
        counts = [
            compose("(SELECT count(*) FROM {table})", table=TableName("main", name))
            for name in tables
        ]
        self._target = target
        self._count = f"SELECT {' + '.join(counts)} AS n"
        self._moved = moved
        self._held: dict[int, BlockCursor] = {}
        self.state = PipeState()
        self.rows = 0
        self.forks: list[Undone] = []

    def follow(self, stream: PortalStream) -> PipeState:
        """Run until the end or Ctrl-C; return the state that the file says, whatever was told."""
        with suppress(SystemExit):  # Ctrl-C: what is there is checked all the same
            stream.pipe(without_self_payments).pipe_to(self._target, on_event=self)
        self.state = self._target.recover()
        if self.state.cursor is not None:
            self.rows = self._count_rows()
        return self.state

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        before, self.state = self.state, event.state
        cursor = event.state.cursor
        if cursor is None:
            return
        rows, self.rows = self.rows, self._count_rows()
        hot = [
            block for block in self.state.rollback_chain if not self.state.is_final(block.number)
        ]
        self._held = {
            number: block for number, block in self._held.items() if number <= cursor.number
        }
        self._held.update((block.number, block) for block in hot)
        if isinstance(event, RolledBack):
            lost = [block for block in before.rollback_chain if block.number > cursor.number]
            fork = Undone(cursor, lost, rows - self.rows)
            self.forks.append(fork)
            typer.echo(
                f"fork {len(self.forks)}: from block {event.orphaned.number:,} back to "
                f"{cursor.number:,}, {in_words(fork.rows, 'row')} undone",
                err=True,
            )
        self._moved(cursor)

    def _count_rows(self) -> int:
        """Count what is committed, also while the stream runs."""
        return int(self._target.query(self._count).column("n")[0].as_py())

    def finish(self, out: Path) -> None:
        """Draw the chain as the pipeline saw it, and say where everything is."""
        chain = [self._held[number] for number in sorted(self._held)]
        final = self.state.finalized
        draw(out / "forks.png", chain, self.forks, None if final is None else final.number)
        lost = sum(fork.rows for fork in self.forks)
        typer.echo(f"\n{in_words(len(self.forks), 'fork')}, {in_words(lost, 'row')} undone")
        typer.echo(f"tables   {out / 'chain.duckdb'}\npicture  {out / 'forks.png'}")


# --- the chain, and the check ---------------------------------------------------------------------


def plan_forks(seed: int, steps: int) -> dict[int, int]:
    """Return at which steps the chain forks, and how deep: three times or more, no two alike."""
    count = min(DEEPEST, max(3, steps // 8))
    depths = Random(f"demo {seed}").sample(range(1, DEEPEST + 1), count)
    return {(index + 1) * steps // (count + 1): depth for index, depth in enumerate(depths)}


class ChainMover:
    """Moves the chain a step on whenever the tables hold its head: a block, or a planned fork.

    So what a fork replaces has always been written, however slow the machine is.
    """

    def __init__(self, chain: ChainSim, seed: int, seconds: float) -> None:
        self._chain = chain
        self._steps = max(6, round(seconds / INTERVAL_S))
        self._plan = plan_forks(seed, self._steps)
        self._step = 0

    def __call__(self, cursor: BlockCursor) -> None:
        """Move if it is time to; end the run after the last step."""
        if cursor != self._chain.head.cursor:
            return
        if self._step == self._steps:
            raise StopRequested
        time.sleep(INTERVAL_S)
        with self._chain.lock:
            depth = self._plan.get(self._step)
            self._chain.fork(depth) if depth else self._chain.grow(1)
            self._chain.finalize(max(self._chain.head.number - FINALITY_DEPTH, 0))
        self._step += 1


def compare(target: DuckDBTarget, chain: ChainSim, state: PipeState) -> str | None:
    """Compare every row with a second, independent reading of the chain; return what differs."""
    oracle = Oracle(chain, "logs", _is_wanted, _FIELDS)
    known = {(block.hash, block.number, block.timestamp) for block in oracle.branch(state.cursor)}
    rows = [row for name in _SIMULATED for row in _logs(target, name)]
    logs: Rows = {}
    for (block, _, _), log in sorted(rows, key=lambda row: row[1]["logIndex"]):
        logs.setdefault(block, []).append(log)
    try:
        oracle.check(logs, state, PipeState())
    except DisagreementError as error:
        return f"FAILED: the tables are not what the chain says: {error}"
    if not known.issuperset(block for block, _ in rows):
        return "FAILED: the number or the time of a block is not what the chain says"
    return None


def _logs(target: DuckDBTarget, name: str) -> Iterator[tuple[tuple[str, int, int], dict[str, Any]]]:
    """Yield the rows of a table as the logs that they were decoded from, each with its block."""
    topic, *parties = _SIMULATED[name]
    statement = "SELECT *, epoch(timestamp)::BIGINT AS seconds FROM {table}"
    for row in target.query(compose(statement, table=TableName("main", name))).to_pylist():
        yield (
            (row["block_hash"], row["block_number"], row["seconds"]),
            {
                "logIndex": row["log_index"],
                "transactionIndex": row["transaction_index"],
                "transactionHash": row["transaction_hash"],
                "address": row["address"],
                "topics": [topic, *(f"0x{row[party][2:]:0>64}" for party in parties)],
                "data": f"0x{int(row['value']):064x}",
            },
        )


def _is_wanted(log: Mapping[str, Any]) -> bool:
    """Tell whether a log is in one of the tables."""
    if len(log["topics"]) != 3:
        return False
    kind, first, second = log["topics"]
    return bool(kind == APPROVAL or (kind == TRANSFER and first != second))


# --- the picture: the chain on top, by block number, and below it each branch that was given up


_INK, _QUIET = "#1f2937", "#6b7280"
_CHAIN, _REPLACING, _ORPHANED = "#2563eb", "#0d9488", "#dc2626"
_FINAL, _FINAL_INK = "#ecfdf5", "#047857"
_SHOWN_FORKS = 12  # the newest


def draw(
    path: Path, chain: Sequence[BlockCursor], forks: Sequence[Undone], final: int | None
) -> Figure:
    """Write the picture as PNG. `chain` is empty if nothing that can still change was read."""
    left, right = (chain[0].number - 1.5, chain[-1].number + 1.5) if chain else (0.0, 1.0)
    shown = list(enumerate(forks, 1))[-_SHOWN_FORKS:]
    height = 3.3 + 0.85 * len(shown)
    figure = Figure(figsize=(14.0, height), dpi=120, facecolor="white")
    axes = figure.add_axes((0.03, 1.05 / height, 0.94, 1 - 2.1 / height))
    axes.set_xlim(left, right)
    axes.set_ylim(-len(shown) - 0.75, 0.7)
    if final is not None and final >= left:
        _shade_final(axes, left, min(final + 0.5, right), final)
    places = {block: (block.number, 0) for block in chain}
    for lane, (_, fork) in enumerate(reversed(shown), 1):
        places.update({block: (block.number, -lane) for block in fork.blocks})
    for index, fork in shown:
        _draw_fork(axes, f"fork {index}: {in_words(fork.rows, 'row')} undone", fork, places)
    replaced = {block.number for fork in forks for block in fork.blocks}
    numbers = [block.number for block in chain]
    colours = [_REPLACING if number in replaced else _CHAIN for number in numbers]
    axes.plot(numbers, [0] * len(numbers), color=_CHAIN, linewidth=2.4, zorder=3, label="the chain")
    axes.scatter(numbers, [0] * len(numbers), s=70, c=colours, edgecolor="white", zorder=5)
    axes.scatter([], [], s=70, c=_REPLACING, label="read in place of a block that was undone")
    axes.scatter(
        [], [], s=50, c="white", edgecolor=_ORPHANED, label="orphaned by a fork, and rolled back"
    )
    _finish(figure, axes, forks)
    figure.savefig(path, format="png")
    return figure


def _shade_final(axes: Axes, left: float, edge: float, final: int) -> None:
    axes.add_patch(Rectangle((left, -0.42), edge - left, 1.0, color=_FINAL, zorder=0))
    axes.plot([edge, edge], [-0.42, 0.58], color=_FINAL_INK, linewidth=1, linestyle=":", zorder=1)
    text = f" final by now, up to {final:,}: can never change again"
    axes.text(left, 0.52, text, va="top", color=_FINAL_INK, fontsize=9)


def _draw_fork(
    axes: Axes, label: str, fork: Undone, places: Mapping[BlockCursor, tuple[int, int]]
) -> None:
    """Draw the blocks of a branch that was given up, from the block on which it hangs.

    The label ends at the right edge where the branch is in the right half, so it is never cut off.
    """
    path = [fork.safe, *fork.blocks]
    xs, ys = zip(*(places.get(block, (block.number, 0)) for block in path), strict=True)
    axes.plot(
        xs, ys, color=_ORPHANED, linewidth=1.6, linestyle=(0, (3, 2)), marker="o", markersize=7,
        markerfacecolor="white", markevery=slice(1, None), zorder=4,
    )  # fmt: skip
    if fork.blocks:
        left, right = axes.get_xlim()
        at_end = fork.safe.number > (left + right) / 2
        axes.text(
            right - 0.2 if at_end else fork.safe.number + 0.7, ys[1] - 0.24, label,
            ha="right" if at_end else "left", va="top", color=_ORPHANED, fontsize=9, zorder=6,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
        )  # fmt: skip


def _finish(figure: Figure, axes: Axes, forks: Sequence[Undone]) -> None:
    """Title, legend and the axis of block numbers."""
    height = figure.get_figheight()
    lost = in_words(sum(fork.rows for fork in forks), "row")
    title = "A chain that changes its mind, and the tables that follow it"
    below = f"{in_words(len(forks), 'fork')}, {lost} undone; each dot is a block with rows"
    figure.text(0.03, 1 - 0.45 / height, title, fontsize=15, weight="bold", color=_INK)
    figure.text(0.03, 1 - 0.75 / height, below, fontsize=10.5, color=_QUIET)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_QUIET)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=14))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.tick_params(colors=_QUIET, labelsize=9)
    axes.set_xlabel("block number", color=_QUIET, fontsize=9)
    figure.legend(loc="lower center", ncols=3, frameon=False, fontsize=9.5, labelcolor=_INK)
