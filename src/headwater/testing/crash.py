"""The death of a process at a chosen point, as an exception."""

from __future__ import annotations


class Crash(BaseException):
    """The process is gone; nothing may catch it."""
