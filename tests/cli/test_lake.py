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
from headwater.targets import delta_target, iceberg_target, parquet_target
from headwater.targets.iceberg.settings import CatalogName
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
    assert "E2201" in refused.output + str(refused.exception)
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
    for command in (["rewind", place, "--id", "one", "--to", "10", "--yes", "--force"],
                    ["cursor", "reset", place, "--id", "one", "--yes", "--force"]):  # fmt: skip
        refused = call(app, command)
        assert refused.exit_code != 0
        assert "E2213" in refused.output + str(refused.exception)
        assert "goes from" not in refused.output, "nothing is announced that is not done"
        assert "forgotten" not in refused.output


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
