"""Callbacks: what is refused when it is given, and what is refused by what it returns."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from headwater.core.callbacks import Callback, NamedCallback
from headwater.errors import AsyncCallbackError, InvalidOptionError


async def coroutine(data: object) -> None: ...


async def generator(data: object) -> AsyncIterator[int]:
    yield 1


class Asynchronous:
    async def __call__(self, data: object) -> None: ...

    async def method(self, data: object) -> None: ...


@pytest.mark.parametrize(
    "function",
    [
        coroutine,
        generator,
        Asynchronous(),
        Asynchronous().method,
        functools.partial(coroutine),
        functools.partial(coroutine, 1),
    ],
    ids=["coroutine", "generator", "object", "method", "partial", "bound-partial"],
)
def test_asynchronous_functions_are_refused(function: object) -> None:
    with pytest.raises(AsyncCallbackError, match=r"E0015.*on_data is asynchronous.*def instead"):
        Callback("on_data", function, "data")
    with pytest.raises(AsyncCallbackError, match="E0015"):
        NamedCallback("on_data", function, ("data",))


def test_a_function_that_yields_would_do_nothing_and_is_refused() -> None:
    def write(read: object) -> Iterator[int]:
        yield 1

    with pytest.raises(InvalidOptionError, match="yield"):
        Callback("write", write, "read")


@pytest.mark.parametrize("given", [7, None, "text", object()])
def test_what_is_no_function_is_refused(given: object) -> None:
    with pytest.raises(InvalidOptionError, match=r"E0007.*f is a function of \(a\) or \(a, b\)"):
        Callback("f", given, "a", "a, b")


@pytest.mark.parametrize("function", [lambda: None, lambda a, b, c: None, lambda *, a: None])
def test_other_arguments_are_refused(function: object) -> None:
    with pytest.raises(InvalidOptionError, match="E0007"):
        Callback("f", function, "a", "a, b")


@pytest.mark.parametrize(
    ("function", "seen"),
    [
        (lambda a: (a,), (1,)),
        (lambda a, b: (a, b), (1, 2)),
        (lambda *all_of_them: all_of_them, (1, 2)),
        (lambda a, b=5, c=6: (a, b, c), (1, 2, 6)),
        (functools.partial(lambda a, b: (a, b), 0), (0, 1)),
    ],
)
def test_a_function_gets_as_many_arguments_as_it_takes(function: Any, seen: object) -> None:
    assert Callback("f", function, "a", "a, b")(1, 2) == seen


def test_a_callback_without_arguments_is_one_too() -> None:
    assert Callback("stop", lambda: 3, "")() == 3


def test_what_shows_no_signature_is_believed() -> None:
    assert Callback("f", dict.fromkeys, "a")([1]) == {1: None}
    assert Callback("f", type, "a")(1) is int  # has no signature at all
    assert NamedCallback("f", dict, ("a",))(a=1) == {"a": 1}


def test_an_optional_callback_may_be_left_out() -> None:
    assert Callback.optional("f", None, "a") is None
    with pytest.raises(AsyncCallbackError):
        Callback.optional("f", coroutine, "a")


class Later:
    """Something to await that is no coroutine, as a Future is."""

    def __await__(self) -> Iterator[None]:
        yield


@pytest.mark.parametrize(
    "function",
    [lambda one: coroutine(one), lambda one: generator(one), lambda one: Later(), iter],
    ids=["coroutine", "generator", "future", "iterator"],
)
@pytest.mark.filterwarnings("error")
def test_a_result_that_somebody_must_await_is_refused(function: Any) -> None:
    callback = Callback("on_data", function, "data")
    if function is iter:
        assert list(callback([1])) == [1]  # a plain iterator is a result
        return
    with pytest.raises(AsyncCallbackError, match="on_data returned a"):
        callback(1)


def test_a_result_that_nobody_would_iterate_is_refused() -> None:
    with pytest.raises(AsyncCallbackError, match="returned a generator"):
        Callback("on_data", lambda data: (one for one in [data]), "data")(1)


# --- by name --------------------------------------------------------------------------------------

NAMES = ("type", "store", "cursor")


@pytest.mark.parametrize(
    ("function", "seen"),
    [
        (lambda: (), ()),
        (lambda store: store, 2),
        (lambda cursor, type: (type, cursor), (1, 3)),
        (lambda **named: sorted(named.items()), [("cursor", 3), ("store", 2), ("type", 1)]),
        (lambda store, other=9: (store, other), (2, 9)),
    ],
)
def test_a_named_callback_gets_what_it_has_parameters_for(function: Any, seen: object) -> None:
    assert NamedCallback("on_rollback", function, NAMES)(type=1, store=2, cursor=3) == seen


@pytest.mark.parametrize("function", [lambda other: None, lambda store, other: None, 7])
def test_a_named_callback_that_needs_something_else_is_refused(function: object) -> None:
    with pytest.raises(InvalidOptionError, match=r"E0007.*type, store, cursor"):
        NamedCallback("on_rollback", function, NAMES)


def test_a_named_callback_must_not_return_something_to_await() -> None:
    with pytest.raises(AsyncCallbackError, match="E0015"):
        NamedCallback("on_rollback", lambda store: coroutine(store), NAMES)(
            type=1, store=2, cursor=3
        )


def test_a_callback_shows_its_name() -> None:
    assert repr(Callback("on_data", print, "data")).startswith("Callback(on_data, <built-in")


def test_a_callback_knows_how_many_arguments_it_is_called_with() -> None:
    forms = ("data", "data, ctx")
    assert Callback("transform", lambda data: data, *forms).arguments == 1
    assert Callback("transform", lambda data, ctx: data, *forms).arguments == 2
