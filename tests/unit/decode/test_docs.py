"""The pages about decoding are current, and their code runs."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripts.schema_page import schema_page

import headwater
from headwater.decode.columns.field_columns import column_name
from headwater.decode.tables.table_definitions import TABLE_DEFINITIONS
from headwater.query import NETWORKS, Network
from tests.shared import HANG_S

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_page_of_columns_is_current() -> None:
    written = (DOCS / "schema.md").read_text(encoding="utf-8")
    assert written == schema_page(), "run scripts/schema_page.py"


@pytest.mark.parametrize("network", NETWORKS, ids=lambda one: one.type)
def test_every_entity_has_a_table_with_every_field(network: Network) -> None:
    tables = TABLE_DEFINITIONS[network.type].values()
    assert {form.entity for form in tables} == {entity.wire for entity in network.entities}
    page = schema_page()
    for entity in network.entities:
        for field in entity.fields:
            assert f"`{column_name(network, entity.wire, field.name)}`" in page


@pytest.mark.parametrize("network", NETWORKS, ids=lambda one: one.type)
def test_every_family_of_filters_has_a_table(network: Network) -> None:
    tables = TABLE_DEFINITIONS[network.type].values()
    assert {form.family for form in tables if form.family} == {one.name for one in network.families}


@pytest.mark.guarantee("DECODE-3")
@pytest.mark.parametrize("network", NETWORKS, ids=lambda one: one.type)
def test_a_table_can_be_made_of_every_field_and_every_table_is_on_the_page(
    network: Network,
) -> None:
    title = network.type.removesuffix("Fills")
    module, page = getattr(headwater, title), schema_page()
    for name, form in TABLE_DEFINITIONS[network.type].items():
        make = getattr(module, name)
        every = make(fields=[field.name for field in network.entity(form.entity).fields])
        assert len(set(every.schema.names)) == len(every.schema.names)
        assert every.schema.names[:3] == ["block_number", "block_hash", "timestamp"]
        assert set(make().schema.names) <= set(every.schema.names)
        named = every.schema.names[len(every.schema.names) - len(every.columns) :]
        assert make(fields=named).schema.names == every.schema.names
        assert f"{title}.{name}" in page


ONE_BY_ONE = """
import sys
for example in sys.argv[1:]:
    exec(example, {"__name__": "__main__"})
    print(end=chr(0))
"""


def test_the_examples_of_decoding_run_and_print_what_the_page_says(tmp_path: Path) -> None:
    page = (DOCS / "decoding.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    said = " ".join(page.split())
    ran = subprocess.run(
        [sys.executable, "-c", ONE_BY_ONE, *examples],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    printed = [one.splitlines() for one in ran.stdout.split("\0")]
    assert [len(lines) for lines in printed] == [2, 2, 1, 0]
    for line in itertools.chain(*printed):
        assert line in said
