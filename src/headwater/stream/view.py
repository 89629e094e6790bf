"""How far a stream is, for a person: drawn on a terminal, one line now and then elsewhere.

`pipe_to` shows it by itself, on standard error, so that what a program prints stays clean. A thread
of its own looks at the stream's record; the loop never waits for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from html import escape
from threading import Event as Flag
from threading import Thread
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from headwater.metrics import StreamRecord
from headwater.metrics.facts import in_words

CLOSE_S = 1.0  # what the end waits for the thread that draws
LINE_S = 5.0
FIRST_LINE_S = 1.0
NOTEBOOK_S = 0.5
BAR = 32


def can_draw(console: Console) -> bool:
    """Tell whether lines can be drawn again: colours that are forced make no terminal of a file."""
    return console.is_terminal and not console.is_dumb_terminal and console.file.isatty()


def notebook() -> Any:
    """Return the display of the notebook that this process is the kernel of; None without one."""
    module: Any = sys.modules.get("IPython")
    has_kernel = module is not None and hasattr(module.get_ipython(), "kernel")
    return module.display if has_kernel else None


class ProgressView:
    """Shows records while it is entered. `out` is a terminal or anything else one can write to.

    In a notebook it is one line, drawn again. What a stream waits for is a line once, however long.

    The last line says how it ended. A run that ends before the first line is due says nothing at
    all, unless it was on a terminal or `always_ends` with a line. With `shown=False` it shows only
    what it is told to `say`.
    """

    def __init__(
        self,
        records: Callable[[], Sequence[StreamRecord]],
        out: TextIO | None = None,
        *,
        shown: bool = True,
        always_ends: bool = False,
    ) -> None:
        self._records = records
        self._ends = always_ends
        self._shown = shown
        self._out = sys.stderr if out is None else out
        self._console = Console(file=self._out)
        self._over = Flag()
        self._live: Live | None = None
        self._line: Any = None
        self._said: dict[str, str | None] = {}  # what streams waited for at their last lines
        self._thread: Thread | None = None

    def __enter__(self) -> ProgressView:
        if not self._shown:
            return self
        show = notebook() if self._out is sys.stderr else None
        if show is not None:
            self._line = show.display(_line(""), raw=True, display_id=True)
        if self._line is None and can_draw(self._console):
            self._spinner = Spinner("dots", style="cyan")
            self._live = Live(
                get_renderable=self._draw, console=self._console, refresh_per_second=5,
                transient=True, redirect_stdout=False,
            )  # fmt: skip
            self._live.start()
        else:
            self._thread = Thread(target=self._print_lines, name="headwater-view", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._live is not None:
            drawing = self._live._refresh_thread  # which rich does not wait for
            self._live.stop()
            if drawing is not None:
                drawing.join(CLOSE_S)
            self._write_all()
        if self._thread is not None:
            self._thread.join()
            self._said.clear()
            if self._ends or self._line is not None:
                self._write_all()

    def say(self, text: str) -> None:
        """Print a line above what is drawn. May be called from any thread."""
        if self._live is not None:
            self._console.print(Text(text, style="yellow"))
        else:
            self._write(text)

    def _print_lines(self) -> None:
        """Print a line every few seconds; run in a thread of its own."""
        pause = FIRST_LINE_S
        while not self._over.wait(NOTEBOOK_S if self._line is not None else pause):
            self._ends = True
            self._write_all()
            pause = LINE_S

    def _write_all(self) -> None:
        if self._line is not None:
            self._line.update(_line("\n".join(map(describe, self._records()))), raw=True)
            return
        for record in self._records():
            said, self._said[record.id] = self._said.get(record.id), record.activity
            if record.activity is None or record.activity != said:
                self._write(describe(record))

    def _write(self, text: str) -> None:
        try:
            self._out.write(f"{text}\n")
            self._out.flush()
        except (OSError, ValueError):
            self._over.set()  # the reader is gone, or the stream is closed: nothing to show it to

    def _draw(self) -> RenderableType:
        return Group(*(self._draw_one(record) for record in self._records()))

    def _draw_one(self, record: StreamRecord) -> RenderableType:
        facts = record.facts
        if record.status != "backfilling" or facts is None or facts.percent is None:
            line = Table.grid(padding=(0, 1))
            line.add_row(self._spinner, Text(describe(record)))
            return line
        line = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=100, completed=facts.percent, width=BAR)
        line.add_row(Text(record.id, style="bold"), bar, f"{facts.percent:.1f} %")
        return Group(line, Text(_far(record)))


def _line(text: str) -> dict[str, str]:
    """Return a text as notebooks show it."""
    return {"text/plain": text, "text/html": f"<pre>{escape(text)}</pre>"}


def describe(record: StreamRecord) -> str:
    """Return where a stream stands, in one line."""
    if record.status == "failed":
        if record.state.cursor is None:
            return f"{record.id}: failed"
        return f"{record.id}: failed; the last commit is block {record.state.number:,}"
    if record.status == "starting" or record.state.cursor is None:
        return f"{record.id}: {record.trouble or record.activity or 'starting'} …"
    if record.status in ("stopped", "done"):
        rows = in_words(record.total_rows, "row")
        at = f"{record.status} at block {record.state.number:,}"
        return f"{record.id}: {at}, {rows} in this run, {_forks(record)}"
    if record.status == "backfilling":
        facts = record.facts
        percent = "" if facts is None or facts.percent is None else f"{facts.percent:.1f} %, "
        return f"{record.id}: {percent}{_far(record)}"
    return f"{record.id}: {_near(record)}"


def _far(record: StreamRecord) -> str:
    """Return what counts while the head is far: speed, and the time that is left."""
    blocks, rows = record.speed()
    facts = record.facts
    parts = [f"block {record.state.number:,}"]
    if facts is not None and facts.to_block is not None:
        parts[0] += f" of {facts.to_block:,}"
    if blocks:
        parts.append(f"{blocks:,.0f} blocks/s")
    if rows:
        parts.append(f"{rows:,.0f} rows/s")
    if facts is not None and facts.eta_s:
        parts.append(f"{_duration(facts.eta_s)} left")
    parts += filter(None, (record.activity, record.trouble))
    return ", ".join(parts)


def _near(record: StreamRecord) -> str:
    """Return what counts at the head: how close it is, how much is final, the last fork."""
    state, lag = record.state, record.lag_blocks
    parts = [f"block {state.number:,}"]
    if record.trouble:
        parts.append(record.trouble)
    elif lag is not None:
        parts.append("at the head" if lag == 0 else f"{lag:,} behind the head")
    if state.finalized is not None:
        parts.append(f"{max(0, state.number - state.finalized.number):,} not final")
    parts.append(_forks(record))
    if record.status == "waiting":
        parts.append("waiting for a replica that is behind")
    elif record.status == "stalled" and not record.trouble:
        parts.append("the portal sends nothing")
    if record.activity:
        parts.append(record.activity)
    return ", ".join(parts)


def _forks(record: StreamRecord) -> str:
    last = record.last_fork
    if last is None:
        return "no forks"
    return f"{in_words(record.fork_count, 'fork')} (last: {in_words(last.depth, 'block')})"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
