"""Rows of a module in ClickHouse: inserts alone, through undo signals, faults and restarts."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
from google.protobuf import message_factory

from headwater import clickhouse_target
from headwater.substreams.client import Dialling
from headwater.substreams.descriptors import TypeSet
from headwater.testing.chain.tree import SimBlock
from headwater.testing.substreams import SimModule, simulated_endpoint
from headwater.testing.substreams.modules import build_file
from tests.sampling import every
from tests.substreams.scripted import CrashError, Weather, chain_of, run, stream_of
from tests.targets.clickhouse_places import database

pytestmark = pytest.mark.usefixtures("short_pauses")
FILES = (
    build_file(
        "test/rows.proto",
        "test.rows.v1",
        {"Rows": "*rows 1 .Row", "Row": "id 1 str, value 2 i64"},
    ),
)
_CLASS = message_factory.GetMessageClass(TypeSet(FILES).descriptor("test.rows.v1.Rows"))


def rows_of(block: SimBlock) -> list[tuple[int, str, int]]:
    random = Random(block.hash)
    return [(block.number, f"{block.hash[:12]}-{at}", at) for at in range(random.randrange(4))]


def make(block: SimBlock) -> bytes:
    made = _CLASS()
    for _, name, value in rows_of(block):
        made.rows.add(id=name, value=value)
    return bytes(made.SerializeToString())


@pytest.mark.guarantee("UNDO-1")
@pytest.mark.parametrize("seed", every(2).seeds(range(2)))
def test_random_histories_in_clickhouse_equal_the_oracle(seed: int) -> None:
    url, chain = database(), chain_of(12, 4, seed)
    weather = Weather(chain, Random(seed), 40)
    module = SimModule("map_rows", "test.rows.v1.Rows", make, FILES)
    with simulated_endpoint(chain=chain, modules=[module], bundle=5) as server:
        server.faults.by_chance(seed, 0.3)
        dialling = Dialling(idle_s=0.3)
        while not weather.is_over:
            with suppress(CrashError):
                stream = stream_of(server, dialling=dialling, on_message=weather.hear)
                run(stream, clickhouse_target(url), weather)
        server.faults.by_chance(seed, 0.0)
        stop = chain.head.number + 1
        target = clickhouse_target(url)
        run(stream_of(server, stop=stop), target)
        found = target.query("SELECT block_number, id, value FROM rows_live").to_pylist()
        target.close()
    expected = [row for block in chain.canonical(0, stop - 1) for row in rows_of(block)]
    assert sorted(tuple(row.values()) for row in found) == sorted(expected)
