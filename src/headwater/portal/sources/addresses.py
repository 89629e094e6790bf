"""Addresses of sources: one of them, or an ordered list. They pickle, because executors ask too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headwater.address import HttpAddress
from headwater.errors import InvalidOptionError, PortalUrlError
from headwater.portal.transport import portal_address


@dataclass(frozen=True, slots=True, repr=False, init=False)
class Sources:
    """An ordered list of sources of one chain, the best first: portals, and nodes by `rpc+…`.

    Args:
        addresses: their addresses.
        lag_s: for how long a source may be behind what another one has shown.
        prove_s: for how long a source that failed or lagged has to work again before it takes the
            place of one that works; longer each time that it fails again.
        probe_s: how often sources that are not in use are asked how they are.
    """

    addresses: tuple[HttpAddress, ...]
    lag_s: float
    prove_s: float
    probe_s: float

    def __init__(
        self,
        addresses: Sequence[str | HttpAddress],
        *,
        lag_s: float = 20.0,
        prove_s: float = 60.0,
        probe_s: float = 10.0,
    ) -> None:
        if isinstance(addresses, str) or not isinstance(addresses, Sequence) or not addresses:
            raise InvalidOptionError("a list of sources names one at least")
        parsed = []
        for place, address in enumerate(addresses, 1):
            try:
                parsed.append(portal_address(address))
            except PortalUrlError as error:
                error.facts["source"] = f"{place} of {len(addresses)}"
                raise
        if len(set(parsed)) < len(parsed):
            raise InvalidOptionError("a list of sources names one of them twice")
        for name, seconds in {"lag_s": lag_s, "prove_s": prove_s, "probe_s": probe_s}.items():
            if type(seconds) not in (int, float) or not 0 < seconds < math.inf:
                raise InvalidOptionError(f"{name} is a number above 0", got=repr(seconds))
            object.__setattr__(self, name, float(seconds))
        object.__setattr__(self, "addresses", tuple(parsed))

    def __str__(self) -> str:
        return ", ".join(map(str, self.addresses))

    def __repr__(self) -> str:
        return f"Sources({self})"

    def in_order(self, places: Sequence[int]) -> Sources:
        """Return the same sources in another order; those that are not named come last."""
        rest = [place for place in range(len(self.addresses)) if place not in places]
        ordered = [self.addresses[place] for place in (*places, *rest)]
        return Sources(ordered, lag_s=self.lag_s, prove_s=self.prove_s, probe_s=self.probe_s)

    @property
    def has_secrets(self) -> bool:
        """Whether one of them holds more than may be shown."""
        return any(address.has_secrets for address in self.addresses)


Address = HttpAddress | Sources


def source_address(portal: str | Address | Sequence[str | HttpAddress]) -> Address:
    """Understand the address of a source, or of several: a list, or a text with spaces between.

    Called before anything is sent.

    Raises:
        PortalUrlError: one is no address; the error does not repeat it.
        InvalidOptionError: the list is empty, or names a source twice.
    """
    if isinstance(portal, Sources):
        return portal
    if isinstance(portal, str):
        several = portal.split()
        return Sources(several) if len(several) > 1 else portal_address(portal)
    if isinstance(portal, list | tuple):
        return portal_address(portal[0]) if len(portal) == 1 else Sources(portal)
    assert not isinstance(portal, Sequence), "else it is a list"
    return portal_address(portal)  # which says what it must be
