"""What a running pipeline shows over HTTP: metrics, JSON and a page. Read-only."""

from headwater.dashboard.server import Dashboard, serve

__all__ = ["Dashboard", "serve"]
