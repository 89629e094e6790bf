"""Functions for 256-bit integers, against Python's own integers."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.errors import IntegerRangeError, InvalidOptionError
from headwater.spark.executors import coded_failures
from headwater.spark.numbers import add, subtract

LARGEST = 2**256 - 1
EDGES = [0, 1, 9, 10**26 - 1, 10**26, 10**52, 10**38 - 1, 10**38, 10**76, LARGEST - 1, LARGEST]
integers = st.sampled_from(EDGES) | st.integers(0, LARGEST) | st.integers(0, 2**70)
many = st.lists(
    st.tuples(integers, integers, st.integers(0, 2), st.integers(0, 20)), min_size=40, max_size=80
)
odd = ["", "-", "1.5", "1e3", "x", " 1", "0x10", "٣", "9" * 79]


def in_decimal(value: int, places: int, scale: int) -> Decimal | None:
    """Return value / 10**places if DECIMAL(38, scale) holds it."""
    whole = value * 10 ** (scale - places)
    return None if abs(whole) >= 10**38 else Decimal(f"{whole}E-{scale}")


@settings(max_examples=60, deadline=None)
@given(given_rows=many)
def test_sums_and_differences_equal_those_of_python(
    given_rows: list[tuple[int, int, int, int]],
) -> None:
    left = pa.array(["0" * (z if a < 10**70 else 0) + str(a) for a, _, z, _ in given_rows])
    right = pa.array([str(b) for _, b, _, _ in given_rows])
    pairs = [(a, b) for a, b, _, _ in given_rows]
    sums = [str(a + b) if a + b <= LARGEST else None for a, b in pairs]
    assert add(left, right).to_pylist() == sums
    assert subtract(left, right).to_pylist() == [str(a - b) if a >= b else None for a, b in pairs]


@settings(
    max_examples=3,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(given_rows=many)
def test_results_equal_those_of_python_and_are_null_where_they_do_not_fit(
    spark: SparkSession, given_rows: list[tuple[int, int, int, int]]
) -> None:
    texts = [(str(a), str(b), places) for a, b, _, places in given_rows]
    frame = spark.createDataFrame(texts, "a string, b string, places int")
    made = frame.select(
        hw.try_uint256_compare("a", "b"),
        hw.try_to_decimal(F.concat(F.lit("-"), "a")),
        hw.try_units("a", 6),
        hw.try_units("b", F.col("places")),
        hw.try_uint256_sub(hw.try_uint256_add("a", "b"), F.col("b")),
    )
    expected = [
        (
            (a > b) - (a < b),
            in_decimal(-a, 0, 0),
            in_decimal(a, 6, 6),
            in_decimal(b, places, 18) if places <= 18 else None,
            str(a) if a + b <= LARGEST else None,
        )
        for a, b, _, places in given_rows
    ]
    assert [tuple(row) for row in made.collect()] == expected


def test_what_is_no_unsigned_integer_gives_null_and_null_gives_null(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(text, None) for text in odd], "a string, b string")
    wrong = [hw.try_uint256_add("a", F.lit(1)), hw.try_uint256_compare(F.lit(0), "a")]
    wrong += [hw.try_to_decimal("a"), hw.try_units("a", 2), hw.try_uint256_sub("a", F.lit("-1"))]
    nothing = [hw.uint256_sub("a", "b"), hw.to_decimal("b"), hw.units("a", F.col("b"))]
    rows = frame.select(*wrong, *nothing, hw.uint256_compare("b", "a")).collect()
    assert {value for row in rows for value in row} == {None}


@pytest.mark.parametrize(
    "function",
    [
        lambda value: hw.uint256_add(value, F.lit(1)),
        lambda value: hw.uint256_sub(F.lit(1), value),
        lambda value: hw.uint256_compare(value, F.lit("abc")),
        hw.to_decimal,
        lambda value: hw.units(value, 18),
    ],
)
def test_what_cannot_be_computed_is_a_coded_error(
    spark: SparkSession, function: Callable[[Any], Column]
) -> None:
    frame = spark.createDataFrame([(str(LARGEST),)], "value string")
    with pytest.raises(IntegerRangeError, match=str(LARGEST)), coded_failures():
        frame.select(function(F.col("value"))).collect()


def test_types_are_wide_enough_and_sums_stay_integers_of_256_bits(spark: SparkSession) -> None:
    frame = spark.range(1).select(
        hw.units(F.col("id"), 6).alias("units"),
        hw.to_decimal("id").alias("decimal"),
        hw.uint256_add("id", F.lit(2)).alias("total"),
    )
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema}
    assert kinds == {"units": "decimal(38,6)", "decimal": "decimal(38,0)", "total": "string"}
    assert frame.schema["total"].metadata == {"headwater.integer": "uint256"}
    with pytest.raises(InvalidOptionError):
        hw.units("id", 39)
