"""`headwater verify`: every planted defect is found on every target, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import psycopg
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from headwater import evm, portal_stream
from headwater.cli import app
from headwater.cli.run import read_pipelines
from headwater.errors import CursorMoveError
from headwater.targets import clickhouse_target, duckdb_target, postgres_target
from headwater.targets.clickhouse import ClickHouseClient
from headwater.targets.compare import compare_blocks, counted
from headwater.testing import PortalServer, simulated_portal
from tests.cli.test_cursor import WIDE
from tests.stream.test_factories import pool_portal, stream_of
from tests.targets import clickhouse_places, postgres_places

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAST = 59
FILE = """
from headwater import duckdb_target, evm, portal_stream

stream = portal_stream(
    id="usdc", portal="{portal}", far=10**9,
    outputs={{"transfers": evm.events("erc20.Transfer", range=(0, {last}))}})
target = duckdb_target("not-opened.duckdb")
"""


@pytest.fixture(scope="module")
def portal() -> Iterator[PortalServer]:
    with simulated_portal(seed=11, blocks=LAST + 1, finality_depth=15) as server:
        yield server


class Place:
    """A target on which a stream has run, and statements behind its back."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        if kind == "duckdb":
            self.address = str(folder / "chain.duckdb")
            self.target: Any = duckdb_target(self.address)
        elif kind == "postgres":
            self.address = postgres_places.database()
            self.target = postgres_target(self.address)
        else:
            self.address = clickhouse_places.database()
            self.target = clickhouse_target(self.address)

    def sql(self, *statements: str) -> None:
        if self.kind == "duckdb":
            with duckdb.connect(self.address) as file:
                for one in statements:
                    file.execute(one)
        elif self.kind == "postgres":
            with psycopg.connect(self.address, autocommit=True) as connection:
                for one in statements:
                    connection.execute(one.encode())
        else:
            client = ClickHouseClient(self.address)
            for one in statements:
                client.run(one, settings={"mutations_sync": "2"})
            client.close()

    def remove(self, where: str) -> str:
        return f"DELETE FROM transfers WHERE {where}"

    def keep_copies(self) -> list[str]:
        """Return what keeps ClickHouse from dropping rows of one key, as its merges do."""
        return ["SYSTEM STOP MERGES transfers"] if self.kind == "clickhouse" else []

    def change(self, column: str, value: str, where: str) -> str:
        if self.kind == "clickhouse":
            return f"ALTER TABLE transfers UPDATE {column} = {value} WHERE {where}"
        return f"UPDATE transfers SET {column} = {value} WHERE {where}"


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner(env=WIDE).invoke(app, ["verify", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize("kind", ["duckdb", "postgres", "clickhouse"])
def test_every_planted_defect_is_found_and_nothing_else(
    kind: str, portal: PortalServer, tmp_path: Path
) -> None:
    place = Place(kind, tmp_path)
    stream = portal_stream(
        id="usdc", portal=portal.url, far=10**9,
        outputs={"transfers": evm.events("erc20.Transfer", range=(0, LAST))},
    )  # fmt: skip
    stream.pipe_to(place.target, progress=False)
    counts = {
        row["block_number"]: row["n"]
        for row in place.target.query(
            "SELECT block_number, count(*) AS n, min(log_index) AS one FROM transfers "
            "GROUP BY block_number ORDER BY block_number"
        ).to_pylist()
    }
    file = tmp_path / "pipeline.py"
    file.write_text(FILE.format(portal=portal.url, last=LAST), encoding="utf-8")
    code, shown = run(place.address, str(file))
    assert code == 0, shown
    assert f"transfers: equal, {sum(counts.values()):,} rows in {LAST + 1} blocks" in shown

    hole, twice, orphan, changed = [one for one in counts if one > 44 - 10][:4]
    names = ", ".join(f'"{one}"' for one in stream.outputs["transfers"].schema.names)
    copied = names.replace('"block_hash"', "'0xdead'")
    first = "(SELECT min(log_index) FROM transfers WHERE block_number = {})"
    (index,) = place.target.query(
        f"SELECT min(log_index) AS one FROM transfers WHERE block_number = {changed}"
    )["one"].to_pylist()
    place.sql(
        place.remove(f"block_number = {hole}"),
        place.change("value", "'7'", f"block_number = {changed} AND log_index = {index}"),
        *place.keep_copies(),
        f"INSERT INTO transfers ({names}) SELECT {names} FROM transfers "
        f"WHERE block_number = {twice}",
        f"INSERT INTO transfers ({names}) SELECT {copied} FROM transfers "
        f"WHERE block_number = {orphan} AND log_index = {first.format(orphan)}",
    )
    code, shown = run(place.address, str(file), "--json")
    assert code == 1, shown
    (report,) = json.loads(shown)["tables"]
    assert report["findings"] == [
        finding(hole, counts[hole], 0, holes=counts[hole]),
        finding(twice, counts[twice], 2 * counts[twice], duplicates=counts[twice]),
        finding(orphan, counts[orphan], counts[orphan] + 1, orphans=1),
        finding(changed, counts[changed], counts[changed], changed=1, columns=["value"]),
    ]
    code, shown = run(place.address, str(file))
    assert code == 1
    assert "4 blocks differ" in shown
    assert run(place.address, str(file), "--to", str(hole - 1))[0] == 0
    assert run(place.address, str(file), "--from", str(hole), "--to", str(hole))[0] == 1


def finding(block: int, expected: int, stored: int, **kinds: Any) -> dict[str, Any]:
    none: dict[str, Any] = {"holes": 0, "duplicates": 0, "orphans": 0, "changed": 0, "columns": []}
    return {"block": block, "expected": expected, "stored": stored, **none, **kinds}


RANGES = """
from headwater import duckdb_target, evm, portal_stream

stream = portal_stream(
    id="two", portal="{portal}", far=10**9,
    outputs={{
        "early": evm.events("erc20.Transfer", range=[(0, 19), (30, 39)]),
        "late": evm.events("erc20.Transfer", range=(40, 59)),
    }})
target = duckdb_target(r"{path}")
"""


def test_pieces_gaps_and_samples_are_compared_as_the_whole_is(
    portal: PortalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, path = tmp_path / "pipeline.py", tmp_path / "two.duckdb"
    file.write_text(RANGES.format(portal=portal.url, path=path), encoding="utf-8")
    ((stream, target),) = read_pipelines(file)
    stream.pipe_to(target, progress=False)
    module = import_module("headwater.stream.verification")
    monkeypatch.setattr(module, "PIECE_BLOCKS", 7)
    code, shown = run(str(path), str(file))
    assert code == 0, shown
    with duckdb.connect(str(path)) as connection:
        connection.execute("INSERT INTO early SELECT * REPLACE (25 AS block_number) FROM early "
                           "WHERE block_number = 10")  # fmt: skip
    code, shown = run(str(path), str(file), "--json")
    assert code == 1
    early, late = json.loads(shown)["tables"]
    assert [(one["block"], one["expected"] == 0) for one in early["findings"]] == [(25, True)]
    assert (early["blocks"], late["blocks"], late["findings"]) == (60, 60, [])
    assert run(str(path), str(file), "--from", "40")[0] == 0
    monkeypatch.setattr(module, "SAMPLE_BLOCKS", 2)
    code, shown = run(str(path), str(file), "--sample", "5", "--json", "--from", "26")
    early, late = json.loads(shown)["tables"]
    assert (code, early["blocks"], late["blocks"]) == (0, 10, 10)
    assert late["expected"] == late["stored"]


TRANSFORMED = """
from headwater import duckdb_target, evm, portal_stream

def even(data):
    return {{"even": data["transfers"].where("log_index % 2 = 0").withColumnRenamed("to", "payee")}}

stream = portal_stream(
    id="even", portal="{portal}", far=10**9,
    outputs={{"transfers": evm.events("erc20.Transfer", range=(20, 26))}}).pipe(even)
target = duckdb_target(r"{path}")
"""


def test_transforms_are_applied_once_more(
    portal: PortalServer, tmp_path: Path, spark: SparkSession
) -> None:
    file, path = tmp_path / "pipeline.py", tmp_path / "even.duckdb"
    file.write_text(TRANSFORMED.format(portal=portal.url, path=path), encoding="utf-8")
    ((stream, target),) = read_pipelines(file)
    stream.pipe_to(target, progress=False)
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE even SET payee = 'me' WHERE block_number = 22")
    code, shown = run(str(path), str(file), "--table", "even", "--json")
    assert code == 1, shown
    (report,) = json.loads(shown)["tables"]
    assert [(one["block"], one["columns"]) for one in report["findings"]] == [(22, ["payee"])]
    assert run(str(path), str(file), "--table", "even", "--from", "23")[0] == 0


def test_children_of_factories_are_known_wherever_the_comparison_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, path = tmp_path / "pipeline.py", tmp_path / "pools.duckdb"
    file.touch()
    with pool_portal(3, blocks=40) as portal:
        stream = stream_of(portal, (10, 39))
        module = import_module("headwater.cli.verify")
        monkeypatch.setattr(module, "read_pipelines", lambda file: [(stream, None)])
        stream.pipe_to(duckdb_target(path), progress=False)
        for words in ([], ["--from", "15", "--to", "25"], ["--from", "34"]):
            code, shown = run(str(path), str(file), "--json", *words)
            assert code == 0, shown
            tables = json.loads(shown)["tables"]
            assert tables[-1]["table"] == "headwater_factory_children"
            assert all(one["expected"] == one["stored"] > 0 for one in tables)
        with duckdb.connect(str(path)) as connection:
            children = "headwater_factory_children"
            first = f"SELECT min(rowid) FROM {children} WHERE address <> ''"
            connection.execute(f"UPDATE {children} SET address = '0x' WHERE rowid = ({first})")
        code, shown = run(str(path), str(file), "--json")
        found = json.loads(shown)["tables"][-1]["findings"]
        assert (code, [one["columns"] for one in found]) == (1, [["address"]])


SUMMED = """
from headwater import duckdb_target, evm, portal_stream, postgres_target
from headwater.targets import aggregate

stream = portal_stream(
    id="sums", portal="{portal}", far=10**9,
    outputs={{"transfers": evm.events("erc20.Transfer", range=(0, {last}))}})
came = aggregate(
    "balances", source="transfers", keys={{"token": "address", "owner": "to"}},
    add={{"amount": "value", "received": 1}}, max={{"largest": "value", "latest": "timestamp"}},
    last={{"hash": "transaction_hash", "place": "log_index"}})
went = aggregate(
    "balances", source="transfers", keys={{"token": "address", "owner": "from"}},
    sub={{"amount": "value"}})
target = {kind}_target("{place}", aggregates=[came, went])
"""


@pytest.mark.parametrize("kind", ["duckdb", "postgres"])
def test_sums_are_compared_with_those_of_all_rows(
    kind: str, portal: PortalServer, tmp_path: Path
) -> None:
    place, file = Place(kind, tmp_path), tmp_path / "pipeline.py"
    text = SUMMED.format(portal=portal.url, last=LAST, kind=kind, place=place.address)
    file.write_text(text, encoding="utf-8")
    ((stream, target),) = read_pipelines(file)
    stream.pipe_to(target, progress=False)
    assert run(place.address, str(file))[0] == 0
    with pytest.raises(CursorMoveError, match=r"E0013.*count twice.*tables=balances"):
        CliRunner().invoke(
            app, ["rewind", place.address, "--id", "sums", "--to", "20", "--force", "--yes"],
            catch_exceptions=False,
        )  # fmt: skip
    assert run(place.address, str(file))[0] == 0, "nothing was moved"
    keys = place.target.query("SELECT token, owner FROM balances ORDER BY token, owner").to_pylist()
    changed, gone = keys[3], keys[7]
    place.sql(
        "UPDATE balances SET amount = amount + 1 WHERE "
        f"token = '{changed['token']}' AND owner = '{changed['owner']}'",
        f"DELETE FROM balances WHERE token = '{gone['token']}' AND owner = '{gone['owner']}'",
        "INSERT INTO balances (token, owner) VALUES ('0xtoken', '0xnobody')",
    )
    code, shown = run(place.address, str(file), "--json")
    assert code == 1
    rows, sums = json.loads(shown)["tables"]
    assert (rows["table"], rows["findings"]) == ("transfers", [])
    assert (sums["table"], sums["output"]) == ("balances", "transfers")
    assert (sums["expected"], sums["stored"]) == (len(keys), len(keys))
    none: dict[str, Any] = {"hole": False, "orphan": False, "columns": []}
    nobody = {"token": "0xtoken", "owner": "0xnobody"}
    assert sorted(sums["findings"], key=lambda one: list(one["key"].values())) == sorted(
        [
            {**none, "key": changed, "columns": ["amount"]},
            {**none, "key": gone, "hole": True},
            {**none, "key": nobody, "orphan": True},
        ],
        key=lambda one: list(one["key"].values()),
    )
    code, shown = run(place.address, str(file))
    assert "balances: 3 keys differ" in shown
    code, shown = run(place.address, str(file), "--final")
    assert (code, "balances: not compared: an aggregate" in shown) == (3, True)
    assert run(place.address, str(file), "--table", "transfers")[0] == 0
    assert run(place.address, str(file), "--table", "balances")[0] == 1
    code, shown = run(place.address, str(file), "--table", "balances", "--to", "20")
    assert (code, "[E0033] an aggregate sums up all blocks" in shown) == (2, True)


WRITTEN = """
from headwater import duckdb_target, evm, portal_stream
from headwater.changes import TableSchema, from_columns
from headwater.targets import history_target, table

def write(tx, data):
    tx.insert("transfers", data["transfers"])
    tx.insert("copies", data["transfers"])
    tx.insert("loose", data["transfers"])

def changes(data):
    rows = data["transfers"].toArrow()
    return {{"transfers": from_columns(
        rows, table="moved", operation="upsert", key={{"owner": "to"}}, fields=["value"],
        ordinal="log_index")}}

asked = {{"transfers": evm.events("erc20.Transfer", range=(0, 20))}}
first = portal_stream(id="first", portal="{portal}", far=10**9, outputs=asked)
first = first.on_finalized("transfers", lambda messages: None)
into = duckdb_target(
    r"{path}", tables=["transfers", "copies", table("loose", untracked=True)], on_data=write)
second = portal_stream(id="second", portal="{portal}", far=10**9, outputs=asked)
second = second.pipe_batches(changes)
moved = TableSchema("moved", key=["owner"], columns={{"owner": "text", "value": "integer"}})
pipelines = [(first, into), (second, history_target(r"{path}", tables=[moved]))]
"""


def test_what_was_not_compared_is_named_and_the_exit_code_says_so(
    portal: PortalServer, tmp_path: Path, spark: SparkSession
) -> None:
    file, path = tmp_path / "pipeline.py", tmp_path / "written.duckdb"
    file.write_text(WRITTEN.format(portal=portal.url, path=path), encoding="utf-8")
    for stream, target in read_pipelines(file):
        stream.pipe_to(target, progress=False)
    code, shown = run(str(path), str(file), "--id", "first", "--json")
    assert (code, json.loads(shown)["complete"]) == (3, False)
    assert {one["name"] for one in json.loads(shown)["left_out"]} == {
        "copies", "loose", "headwater_outbox_transfers", "headwater_dead_letters",
    }  # fmt: skip
    assert (
        "copies: not compared: no output has its name"
        in run(str(path), str(file), "--id", "first")[1]
    )
    chosen = ["--table", "transfers", "--table", "copies=transfers"]
    assert run(str(path), str(file), "--id", "first", *chosen)[0] == 0
    code, shown = run(str(path), str(file), "--id", "second")
    assert (code, "[E0033] no table has the name of an output" in shown) == (2, True)


def test_what_cannot_be_compared_ends_with_2(portal: PortalServer, tmp_path: Path) -> None:
    place = Place("duckdb", tmp_path)
    outputs = {"transfers": evm.events("erc20.Transfer", range=(0, 9))}
    stream = portal_stream(id="usdc", portal=portal.url, far=10**9, outputs=outputs)
    stream.pipe_to(place.target, progress=False)
    file = tmp_path / "pipeline.py"
    file.write_text(FILE.format(portal=portal.url, last=9), encoding="utf-8")
    for words, says in (
        (["--table", "nothing=transfers"], "[E0033] there is no such table"),
        (["--table", "transfers=nothing"], "[E0033] the stream makes no such output"),
        (["--from", "10"], "[E0002]"),
        (["--id", "other"], "[E0031] which stream is meant"),
    ):
        code, shown = run(place.address, str(file), *words)
        assert (code, says in shown) == (2, True), shown
    assert run(place.address, str(file), "--sample", "3", "--final")[0] == 0
    code, shown = run(str(tmp_path / "none.duckdb"), str(file))
    assert (code, "E0035" in shown) == (2, True)


def test_values_are_equal_whatever_type_a_database_gives_them() -> None:
    expected = pa.table(
        {
            "block_number": pa.array([1, 1], pa.int64()),
            "value": ["115792089237316195423570985008687907853269984665640564039457", "2"],
            "flag": [True, None],
            "at": pa.array([1_000_000, None], pa.timestamp("us", "UTC")),
            "raw": pa.array([b"a", b"\xff"], pa.binary()),
            "many": [[1, 2], None],
        }
    )
    stored = pa.table(
        {
            "BLOCK_NUMBER": pa.array([1, 1], pa.uint64()),
            "value": expected["value"].cast(pa.decimal256(76, 0)),
            "flag": pa.array([1, None], pa.uint8()),
            "at": pa.array([1000, None], pa.timestamp("ms", "UTC")),
            "raw": expected["raw"],
            "many": ["[1, 2]", None],
        }
    )
    backwards = counted(stored.take(pa.array([1, 0])))
    assert compare_blocks(expected, backwards, "block_number") == []
    (found,) = compare_blocks(expected.slice(1), backwards, "block_number")
    assert (found.orphans, found.holes, found.changed) == (1, 0, 0)
