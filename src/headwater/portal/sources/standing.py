"""What is known of each source of a list, and which one is asked next. Pure: time is an argument.

A source is judged by its answers: those to requests while it is in use, and those to probes while
it is not. Verdicts change at once for the worse. For the better they take a while: a source that
failed has to answer for `prove_s`, and longer each time that it fails again, before it takes the
place of one that works. Called on the driver and, in each task, on executors.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from headwater.core import BlockCursor
from headwater.portal.sources.addresses import Sources
from headwater.portal.wire import Dataset

_LONGEST_PROOF = 16  # times `prove_s`
_LONGEST_PAUSE = 6  # times `probe_s`, between two probes of a source that fails
_STALE = 3  # times `lag_s` without a new block


class Verdict(StrEnum):
    """How a source stands."""

    UNKNOWN = "unknown"  # not asked yet
    GOOD = "good"
    LAGGING = "lagging"  # its head is one that another source has left behind
    STALE = "stale"  # and does not move, or it sends no blocks below its head
    FAILING = "failing"  # it did not answer, or sent what cannot be used
    FOREIGN = "foreign"  # it holds another network, or another chain


class _Class(IntEnum):
    """How much a source is worth for one request; lower is better."""

    USABLE = 0
    BEHIND = 1
    STALE = 2
    LACKS = 3  # the range, or what the query asks for
    FAILING = 4
    NEVER = 5


_CLASSES = {
    Verdict.UNKNOWN: _Class.USABLE,
    Verdict.GOOD: _Class.USABLE,
    Verdict.LAGGING: _Class.BEHIND,
    Verdict.STALE: _Class.STALE,
    Verdict.FAILING: _Class.FAILING,
    Verdict.FOREIGN: _Class.NEVER,
}


@dataclass(frozen=True, slots=True)
class Need:
    """What a request asks for: its first block, only final ones or not, and which query."""

    first: int | None = None
    final_only: bool = False
    query: int | None = None


@dataclass(slots=True)
class Standing:
    """What is known of one source. `name` is its address as it may be shown."""

    name: str
    head: int | None = None
    final: int | None = None
    has_finality: bool | None = None  # until it is known
    dataset: Dataset | None = None
    oldest: int = 0
    fault: str | None = None
    foreign: str | None = None  # it holds another network
    contradicts: str | None = None  # it holds another block than our final one
    lacks: dict[int, str] = field(default_factory=dict)  # queries that it refuses, and its words
    requests: int = 0
    failures: int = 0
    verdict: Verdict = Verdict.UNKNOWN
    reason: str = ""
    in_a_row: int = 0  # failures
    relapses: int = 0
    good_since: float | None = None
    head_seen_at: float = 0.0
    head_moved_at: float = 0.0
    owes_since: float | None = None  # blocks below its head
    probe_at: float = 0.0


@dataclass(frozen=True, slots=True)
class SourceState:
    """One source of a list, as metrics and status show it."""

    source: str
    in_use: bool
    verdict: str
    reason: str
    head: int | None
    finalized: int | None
    requests: int
    failures: int


class Panel:
    """The standings of all sources, in the user's order, and which of them is in use."""

    def __init__(self, sources: Sources, now: float) -> None:
        probe_at = now + sources.probe_s
        self.standings = [
            Standing(str(address), probe_at=probe_at) for address in sources.addresses
        ]
        self.current = 0
        self.network: Dataset | None = None
        self._sources = sources
        self._used_since = now
        self._best: deque[tuple[float, int]] = deque()  # when which head was first seen anywhere

    # --- what sources say -------------------------------------------------------------------------

    def answered(self, index: int, now: float) -> None:
        """Note that a source answers."""
        standing = self.standings[index]
        standing.fault, standing.in_a_row = None, 0
        standing.probe_at = now + self._sources.probe_s

    def failed(self, index: int, now: float, reason: str) -> None:
        """Note that a source fails."""
        standing = self.standings[index]
        standing.fault = reason
        standing.failures += 1
        pause = min(2**standing.in_a_row, _LONGEST_PAUSE) * self._sources.probe_s
        standing.in_a_row = min(standing.in_a_row + 1, 30)
        standing.probe_at = now + pause

    def showed(self, index: int, now: float, head: int | None, final: int | None) -> None:
        """Note the heads that a source names."""
        standing = self.standings[index]
        if final is not None:
            standing.has_finality = True
            standing.final = max(final, standing.final or 0)
        if head is None:
            return
        if standing.head is None or head > standing.head:
            standing.head_moved_at = now
        standing.head, standing.head_seen_at = head, now
        if standing.verdict is not Verdict.STALE and (not self._best or head > self._best[-1][1]):
            self._best.append((now, head))
            horizon = now - self._sources.lag_s
            while len(self._best) > 1 and self._best[1][0] <= horizon:
                self._best.popleft()

    def sent(self, index: int, now: float, first: int, *, blocks: bool) -> None:
        """Note whether blocks came of a request that begins with a block."""
        standing = self.standings[index]
        if blocks or standing.head is None or standing.head < first:
            standing.owes_since = None
        elif standing.owes_since is None:
            standing.owes_since = now

    def described(self, index: int, dataset: Dataset) -> None:
        """Note what a source holds; the first network that is known is that of the list."""
        standing = self.standings[index]
        standing.dataset = dataset
        standing.oldest = max(standing.oldest, dataset.start_block)  # windows move up
        if self.network is None:
            self.network = dataset
        standing.foreign = other_network(self.network, dataset)

    # --- which one is asked -----------------------------------------------------------------------

    def review(self, now: float) -> list[tuple[Standing, Verdict]]:
        """Judge all sources anew; return those whose verdict has changed, and what it was."""
        changed = []
        for standing in self.standings:
            before = standing.verdict
            self._judge(standing, now)
            if standing.verdict is not before:
                changed.append((standing, before))
        used = self.standings[self.current]
        if used.good_since is not None and now - self._used_since > self._proof_s(used):
            used.relapses = 0
        return changed

    def order(self, now: float, need: Need) -> list[int]:
        """Return the sources in the order in which they are asked; never one that is foreign.

        The one in use stays while it works, unless a better one has proven itself. If all of them
        contradict what we hold to be final, it is for the loop to say so: they are asked.
        """
        if self.all_contradict:
            return list(range(len(self.standings)))
        classes = [self._class(standing, need) for standing in self.standings]
        ranked = sorted(
            range(len(classes)),
            key=lambda index: (
                classes[index],
                not self._is_proven(self.standings[index], now),
                -self._reach(index, need) if classes[index] is _Class.BEHIND else 0,
                index,
            ),
        )
        current = self.current
        if classes[current] is _Class.USABLE and not any(
            classes[index] is _Class.USABLE and self._is_proven(self.standings[index], now)
            for index in range(current)
        ):
            ranked.remove(current)
            ranked.insert(0, current)
        return [index for index in ranked if classes[index] is not _Class.NEVER]

    @property
    def all_contradict(self) -> bool:
        """Whether every source holds another block than our final one."""
        return all(standing.contradicts is not None for standing in self.standings)

    def use(self, index: int, now: float) -> bool:
        """Note which source has answered; tell whether it is another one than before."""
        changed = index != self.current
        if changed:
            self.current, self._used_since = index, now
        return changed

    def has_other(self, now: float) -> bool:
        """Tell whether another source than the one in use is worth asking."""
        self.review(now)
        others = (standing for at, standing in enumerate(self.standings) if at != self.current)
        return any(_CLASSES[standing.verdict] <= _Class.BEHIND for standing in others)

    def due(self, now: float) -> list[int]:
        """Return the sources that are to be probed: the one in use shows itself how it is."""
        return [
            index
            for index, standing in enumerate(self.standings)
            if index != self.current and standing.probe_at <= now
        ]

    def states(self) -> list[SourceState]:
        """Return what is shown of each source."""
        return [
            SourceState(
                f"{index + 1} {standing.name}",
                index == self.current,
                standing.verdict.value,
                standing.reason,
                standing.head,
                standing.final,
                standing.requests,
                standing.failures,
            )
            for index, standing in enumerate(self.standings)
        ]

    # --- inside -----------------------------------------------------------------------------------

    def _judge(self, standing: Standing, now: float) -> None:
        verdict, reason = self._verdict(standing, now)
        standing.reason = reason
        if verdict is Verdict.GOOD:
            standing.good_since = now if standing.good_since is None else standing.good_since
        elif verdict is not Verdict.UNKNOWN:
            if standing.verdict in (Verdict.GOOD, Verdict.UNKNOWN):
                standing.relapses += 1
            standing.good_since = None
        standing.verdict = verdict

    def _verdict(self, standing: Standing, now: float) -> tuple[Verdict, str]:
        lag_s = self._sources.lag_s
        if foreign := standing.foreign or standing.contradicts:
            return Verdict.FOREIGN, foreign
        if standing.fault is not None:
            return Verdict.FAILING, standing.fault
        if standing.owes_since is not None and now - standing.owes_since > lag_s:
            return Verdict.STALE, f"it names block {standing.head} and sends none"
        if standing.head is None:
            return (Verdict.GOOD if standing.requests else Verdict.UNKNOWN), ""
        expected = self._expected(standing.head_seen_at - lag_s)
        if expected is None or standing.head >= expected:
            return Verdict.GOOD, ""
        reason = f"its head is {standing.head}, others had {expected} {lag_s:.0f} s before"
        still = standing.head_seen_at - standing.head_moved_at > _STALE * lag_s
        return (Verdict.STALE if still else Verdict.LAGGING), reason

    def _expected(self, moment: float) -> int | None:
        """Return the highest head that any source had shown by then, if one still has it.

        A fork may leave a chain shorter than it was.
        """
        shown = [head for at, head in self._best if at <= moment]
        now = [
            standing.head
            for standing in self.standings
            if standing.head is not None and standing.fault is None
        ]
        return min(shown[-1], max(now)) if shown and now else None

    def _class(self, standing: Standing, need: Need) -> _Class:
        judged = _CLASSES[standing.verdict]
        if judged >= _Class.FAILING:
            return judged
        below = need.first is not None and need.first < standing.oldest
        if below or (need.query is not None and need.query in standing.lacks):
            return _Class.LACKS
        if need.final_only and standing.has_finality is False:
            return _Class.LACKS
        if need.final_only and need.first is not None and standing.final is not None:
            return max(judged, _Class.BEHIND) if need.first > standing.final else judged
        return judged

    def _reach(self, index: int, need: Need) -> int:
        standing = self.standings[index]
        return (standing.final if need.final_only else standing.head) or 0

    def _proof_s(self, standing: Standing) -> float:
        times = float(2 ** max(0, min(standing.relapses, 30) - 1))
        return self._sources.prove_s * min(times, _LONGEST_PROOF)

    def _is_proven(self, standing: Standing, now: float) -> bool:
        if not standing.relapses:
            return True
        since = standing.good_since
        return since is not None and now - since >= self._proof_s(standing)


def other_network(known: Dataset, dataset: Dataset) -> str | None:
    """Return how a dataset shows that it holds another network than the one that is known."""
    for name in ("kind", "chain_id"):
        ours, theirs = getattr(known, name), getattr(dataset, name)
        if ours is not None and theirs is not None and ours != theirs:
            said = name.replace("_", " ")
            return f"it holds another network: {said} {theirs}, not {ours}"
    return None


def contradicts(final: BlockCursor, block_hash: str) -> str:
    """Return how a source is refused that has another block where ours is final."""
    return f"it contradicts our final block {final}: it has {block_hash}"
