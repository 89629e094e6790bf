"""Errors carry a code, the facts and a fix, and survive pickling."""

import pickle
import sys
import traceback

import pytest

from headwater import errors
from headwater.errors import (
    REGISTRY,
    ForkCursorMissingError,
    HeadwaterError,
    base,
    coded_line_first,
)

KINDS = {
    "E0": errors.ConfigError,
    "E1": errors.ForkError,
    "E2": errors.TargetError,
    "E3": errors.PortalError,
    "E4": errors.DecodeError,
    "E5": errors.SparkError,
    "E6": errors.ChangeError,
    "E7": errors.EffectError,
}


def test_the_text_starts_with_the_code_and_ends_with_the_fix() -> None:
    error = ForkCursorMissingError("no block is left", cursor=5, finalized=None)
    assert str(error).startswith("[E1003] no block is left (cursor=5, finalized=None). Fix: ")
    assert str(error).endswith(ForkCursorMissingError.fix)


def test_an_error_without_facts_has_no_empty_brackets() -> None:
    assert "()" not in str(ForkCursorMissingError("nothing"))


@pytest.mark.parametrize("of_spark", [True, False])
def test_where_spark_shows_an_error_its_text_comes_before_everything(
    of_spark: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_is_of_spark", lambda: of_spark)
    monkeypatch.setattr(sys, "tracebacklimit", 1000, raising=False)

    @coded_line_first()
    def ask() -> None:
        try:
            raise ConnectionRefusedError("no portal")
        except OSError as error:
            raise ForkCursorMissingError("nothing is left", reason=error) from error

    with pytest.raises(ForkCursorMissingError) as caught:
        ask()
    shown = "".join(traceback.format_exception(caught.value))
    assert ("no portal" in shown.splitlines()[0]) is of_spark
    assert ("direct cause" in shown) is not of_spark


@pytest.mark.parametrize("code", sorted(REGISTRY))
def test_every_error_pickles_with_its_facts(code: str) -> None:
    error = REGISTRY[code]("it happened", block=7)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), copy.facts) == (str(error), {"block": 7})


@pytest.mark.parametrize("code", sorted(REGISTRY))
def test_every_error_can_be_caught_by_its_kind(code: str) -> None:
    assert issubclass(REGISTRY[code], KINDS[code[:2]])
    assert getattr(errors, REGISTRY[code].__name__) is REGISTRY[code]


def test_the_bases_of_kinds_have_no_code() -> None:
    assert not set(KINDS.values()) & set(REGISTRY.values())


def test_a_code_cannot_be_given_twice() -> None:
    with pytest.raises(TypeError, match="E1003"):

        class ImpostorError(HeadwaterError, code="E1003", fix="none"):
            """Never comes into being."""
