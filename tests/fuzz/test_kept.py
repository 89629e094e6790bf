"""Every seed of the fuzzing, and every input that once found something, is harmless."""

import pytest

from tests.fuzz.seeds import KEPT, seeds_of
from tests.fuzz.targets import TARGETS


@pytest.mark.guarantee("DECODE-1")
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_what_was_found_stays_fixed(target: str) -> None:
    inputs = list(seeds_of(target))
    assert inputs
    for data in (*inputs, b"", b"\x00", b"null", b"[]", b"{}"):
        TARGETS[target](data)


def test_every_kept_input_belongs_to_a_target() -> None:
    assert {path.name for path in KEPT.iterdir()} <= TARGETS.keys() | {".gitkeep"}
