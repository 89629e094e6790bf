"""Errors carry a code, the facts and a fix, and survive pickling."""

import pickle

import pytest

from headwater.errors import REGISTRY, ForkCursorMissingError, HeadwaterError


def test_the_text_starts_with_the_code_and_ends_with_the_fix() -> None:
    error = ForkCursorMissingError("no block is left", cursor=5, finalized=None)
    assert str(error).startswith("[E1003] no block is left (cursor=5, finalized=None). Fix: ")
    assert str(error).endswith(ForkCursorMissingError.fix)


def test_an_error_without_facts_has_no_empty_brackets() -> None:
    assert "()" not in str(ForkCursorMissingError("nothing"))


@pytest.mark.parametrize("code", sorted(REGISTRY))
def test_every_error_pickles_with_its_facts(code: str) -> None:
    error = REGISTRY[code]("it happened", block=7)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), copy.facts) == (str(error), {"block": 7})


def test_a_code_cannot_be_given_twice() -> None:
    with pytest.raises(TypeError, match="E1003"):

        class ImpostorError(HeadwaterError, code="E1003", fix="none"):
            """Never comes into being."""
