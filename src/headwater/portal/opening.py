"""Opens the transport that an address asks for: a portal's over HTTP, or a node's over JSON-RPC.

Called on the driver and on executors, wherever a client is made.
"""

from __future__ import annotations

from typing import Protocol

from headwater.address import HttpAddress, NodeAddress
from headwater.portal.node import NodeTransport
from headwater.portal.transport import HttpTransport, Timeouts, Transport, portal_address


class SourceTransport(Transport, Protocol):
    """A transport whose request can be broken off."""

    def abort(self) -> None:
        """Break off the request that is under way. May be called from another thread."""
        ...


def open_transport(
    source: str | HttpAddress, timeouts: Timeouts | None = None, *, hold_s: float | None = None
) -> SourceTransport:
    """Return the transport of an address. `hold_s` is for portals, which hold answers back.

    Raises:
        PortalUrlError: it is no address of a portal or a node.
    """
    address = portal_address(source)
    if isinstance(address, NodeAddress):
        return NodeTransport(address, timeouts)
    return HttpTransport(address, timeouts, hold_s=hold_s)
