"""When things go wrong: rules that say which answers a fault hits, and the plan that holds them.

A plan is deterministic: the same seed and the same requests give the same faults. At most one fault
hits an answer, the first whose rule says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from random import Random
from typing import Any

import msgspec

from headwater.errors import InvalidOptionError
from headwater.testing.faults import FAULTS, RETRYABLE_STATUSES, Fault, RetryAfter, Status
from headwater.testing.portal.answer import Draft


@dataclass(frozen=True, slots=True)
class Asked:
    """The request that a rule is matched with, as far as it could be read."""

    sequence: int
    route: str
    from_block: int | None = None
    to_block: int | None = None
    parent_block_hash: str | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A fault and its trigger; everything that is set must hold.

    Counted are the requests that the fault could hit: those that match `route`, `from_block`
    (inclusive range; None is open) and `where`, and whose answer the fault applies to. Of these it
    skips those before the `nth` (from 1), draws with `probability`, and stops after `times`
    (None: never).
    """

    fault: Fault
    nth: int = 1
    times: int | None = 1
    probability: float = 1.0
    route: str | None = None
    from_block: tuple[int | None, int | None] | None = None
    where: Callable[[Asked], bool] | None = None

    def matches(self, asked: Asked, draft: Draft) -> bool:
        """Tell whether this request counts."""
        if self.route is not None and self.route != asked.route:
            return False
        if self.from_block is not None:
            low, high = self.from_block
            number = asked.from_block
            if number is None or number < (low or 0) or (high is not None and number > high):
                return False
        return (self.where is None or self.where(asked)) and self.fault.applies(draft)


@dataclass(slots=True)
class _Armed:
    """A rule with its counters."""

    rule: Rule
    seen: int = 0
    fired: int = 0

    @property
    def spent(self) -> bool:
        return self.rule.times is not None and self.fired >= self.rule.times

    def draw(self, dice: Random) -> bool:
        """Count one matching request and tell whether the fault hits it."""
        if self.spent:
            return False
        self.seen += 1
        if self.seen < self.rule.nth:
            return False
        if self.rule.probability < 1.0 and dice.random() >= self.rule.probability:
            return False
        self.fired += 1
        return True


class FaultPlan:
    """The faults of one run.

    >>> plan = FaultPlan().add(TornLine(), nth=3).add(Status(503), route="stream", times=None,
    ...                                               probability=0.1)
    """

    def __init__(self, rules: Iterable[Rule] = (), *, seed: int = 0) -> None:
        self.seed = seed
        self._dice = Random(f"faults {seed}")
        self._armed = [_Armed(rule) for rule in rules]

    @classmethod
    def random(cls, seed: int, rates: Mapping[str, float] | float = 0.02) -> FaultPlan:
        """Make a plan for a campaign: every fault of the catalogue, each with its rate.

        `rates` is one probability per answer that all faults share, or probabilities by name (see
        `CATALOGUE`); names that are absent do not occur.
        """
        if not isinstance(rates, Mapping):
            rates = dict.fromkeys(CATALOGUE, rates / len(CATALOGUE))
        unknown = sorted(set(rates) - set(CATALOGUE))
        if unknown:
            raise InvalidOptionError(f"faults are {', '.join(CATALOGUE)}", unknown=unknown)
        dice = Random(f"plan {seed}")
        rules = [
            Rule(fault, times=None, probability=rate / len(CATALOGUE[name]))
            for name, rate in rates.items()
            for fault in CATALOGUE[name]
        ]
        return cls(dice.sample(rules, len(rules)), seed=seed)

    @property
    def rules(self) -> list[Rule]:
        """The rules that can still fire, first come first served."""
        return [armed.rule for armed in self._armed if not armed.spent]

    def add(self, fault: Fault, **trigger: Any) -> FaultPlan:
        """Add a fault; `trigger` is as in `Rule`. Without one it hits the next answer it can."""
        self._armed.append(_Armed(Rule(fault, **trigger)))
        return self

    def clear(self) -> None:
        """Take back every rule."""
        self._armed.clear()

    def pick(self, asked: Asked, draft: Draft) -> Fault | None:
        """Return the fault that hits this answer, and count it as fired."""
        for armed in self._armed:
            if not armed.spent and armed.rule.matches(asked, draft) and armed.draw(self._dice):
                return armed.rule.fault
        return None


def fault_from_json(value: dict[str, Any]) -> Fault:
    """Build a fault from {"fault": name, …its fields}."""
    options = dict(value)
    name = options.pop("fault", None)
    kind = FAULTS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise InvalidOptionError(f"fault must be one of {', '.join(FAULTS)}", fault=name)
    known = [item.name for item in fields(kind)]
    if not set(options) <= set(known):
        raise InvalidOptionError(f"{name} takes {', '.join(known) or 'no options'}", given=options)
    try:
        return msgspec.convert(options, kind)
    except msgspec.ValidationError as error:
        raise InvalidOptionError(f"{name}: {error}", given=options) from error


_STATUSES: dict[str, list[Fault]] = {
    "refused": [Status(code) for code in (400, 404)],
    "failed": [Status(500)],
    "overloaded": [
        Status(code, retry_after)
        for code in RETRYABLE_STATUSES
        for retry_after in (None, *RetryAfter)
    ],
}
CATALOGUE = {
    name: faults
    for spelled, kind in FAULTS.items()
    for name, faults in (_STATUSES if kind is Status else {spelled: [kind()]}).items()
}
"""Every fault by name, in the order of the module; those of a status in three groups."""
