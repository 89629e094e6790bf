"""Every test of this folder runs on both databases."""

from tests.targets.history.places import place

__all__ = ["place"]
