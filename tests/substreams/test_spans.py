"""History that executors decode: the driver receives it, and no row passes through its Python."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headwater.errors import InvalidOptionError
from headwater.pipeline import Committed, Event
from headwater.substreams.descriptors import TypeSet
from headwater.substreams.mapping import RelationalMapping
from headwater.substreams.messages import Clock, ModuleOutput, OutputDecoder
from headwater.substreams.relational import relational_target
from headwater.substreams.spans import has_executors, split
from headwater.targets import duckdb_target
from headwater.testing.substreams import simulated_endpoint
from headwater.testing.substreams.modules import ORDERS
from tests.substreams.scripted import (
    TABLES,
    CrashError,
    chain_of,
    expected,
    run,
    stored,
    stream_of,
)
from tests.substreams.test_stream import cursors
from tests.targets.change_log.places import Place

pytestmark = pytest.mark.usefixtures("short_pauses")


@dataclass(frozen=True)
class Elsewhere:
    """A decoder that refuses to work in the driver's process."""

    inner: OutputDecoder
    driver: int

    @property
    def type_url(self) -> str:
        return self.inner.type_url

    @property
    def schemas(self) -> Mapping[str, pa.Schema]:
        return self.inner.schemas

    def decode(self, outputs: Sequence[ModuleOutput]) -> dict[str, pa.Table]:
        assert os.getpid() != self.driver, "the driver decodes"
        return self.inner.decode(outputs)


def far(server: Any, spark: SparkSession, **options: Any) -> Any:
    """Return a stream whose final blocks go to executors, however few."""
    stream = stream_of(server, spark=spark, on_executors=True, **options)
    decoder = Elsewhere(stream.decoder, os.getpid())
    return replace(stream, far_bytes=1, decoder=decoder)


@pytest.mark.guarantee("CURSOR-1")
def test_changes_are_decoded_and_folded_by_executors(spark: SparkSession, tmp_path: Path) -> None:
    chain, place = chain_of(60, 50), Place("duckdb", tmp_path)
    target = place.target(*TABLES)

    def die(event: Event) -> None:
        if isinstance(event, Committed):
            raise CrashError

    with simulated_endpoint(chain=chain, bundle=10) as server:
        with pytest.raises(CrashError):
            run(far(server, spark, stop=20), target, die)
        kept = cursors(target)
        target = place.target(*TABLES)
        run(far(server, spark, stop=51), target)
        assert server.sessions[1].cursor == "", "an endpoint compares no hash of a final block"
        assert server.sessions[1].start == kept[-1][0], "of the commit of its rows"
        assert stored(target.query) == expected(chain.canonical(0, 50))
        chain.fork(5, 8)  # hot blocks are the driver's, and can be undone
        run(stream_of(server, spark=spark, on_executors=True, stop=60), place.target(*TABLES))
        chain.fork(4, 6)
        again = place.target(*TABLES)
        run(stream_of(server, spark=spark, on_executors=True, stop=62), again)
    assert stored(again.query) == expected(chain.canonical(0, 61))


def test_several_tables_are_decoded_once(spark: SparkSession, tmp_path: Path) -> None:
    mapping = RelationalMapping(TypeSet(ORDERS.files), ORDERS.output_type)
    places = {True: tmp_path / "far.duckdb", False: tmp_path / "near.duckdb"}
    options: dict[str, Any] = {"decoder": mapping, "final_blocks_only": True, "stop": 26}
    with simulated_endpoint(3, blocks=30, finality_depth=4, modules=(ORDERS,)) as server:
        for is_far, place in places.items():
            stream = far(server, spark, **options) if is_far else stream_of(server, **options)
            stream.pipe_to(relational_target(str(place), mapping), progress=False)
    rows = 0
    for name in mapping.schemas:
        sql = f"SELECT * FROM {name} ORDER BY ALL"
        found, wanted = (duckdb_target(place).query(sql) for place in places.values())
        assert found.equals(wanted)
        rows += found.num_rows
    assert rows > 50


@pytest.mark.parametrize("parts", [1, 2, 3, 50])
def test_outputs_are_split_by_their_size_in_their_order(parts: int) -> None:
    outputs = [
        ModuleOutput(Clock(number, f"0x{number}"), "c", 0, "t", b"x" * (number % 7) * 10)
        for number in range(40)
    ]
    made = split(outputs, parts)
    assert [one for part in made for one in part] == outputs
    assert len(made) <= parts
    sizes = [sum(len(one.value) for one in part) for part in made]
    assert max(sizes) <= sum(sizes) / parts + 60


def test_other_machines_decode_only_what_they_transform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.stream.substreams.has_executors", lambda session: True)
    with simulated_endpoint(blocks=2) as server:
        stream = stream_of(server)
        assert stream.far == 0
        assert stream.pipe_batches(lambda frames, ctx: frames).far > 0
        assert stream_of(server, on_executors=True).far > 0
        assert (
            stream_of(server, on_executors=False).pipe_batches(lambda frames, ctx: frames).far == 0
        )


def test_a_local_session_decodes_on_the_driver_unless_asked(spark: SparkSession) -> None:
    assert not has_executors(spark)
    assert not has_executors(None)
    with simulated_endpoint(blocks=2) as server:
        assert stream_of(server, spark=spark).pipe_batches(lambda frames, ctx: frames).far == 0
        with pytest.raises(InvalidOptionError, match="on_executors"):
            stream_of(server, on_executors="yes")
