"""Every test of this folder runs on both databases."""

from tests.targets.change_log.places import place

__all__ = ["place"]
