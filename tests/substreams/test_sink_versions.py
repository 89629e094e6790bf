"""Updates, upserts and deletes in tables of ClickHouse that keep the newest of each key."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from google.protobuf import message_factory

from headwater.errors import DuplicateInsertError, InsertOnlyError, RewindError
from headwater.substreams.package import Package
from headwater.substreams.sink import sink_target
from headwater.substreams.sink_database import SinkDsn, run_schema
from headwater.targets.admin import open_admin
from headwater.targets.clickhouse import ClickHouseClient, ClickHouseTarget
from headwater.testing.chain.tree import ChainSim, SimBlock
from headwater.testing.conformance import Crash
from headwater.testing.substreams.modules import DB_OUT, SimModule
from tests.change_model import apply_one_by_one
from tests.substreams.follower import Follower, output_of
from tests.targets import clickhouse_places

PACKAGE = Package.read(DB_OUT.package()).resolve()
SCHEMA = """
CREATE TABLE holder (address String, page UInt64, balance Nullable(Int256), note String DEFAULT '-',
    version UInt64, is_deleted UInt8)
    ENGINE = ReplacingMergeTree(version, is_deleted) ORDER BY (address, page);
CREATE TABLE thing (id String, value Nullable(UInt64), version UInt64, is_deleted UInt8)
    ENGINE = ReplacingMergeTree(version, is_deleted) ORDER BY id;
"""
Rows = dict[Any, dict[str, str | None]]
CREATE, UPDATE, DELETE, UPSERT = 1, 2, 3, 4


def message() -> Any:
    message_type = PACKAGE.types.descriptor(PACKAGE.output_type("db_out"))
    return message_factory.GetMessageClass(message_type)()


def changes_of(block: SimBlock) -> bytes:
    """Return random changes that follow from the block; some keys return again and again."""
    random, made = Random(block.hash), message()
    for ordinal in range(random.randrange(7)):
        operation = random.choice((UPDATE, DELETE, UPSERT, UPSERT))
        one = made.table_changes.add(table="holder", operation=operation, ordinal=ordinal)
        one.composite_pk.keys["address"] = random.choice("abc")
        one.composite_pk.keys["page"] = str(random.randrange(2))
        names = random.sample(("balance", "note"), random.randrange(3))
        for name in names if operation != DELETE else ():
            one.fields.add(name=name, value=str(random.randrange(100)), update_op=1)
    for at in range(random.randrange(3)):
        pk = f"{block.hash}-{at}"
        made.table_changes.add(table="thing", pk=pk, operation=CREATE, ordinal=100 + at)
        if random.random() < 0.5:
            last = random.choice((UPDATE, DELETE))
            one = made.table_changes.add(table="thing", pk=pk, operation=last, ordinal=200 + at)
            if last == UPDATE:
                one.fields.add(name="value", value="7", update_op=1)
    return bytes(made.SerializeToString())


MODULE = SimModule("db_out", DB_OUT.output_type, changes_of)


@dataclass
class World:
    """A chain, a database, and a target that may die at any statement."""

    chain: ChainSim
    module: SimModule = MODULE
    address: str = field(default_factory=clickhouse_places.database)

    def __post_init__(self) -> None:
        self.client = ClickHouseClient(self.address)
        run_schema(SinkDsn("clickhouse", self.address), SCHEMA)

    def start(self, dies_at: int = -1) -> Follower:
        dsn = SinkDsn("clickhouse", self.address)
        target, self.decoder = sink_target(dsn, PACKAGE, "db_out")
        assert isinstance(target, ClickHouseTarget)
        self.target = target
        statements = 0

        def watch(sql: str) -> None:
            nonlocal statements
            statements += not sql.lstrip().startswith("SELECT")
            if statements == dies_at:
                raise Crash(sql)

        self.target.on_statement = watch
        self.target.bind("s")
        return Follower(self.chain, self.module, self.decoder, self.target)

    def held(self) -> Rows:
        rows = self.client.rows(
            "SELECT address, toString(page) AS page, toString(balance) AS balance, note "
            "FROM holder FINAL"
        )
        found = {("holder", row.pop("address"), row.pop("page")): row for row in rows}
        rows = self.client.rows("SELECT id, toString(value) AS value FROM thing FINAL")
        return found | {("thing", row.pop("id")): row for row in rows}

    def expected(self, number: int) -> Rows:
        """Return the rows as an oracle without the engine's code has them, after a block."""
        blocks = [one for one in self.chain.canonical(0) if one.number <= number]
        outputs = [output_of(self.module, one) for one in blocks]
        changes = self.decoder.decode(outputs)["changes"].to_pylist()
        shown: Rows = {}
        for (table, key), row in apply_one_by_one({}, changes).items():
            if table == "holder":
                parts = dict(key)
                given = {"balance": None, "note": "-"} | row
                shown["holder", parts["address"], parts["page"]] = given
            else:
                shown["thing", key[0][1]] = {"value": None} | row
        return shown


@pytest.mark.parametrize("seed", range(3))
def test_random_histories_with_forks_and_crashes_equal_the_oracle(seed: int) -> None:
    random, chain = Random(seed), ChainSim(seed + 50)
    world, crashes = World(chain), 0
    chain.extend(random.randrange(3, 12))
    for _ in range(12):
        try:
            follower = world.start(random.randrange(1, 60))
            cursor = follower.state.cursor
            if cursor is None or chain.is_ancestor(str(cursor.hash), chain.head.hash):
                number = -1 if cursor is None else cursor.number
                assert world.held() == world.expected(number)
            for _ in range(3):
                follower.follow()
                assert world.held() == world.expected(chain.head.number)
                final = -1 if chain.finalized is None else chain.finalized.number
                depth = random.randrange(chain.head.number - final)
                if depth:
                    chain.fork(depth, depth + random.randrange(1, 3))
                else:
                    chain.extend(random.randrange(1, 4))
                if random.random() < 0.4:
                    chain.finalize(max(final, chain.head.number - random.randrange(2, 6), 0))
        except Crash:
            crashes += 1
        world.target.close()
        if random.random() < 0.3:
            world.client.run("OPTIMIZE TABLE holder FINAL")
    world.start().follow()
    assert world.held() == world.expected(chain.head.number)
    assert crashes
    world.target.close()
    world.client.close()


def module_of(*blocks: list[tuple[str, int, dict[str, tuple[str, int]]]]) -> SimModule:
    """Return a module that puts out these changes of `thing`, block by block from block 0."""

    def make(block: SimBlock) -> bytes:
        made = message()
        for at, (pk, operation, fields) in enumerate(
            blocks[block.number] if block.number < len(blocks) else []
        ):
            one = made.table_changes.add(table="thing", pk=pk, operation=operation, ordinal=at)
            for name, (value, update) in fields.items():
                one.fields.add(name=name, value=value, update_op=update)
        return bytes(made.SerializeToString())

    return SimModule("db_out", DB_OUT.output_type, make)


def world_of(*blocks: list[tuple[str, int, dict[str, tuple[str, int]]]], final: int = -1) -> World:
    chain = ChainSim(9)
    chain.extend(len(blocks) - 1)
    if final >= 0:
        chain.finalize(final)
    return World(chain, module_of(*blocks))


def test_a_computed_field_is_refused_before_anything_is_written() -> None:
    world = world_of([("a", UPSERT, {"value": ("1", 2)})])
    with pytest.raises(InsertOnlyError, match=r"E6015.*thing.*column=value.*operation=add"):
        world.start().follow()
    assert not world.held()
    assert not world.client.rows(
        "SELECT name FROM system.tables WHERE database = currentDatabase() "
        "AND name LIKE '%\\_\\_before'"
    )


def test_what_is_computed_within_a_block_alone_is_written() -> None:
    world = world_of([("a", CREATE, {"value": ("5", 1)}), ("a", UPDATE, {"value": ("3", 2)})])
    world.start().follow()
    assert world.held() == {("thing", "a"): {"value": "8"}}


def test_an_insert_that_meets_a_row_is_refused_and_leaves_the_row() -> None:
    blocks = [[("a", CREATE, {"value": (str(number), 1)})] for number in range(2)]
    world = world_of(*blocks)
    with pytest.raises(DuplicateInsertError, match=r"E6005.*thing.*key=\('a'\).*block=1"):
        world.start().follow()
    world.target.close()
    world.start()
    assert world.held() == {("thing", "a"): {"value": "0"}}


def test_rows_that_were_there_before_the_stream_come_back() -> None:
    world = world_of([], [("a", UPDATE, {"value": ("2", 1)}), ("b", DELETE, {})])
    world.client.run("INSERT INTO thing VALUES ('a', 1, 5, 0), ('b', 1, 9, 0), ('c', 1, 7, 0)")
    follower = world.start()
    follower.follow()
    assert world.held() == {
        ("thing", "a"): {"value": "2"},
        ("thing", "c"): {"value": "1"},
    }
    world.client.run("OPTIMIZE TABLE thing FINAL")
    world.chain.fork(1, 2)
    follower.module = module_of()
    follower.follow()
    assert world.held() == {("thing", key): {"value": "1"} for key in "abc"}


def test_a_rewind_into_final_blocks_that_were_applied_together_is_refused() -> None:
    """Their images are those of the blocks before all of them."""
    blocks = [[("a", UPSERT, {"value": (str(number), 1)})] for number in range(9)]
    world = world_of(*blocks, final=5)
    world.start().follow()
    world.target.close()
    admin = open_admin(world.address)
    with pytest.raises(RewindError, match=r"E1010.*applied together.*wanted=3.*possible=-1, 5"):
        admin.move("s", 3, force=True)
    assert world.held() == {("thing", "a"): {"value": "8"}}
    assert world.start().state.number == 8
    world.target.close()
    for number in (7, 5):
        admin.move("s", number, force=True)
        assert world.held() == {("thing", "a"): {"value": str(number)}}
    admin.reset("s", force=True)
    assert world.held() == {}
