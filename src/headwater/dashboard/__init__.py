"""The HTTP endpoints of a running pipeline: metrics, JSON and a page. Read-only."""

from headwater.dashboard.server import Dashboard, serve

__all__ = ["Dashboard", "serve"]
