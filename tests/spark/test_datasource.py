"""spark.read.format("headwater"): exact rows, everything decided at load, nothing secret shown."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headwater.core import BlockRange, Density
from headwater.errors import HeadwaterError
from headwater.query import EvmQuery
from headwater.spark import register
from headwater.spark.datasource import LARGE, load_source, parse_raw_query, tell_cost
from headwater.targets import duckdb_target
from headwater.testing import PortalServer, simulated_portal
from tests.spark.conftest import ALL, LAST, TRANSFER, decoded, lines

EVERYWHERE = {"transfers": [BlockRange(0)]}
RAW = {
    "type": "evm",
    "fields": {"log": {"address": True}, "block": {"gasUsed": True}},
    "includeAllBlocks": True,
    "logs": [{}],
}


def load(spark: SparkSession, portal: PortalServer, **options: str) -> DataFrame:
    return spark.read.format("headwater").options(portal=portal.url, **options).load()


@pytest.fixture(scope="module")
def transfers(served: PortalServer) -> pa.Table:
    return decoded(served, {"transfers": TRANSFER}, EVERYWHERE, TRANSFER.query)["transfers"]


@pytest.mark.parametrize("partitions", ["1", "3", "17"])
def test_decoded_rows_equal_those_of_the_driver(
    spark: SparkSession, portal: PortalServer, transfers: pa.Table, partitions: str
) -> None:
    data = load(spark, portal, event="erc20.Transfer", partitions=partitions)
    assert data.toArrow().cast(transfers.schema).equals(transfers)
    assert data.rdd.getNumPartitions() == int(partitions)


def test_a_dataframe_used_twice_gives_the_rows_of_both_uses(
    spark: SparkSession, portal: PortalServer, transfers: pa.Table
) -> None:
    data = load(spark, portal, event="erc20.Transfer", partitions="3")
    late = sum(number >= 300 for number in transfers["block_number"].to_pylist())
    filtered = data.where("block_number >= 300")
    assert filtered.union(data).count() == late + transfers.num_rows
    assert (filtered.count(), data.count()) == (late, transfers.num_rows)
    assert data.join(filtered, ["block_number", "log_index"]).count() == late


def test_filters_of_contract_and_parameter_are_fetched_as_such(
    spark: SparkSession, portal: PortalServer, transfers: pa.Table
) -> None:
    token, to = transfers["address"][0].as_py(), transfers["to"][0].as_py()
    data = load(
        spark,
        portal,
        event="Transfer(address indexed from, address indexed to, uint256 value)",
        contracts=f"{token}, 0x{'1' * 40}",
        params=json.dumps({"to": [to]}),
        from_block="0",
        to_block="+200",
        partitions="2",
    )
    expected = [
        row
        for row in transfers.to_pylist()
        if (row["address"], row["to"]) == (token, to) and row["block_number"] <= 200
    ]
    assert expected
    assert data.toArrow().cast(transfers.schema).to_pylist() == expected


def test_raw_rows_hold_headers_and_lines(spark: SparkSession, portal: PortalServer) -> None:
    data = load(spark, portal, query=json.dumps(RAW), partitions="4").toArrow()
    query = (
        EvmQuery(include_all_blocks=True).add_fields(log=["address"], block=["gas_used"]).add_logs()
    )
    expected = lines(portal, query)
    assert [json.loads(text) for text in data["line"].to_pylist()] == list(
        map(json.loads, expected)
    )
    assert data["number"].to_pylist() == list(range(LAST + 1))
    assert data["parent_hash"].to_pylist()[1:] == data["hash"].to_pylist()[:-1]
    first = json.loads(expected[0])["header"]["timestamp"]
    assert data["timestamp"].cast(pa.int64())[0].as_py() == first * 1_000_000


@pytest.mark.parametrize(
    ("kind", "links"),
    [
        ("tron", {"number", "hash", "parentHash", "timestamp"}),
        ("hyperliquidReplicaCmds", {"number", "hash", "parentHash", "timestamp"}),
        ("solana", {"number", "hash", "parentNumber", "parentHash", "timestamp"}),
        ("fuel", {"number", "hash"}),
    ],
)
def test_a_raw_query_of_any_type_asks_for_the_links_that_its_blocks_have(
    kind: str, links: set[str]
) -> None:
    query = parse_raw_query(json.dumps({"type": kind, "receipts": [{}]}))
    body = json.loads(query.body(3, 5))
    assert set(body["fields"]["block"]) == links
    assert (body["type"], body["fromBlock"], body["receipts"]) == (kind, 3, [{}])


def test_the_range_is_decided_when_the_source_is_loaded(spark: SparkSession) -> None:
    with simulated_portal(seed=5, blocks=60, finality_depth=20) as portal:
        data = load(spark, portal, event="erc20.Transfer", partitions="2")
        before = data.agg({"block_number": "max"}).first()
        portal.finalize(55)
        portal.ledger.clear()
        assert data.agg({"block_number": "max"}).first() == before
        assert max(one.to_block or 0 for one in portal.ledger.stream_requests()) == 39
        requests = len(portal.ledger.stream_requests())
        assert requests == 2, "the range is not measured again"
        with pytest.raises(PySparkException, match=r"\[E5003\].*finalized_head=55"):
            load(spark, portal, event="erc20.Transfer", to_block="56")


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({}, "E5002", "give one of portal, portalEnv, portalUrl"),
        ({"portal": "http://127.0.0.1:1"}, "E5002", "give one of event, call, table, query"),
        ({"event": "erc20.Transfer", "portal_url": "http://x"}, "E5002", "portal, portalUrl"),
        ({"event": "erc20.Transfer", "query": "{}"}, "E5002", "give one of event, query"),
        ({"event": "erc20.Transfer", "filters": "{}"}, "E5002", "filters goes with table"),
        ({"table": "tron.logs", "contracts": "T"}, "E5002", "contracts goes with event"),
        ({"query": "{}", "decimals": "px"}, "E5002", "decimals goes with event or call or table"),
        ({"table": "bitcoin.coins"}, "E0005", "no table 'bitcoin.coins'"),
        ({"table": "dogecoin.blocks"}, "E0005", "no table"),
        ({"table": "tron.logs", "filters": "["}, "E5002", "filters is not JSON"),
        ({"table": "tron.logs", "filters": '{"address": ["0x"]}'}, "E0005", "Tron address"),
        ({"table": "tron.logs", "fields": "colour"}, "E0005", "no field 'colour'"),
        ({"event": "erc20.Transfer", "colour": "red"}, "E5002", "unknown option 'colour'"),
        ({"event": "erc20.Transfer", "portal": "ftp://x"}, "E0004", "http"),
        ({"event": "Transfer(address"}, "E4001", ""),
        ({"event": "erc20.Transfer", "contracts": "0x12"}, "E4004", ""),
        ({"event": "erc20.Transfer", "params": "[1]"}, "E5002", "params must be a JSON object"),
        ({"event": "erc20.Transfer", "params": "{"}, "E5002", "params is not JSON"),
        ({"event": "erc20.Transfer", "params": '{"who": "0x"}'}, "E4005", ""),
        ({"event": "erc20.Transfer", "on_error": "maybe"}, "E0007", "on_error"),
        ({"event": "erc20.Transfer", "from_block": "soon"}, "E0002", "not a block"),
        ({"event": "erc20.Transfer", "from_block": "9", "to_block": "8"}, "E0002", "less than"),
        ({"event": "erc20.Transfer", "partitions": "0"}, "E5002", "1 or more"),
        ({"event": "erc20.Transfer", "partitions": "many"}, "E5002", "1 or more"),
        ({"query": "{"}, "E5002", "query is not JSON"),
        ({"query": "[]"}, "E5002", "with a 'type'"),
        ({"query": '{"type": "evm", "fromBlock": 1}'}, "E5002", "its own fromBlock"),
        ({"query": '{"type": "evm", "fields": []}'}, "E5002", "must map entities"),
        ({"query": '{"type": "evm"}', "contracts": "0x"}, "E5002", "goes with event"),
    ],
)
def test_an_option_that_cannot_work_is_refused_before_anything_is_asked(
    options: dict[str, str], code: str, words: str
) -> None:
    given = {"portal": "http://ann:s3cret-word@127.0.0.1:1/x", **options} if options else options
    with pytest.raises(HeadwaterError) as caught:
        load_source(given)
    assert str(caught.value).startswith(f"[{code}]")
    assert words in str(caught.value)
    assert "s3cret-word" not in str(caught.value)


def test_the_code_reaches_the_user_through_spark(spark: SparkSession) -> None:
    with pytest.raises(PySparkException) as caught:
        spark.read.format("headwater").option("portal", "http://127.0.0.1:1").load()
    assert "[E5002] give one of event, call, table, query" in str(caught.value).splitlines()[0]


def test_another_schema_is_refused(spark: SparkSession, portal: PortalServer) -> None:
    reader = spark.read.format("headwater").schema("a int")
    with pytest.raises(PySparkException, match=r"\[E5002\].*leave \.schema"):
        reader.options(portal=portal.url, event="erc20.Transfer").load().count()


def test_credentials_reach_executors_and_no_plan_and_no_error(spark: SparkSession) -> None:
    with simulated_portal(seed=3, blocks=60, auth=("ann", "s3cret-word")) as portal:
        url = portal.url.replace("http://", "http://ann:s3cret-word@")
        options = {"portal": url, "event": "erc20.Transfer", "partitions": "2"}
        data: Any = spark.read.format("headwater").options(**options).load()
        assert data.count() > 0
        union = data.where("block_number > 3").union(data)
        execution = union._jdf.queryExecution()
        for mode in ("simple", "extended", "formatted", "codegen", "cost"):
            text = union._sc._jvm.PythonSQLUtils.explainString(execution, mode)
            assert "s3cret-word" not in text
        assert "s3cret-word" not in execution.logical().toJSON()
        assert "s3cret-word" not in execution.executedPlan().toJSON()
        wrong = {**options, "portal": url.replace("s3cret-word", "wr0ng-word")}
        with pytest.raises(PySparkException, match=r"\[E3001\]") as caught:
            spark.read.format("headwater").options(**wrong).load()
        assert "wr0ng-word" not in str(caught.value)


def test_sql_statements_can_hide_the_address_too(spark: SparkSession) -> None:
    with simulated_portal(seed=3, blocks=60, auth=("ann", "s3cret-word")) as portal:
        url = portal.url.replace("http://", "http://ann:s3cret-word@")
        create = (
            "CREATE OR REPLACE TEMPORARY VIEW transfers USING headwater OPTIONS "
            f"(portal_url '{url}', event 'erc20.Transfer', partitions '1')"
        )
        shown = spark.sql(f"EXPLAIN EXTENDED {create}").first()
        assert shown is not None
        assert "s3cret-word" not in shown[0]
        spark.sql(create)
        assert spark.table("transfers").count() > 0


def test_plain_sql_reads_and_writes(
    spark: SparkSession, portal: PortalServer, transfers: pa.Table, tmp_path: Path
) -> None:
    target = tmp_path / "chain.duckdb"
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW transfers_now USING headwater OPTIONS "
        f"(portal '{portal.url}', event 'erc20.Transfer', toBlock '199', partitions '2')"
    )
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW totals (`to` STRING, received LONG) USING headwater "
        f"OPTIONS (target '{target}', dbtable 'totals', keys 'to')"
    )
    for _ in range(2):
        spark.sql("INSERT INTO totals SELECT `to`, count(*) FROM transfers_now GROUP BY `to`")
    held = duckdb_target(target).query('SELECT "to", received FROM totals')
    numbers, receivers = (transfers[name].to_pylist() for name in ("block_number", "to"))
    expected = Counter(one for number, one in zip(numbers, receivers, strict=True) if number <= 199)
    assert {row["to"]: row["received"] for row in held.to_pylist()} == expected


def test_what_sql_cannot_keep_is_said(spark: SparkSession, portal: PortalServer) -> None:
    """Spark stores the options of a table, and hands a Python source none of them."""
    with pytest.raises(PySparkException, match=r"\[E5002\].*CREATE TEMPORARY VIEW"):
        spark.sql(
            "CREATE TABLE transfers_kept USING headwater OPTIONS "
            f"(portal '{portal.url}', event 'erc20.Transfer')"
        )


def test_registering_by_hand_may_be_repeated(spark: SparkSession) -> None:
    register(spark)
    register(spark)


def test_finding_the_source_imports_nothing_heavy() -> None:
    script = (
        "import pyspark.sql.datasource, sys; before = set(sys.modules); import pyspark_headwater; "
        "print(sorted(set(sys.modules) - before))"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "['pyspark_headwater']"


def test_default_partitions_follow_the_size(spark: SparkSession, portal: PortalServer) -> None:
    loaded = load_source({"portal": portal.url, "query": json.dumps(RAW)})
    assert 1 <= len(loaded.parts) <= 8
    assert (loaded.parts[0].from_block, loaded.parts[-1].to_block) == (0, ALL.to_block)


def test_a_large_reading_says_what_it_costs_before_it_begins(
    portal: PortalServer, caplog: pytest.LogCaptureFixture
) -> None:
    halves = [BlockRange(0, 499_999), BlockRange(500_000, 999_999)]
    tell_cost([Density(halves[0], 100.0), Density(halves[1], 200.0)], cores=4)
    load_source({"portal": portal.url, "event": "erc20.Transfer"})
    assert not caplog.messages, "what is small is not spoken of"
    tell_cost([Density(halves[0], 10_000.0), Density(halves[1], 30_000.0)], cores=4)
    assert len(caplog.messages) == 1
    assert "blocks 0..999999: about 20.0 GB" in caplog.messages[0]
    assert "some 3 minutes on 4 cores" in caplog.messages[0]
    assert LARGE < 20e9
