"""E31: Substreams: endpoints, sessions, what modules report. Packages are from E3120 on."""

from headwater.errors.base import PortalError


class UndoDepthError(
    PortalError,
    code="E3106",
    fix="nothing was changed; check that the endpoint serves the chain that the tables were "
    "filled from, raise rollback_cap for deep reorganizations, or rewind to a block you trust",
):
    """An undo signal reaches below what the stored state can undo, or names a foreign block."""
