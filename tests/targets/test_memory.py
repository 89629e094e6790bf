"""The target in memory keeps the promises of every target, as far as they apply to it."""

from typing import Any

import pytest

from headwater.targets import Delivery, MemoryStore, MemoryTarget
from headwater.targets.frames import to_arrow
from headwater.testing.conformance import TargetConformance


@pytest.mark.guarantee("STATE-2")
class TestMemoryTarget(TargetConformance):
    upserts = deletes = keyless = shares = exclusive = watches_io = False
    side_tables = True
    keeps_config = True
    store: MemoryStore[Delivery]

    def fresh(self) -> None:
        self.store = MemoryStore()

    def make_target(self, stream_id: str) -> MemoryTarget[Delivery]:
        target = MemoryTarget(self.store)
        target.bind(stream_id)
        return target

    def read_rows(self, table: str) -> list[dict[str, Any]]:
        return [
            row
            for batch in self.store.committed.batches
            if table in batch.data.data
            for row in to_arrow(batch.data.data[table]).to_pylist()
        ]


def test_tests_of_what_a_target_cannot_do_are_not_there() -> None:
    tests = {name: one for name, one in vars(TestMemoryTarget).items() if name.startswith("test_")}
    assert tests["test_set_delete_set_goes_back_to_the_delete"] is None
    assert "test_a_settled_state_is_stored_without_data" not in tests
