"""Several sources of one chain: which of them is asked, and what is known of each."""

from headwater.portal.sources.addresses import Address, Sources, source_address
from headwater.portal.sources.standing import SourceState
from headwater.portal.sources.transport import SourcesTransport, SourceTransport

__all__ = [
    "Address",
    "SourceState",
    "SourceTransport",
    "Sources",
    "SourcesTransport",
    "source_address",
]
