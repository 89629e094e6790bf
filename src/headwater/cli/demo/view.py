"""What the demo shows while it runs: a live display on a terminal, plain lines anywhere else.

Both tell the same story in the same words. Lines that stay (what begins, what happened) are told by
`phase` and `say`; what changes all the time is drawn from the story.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from time import monotonic

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from headwater.cli.demo.story import Stage, Story

_EVERY_S = 1.5
_SHOWN_FORKS = 6
_BAR = 40


class PlainView:
    """Lines of text without control codes, for pipes, files and CI: what every view shows."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._last = ""
        self._next = 0.0

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *error: object) -> None:
        sys.stdout.flush()

    def phase(self, title: str, sentence: str) -> None:
        """Say that something new begins, and what it is."""
        self._print(f"\n== {title}\n   {sentence}")
        self._next = 0.0

    def say(self, text: str) -> None:
        """Tell of one event."""
        self._print(f"   {text}")

    def refresh(self) -> None:
        """Show, now and then, where the story stands. Called when it has moved on."""
        line = _status(self._story)
        if line and line != self._last and monotonic() >= self._next:
            self._print(f"   {line}")
            self._last = line
            self._next = monotonic() + _EVERY_S

    def table(self, title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Show the result of a query."""
        lines = [list(headings), *(list(row) for row in rows)]
        widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
        self._print(f"\n   {title}")
        for line in lines:
            cells = [
                cell.ljust(width) if not index else cell.rjust(width)
                for index, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            self._print("     " + "  ".join(cells))

    def summary(self, good: bool, facts: Sequence[tuple[str, str]]) -> None:
        """Show what came of it all, after everything else."""
        width = max(len(name) for name, _ in facts)
        self._print(f"\n== {_verdict(good)}")
        for name, value in facts:
            self._print(f"   {name.ljust(width)}  {value}")

    def _print(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


class TerminalView(PlainView):
    """A display that is drawn again four times a second, below the lines that stay."""

    def __init__(self, story: Story, console: Console) -> None:
        super().__init__(story)
        self._console = console
        self._spinner = Spinner("dots", style="cyan")
        self._live = Live(
            get_renderable=self._draw, console=console, refresh_per_second=6, transient=True
        )

    def __enter__(self) -> TerminalView:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def phase(self, title: str, sentence: str) -> None:
        """Print a heading and its sentence above the display."""
        self._console.print()
        self._console.print(Text(title, style="bold cyan"))
        self._console.print(Padding(Text(sentence), (0, 0, 0, 2)))

    def say(self, text: str) -> None:
        """Print a line above the display."""
        style = "yellow" if text.startswith("fork") else "green"
        self._console.print(Padding(Text(text, style=style), (0, 0, 0, 2)))

    def refresh(self) -> None:
        """Do nothing: the display looks by itself."""

    def table(self, title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print the rows as a table."""
        drawn = Table(title=title, title_justify="left", title_style="bold")
        for index, heading in enumerate(headings):
            drawn.add_column(heading, justify="right" if index else "left")
        for row in rows:
            drawn.add_row(*row)
        self._console.print()
        self._console.print(Padding(drawn, (0, 0, 0, 2)))

    def summary(self, good: bool, facts: Sequence[tuple[str, str]]) -> None:
        """Print the facts in a box."""
        self._live.stop()
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold")
        grid.add_column(overflow="fold")
        for name, value in facts:
            grid.add_row(name, value)
        colour = "green" if good else "red"
        self._console.print()
        self._console.print(
            Panel(grid, title=_verdict(good), border_style=colour, title_align="left")
        )

    # --- the part that changes --------------------------------------------------------------------

    def _draw(self) -> RenderableType:
        story = self._story
        if story.stage is Stage.BACKFILL:
            return Group("", self._bar(story))
        if story.stage is Stage.FOLLOWING:
            return Group("", self._standing(story))
        self._spinner.update(text=Text(f"{story.stage.value} …"))
        return Group("", self._spinner)

    def _bar(self, story: Story) -> RenderableType:
        done, total = story.backfilled()
        line = Table.grid(padding=(0, 2))
        line.add_row(
            "  backfill",
            ProgressBar(total=total, completed=done, width=_BAR, pulse=not done),
            f"{done:,} of {total:,} blocks",
            _left(story),
        )
        return line

    def _standing(self, story: Story) -> RenderableType:
        table = Table(title="where we stand", title_justify="left", title_style="bold")
        for heading in ("chain head", "final up to", "our tables", "blocks behind", *story.tables):
            table.add_column(heading, justify="right")
        lag = story.lag
        table.add_row(
            _number(story.head),
            _number(None if story.finalized is None else story.finalized.number),
            _number(None if story.cursor is None else story.cursor.number),
            Text("-" if lag is None else str(lag), style="yellow" if lag else "green"),
            *(f"{story.rows.get(name, 0):,} rows" for name in story.tables),
        )
        forks = Text(f"forks so far: {len(story.forks)}", style="bold")
        if story.forks:
            depths = ", ".join(str(fork.depth) for fork in story.forks[-_SHOWN_FORKS:])
            forks.append(
                f"   depths {depths}   {story.undone_blocks} blocks undone, "
                f"{story.blocks_replayed} read again",
                style="not bold",
            )
        return Padding(Group(table, forks), (0, 0, 0, 2))


def open_view(story: Story) -> PlainView:
    """Return the view that suits standard output."""
    console = Console(soft_wrap=True)
    if sys.stdout.isatty() and console.is_terminal and not console.is_dumb_terminal:
        return TerminalView(story, Console())
    return PlainView(story)


def _status(story: Story) -> str:
    """Return where the story stands, in one line."""
    if story.stage is Stage.BACKFILL:
        done, total = story.backfilled()
        return f"{done:,} of {total:,} blocks ({100 * done // total} %) {_left(story)}".rstrip()
    if story.stage is not Stage.FOLLOWING or story.cursor is None:
        return ""
    final = None if story.finalized is None else story.finalized.number
    rows = ", ".join(f"{name} {story.rows.get(name, 0):,}" for name in story.tables)
    return (
        f"head {_number(story.head)}, final {_number(final)}, ours {story.cursor.number:,}, "
        f"lag {'-' if story.lag is None else story.lag} | {rows} | forks {len(story.forks)}"
    )


def _left(story: Story) -> str:
    seconds = story.seconds_left()
    return "" if not seconds else f"about {max(1, round(seconds))} s left"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _verdict(good: bool) -> str:
    return "Done" if good else "FAILED: the tables are not what the chain says"
