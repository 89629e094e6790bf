"""docs/queries.md is the generated page, and its example runs."""

import json
import re
from pathlib import Path

from headwater.query import EVM, SOLANA, reference_page

PAGE = Path(__file__).parents[3] / "docs" / "queries.md"


def test_the_committed_page_is_the_generated_one() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert written == reference_page(), "run scripts/make_query_docs.py"


def test_the_example_on_the_page_runs() -> None:
    example = re.search(r"```python\n(.*?)```", reference_page(), re.DOTALL)
    assert example is not None
    names: dict[str, object] = {}
    exec(example.group(1), names)
    request = names["request"]
    assert isinstance(request, bytes)
    assert json.loads(request)["logs"][0]["transaction"] is True


def test_the_page_names_every_field_and_every_key() -> None:
    page = reference_page()
    for network in (EVM, SOLANA):
        for entity in network.entities:
            assert all(f"| `{field.name}` |" in page for field in entity.fields)
        for family in network.families:
            assert f"### add_{family.name}\n" in page
            assert all(f"| `{item.name}` |" in page for item in family.conditions)
            assert all(f"| `{item.name}` |" in page for item in family.relations)
