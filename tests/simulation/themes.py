"""What a world is about: a feature and a fault that shall meet in it, each pair by turns.

Most of what happens in a world is drawn. That meets the common pairs a thousand times, and some
that a target offers never; so three of four worlds are given a pair, one after the other. From seed
`EVERY` on each world is about a feature of a target, every one by turns, and about all faults that
can meet it there: what costs much is met by few worlds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random

from tests.simulation.kinds import KINDS, NAMES, SERVERS, meets, offers
from tests.simulation.lakes import LAKES
from tests.simulation.situations import Fault, Feature, cell

FREE, REMOTE = 0, 1  # of four blocks of seeds: in which nothing is given, and lakes are on S3
EVERY = 1_000_001  # the first seed whose world is about all faults
WINDOWS = 8  # of so many other worlds one has a portal whose window moves
IN_ONE_PLACE = Feature.TOGETHER
WINDOW = (Feature.GONE, Feature.GIVEN_UP)

# What the product has got since seeds are kept: behind all else, so that these mean the same.
_SINCE = (Feature.NODE, Feature.REWOUND)
_SINCE_ON = {
    (kind, feature)
    for kind in ("ClickHouse", *LAKES, *(f"{one} on S3" for one in LAKES))
    for feature in (Feature.AGGREGATE, Feature.CHANGES, Feature.SUBSTREAMS)
}


@dataclass(frozen=True, slots=True)
class Theme:
    """The kind of the first stream's target, and what shall meet there; None: what comes."""

    kind: str
    feature: Feature | None = None
    faults: tuple[Fault, ...] = ()

    @property
    def cells(self) -> list[str]:
        """The cells of the table in docs/guarantees.md that it is about."""
        if self.feature is None:
            return []
        return [cell(self.kind, self.feature, one) for one in self.faults]

    @property
    def has_window(self) -> bool:
        """Whether the portal forgets blocks."""
        return self.feature in WINDOW


def free_theme(seed: int) -> Theme:
    """Return the kind of the first stream's target alone."""
    return Theme(KINDS[seed % len(KINDS)])


def theme_of(seed: int) -> Theme:
    """Return what the world of a seed is about."""
    if seed >= EVERY:
        return _theme_of_all(seed - EVERY)
    block, place = divmod(seed, len(KINDS))
    turn = block % 4
    name = KINDS[place]
    is_remote = turn == REMOTE and name in LAKES
    kind = f"{name} on S3" if is_remote else name
    if turn == FREE:
        window = Random(f"window {seed}").choice(WINDOW) if seed % WINDOWS == 1 else None
        return Theme(kind, window)
    themed = block // 4 * 3 + turn - 1
    if name in LAKES:
        themed = block // 4 if is_remote else block // 4 * 2 + turn - 2
    alike = [at for at, one in enumerate(KINDS) if one == name]
    pairs = _pairs(kind)
    feature, fault = pairs[(themed * len(alike) + alike.index(place)) % len(pairs)]
    return Theme(kind, feature, (fault,))


def _theme_of_all(number: int) -> Theme:
    """Return a feature of a target with all faults.

    A portal that is read over a wire gives no faulty answers: one turn has the wire cut, the next
    the answers spoiled. Servers have a connection of their own.
    """
    rows = _rows()
    turn, at = divmod(number, len(rows))
    kind, feature = rows[at]
    left_out = None if kind in SERVERS else (Fault.ANSWER, Fault.CUT)[turn % 2]
    if left_out is Fault.ANSWER and not meets(kind, feature, Fault.CUT):
        left_out = None
    met = (one for one in Fault if one is not left_out and meets(kind, feature, one))
    return Theme(kind, feature, tuple(met))


@cache
def _rows() -> list[tuple[str, Feature]]:
    """Return what the product offers, in an order in which no kind of target has a turn alone."""
    rows = [(kind, one) for kind in NAMES for one in Feature if offers(kind, one)]
    Random("rows").shuffle(rows)
    return rows


@cache
def _pairs(kind: str) -> list[tuple[Feature, Fault]]:
    """Return what the product offers on a kind of target, and what may go wrong there."""
    assert kind in NAMES
    pairs = [(one, fault) for one in Feature for fault in Fault if meets(kind, one, fault)]
    since = [pair for pair in pairs if pair[0] in _SINCE or (kind, pair[0]) in _SINCE_ON]
    before = [pair for pair in pairs if pair not in since]
    for some in (before, since):
        Random(f"pairs of {kind}").shuffle(some)
    return before + since
