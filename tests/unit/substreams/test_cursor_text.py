"""Cursors of endpoints: two that were published, all three kinds, and texts that are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core import BlockCursor
from headwater.errors import SinkCursorError
from headwater.substreams.cursor_text import CursorText, final_block, read_cursor, write_cursor

PUBLISHED = (
    "PWxQqpUKpA64sLwiUK9I7aWwLpcyB1toUQvhKRJLhY2goSHD1JryAGZ8YE-DmKukiRToGFOljdvOFix7-8ZWuIPrkr"
    "426CMxTy95woDt-73mefKhPFsfc-9hVuqJatLbUQ=="
)


def test_published_cursors_are_read() -> None:
    read = read_cursor(PUBLISHED)
    assert (read.block.number, str(read.block.hash)[:8]) == (11740433, "06fac697")
    assert (read.step_name, read.head) == ("new", read.block)
    of_sink = read_cursor("LamYQ1PoEJyzLTRd7kdEiKWwLpcyB1tlVArvLBtH")
    assert (of_sink.block, of_sink.final) == (BlockCursor(11, "11"), BlockCursor(6, "6"))
    assert final_block("LamYQ1PoEJyzLTRd7kdEiKWwLpcyB1tlVArvLBtH") == BlockCursor(6, "6")


_BLOCKS = st.builds(BlockCursor, st.integers(0, 2**63), st.text("0123456789abcdef", max_size=64))


@given(st.builds(CursorText, st.sampled_from([1, 2, 16, 17]), _BLOCKS, _BLOCKS, _BLOCKS))
def test_what_is_written_is_read_again(cursor: CursorText) -> None:
    assert read_cursor(write_cursor(cursor)) == cursor


@pytest.mark.parametrize("text", ["", "é", "abc", PUBLISHED[:-8] + "AAAAAAA=", "A" * 100])
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(SinkCursorError, match="E0054"):
        read_cursor(text)
    assert final_block(text) is None
