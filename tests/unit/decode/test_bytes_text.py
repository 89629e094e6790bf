"""Columns of bytes as text equal what one value at a time gives."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headwater.decode.columns.bytes_text import BytesEncoding, bytes_as_text
from headwater.query import base58

PLAIN: dict[BytesEncoding, Callable[[bytes], str]] = {
    "hex": bytes.hex,
    "0xhex": lambda one: f"0x{one.hex()}",
    "base64": lambda one: base64.b64encode(one).decode(),
    "base58": base58.encode,
}
VALUES = st.lists(st.none() | st.binary(max_size=40), max_size=12)


@pytest.mark.parametrize("encoding", PLAIN)
@given(values=VALUES, cut=st.integers(0, 3))
@example([], 0)
@example([None], 0)
@example([b"", b"\0", b"\0\0\1", b"x" * 300, None, b""], 1)
def test_columns_equal_single_values(
    encoding: BytesEncoding, values: list[bytes | None], cut: int
) -> None:
    column = pa.array(values, pa.binary()).slice(cut)
    wanted = [None if one is None else PLAIN[encoding](one) for one in values[cut:]]
    made = bytes_as_text(column, encoding)
    made.validate(full=True)
    assert (made.type, made.to_pylist()) == (pa.string(), wanted)


def test_raw_bytes_and_other_values_stay() -> None:
    raw, text = pa.array([b"a"]), pa.array(["a"])
    assert bytes_as_text(raw, "raw") is raw
    assert bytes_as_text(text, "hex") is text
