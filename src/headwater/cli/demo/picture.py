"""The picture that the demo leaves: the chain as a graph, with its forks and what was undone.

Time runs to the right, by block number. The line on top is the chain as it is now; branches that
were given up hang below it, each on a lane where it meets no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from headwater.cli.demo.story import Undone
from headwater.core import BlockCursor

Point = tuple[float, float]

_INK = "#1f2937"
_QUIET = "#6b7280"
_CANONICAL = "#2563eb"
_REPLACING = "#0d9488"
_ORPHANED = "#dc2626"
_UNDONE = "#fee2e2"
_FINAL = "#ecfdf5"
_FINAL_INK = "#047857"
_WIDTH = 14.0  # inches
_LETTER = 0.075  # inches that a letter of a label takes, about


@dataclass(frozen=True, slots=True)
class Drawing:
    """What is drawn. Each orphaned branch begins with the block that it hangs on."""

    title: str
    canonical: Sequence[BlockCursor]
    orphaned: Sequence[Sequence[BlockCursor]]
    undone: Sequence[Undone]
    final: int | None = None


@dataclass(frozen=True, slots=True)
class _Branch:
    """An orphaned branch where it is drawn."""

    blocks: Sequence[BlockCursor]
    lane: int
    label: str
    label_at: float


@dataclass(slots=True)
class _Lanes:
    """What is taken on each lane below the chain."""

    taken: list[list[tuple[float, float]]] = field(default_factory=list)

    def place(self, start: float, end: float) -> int:
        """Return the highest lane, from 1, that has room, and take it."""
        for index, spans in enumerate(self.taken):
            if all(end < low or high < start for low, high in spans):
                spans.append((start, end))
                return index + 1
        self.taken.append([(start, end)])
        return len(self.taken)


def draw(path: Path, drawing: Drawing) -> None:
    """Write the picture as PNG; without a single block there is nothing to draw."""
    if not drawing.canonical:
        return
    first, last = drawing.canonical[0].number, drawing.canonical[-1].number
    shown = (first - 1.5, last + 1.5)
    places: dict[BlockCursor, Point] = {one: (one.number, 0.0) for one in drawing.canonical}
    branches = _lay_out(drawing, places, shown)
    depth = max((branch.lane for branch in branches), default=0)
    figure = Figure(figsize=(_WIDTH, 3.3 + 0.85 * depth), dpi=120, facecolor="white")
    top, bottom = 1.05 / figure.get_figheight(), 1.05 / figure.get_figheight()
    axes = figure.add_axes((0.03, bottom, 0.94, 1 - top - bottom))
    axes.set_xlim(*shown)
    axes.set_ylim(-depth - 0.75, 0.7)
    _shade_final(axes, drawing, shown)
    for branch in branches:
        _draw_branch(axes, branch, places)
    _draw_canonical(axes, drawing)
    _finish(figure, axes, drawing)
    figure.savefig(path, format="png")


def _lay_out(
    drawing: Drawing, places: dict[BlockCursor, Point], shown: tuple[float, float]
) -> list[_Branch]:
    """Give each orphaned branch a lane and each of its blocks a place.

    The newest branch comes first: an older one may hang on blocks that were orphaned later.
    """
    per_block = (shown[1] - shown[0]) / _WIDTH * _LETTER
    lanes, found = _Lanes(), []
    for index in reversed(range(len(drawing.orphaned))):
        blocks = drawing.orphaned[index]
        if len(blocks) < 2:
            continue
        label = _label(index + 1, blocks, drawing.undone)
        room = len(label) * per_block
        start = min(blocks[1].number - 0.45, shown[1] - room)
        end = max(blocks[-1].number + 0.45, start + room)
        lane = lanes.place(min(start, blocks[0].number), end)
        places.update({one: (one.number, -float(lane)) for one in blocks[1:]})
        found.append(_Branch(blocks, lane, label, start))
    return found


def _label(number: int, blocks: Sequence[BlockCursor], undone: Sequence[Undone]) -> str:
    """Name a fork; if the pipeline held all of these blocks, say how much it undid."""
    depth = len(blocks) - 1
    text = f"fork {number}: {depth} block{'s' if depth > 1 else ''}"
    for fork in undone:
        if (fork.first, fork.last) == (blocks[0].number + 1, blocks[-1].number):
            return f"{text}, {sum(fork.rows.values())} rows undone"
    return text


def _shade_final(axes: Axes, drawing: Drawing, shown: tuple[float, float]) -> None:
    if drawing.final is None or drawing.final < shown[0]:
        return
    edge = min(drawing.final + 0.5, shown[1])
    axes.add_patch(Rectangle((shown[0], -0.42), edge - shown[0], 1.0, color=_FINAL, zorder=0))
    axes.plot([edge, edge], [-0.42, 0.58], color=_FINAL_INK, linewidth=1, linestyle=":", zorder=1)
    axes.annotate(
        f"final by now, up to {drawing.final:,}: can never change again",
        (edge, 0.58),
        xytext=(-6, -6),
        textcoords="offset points",
        ha="right",
        va="top",
        color=_FINAL_INK,
        fontsize=9,
    )


def _draw_branch(axes: Axes, branch: _Branch, places: dict[BlockCursor, Point]) -> None:
    row = -branch.lane
    first, last = branch.blocks[1].number, branch.blocks[-1].number
    axes.add_patch(
        FancyBboxPatch(
            (first - 0.3, row - 0.16),
            last - first + 0.6,
            0.32,
            boxstyle="round,pad=0,rounding_size=0.16",
            mutation_aspect=0.5,
            facecolor=_UNDONE,
            edgecolor="none",
            zorder=2,
        )
    )
    points = [places.get(one, (one.number, 0.0)) for one in branch.blocks]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    axes.plot(xs, ys, color=_ORPHANED, linewidth=1.6, linestyle=(0, (3, 2)), zorder=3)
    axes.scatter(
        xs[1:], ys[1:], s=52, facecolor="white", edgecolor=_ORPHANED, linewidth=1.6, zorder=4
    )
    axes.text(
        branch.label_at,
        row - 0.24,
        branch.label,
        va="top",
        color=_ORPHANED,
        fontsize=9,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
        zorder=6,
    )


def _draw_canonical(axes: Axes, drawing: Drawing) -> None:
    replaced = {one.number for branch in drawing.orphaned for one in branch[1:]}
    numbers = [one.number for one in drawing.canonical]
    colours = [_REPLACING if number in replaced else _CANONICAL for number in numbers]
    heights = [0.0] * len(numbers)
    axes.plot(numbers, heights, color=_CANONICAL, linewidth=2.4, zorder=3)
    axes.scatter(numbers, heights, s=70, c=colours, edgecolor="white", linewidth=1, zorder=5)


def _finish(figure: Figure, axes: Axes, drawing: Drawing) -> None:
    """Title, legend and the axis of block numbers."""
    count = len(drawing.orphaned)
    lost = sum(len(branch) - 1 for branch in drawing.orphaned)
    height = figure.get_figheight()
    figure.text(
        0.03, 1 - 0.32 / height, drawing.title, fontsize=15, weight="bold", color=_INK, va="center"
    )
    figure.text(
        0.03,
        1 - 0.66 / height,
        f"{count} fork{'' if count == 1 else 's'}, {lost} blocks given up by the chain and undone "
        "in the tables; each dot is a block",
        fontsize=10.5,
        color=_QUIET,
        va="center",
    )
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_QUIET)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=14))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.tick_params(colors=_QUIET, labelsize=9)
    axes.set_xlabel("block number", color=_QUIET, fontsize=9)
    figure.legend(
        handles=[
            _sample(_CANONICAL, _CANONICAL),
            _sample(_CANONICAL, _REPLACING),
            _sample(_ORPHANED, "white", dashed=True),
            Patch(facecolor=_UNDONE),
            Patch(facecolor=_FINAL, edgecolor=_FINAL_INK, linestyle=":"),
        ],
        labels=[
            "the chain",
            "read in place of an undone block",
            "orphaned by a fork",
            "rolled back in the tables",
            "final",
        ],
        loc="lower center",
        ncols=5,
        frameon=False,
        fontsize=9.5,
        labelcolor=_INK,
    )


def _sample(line: str, dot: str, *, dashed: bool = False) -> Line2D:
    """Return an entry of the legend: a line with a dot on it."""
    return Line2D(
        [],
        [],
        color=line,
        linewidth=1.6 if dashed else 2.4,
        linestyle=(0, (3, 2)) if dashed else "-",
        marker="o",
        markersize=7.5,
        markerfacecolor=dot,
        markeredgecolor=line if dashed else "white",
    )
