"""The notebook of the examples, executed by a kernel: what it shows, and what it leaves behind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pyarrow as pa
import pytest
from nbclient import NotebookClient

from headwater import evm, portal_stream
from headwater.errors import InvalidOptionError
from headwater.spark.frames import Frame
from headwater.testing import simulated_portal
from tests.shared import HANG_S
from tests.stream.truth import transfers

EXAMPLE = Path(__file__).parents[2] / "examples" / "explore.ipynb"


@pytest.fixture(scope="module")
def shown() -> list[list[dict[str, Any]]]:
    """Return what the cells of code show, run once."""
    notebook = nbformat.read(EXAMPLE, as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=int(HANG_S), kernel_name="python3").execute()
    return [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_rows_of_the_newest_blocks_are_shown_as_a_table(shown: list[list[dict[str, Any]]]) -> None:
    (result,) = (one for one in shown[1] if one["output_type"] == "execute_result")
    html = result["data"]["text/html"]
    assert html.startswith("<table><tr><th>block_number</th>")
    numbers = {int(one) for one in re.findall(r"<tr><td>(\d+)</td>", html)}
    assert numbers
    assert numbers <= set(range(295, 300))


def test_progress_is_one_line_that_says_how_it_ended(shown: list[list[dict[str, Any]]]) -> None:
    lines = [one for one in shown[2] if one["output_type"] == "display_data"]
    assert len(lines) == 1
    assert "past: done at block 250" in lines[0]["data"]["text/plain"]
    assert not [one for one in shown[2] if one["output_type"] == "stream"]
    (result,) = (one for one in shown[2] if one["output_type"] == "execute_result")
    assert "'newest': 250" in result["data"]["text/plain"]


def test_a_handle_shows_where_the_stream_is_and_leaves_no_thread(
    shown: list[list[dict[str, Any]]],
) -> None:
    (handle,) = (one for one in shown[3] if one["output_type"] == "execute_result")
    assert "<code>head: " in handle["data"]["text/html"]
    assert handle["data"]["text/plain"].startswith("StreamHandle[head: ")
    (threads,) = (one for one in shown[4] if one["output_type"] == "execute_result")
    assert threads["data"]["text/plain"] == "[]"


def test_a_preview_has_the_rows_of_the_newest_blocks_of_each_output_and_no_others() -> None:
    with simulated_portal(seed=7, blocks=60, finality_depth=10) as portal:
        outputs = {
            "transfers": evm.events("erc20.Transfer", range=0),
            "approvals": evm.events("erc20.Approval", range="latest"),
        }
        stream = portal_stream(id="a", portal=portal.url, outputs=outputs)
        portal.ledger.clear()
        found = stream.preview(4)
        assert isinstance(found, dict)
        rows = found["transfers"].toArrow().to_pylist()
        newest = portal.chain.canonical()[-4:]
        wanted = transfers(portal.chain, newest)
        assert wanted
        assert [(row["block_number"], row["log_index"]) for row in rows] == [
            (row[0], row[2]) for row in wanted
        ]
        asked = [one.first for one in portal.ledger.stream_requests() if one.first is not None]
        assert min(asked) == newest[0].number
        assert set(found) == {"transfers", "approvals"}
        with pytest.raises(InvalidOptionError, match="1 or more"):
            stream.preview(0)


def test_a_frame_is_shown_without_spark_and_its_text_is_escaped() -> None:
    def no_spark() -> Any:
        raise AssertionError("a notebook that looks at a frame has started Spark")

    frame = Frame(pa.table({"<b>": ["<script>"] * 30}), no_spark)
    html = frame._repr_html_()
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert "30 rows, 20 shown" in html
    for name in ("_ipython_canary_method_should_not_exist_", "_repr_mimebundle_", "_repr_png_"):
        assert not hasattr(frame, name)
