"""What commands print for machines is what the page says; tables fit a terminal."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headwater.cli import app
from headwater.cli.status import Standing
from headwater.cli.target_options import show_rows
from headwater.stream.verification import LeftOut, TableReport, Verification
from headwater.targets.compare import BlockFinding, KeyFinding
from headwater.testing import simulated_portal
from tests.cli.test_run import FILE

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text("utf-8")


def told(command: str) -> set[str]:
    """Return the fields that the page names for a command."""
    part = PAGE.split("## For machines")[1].split(f"`headwater {command} ")[1]
    rows = re.search(r"(?:^\|.*\n)+", part, re.MULTILINE)
    assert rows is not None
    return {
        name
        for row in rows[0].splitlines()[2:]
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }


def names(kind: Any) -> set[str]:
    return {field.name for field in fields(kind)}


def run(*words: str) -> Any:
    made = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*words, "--json"])
    lines = [line for line in made.output.splitlines() if line.startswith(("[", "{"))]
    return json.loads(lines[-1])


def test_status_schema_and_verify_print_the_fields_that_the_page_names(tmp_path: Path) -> None:
    with simulated_portal(seed=11, blocks=40, finality_depth=10) as portal:
        path = tmp_path / "a.duckdb"
        text = FILE.format(id="one", portal=portal.url, range=(0, 39))
        file = tmp_path / "pipeline.py"
        file.write_text(text.replace('"one.duckdb"', repr(str(path))))
        assert CliRunner().invoke(app, ["run", str(file), "--no-progress"]).exit_code == 0
        (standing,) = run("status", str(path))
        assert set(standing) == names(Standing) == told("status")
        (output,) = run("schema", str(file))
        assert set(output) == told("schema")
        assert output["columns"][0] == {"name": "block_number", "type": "int64"}
        verified = run("verify", str(path), str(file))
    assert set(verified) == {"complete", *names(Verification)} == told("verify")
    (table,) = verified["tables"]
    assert set(table) == names(TableReport)
    assert verified["complete"]
    assert table["findings"] == []


def test_the_page_names_every_field_of_what_verify_finds() -> None:
    part = PAGE.split("## For machines")[1].split("\n## ")[0]
    for kind in (TableReport, LeftOut, BlockFinding, KeyFinding):
        lacking = {name for name in names(kind) if f"`{name}`" not in part}
        assert not lacking, kind.__name__


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_table_is_wider_than_the_terminal_and_nothing_is_cut(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    name = "a_table_with_quite_a_long_name_in_a_schema"
    titles = ("table", "block", "expected", "stored", "holes", "columns")
    show_rows(titles, [(name, 21_000_000, 1, 2, "-", "value, payee, transaction_hash")])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    words = "".join(shown.split())
    assert name in words
    assert "21000000" in words
    assert "transaction_hash" in words
    assert "…" not in shown
    assert "holes" not in shown, "no row has any"
