"""docs/queries.md is the generated page, and its example runs."""

import json
import re
from pathlib import Path
from typing import Any

from scripts.query_page import reference_page

from headwater.query import NETWORKS

PAGE = Path(__file__).parents[3] / "docs" / "queries.md"


def test_the_committed_page_is_the_generated_one() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert written == reference_page(), "run scripts/query_page.py"


def test_the_examples_on_the_page_run() -> None:
    names: dict[str, Any] = {}
    for example in re.findall(r"```python\n(.*?)```", reference_page(), re.DOTALL):
        exec(example, names)
    assert json.loads(names["request"])["logs"][0]["transaction"] is True
    sent = [json.loads(body) for body in names["sent"]]
    assert [body["type"] for body in sent] == ["bitcoin", "tron", "hyperliquidFills", "substrate"]
    assert sent[1]["logs"] == [{"address": ["a614f803b6fd780986a42c78ec9c7f77e6ded13c"]}]


def test_the_page_names_every_field_and_every_key() -> None:
    page = reference_page()
    for network in NETWORKS:
        for entity in network.entities:
            assert all(f"| `{field.name}` |" in page for field in entity.fields)
        for family in network.families:
            assert f"### add_{family.name}\n" in page
            assert all(f"| `{item.name}` |" in page for item in family.conditions)
            assert all(f"| `{item.name}` |" in page for item in family.relations)
