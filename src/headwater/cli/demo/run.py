"""The demo itself: a stream on local Spark into DuckDB, on a chain that forks, and the check.

It is the program that a user would write, plus a watcher of its events. Runs on the main thread,
since a signal is how a stream is stopped.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from threading import Event as ThreadEvent
from threading import Thread
from time import monotonic

from pyspark.sql import DataFrame

from headwater.cli.demo.chain import FINALITY_DEPTH, DemoChain, plan_forks
from headwater.cli.demo.picture import Drawing, draw
from headwater.cli.demo.story import Stage, Story, describe_backfill, describe_fork, facts_of
from headwater.cli.demo.tables import (
    STREAM_ID,
    Places,
    count_rows,
    disagreements,
    expected_tables,
    read_rows,
    top_tokens,
)
from headwater.cli.demo.view import PlainView, open_view
from headwater.decode import evm
from headwater.decode.evm.abi import parse_event
from headwater.errors import InvalidOptionError
from headwater.pipeline import Event
from headwater.portal import portal_address
from headwater.spark.session import active_session, local_session
from headwater.stream import PortalStream, StopRequested, portal_stream
from headwater.stream.context import BatchContext
from headwater.targets import duckdb_target
from headwater.targets.duckdb import DuckDBTarget
from headwater.testing import ChainSim, PortalServer, PortalSim

INTERVAL_S = 0.4
_FAR = 200
_TOP = 5
_SHOWN_BEFORE = 4
_SILENCE_S = 180.0  # nothing takes that long, on any machine: something hangs


def without_self_payments(data: Mapping[str, DataFrame]) -> Mapping[str, DataFrame]:
    """Drop what an account sends to itself, and add the value as a number: plain Spark SQL."""
    if "transfers" not in data or not {"from", "to", "value"} <= set(data["transfers"].columns):
        return data  # other events, chosen for a real portal
    kept = data["transfers"].where("`from` <> `to`")
    return {**data, "transfers": kept.selectExpr("*", "CAST(value AS DOUBLE) AS amount")}


# --- a simulated chain ----------------------------------------------------------------------------


def run_simulated(places: Places, *, blocks: int, seconds: float, seed: int, port: int) -> bool:
    """Run against a simulated chain; tell whether every table is what the chain says."""
    began = monotonic()
    chain = ChainSim(seed)
    chain.grow(blocks - 1)
    chain.finalize(chain.head.number - FINALITY_DEPTH)
    story = Story(("transfers", "approvals"), goal=chain.head.number)
    steps = max(6, round(seconds / INTERVAL_S))
    mover = DemoChain(
        chain,
        plan_forks(seed, steps),
        steps=steps,
        interval=INTERVAL_S,
        holds_head=lambda: story.cursor == chain.head.cursor,
    )
    target = duckdb_target(places.database)
    with ExitStack() as stack:
        server = stack.enter_context(PortalServer(PortalSim(chain, seed=seed), port=port))
        view = stack.enter_context(open_view(story))
        view.phase(
            "1/4 A chain to read",
            f"A simulated blockchain of {blocks:,} blocks is served on this machine, "
            f"by the protocol of the real ones: {server.url}",
        )
        stack.enter_context(_spark(places.spark_log))
        stack.enter_context(mover)
        watcher = Watcher(story, view, target, lambda: chain.head.number)
        watcher.on_head = mover.start
        watcher.is_over = lambda: mover.finished.is_set() and story.cursor == chain.head.cursor
        view.phase(
            "2/4 Backfill",
            "Spark reads past blocks in parallel, decodes two kinds of events from one fetch, and "
            "fills two tables of a DuckDB file.",
        )
        story.begin_backfill()
        with _stopping_when(lambda: monotonic() - watcher.last_event_at > _SILENCE_S):
            stream = _simulated_stream(server.url, blocks)
            stream.pipe(without_self_payments).pipe_to(target, on_event=watcher, progress=False)
        _look_again(story, target)
        if story.cursor is None:
            view.say("stopped before anything was written")
            return False
        reached = "canonical chain"
        if not watcher.is_over():
            reached = f"branch that ends in block {story.cursor.number:,}"
            view.say(f"stopped early, at block {story.cursor.number:,}; that much is checked")
        view.phase(
            "4/4 Check",
            "Every row of every table is compared with a second, independent reading of the chain.",
        )
        held = {name: read_rows(target, name) for name in story.tables}
        problems = disagreements(held, expected_tables(chain, story.cursor))
        for problem in problems:
            view.say(problem)
        if not problems:
            view.say(f"{story.total_rows:,} rows in {len(held)} tables equal the {reached}")
        draw(places.picture, _drawing_of_chain(chain, story))
        _show_top_tokens(view, target)
        view.summary(not problems, [*facts_of(story, monotonic() - began), *_ways_on(places)])
    return not problems


def _simulated_stream(url: str, blocks: int) -> PortalStream:
    """Define the stream as a user would; spans are small, so that the bar moves."""
    return portal_stream(
        id=STREAM_ID,
        portal=url,
        outputs={
            "transfers": evm.events("erc20.Transfer", range=0),
            "approvals": evm.events("erc20.Approval", range=0),
        },
        far=min(_FAR, blocks // 3),
        first_span=max(100, blocks // 6),
        largest_span=max(100, blocks // 6),
        span_seconds=60,
    )


def _drawing_of_chain(chain: ChainSim, story: Story) -> Drawing:
    """Draw the chain itself: every block of every branch since the demo began to follow."""
    with chain.lock:
        orphaned = [
            [fork.ancestor.cursor, *(chain.block(one).cursor for one in fork.orphaned_hashes)]
            for fork in chain.forks
        ]
        first = min([story.goal, *(path[0].number for path in orphaned)]) - _SHOWN_BEFORE
        return Drawing(
            title="A chain that changes its mind, and the tables that follow it",
            canonical=[block.cursor for block in chain.canonical(first)],
            orphaned=orphaned,
            undone=list(story.forks),
            final=None if chain.finalized is None else chain.finalized.number,
        )


def _show_top_tokens(view: PlainView, target: DuckDBTarget) -> None:
    rows = [
        [one["address"], f"{one['transfers']:,}", str(one["senders"]), f"{one['middle']:.3g}"]
        for one in top_tokens(target, _TOP)
    ]
    view.table(
        "Asked of the DuckDB file: the tokens that were transferred most often",
        ("token", "transfers", "senders", "median amount"),
        rows,
    )


# --- a real portal --------------------------------------------------------------------------------


def run_on_portal(
    places: Places, portal: str, *, events: Sequence[str], contracts: Sequence[str], seconds: float
) -> bool:
    """Follow the head of a chain for a while. Its truth is not known here: nothing is checked."""
    began = monotonic()
    portal_address(portal)  # refused before anything is started, if it is none
    outputs = {
        _table_name(event): evm.events(event, contracts=list(contracts), range="latest")
        for event in events
    }
    if len(outputs) < len(events):
        raise InvalidOptionError("two events of one name would share a table", got=list(events))
    story = Story(tuple(outputs))
    target = duckdb_target(places.database)
    heads = HeadWatch()
    with ExitStack() as stack:
        view = stack.enter_context(open_view(story))
        view.phase("1/2 Spark", "A local Spark is started; one of your own does as well.")
        stack.enter_context(_spark(places.spark_log))
        view.phase(
            "2/2 Following the head",
            f"For {seconds:.0f} s blocks are read as they appear; when the chain replaces some (a "
            "fork, or reorganization), what was written from them is undone first.",
        )
        story.begin_following()
        stream = portal_stream(id=STREAM_ID, portal=portal, outputs=outputs)
        watcher = Watcher(story, view, target, lambda: heads.number)
        end = monotonic() + seconds
        with _stopping_when(lambda: monotonic() > end):
            stream.pipe_batches(heads).pipe(without_self_payments).pipe_to(
                target, on_event=watcher, progress=False
            )
        _look_again(story, target)
        if story.cursor is None:
            view.say("no block arrived in this time: check the address, or allow more --seconds")
            return False
        draw(places.picture, _drawing_of_story(story))
        view.summary(True, [*facts_of(story, monotonic() - began), *_ways_on(places)])
    return True


class HeadWatch:
    """A transformer that changes nothing and remembers the head which the portal reports."""

    def __init__(self) -> None:
        self.number: int | None = None

    def transform(
        self, data: Mapping[str, DataFrame], ctx: BatchContext
    ) -> Mapping[str, DataFrame]:
        """Look at the head and pass the data on."""
        self.number = ctx.stream.state.last
        return data


def _table_name(event: str) -> str:
    """Return `transfers` for `erc20.Transfer`: the event's own name, as a plural."""
    name = parse_event(event).name
    return name[:1].lower() + name[1:] + "s"


def _drawing_of_story(story: Story) -> Drawing:
    """Draw what the pipeline saw: blocks in which nothing matched are not known to it."""
    return Drawing(
        title="The chain as the pipeline saw it",
        canonical=list(story.held),
        orphaned=list(story.orphaned),
        undone=list(story.forks),
        final=None if story.finalized is None else story.finalized.number,
    )


# --- both -----------------------------------------------------------------------------------------


class Watcher:
    """Follows the pipeline's events and tells story and view.

    `on_head` is called when the head is reached first; the run ends when `is_over` says so.
    """

    def __init__(
        self, story: Story, view: PlainView, target: DuckDBTarget, head: Callable[[], int | None]
    ) -> None:
        self.on_head: Callable[[], None] = lambda: None
        self.is_over: Callable[[], bool] = lambda: False
        self._story = story
        self._view = view
        self._target = target
        self._head = head
        self.last_event_at = monotonic()

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        self.last_event_at = monotonic()
        story = self._story
        rows = {} if event.state.cursor is None else count_rows(self._target, story.tables)
        fork = story.tell(event, rows)
        story.head = self._head()
        if fork is not None:
            self._view.say(describe_fork(fork, len(story.forks)))
        self._view.refresh()
        if story.stage is Stage.BACKFILL and story.is_at_goal:
            self._reach_head()
        if self.is_over():
            raise StopRequested

    def _reach_head(self) -> None:
        self._story.begin_following()
        self._view.say(describe_backfill(self._story))
        self._view.phase(
            "3/4 Following the head",
            "New blocks arrive one by one; now and then the network changes its mind and replaces "
            "its newest blocks (a fork, or reorganization), so what was written from them is "
            "undone and the new ones are read.",
        )
        self.on_head()


def _look_again(story: Story, target: DuckDBTarget) -> None:
    """Take the state from the file: a stop may fall between a commit and its event."""
    story.stage = Stage.CHECKING
    story.cursor = target.recover().cursor
    target.close()
    if story.cursor is not None:
        story.rows = count_rows(target, story.tables)


def _ways_on(places: Places) -> list[tuple[str, str]]:
    """Return where everything is, and what to do next."""
    drawn = [("picture", str(places.picture))] if places.picture.exists() else []
    return [
        ("tables", str(places.database)),
        *drawn,
        ("try next", "headwater simulate --fork-rate 0.3"),
        ("", "(a restless chain; docs/quickstart.md points 15 lines of your own at it)"),
    ]


@contextmanager
def _spark(log: Path) -> Iterator[None]:
    """Have a Spark session; one that is made here ends here, and talks to a log file.

    While Spark starts in another process, the drawing library is loaded in this one.
    """
    if active_session() is not None:
        yield
        return
    loading = Thread(target=import_module, args=("matplotlib.figure",), daemon=True)
    loading.start()
    with _stderr_to(log):
        session = local_session(STREAM_ID)
    loading.join()
    try:
        yield
    finally:
        session.stop()


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Let processes that are started inside write their standard error to a file, for good."""
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with path.open("wb") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


@contextmanager
def _stopping_when(is_over: Callable[[], bool]) -> Iterator[None]:
    """Stop the stream that runs inside as Ctrl-C would, once a condition holds."""
    done = ThreadEvent()

    def watch() -> None:
        while not done.wait(0.1):
            if is_over():
                os.kill(os.getpid(), signal.SIGINT)
                return

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        with suppress(KeyboardInterrupt, SystemExit):  # what is there is checked all the same
            yield
    finally:
        done.set()
        thread.join()
