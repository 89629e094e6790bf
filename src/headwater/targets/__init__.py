"""Where data goes: one contract (`base.py`), one module or package per target."""

from headwater.targets.base import Target
from headwater.targets.memory import MemoryStore, MemoryTarget

__all__ = ["MemoryStore", "MemoryTarget", "Target"]
