"""Callbacks: user code, checked when it is given and again by what it returns.

Headwater calls user code synchronously. A coroutine function would return at once and do nothing,
while the cursor moves on: so it is refused when the object that takes it is made, and any awaitable
result is refused before anything is committed. Pure; runs on the driver.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from headwater.errors import AsyncCallbackError, InvalidOptionError


class Callback:
    """A function of the user's, called with as many arguments as it takes.

    `forms` are the argument lists that it may have, such as "tx, data" and "tx, data, ctx". The
    caller gives the arguments of the longest one; the function gets those of the longest one that
    it accepts.

    Raises:
        AsyncCallbackError: it is a coroutine function or an asynchronous generator function.
        InvalidOptionError: it is no function, a generator function, or takes other arguments.
    """

    __slots__ = ("_count", "_function", "name")

    def __init__(self, name: str, function: object, *forms: str) -> None:
        self.name = name
        self._function = check_callable(name, function, f"a function of {_shown(forms)}")
        counts = sorted((len(form.split(",")) if form else 0 for form in forms), reverse=True)
        fitting = [count for count in counts if _accepts(self._function, *range(count))]
        if not fitting:
            raise InvalidOptionError(f"{name} is a function of {_shown(forms)}", got=repr(function))
        self._count = fitting[0]

    @classmethod
    def optional(cls, name: str, function: object, *forms: str) -> Callback | None:
        """Return a callback, or None if none is given."""
        return None if function is None else cls(name, function, *forms)

    @property
    def arguments(self) -> int:
        """How many arguments it is called with."""
        return self._count

    def __call__(self, *arguments: object) -> Any:
        """Call it; refuse a result that would have to be awaited."""
        return check_result(self.name, self._function(*arguments[: self._count]))

    def __repr__(self) -> str:
        return f"Callback({self.name}, {self._function!r})"


class NamedCallback:
    """A function of the user's, called with those of some named arguments that it has.

    Raises what `Callback` raises, also if it needs an argument of another name.
    """

    __slots__ = ("_function", "_wanted", "name")

    def __init__(self, name: str, function: object, names: tuple[str, ...]) -> None:
        form = f"a function with any of the parameters {', '.join(names)}"
        self.name = name
        self._function = check_callable(name, function, form)
        self._wanted = _named(self._function, names)
        if not _accepts(self._function, **dict.fromkeys(self._wanted)):
            raise InvalidOptionError(f"{name} is {form}", got=repr(function))

    def __call__(self, **arguments: object) -> Any:
        """Call it; refuse a result that would have to be awaited."""
        wanted = {name: arguments[name] for name in self._wanted}
        return check_result(self.name, self._function(**wanted))


def check_callable(name: str, function: object, form: str) -> Callable[..., Any]:
    """Return a function that does its work when it is called; refuse any other."""
    if not callable(function):
        raise InvalidOptionError(f"{name} is {form}", got=repr(function))
    code = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    for one in (function, code):
        if inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one):
            raise AsyncCallbackError(f"{name} is asynchronous", got=repr(function))
        if inspect.isgeneratorfunction(one):
            raise InvalidOptionError(
                f"{name} must do its work when it is called; a function with 'yield' does nothing",
                got=repr(function),
            )
    return function


def check_result(name: str, result: Any) -> Any:
    """Return what a callback returned, unless it would have to be awaited or iterated."""
    if inspect.isawaitable(result) or inspect.isasyncgen(result) or inspect.isgenerator(result):
        close = getattr(result, "close", None)
        if callable(close):
            close()  # else Python would warn of a coroutine that was never awaited
        raise AsyncCallbackError(f"{name} returned a {type(result).__name__}, not a result")
    return result


def _named(function: Callable[..., Any], names: tuple[str, ...]) -> tuple[str, ...]:
    """Return which of some names a function takes as keywords."""
    signature = _signature(function)
    if signature is None:
        return names
    parameters = signature.parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return names
    return tuple(name for name in names if name in parameters)


def _accepts(function: Callable[..., Any], *positional: object, **named: object) -> bool:
    """Tell whether a function can be called so; what shows no signature is believed to."""
    signature = _signature(function)
    if signature is None:
        return True
    try:
        signature.bind(*positional, **named)
    except TypeError:
        return False
    return True


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except ValueError:
        return None


def _shown(forms: tuple[str, ...]) -> str:
    return " or ".join(f"({form})" for form in forms)
