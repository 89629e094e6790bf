"""The client of an SQD portal: HTTP and NDJSON in, the four answers of `headwater.core` out."""

from headwater.core.retry import RetryPolicy
from headwater.portal.budget import DriverPermits, LimitedTransport, PortalBudget, PortalLimits
from headwater.portal.client import PortalClient
from headwater.portal.density import SAMPLES, probe
from headwater.portal.outage import Clock, Notice, NoticeKind, Observer, SystemClock, log_notice
from headwater.portal.reading import BlockOrder, StreamQuery
from headwater.portal.source import LeaveOut, PortalSource
from headwater.portal.sources import (
    Address,
    Sources,
    SourceState,
    SourcesTransport,
    SourceTransport,
    open_transport,
    source_address,
    sources_of,
)
from headwater.portal.transport import (
    HttpTransport,
    Request,
    Response,
    Timeouts,
    Transport,
    portal_address,
)
from headwater.portal.wire import Dataset, LineSplitter, read_header

__all__ = [
    "SAMPLES",
    "Address",
    "BlockOrder",
    "Clock",
    "Dataset",
    "DriverPermits",
    "HttpTransport",
    "LeaveOut",
    "LimitedTransport",
    "LineSplitter",
    "Notice",
    "NoticeKind",
    "Observer",
    "PortalBudget",
    "PortalClient",
    "PortalLimits",
    "PortalSource",
    "Request",
    "Response",
    "RetryPolicy",
    "SourceState",
    "SourceTransport",
    "Sources",
    "SourcesTransport",
    "StreamQuery",
    "SystemClock",
    "Timeouts",
    "Transport",
    "log_notice",
    "open_transport",
    "portal_address",
    "probe",
    "read_header",
    "source_address",
    "sources_of",
]
