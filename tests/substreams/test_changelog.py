"""The outputs of a module as a changelog, over gRPC, through forks, kills and replays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headwater.errors import SourceOptionError
from headwater.spark import register
from headwater.spark.streaming import collapse
from headwater.stream.changelog import Follower
from headwater.stream.module_changelog import LoadedModule, load_module
from headwater.stream.substreams import substreams_stream
from headwater.substreams.messages import Clock, ModuleOutput
from headwater.testing import ChainSim
from headwater.testing.substreams import (
    DB_OUT,
    TRANSFERS,
    EndpointServer,
    SimModule,
    simulated_endpoint,
)
from tests.spark.streaming.micro_batches import Killed, Query, limits, plain

pytestmark = pytest.mark.usefixtures("short_pauses")
Row = dict[str, Any]


@pytest.fixture
def chain() -> ChainSim:
    chain = ChainSim(3)
    chain.grow(24)
    chain.finalize(12)
    return chain


@pytest.fixture
def module(request: pytest.FixtureRequest) -> SimModule:
    """The module that is read: `TRANSFERS`, unless a test names another one."""
    found: SimModule = getattr(request, "param", TRANSFERS)
    return found


@pytest.fixture
def server(
    chain: ChainSim, module: SimModule, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EndpointServer]:
    monkeypatch.setattr("headwater.substreams.source.IDLE_S", 0.05)
    with simulated_endpoint(chain=chain, modules=(module,)) as server:
        yield server


@pytest.fixture
def options(server: EndpointServer, module: SimModule, tmp_path: Path) -> dict[str, str]:
    package = tmp_path / "module.spkg"
    package.write_bytes(module.package())
    return {
        "package": str(package),
        "endpoint": server.url,
        "output": "transfers" if module is TRANSFERS else "changes",
        "journal": str(tmp_path / "journal"),
    }


class ModuleQuery(Query):
    """A query on a module: its followers are made by what `load()` returned."""

    def __init__(self, loaded: LoadedModule, folder: Path, dice: Random) -> None:
        super().__init__(None, folder, dice=dice, limits=limits())  # type: ignore[arg-type]
        self._loaded = loaded
        self._first_block = loaded.first_block

    def new_follower(self) -> Follower:
        return Follower(self._loaded.changelog())


def reach_head(query: Query, chain: ChainSim) -> None:
    for _ in range(100):
        if not query.trigger() and query.ends[-1]["number"] == chain.head.number:
            return
    pytest.fail("the head was not reached")


def expected(options: dict[str, str], chain: ChainSim, module: SimModule = TRANSFERS) -> list[Row]:
    """The rows of the canonical chain, decoded at once."""
    stream = substreams_stream(id="s", package=options["package"], endpoint=options["endpoint"])
    outputs = [
        ModuleOutput(
            Clock(one.number, one.hash.removeprefix("0x"), one.timestamp),
            "",
            0,
            module.type_url,
            module.make(one),
        )
        for one in chain.canonical()
    ]
    rows: list[Row] = stream.decoder.decode(outputs)[options["output"]].to_pylist()
    return rows


@pytest.mark.guarantee("STREAM-1")
@pytest.mark.parametrize(
    ("seed", "module"), [(0, TRANSFERS), (1, TRANSFERS), (2, DB_OUT)], indirect=["module"]
)
def test_the_changelog_of_a_module_nets_to_the_canonical_chain(
    seed: int, module: SimModule, chain: ChainSim, options: dict[str, str], tmp_path: Path
) -> None:
    dice = Random(f"modules {seed}")
    loaded = load_module({**options, "maxBlocksPerTrigger": str(dice.choice([3, 100]))})
    with ModuleQuery(loaded, tmp_path / "journal", dice) as query:
        query.kill_rate = 0.1
        for step in range(40):
            try:
                query.trigger()
            except Killed:
                query.kill()
            if step % 5 == 4:
                chain.extend(dice.choice([1, 2]))
                chain.fork(dice.choice([1, 3]))
                chain.finalize(chain.head.number - 8)
        query.kill_rate = 0
        reach_head(query, chain)
        query.kill()
        chain.fork(2)  # while it is down
        chain.extend(1)
        reach_head(query, chain)
        assert query.ends[-1]["forks"] >= 1
        assert query.kills > 2
        found = [plain(row) for row in query.net().values()]
        wanted = expected(options, chain, module)
        assert wanted
        assert sorted(map(str, found)) == sorted(map(str, wanted))
        versions = [version for version, _, _ in query.versions()]
        assert versions == sorted(set(versions))
        assert len(query.files()) <= 14, "the journal holds the hot blocks, and no more"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"journal": ""}, "needs the option journal"),
        ({"event": "erc20.Transfer"}, "unknown option 'event'"),
        ({"from_block": "latest"}, "block number"),
        ({"params": "["}, "not JSON"),
        ({"params": "[]"}, "JSON object"),
        ({"output": "nothing"}, "no output 'nothing'"),
    ],
)
def test_options_of_a_module_are_checked(
    options: dict[str, str], changed: dict[str, str], message: str
) -> None:
    with pytest.raises(SourceOptionError, match=message):
        load_module({**options, **changed})


def test_of_several_outputs_one_must_be_named(options: dict[str, str]) -> None:
    del options["output"]
    with pytest.raises(SourceOptionError, match="transfers_hops"):
        load_module(options)


def test_spark_reads_a_module_and_ends_at_its_head(
    spark: SparkSession, chain: ChainSim, options: dict[str, str], tmp_path: Path
) -> None:
    register(spark)
    frame = spark.readStream.format("headwater").options(**options).load()
    for _ in range(2):
        query = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "rows"))
        )
        query.awaitTermination()
        left = collapse(spark.read.parquet(str(tmp_path / "rows"))).count()
        assert left == len(expected(options, chain))
        chain.extend(2)
        chain.fork(3)
