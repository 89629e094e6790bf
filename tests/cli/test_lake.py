"""Commands that look at lakes, and those that leave them alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from headwater import evm, portal_stream
from headwater.cli import app
from headwater.cli.run import read_pipelines
from headwater.targets import delta_target, iceberg_target, parquet_target
from headwater.targets.iceberg.catalog import CatalogName
from headwater.testing import simulated_portal

MADE: dict[str, Any] = {
    "delta": delta_target,
    "iceberg": iceberg_target,
    "parquet": parquet_target,
}
PIPELINE = """
from headwater import evm, portal_stream
from headwater.targets import duckdb_target
transfers = evm.events("erc20.Transfer", range=(0, 30))
stream = portal_stream(id="one", portal={url!r}, outputs={{"transfers": transfers}})
target = duckdb_target("not-opened.duckdb")
"""


@pytest.mark.parametrize("kind", MADE)
def test_a_lake_tells_where_its_streams_stand_and_what_differs(kind: str, tmp_path: Path) -> None:
    place, call = str(tmp_path / "lake"), CliRunner().invoke
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    refused = call(app, ["status", str(nothing)])
    assert "E2601" in refused.output + str(refused.exception)
    assert not list(nothing.iterdir())
    options: dict[str, Any] = {"tables": ["transfers"]} if kind == "iceberg" else {}
    with simulated_portal(seed=7, blocks=60, finality_depth=5) as portal:
        outputs = {"transfers": evm.events("erc20.Transfer", range=(0, 30))}
        stream = portal_stream(id="one", portal=portal.url, outputs=outputs, far=10**6)
        stream.pipe_to(MADE[kind](place, **options), progress=False)
        said = call(app, ["status", place, "--json"])
        assert said.exit_code == 0, said.output
        (standing,) = json.loads(said.output)
        assert (standing["id"], standing["cursor"]["number"]) == ("one", 30)
        assert call(app, ["cursor", "show", place]).exit_code == 0
        file = tmp_path / "pipeline.py"
        file.write_text(PIPELINE.format(url=portal.url))
        same = call(app, ["verify", place, str(file)])
        assert same.exit_code == 0, same.output
        portal.fork(50, force=True)
        assert call(app, ["verify", place, str(file)]).exit_code == 1
    refused = call(app, ["rewind", place, "--id", "one", "--to", "10", "--yes"])
    assert refused.exit_code != 0
    assert "goes from" not in refused.output, "nothing is announced that is not done"
    forgotten = call(app, ["cursor", "reset", place, "--id", "one", "--yes", "--force"])
    assert forgotten.exit_code == 0, forgotten.output
    assert "begins anew" in forgotten.output
    assert json.loads(call(app, ["status", place, "--json"]).output) == []


@pytest.mark.parametrize("kind", MADE)
def test_every_defect_that_is_planted_in_a_lake_is_found_and_nothing_else(
    kind: str, tmp_path: Path
) -> None:
    """As other programs may leave them, who do not know the stream."""
    place, file = tmp_path / "lake", tmp_path / "pipeline.py"
    options: dict[str, Any] = {"tables": ["transfers"]} if kind == "iceberg" else {}
    with simulated_portal(seed=7, blocks=60, finality_depth=5) as portal:
        outputs = {"transfers": evm.events("erc20.Transfer", range=(0, 30))}
        stream = portal_stream(id="one", portal=portal.url, outputs=outputs, far=10**6)
        stream.pipe_to(MADE[kind](place, **options), progress=False)
        file.write_text(PIPELINE.format(url=portal.url))
        spoil(kind, place)
        said = CliRunner().invoke(app, ["verify", str(place), str(file), "--json"])
    assert said.exit_code == 1, said.output
    (report,) = json.loads(said.output)["tables"]
    kinds = ("holes", "duplicates", "orphans", "changed")
    found = {one["block"]: [kind for kind in kinds if one[kind]] for one in report["findings"]}
    assert found == {
        HOLE: ["holes"],
        TWICE: ["duplicates"],
        ORPHAN: ["holes", "orphans"],  # rows of another block in the place of its own
        CHANGED: ["changed"],
    }


HOLE, TWICE, ORPHAN, CHANGED = 20, 21, 22, 23


def spoil(kind: str, place: Path) -> None:
    """Rewrite a table of transfers with a defect of each kind."""
    if kind == "delta":
        whole = DeltaTable(place / "transfers").to_pyarrow_table()
        write_deltalake(place / "transfers", spoiled(whole), mode="overwrite")
    elif kind == "iceberg":
        catalog = CatalogName.of(place).open()
        table = catalog.load_table("default.transfers")
        table.overwrite(spoiled(table.scan().to_arrow()))
        catalog.close()
    else:
        for one in (place / "transfers").glob("*.parquet"):
            pq.write_table(spoiled(pq.read_table(one, partitioning=None)), one)


def spoiled(rows: pa.Table) -> pa.Table:
    """Return rows of which some are gone, some there twice, some orphaned, some changed."""
    blocks = rows["block_number"]
    for column, block, value in (("block_hash", ORPHAN, "0xdead"), ("value", CHANGED, "7")):
        at = rows.schema.get_field_index(column)
        replaced = pc.if_else(pc.equal(blocks, block), value, rows[column])
        rows = rows.set_column(at, rows.schema.field(at), replaced.cast(rows.schema.field(at).type))
    kept = rows.filter(pc.not_equal(blocks, HOLE))
    return pa.concat_tables([kept, rows.filter(pc.equal(blocks, TWICE))])


SUMMED = """
from headwater import delta_target, evm, iceberg_target, portal_stream
from headwater.targets import aggregate

stream = portal_stream(
    id="sums", portal={url!r}, far=10**9,
    outputs={{"transfers": evm.events("erc20.Transfer", range=(0, 30))}})
came = aggregate(
    "balances", source="transfers", keys={{"token": "address", "owner": "to"}},
    add={{"amount": "value", "received": 1}}, max={{"largest": "value", "latest": "timestamp"}},
    last={{"hash": "transaction_hash", "place": "log_index"}})
went = aggregate(
    "balances", source="transfers", keys={{"token": "address", "owner": "from"}},
    sub={{"amount": "value"}})
target = {kind}_target({place!r}, tables=["transfers"], aggregates=[came, went])
"""


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_sums_in_a_lake_are_compared_with_those_of_all_rows(kind: str, tmp_path: Path) -> None:
    place, file = tmp_path / "lake", tmp_path / "pipeline.py"
    with simulated_portal(seed=7, blocks=60, finality_depth=5) as portal:
        file.write_text(SUMMED.format(url=portal.url, kind=kind, place=str(place)))
        ((stream, target),) = read_pipelines(file)
        stream.pipe_to(target, progress=False)
        same = CliRunner().invoke(app, ["verify", str(place), str(file)])
        assert same.exit_code == 0, same.output
        double(kind, place)
        said = CliRunner().invoke(app, ["verify", str(place), str(file), "--json"])
    assert said.exit_code == 1, said.output
    rows, sums = json.loads(said.output)["tables"]
    assert (rows["table"], rows["findings"]) == ("transfers", [])
    assert sums["table"] == "balances"
    assert sums["expected"] == len(sums["findings"]) > 0
    assert all(one["columns"] == ["received"] for one in sums["findings"])


def double(kind: str, place: Path) -> None:
    """Count each transfer once more."""
    if kind == "delta":
        stored = DeltaTable(place / "balances").to_pyarrow_table()
        write_deltalake(place / "balances", doubled(stored), mode="overwrite")
        return
    catalog = CatalogName.of(place).open()
    table = catalog.load_table("default.balances")
    table.overwrite(doubled(table.scan().to_arrow()))
    catalog.close()


def doubled(rows: pa.Table) -> pa.Table:
    at = rows.schema.get_field_index("received")
    more = pc.add(pc.fill_null(rows["received"], 0), 1)
    return rows.set_column(at, rows.schema.field(at), more.cast(rows.schema.field(at).type))
