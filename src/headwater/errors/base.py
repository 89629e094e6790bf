"""The one base of all coded errors, and the registry that keeps codes unique."""

from __future__ import annotations

from typing import Any, ClassVar

REGISTRY: dict[str, type[HeadwaterError]] = {}


class HeadwaterError(Exception):
    """Base of all coded errors; never raised itself.

    Subclasses declare `code` and `fix` in the class statement. `facts` are the values that a reader
    needs; they are shown after the message, and are attributes of `error.facts`.
    """

    code: ClassVar[str]
    fix: ClassVar[str]
    retryable: ClassVar[bool] = False

    def __init_subclass__(cls, *, code: str, fix: str, retryable: bool = False) -> None:
        """Register the class under its code; refuse a code that is taken."""
        super().__init_subclass__()
        if code in REGISTRY:
            raise TypeError(f"error code {code} is taken by {REGISTRY[code].__name__}")
        cls.code, cls.fix, cls.retryable = code, fix, retryable
        REGISTRY[code] = cls

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __str__(self) -> str:
        shown = ", ".join(f"{key}={value}" for key, value in self.facts.items())
        return f"[{self.code}] {self.message}{f' ({shown})' if shown else ''}. Fix: {self.fix}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.facts)


def _rebuild(cls: type[HeadwaterError], message: str, facts: dict[str, object]) -> HeadwaterError:
    return cls(message, **facts)
