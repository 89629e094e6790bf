"""Text of numbers in the binary form of COPY: what is one, and what is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headwater.targets.postgres.encode import encode, encoder


def rows(values: pa.Array) -> bytes:
    """Return the values as rows of one column of numeric."""
    write = encoder(pa.string(), "numeric")
    assert write is not None
    batch = pa.RecordBatch.from_arrays([values], names=["value"])
    return b"".join(bytes(one) for one in encode([batch], [write]))


def test_texts_of_digits_are_numbers_wherever_they_lie_in_a_column() -> None:
    texts = pa.array(["x", "12", "70000", "x"])
    body = rows(texts.slice(1, 2))
    assert body == rows(pa.array(["12", "70000"]))
    assert body == rows(pa.array(["12", "70000", "-5"]))[: len(body)], "as among others"


@pytest.mark.parametrize("odd", ["", "1a", "1/", "1:", "٣", "1.5.5", ".", " 1"])
def test_a_text_that_is_no_number_is_refused(odd: str) -> None:
    with pytest.raises(Exception, match=r"E21\d\d.*does not fit its column"):
        rows(pa.array(["12", odd]))


def test_a_text_with_a_point_is_the_number_with_its_fraction() -> None:
    assert rows(pa.array(["1.5", "-12", "0.25", None])) == rows(
        pa.array(["1.50", "-12.00", ".25".rjust(4, "0"), None])
    )
    assert rows(pa.array(["1.5"])) != rows(pa.array(["15"]))
