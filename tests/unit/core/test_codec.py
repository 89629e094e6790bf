"""Stored state as text: the Pipes SDK's forms, byte for byte, and our own document."""

import pytest

from headwater.core import BlockCursor, BlockHeader, Head, PipeState
from headwater.core.codec import (
    SyncRow,
    dump_chain,
    dump_cursor,
    dump_finalized,
    dump_state,
    fold_rows,
    load_chain,
    load_cursor,
    load_finalized,
    load_state,
    sync_row,
)
from headwater.errors import StoredStateError
from tests.unit.core.test_state import cursors


@pytest.mark.guarantee("STATE-1")
@pytest.mark.parametrize(
    ("cursor", "text"),
    [
        (BlockCursor(5, "0x5", 1_700), '{"number":5,"hash":"0x5","timestamp":1700}'),
        (BlockCursor(5, "0x5"), '{"number":5,"hash":"0x5"}'),
        (BlockCursor(0), '{"number":0}'),
    ],
)
def test_cursors_have_the_pipes_sdk_form(cursor: BlockCursor, text: str) -> None:
    assert dump_cursor(cursor) == text
    assert load_cursor(text) == cursor
    assert load_cursor(text).timestamp == cursor.timestamp


def test_unknown_keys_and_nulls_in_a_cursor_are_tolerated() -> None:
    text = '{"number":5,"hash":null,"timestamp":null,"height":3}'
    assert load_cursor(text) == BlockCursor(5)


@pytest.mark.parametrize("text", [None, "", "{}", "null"])
def test_unknown_finality_has_several_stored_forms(text: str | None) -> None:
    assert load_finalized(text) is None


def test_finality_is_written_as_an_object() -> None:
    assert dump_finalized(None) == "{}"
    assert dump_finalized(BlockCursor(5, "0x5")) == '{"number":5,"hash":"0x5"}'
    assert load_finalized('{"number":5,"hash":"0x5"}') == BlockCursor(5, "0x5")


def test_chains_are_arrays_and_come_back_ascending() -> None:
    assert dump_chain(cursors("5 6")) == '[{"number":5,"hash":"h5"},{"number":6,"hash":"h6"}]'
    assert load_chain('[{"number":6,"hash":"h6"},{"number":5,"hash":"h5"}]') == cursors("5 6")


@pytest.mark.parametrize("text", [None, "", "[]", "null"])
def test_an_absent_chain_is_empty(text: str | None) -> None:
    assert load_chain(text) == ()


@pytest.mark.parametrize(
    "text",
    ["{", "[1]", '"x"', '{"number":"5"}', '{"number":-1}', '{"number":true}',
     '{"number":5,"hash":7}', '{"number":5,"timestamp":"now"}', "7" * 100],
)  # fmt: skip
def test_malformed_cursors_are_coded_errors(text: str) -> None:
    with pytest.raises(StoredStateError, match="E0008"):
        load_cursor(text)


def test_a_chain_that_is_no_array_is_a_coded_error() -> None:
    with pytest.raises(StoredStateError, match="E0008"):
        load_chain('{"number":5}')


class TestFoldingRows:
    def test_rows_fold_into_the_state_they_stand_for(self) -> None:
        rows = [
            SyncRow(cursors("90")[0], cursors("94")[0]),
            SyncRow(cursors("94")[0], cursors("94")[0]),
            SyncRow(cursors("95")[0], cursors("94")[0], cursors("95")),
            SyncRow(cursors("96")[0], cursors("94")[0], cursors("96")),
        ]
        assert fold_rows(rows) == PipeState(cursors("96")[0], cursors("94")[0], cursors("94 95 96"))

    def test_rows_of_an_abandoned_branch_do_no_harm(self) -> None:
        rows = [
            SyncRow(cursors("5")[0], cursors("1")[0], cursors("2 3 4 5")),
            SyncRow(cursors("5b")[0], cursors("1")[0], cursors("4b 5b")),
        ]
        assert fold_rows(rows).rollback_chain == cursors("1 2 3 4b 5b")

    def test_a_row_without_finality_and_chain_is_legal(self) -> None:
        assert fold_rows([SyncRow(cursors("7")[0])]) == PipeState(
            cursors("7")[0], None, cursors("7")
        )

    def test_finality_does_not_regress_between_rows(self) -> None:
        rows = [
            SyncRow(cursors("5")[0], cursors("5")[0]),
            SyncRow(cursors("6")[0], cursors("5")[0], cursors("6")),
            SyncRow(cursors("7")[0], cursors("3")[0], cursors("7")),
        ]
        assert fold_rows(rows).finalized == cursors("5")[0]

    def test_finality_as_the_portal_reported_it_becomes_our_own_cursor(self) -> None:
        rows = [SyncRow(cursors("94")[0]), SyncRow(cursors("99")[0], cursors("97")[0])]
        assert fold_rows(rows) == PipeState(cursors("99")[0], cursors("94")[0], cursors("94 99"))

    def test_finality_below_all_rows_stays_itself(self) -> None:
        rows = [SyncRow(cursors("99")[0], cursors("97")[0], cursors("99"))]
        assert fold_rows(rows) == PipeState(cursors("99")[0], cursors("97")[0], cursors("97 99"))

    def test_a_state_is_as_long_as_its_rows_say_until_the_stream_caps_it(self) -> None:
        rows = [SyncRow(cursor) for cursor in cursors(" ".join(map(str, range(50))))]
        assert len(fold_rows(rows).rollback_chain) == len(rows)
        capped = fold_rows(rows).capped(10)
        assert capped.rollback_chain == fold_rows(rows).rollback_chain[-10:]
        assert capped.cursor == rows[-1].current

    def test_a_commit_adds_its_own_part_of_the_chain(self) -> None:
        before = PipeState(cursors("95")[0], cursors("94")[0], cursors("94 95"))
        after = PipeState(cursors("96")[0], cursors("94")[0], cursors("94 95 96"))
        assert sync_row(after, before) == SyncRow(cursors("96")[0], cursors("94")[0], cursors("96"))

    def test_a_final_commit_adds_no_chain(self) -> None:
        before = PipeState(cursors("90")[0], cursors("94")[0], cursors("90"))
        after = PipeState(cursors("94")[0], cursors("94")[0], cursors("94"))
        assert sync_row(after, before) == SyncRow(cursors("94")[0], cursors("94")[0])

    def test_the_first_row_keeps_what_lies_below_the_first_block(self) -> None:
        first = PipeState().advance([BlockHeader(96, "h96", "h95")], Head(cursors("90")[0]))
        row = sync_row(first, PipeState())
        assert row.rollback_chain == cursors("90 95 96")
        assert fold_rows([row]).landing_points() == first.landing_points()

    def test_an_empty_state_has_no_row(self) -> None:
        with pytest.raises(StoredStateError, match="E0008"):
            sync_row(PipeState(), PipeState())

    def test_no_rows_are_the_empty_state(self) -> None:
        assert fold_rows([]) == PipeState()


@pytest.mark.guarantee("STATE-1")
def test_a_whole_state_has_one_document_with_fixed_keys() -> None:
    state = PipeState(BlockCursor(6, "h6", 60), BlockCursor(5, "h5"), cursors("5 6"))
    text = dump_state(state)
    assert text == (
        '{"version":1,"cursor":{"number":6,"hash":"h6","timestamp":60},'
        '"finalized":{"number":5,"hash":"h5"},'
        '"rollback_chain":[{"number":5,"hash":"h5"},{"number":6,"hash":"h6"}]}'
    )
    assert load_state(text) == state


def test_the_empty_state_round_trips() -> None:
    assert load_state(dump_state(PipeState())) == PipeState()


@pytest.mark.parametrize(
    "text",
    ["{}", "[]", "nonsense", '{"version":"1"}', '{"version":2,"rollback_chain":[]}',
     '{"version":1}', '{"version":1,"rollback_chain":[5]}'],
)  # fmt: skip
def test_documents_we_cannot_read_are_refused(text: str) -> None:
    with pytest.raises(StoredStateError, match="E0008"):
        load_state(text)
