"""The options of format("headwater"): Spark's style, ours before it, and what was meant instead."""

from __future__ import annotations

import pytest

from headwater.core import RangeSpec
from headwater.core.ranges import At, Latest, Plus
from headwater.errors import SourceOptionError
from headwater.spark.options import OPTIONS, Options, Use, option_table


@pytest.mark.parametrize("name", ["fromBlock", "from_block", "fromblock", "FROM_BLOCK"])
def test_a_name_is_read_however_it_is_written(name: str) -> None:
    assert dict(Options({name: "7"}, Use.READ)) == {"fromBlock": "7"}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_each_option_has_a_name_in_the_style_of_spark_and_a_line_in_the_table(
    option: object,
) -> None:
    name = option.name  # type: ignore[attr-defined]
    assert name[0].islower()
    assert "_" not in name
    assert f"`{name}`" in option_table()


@pytest.mark.parametrize(
    ("given", "spec"),
    [
        ({}, RangeSpec()),
        ({"startingBlock": "latest"}, RangeSpec(Latest())),
        ({"startingBlock": "earliest"}, RangeSpec()),
        ({"startingBlock": "12_000"}, RangeSpec(12_000)),
        ({"startingBlock": "2024-01-01"}, RangeSpec(At(1_704_067_200))),
        ({"startingTimestamp": "2024-01-01T00:00:00Z"}, RangeSpec(At(1_704_067_200))),
        ({"endingTimestamp": "2024-01-01"}, RangeSpec(0, At(1_704_067_200))),
        ({"from_block": "3", "endingBlock": "+4"}, RangeSpec(3, Plus(4))),
    ],
)
def test_a_range_has_the_names_that_other_sources_have(
    given: dict[str, str], spec: RangeSpec
) -> None:
    assert Options(given, Use.READ).range() == spec


@pytest.mark.parametrize(
    ("given", "use", "words"),
    [
        ({"fromBlok": "1"}, Use.READ, "did you mean fromBlock?"),
        ({"portl": "http://x"}, Use.READ, "did you mean portal?"),
        ({"startingOffsets": "latest"}, Use.CHANGELOG, "did you mean startingBlock?"),
        ({"startingVersion": "1"}, Use.CHANGELOG, "did you mean startingBlock?"),
        ({"maxOffsetsPerTrigger": "1"}, Use.CHANGELOG, "did you mean maxBlocksPerTrigger?"),
        ({"checkpointLocation": "/c"}, Use.CHANGELOG, "did you mean journal?"),
        ({"maxBlocksPerTrigger": "5"}, Use.READ, "goes with readStream and readStream of a module"),
        ({"package": "x.spkg"}, Use.CHANGELOG, "goes with readStream of a module"),
        ({"colour": "red"}, Use.READ, "unknown option 'colour' of read"),
        ({"fromBlock": "1", "starting_block": "2"}, Use.READ, "fromBlock is given by two names"),
        ({"contracts": "0x"}, Use.READ, "contracts goes with event or call"),
    ],
)
def test_an_unknown_option_says_what_was_meant(given: dict[str, str], use: Use, words: str) -> None:
    with pytest.raises(SourceOptionError, match=r"\[E5002\]") as caught:
        Options(given, use)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"startingTimestamp": "7"}, "startingTimestamp is a date or time"),
        ({"startingTimestamp": "latest"}, "startingTimestamp is a date or time"),
        ({"startingTimestamp": "2024-01-01", "fromBlock": "5"}, "one of fromBlock, startingT"),
    ],
)
def test_a_time_is_a_time_and_one_beginning(given: dict[str, str], words: str) -> None:
    with pytest.raises(SourceOptionError, match=words):
        Options(given, Use.READ).range()


def test_a_flag_is_true_or_false() -> None:
    assert (
        Options({"failOnDataLoss": "FALSE"}, Use.CHANGELOG).flag("failOnDataLoss", default=True)
        is False
    )
    assert Options({}, Use.CHANGELOG).flag("failOnDataLoss", default=True) is True
    with pytest.raises(SourceOptionError, match="true or false"):
        Options({"failOnDataLoss": "no"}, Use.CHANGELOG).flag("failOnDataLoss", default=True)
