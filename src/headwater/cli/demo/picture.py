"""The picture that the demo leaves: the chain as a graph, with its forks and what was undone.

Time runs to the right, by block number. The line on top is the chain as it is now; branches that
were given up hang below it, each on a lane where it meets no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from headwater.core import BlockCursor
from headwater.metrics.facts import in_words

_INK, _QUIET = "#1f2937", "#6b7280"
_CHAIN, _REPLACING, _ORPHANED = "#2563eb", "#0d9488", "#dc2626"
_FINAL, _FINAL_INK = "#ecfdf5", "#047857"
_WIDTH = 14.0  # inches
_LETTER = 0.075  # inches that a letter of a label takes, about


@dataclass(frozen=True, slots=True)
class Undone:
    """A fork that was undone: the block to go back to, the blocks with rows above it, the rows."""

    safe: BlockCursor
    blocks: Sequence[BlockCursor]
    rows: int


def draw(
    path: Path, chain: Sequence[BlockCursor], forks: Sequence[Undone], final: int | None
) -> None:
    """Write the picture as PNG. `chain` is empty if nothing that can still change was read."""
    left, right = (chain[0].number - 1.5, chain[-1].number + 1.5) if chain else (0.0, 1.0)
    labels = [Label(index, fork, left, right) for index, fork in enumerate(forks)]
    lanes = _lanes(forks, labels)
    depth = max(lanes, default=0)
    height = 3.3 + 0.85 * depth
    figure = Figure(figsize=(_WIDTH, height), dpi=120, facecolor="white")
    axes = figure.add_axes((0.03, 1.05 / height, 0.94, 1 - 2.1 / height))
    axes.set_xlim(left, right)
    axes.set_ylim(-depth - 0.75, 0.7)
    if final is not None and final >= left:
        _shade_final(axes, left, min(final + 0.5, right), final)
    places = {block: (block.number, 0) for block in chain}
    for fork, lane in zip(forks, lanes, strict=True):
        places.update({block: (block.number, -lane) for block in fork.blocks})
    for fork, label in zip(forks, labels, strict=True):
        _draw_fork(axes, fork, label, places)
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


class Label:
    """What is said below a fork, and between which block numbers: never beyond the right edge."""

    def __init__(self, index: int, fork: Undone, left: float, right: float) -> None:
        self.text = f"fork {index + 1}: {in_words(fork.rows, 'row')} undone"
        width = len(self.text) * (right - left) / _WIDTH * _LETTER
        self.start = min(fork.safe.number + 0.7, right - width)
        self.end = self.start + width


def _lanes(forks: Sequence[Undone], labels: Sequence[Label]) -> list[int]:
    """Return the lane of each fork, from 1: the highest in which it and its label have room.

    The newest takes its lane first: an older one may hang on blocks that were orphaned later.
    """
    taken: list[tuple[int, float, float]] = []
    lanes = [0] * len(forks)
    for index in reversed(range(len(forks))):
        fork, label = forks[index], labels[index]
        start = min(fork.safe.number, label.start)
        end = max([*(block.number + 0.5 for block in fork.blocks), label.end])
        lane = 1
        while any(lane == other and start <= high and low <= end for other, low, high in taken):
            lane += 1
        taken.append((lane, start, end))
        lanes[index] = lane
    return lanes


def _shade_final(axes: Axes, left: float, edge: float, final: int) -> None:
    axes.add_patch(Rectangle((left, -0.42), edge - left, 1.0, color=_FINAL, zorder=0))
    axes.plot([edge, edge], [-0.42, 0.58], color=_FINAL_INK, linewidth=1, linestyle=":", zorder=1)
    text = f" final by now, up to {final:,}: can never change again"
    axes.text(left, 0.52, text, va="top", color=_FINAL_INK, fontsize=9)


def _draw_fork(
    axes: Axes, fork: Undone, label: Label, places: dict[BlockCursor, tuple[int, int]]
) -> None:
    """Draw the blocks of a branch that was given up, from the block on which it hangs."""
    path = [fork.safe, *fork.blocks]
    xs, ys = zip(*(places.get(block, (block.number, 0)) for block in path), strict=True)
    axes.plot(
        xs, ys, color=_ORPHANED, linewidth=1.6, linestyle=(0, (3, 2)), marker="o", markersize=7,
        markerfacecolor="white", markevery=slice(1, None), zorder=4,
    )  # fmt: skip
    if fork.blocks:
        axes.text(
            label.start, ys[1] - 0.24, label.text, va="top", color=_ORPHANED, fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5}, zorder=6,
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
