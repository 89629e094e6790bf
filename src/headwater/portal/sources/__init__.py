"""Several sources of one chain: which of them is asked, and what is known of each.

`open_transport` opens what an address asks for: a portal over HTTP, a node over JSON-RPC, or a list
of both. Called on the driver and on executors, wherever a client is made.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.address import HttpAddress, NodeAddress
from headwater.portal.node import NodeTransport
from headwater.portal.outage import Observer, log_notice
from headwater.portal.sources.addresses import Address, Sources, source_address
from headwater.portal.sources.standing import SourceState
from headwater.portal.sources.transport import SourcesTransport, SourceTransport
from headwater.portal.transport import HttpTransport, Timeouts, Transport
from headwater.portal.wire import Dataset

__all__ = [
    "Address",
    "SourceState",
    "SourceTransport",
    "Sources",
    "SourcesTransport",
    "open_transport",
    "source_address",
    "sources_of",
]


def open_transport(
    source: str | Address | Sequence[str | HttpAddress],
    timeouts: Timeouts | None = None,
    *,
    hold_s: float | None = None,
    network: Dataset | None = None,
    notify: Observer = log_notice,
) -> SourceTransport:
    """Return the transport of an address, or of several.

    `hold_s` is for portals, which hold answers back. Of a list, sources that hold another network
    than `network` are not used, and `notify` is told which of them are.

    Raises:
        PortalUrlError: it is no address of a portal or a node.
    """
    address = source_address(source)
    if isinstance(address, Sources):
        return SourcesTransport(
            address, _open_one, timeouts, hold_s=hold_s, network=network, notify=notify
        )
    return _open_one(address, timeouts, hold_s)


def sources_of(transport: Transport) -> SourcesTransport | None:
    """Return a transport of several sources as what it is: a client chooses among them."""
    return transport if isinstance(transport, SourcesTransport) else None


def _open_one(
    address: HttpAddress, timeouts: Timeouts | None, hold_s: float | None
) -> SourceTransport:
    if isinstance(address, NodeAddress):
        return NodeTransport(address, timeouts)
    return HttpTransport(address, timeouts, hold_s=hold_s)
