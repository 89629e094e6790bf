"""The pages about decoding are current, and their code runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.decode.schema_page import schema_page
from headwater.decode.vocabulary import FORMS, column_name
from headwater.query import EVM, SOLANA, Network

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_page_of_columns_is_current() -> None:
    written = (DOCS / "schema.md").read_text(encoding="utf-8")
    assert written == schema_page(), "run python -m headwater.decode.schema_page > docs/schema.md"


@pytest.mark.parametrize("network", [EVM, SOLANA], ids=lambda one: one.type)
def test_every_entity_has_a_table_with_every_field(network: Network) -> None:
    assert set(FORMS[network.type]) == {entity.wire for entity in network.entities}
    page = schema_page()
    for entity in network.entities:
        for field in entity.fields:
            assert f"`{column_name(entity.wire, field.name)}`" in page


def test_the_example_of_decoding_runs_and_prints_what_the_page_says() -> None:
    page = (DOCS / "decoding.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert found
    ran = subprocess.run(
        [sys.executable, "-c", found[1]], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    said = " ".join(page.split())
    assert len(ran.stdout.splitlines()) == 2
    for line in ran.stdout.splitlines():
        assert line in said
