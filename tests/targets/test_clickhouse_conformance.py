"""ClickHouse keeps the promises of every target, at every statement."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import pytest

from headwater.errors import ClickHouseServerError
from headwater.targets.clickhouse import (
    ClickHouseClient,
    ClickHouseSettings,
    ClickHouseTarget,
    clickhouse_target,
    table,
)
from headwater.targets.clickhouse.client import refused_as
from headwater.testing.conformance import TargetConformance, apply_changes
from headwater.testing.conformance.crash import Script
from tests.sampling import every, every_test
from tests.targets import points
from tests.targets.clickhouse_places import admin, database
from tests.targets.places import has_effect

Suite = TypeVar("Suite", bound=type)
UNKNOWN_TABLE = 60
BESIDE_UNDO = (  # state, definitions and frames: what no engine does in its own way
    "test_nothing_is_recovered_from_an_empty_place",
    "test_the_target_has_the_contract_and_declares_what_it_can_do",
    "test_a_frame_is_read_once_unless_the_target_rereads",
    "test_what_is_prepared_is_not_visible_and_may_be_prepared_again",
    "test_the_definition_of_a_stream_is_kept_and_replaced",
    "test_a_settled_state_is_stored_without_data",
    "test_data_and_state_become_visible_together_and_survive_a_restart",
    "test_finality_at_block_zero_unknown_and_reported_late",
    "test_finality_that_moves_while_batches_wait_is_stored_with_them",
    "test_rollbacks_in_a_row_converge_and_finality_never_falls",
    "test_a_stream_can_lose_all_batches_of_its_first_commit",
)
UNDO = (  # what each of them does in its own way
    "test_a_crash_at_any_step_of_io_leaves_a_committed_state",
    "test_random_scenarios_agree_with_the_model_after_every_step",
)


@pytest.mark.guarantee("STATE-2")
class TestClickHouseTarget(TargetConformance):
    sample = every(24)
    upserts = False  # rows are appended
    deletes = False
    shares = False  # shown with a stream column, in test_clickhouse
    exclusive = False  # there are no locks; a second writer is noticed, see test_clickhouse
    keyless = False
    side_tables = keeps_config = True
    side_walks = 1
    engine = "CollapsingMergeTree"
    walks = 3

    @pytest.fixture(autouse=True)
    def _place(self) -> None:
        self.url = database()
        self.client = ClickHouseClient(self.url)

    def fresh(self) -> None:
        name = self.client.database
        admin(f"DROP DATABASE {name}")
        admin(f"CREATE DATABASE {name}")

    def make_target(self, stream_id: str) -> ClickHouseTarget:
        target = clickhouse_target(
            self.url,
            tables=[table("log", engine=self.engine), table("plain", engine=self.engine)],
            on_data=apply_changes,
            settings=ClickHouseSettings(attempts=1),
        )
        target.bind(stream_id)
        return target

    def read_rows(self, name: str) -> list[dict[str, Any]]:
        shown = name if self.engine == "MergeTree" else f"{name}_live"
        try:
            found = self.client.query(f"SELECT * FROM {shown}")
        except ClickHouseServerError as error:
            if not refused_as(error, UNKNOWN_TABLE):
                raise
            return []
        return [dict(row) for row in found.to_pylist()]

    def watch_io(self, target: ClickHouseTarget, hook: Callable[[], None]) -> None:
        points.watch("ClickHouse", target, hook, has_effect)


def only_in_walks(*names: str) -> Callable[[Suite], Suite]:
    """Leave tests that a class inherits to `make walks`: another class shows the same."""

    def mark(suite: Suite) -> Suite:
        for name in names:
            inherited = getattr(suite, name)

            @wraps(inherited)
            def test(self: object, inherited: Callable[[object], None] = inherited) -> None:
                inherited(self)

            setattr(suite, name, pytest.mark.walk(test))
        return suite

    return mark


@every_test(2, *UNDO)
@only_in_walks(*BESIDE_UNDO)
class TestClickHouseTargetReplacing(TestClickHouseTarget):
    """The same, undone by newer versions."""

    sample = every(24)
    engine = "ReplacingMergeTree"
    side_tables = False
    first_seed = 1000
    walks = 2

    def script(self) -> Script:
        """Fewer steps: what differs is how blocks are undone."""
        steps = super().script()
        return [*steps[:3], *steps[4:]]


@every_test(2, *UNDO[1:], shift=1)  # it is not watched at every step
@only_in_walks(*BESIDE_UNDO)
class TestClickHouseTargetMergeTree(TestClickHouseTarget):
    """The same, undone by deletion; identical rows may occur."""

    sample = every(24)
    engine = "MergeTree"
    side_tables = False
    watches_io = False
    first_seed = 2000
    walks = 2
