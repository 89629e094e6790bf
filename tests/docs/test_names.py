"""What pages and docstrings name in backticks is there."""

import re
from pathlib import Path

import pytest
from scripts import check_docs
from scripts.names import index_of, name_problems, text_problems

ROOT = check_docs.ROOT
NO_CODE, NO_VARIABLE = "E" + "8765", "_".join(("HEADWATER", "NONE"))
UNKNOWN = "_".join(("unheard", "of", "detail"))  # words of tests count as words of the code
WRONG = {
    "`make tests` before you push": "`make tests`: no make tests",
    "run `headwater statuses TARGET`": "`headwater statuses TARGET`: no headwater statuses",
    "```console\nheadwater show\n```": "no headwater show",
    "run `python -m tests.slow`": "`python -m tests.slow`: no such program",
    "in `stream/parts.py`": "`stream/parts.py`: no such path",
    "in `<network>/kindred.py`": "`<network>/kindred.py`: no such path",
    "in `folder.py`, then `folders.py`": "`folders.py`: no such path",
    "the folder `decode/rows/`": "`decode/rows/`: no such path",
    "the folder `targets/lakes`": "`targets/lakes`: no such path",
    "run `headwater demo --hasty`": "`headwater demo --hasty`: no option --hasty",
    "by `tests/test_tidy.py::test_no`": "`tests/test_tidy.py::test_no`: no such test",
    "`ctx.stream.state.blok`": "`ctx.stream.state.blok`: ctx has no blok",
    "`.pipe_onto(f)`": "`.pipe_onto(f)`: no function or class pipe_onto",
    "with `flush=Flushing(rows=1)`": "`flush=Flushing(rows=1)`: no function or class Flushing",
    "`tests/nowhere/data.bin`": "`tests/nowhere/data.bin`: no such path",
    "the class `ForkResolver`": "`ForkResolver`: no class ForkResolver",
    "calls `Parts.add_rows`": "`Parts.add_rows`: no class Parts",
    "calls\n`SqlTarget.committed`": "`SqlTarget.committed`: SqlTarget has no committed",
    "`Capabilities.unheard`": "`Capabilities.unheard`: Capabilities has no unheard",
    "`headwater.core.resolve`": "`headwater.core.resolve`: no headwater.core.resolve",
    "`headwater.core.fork.Fork.x`": "`headwater.core.fork.Fork.x`: no headwater.core.fork.Fork.x",
    "`evm.eventz(…)`": "`evm.eventz(…)`: evm has no eventz",
    "`resolve_forked(a, b)`": "`resolve_forked(a, b)`: no function or class resolve_forked",
    "`core/fork.py` `hot_groups`": "`hot_groups`: not in core/fork.py",
    "`make check && make tests`": "`make check && make tests`: no make tests",
    "`make sim RUN=5`": "`make sim RUN=5`: no variable RUN",
    "`headwater cursor shows DSN`": "`headwater cursor shows DSN`: no headwater cursor shows",
    "`tests/test_gate.py::Gate::test_no`": "`tests/test_gate.py::Gate::test_no`: no such test",
    "`bash scripts/none.sh`": "`bash scripts/none.sh`: no such path: scripts/none.sh",
    "```\n.venv/bin/pytest tests/none.py -x\n```": "no such path: tests/none.py",
    "```\npython -m tests.slow\n```": "no such program",
    "```python\nfrom headwater import unheard\n```": "headwater has no unheard",
    f"`{NO_VARIABLE}`": f"`{NO_VARIABLE}`: the code has no such name",
    f"`{NO_CODE}`": f"`{NO_CODE}`: the code has no such name",
    f"the option `{UNKNOWN}`": f"`{UNKNOWN}`: the code has no such name",
}
RIGHT = """
`make test SINCE=main`, `headwater cursor show TARGET [--id ID]`, `python -m tests.affected`,
`core/fork.py` `resolve_fork`, `query/networks/<network>.py`, `decode/lines/`, `ROOT/x`, `mine.py`,
`SqlTarget`, `SqlTarget.close`, `PartReader.rows`, `headwater.core.PipeState.advance`, `commit`,
`make sim RUNS=5`, `headwater sink run DSN`, `from headwater import evm, portal_stream`,
`rollback_chain`, `SELECT min(a_b) FROM t`, `CAST(x AS text)`, `https://a.b/C.d`, `spark.sql.x.y`,
`evm.events("Transfer(address indexed from)")`, `--go-on`, `a_b >= 7`, `{"a.b": 1}`, `E1003`

```python
# mine.py
no_such_thing.Here()
```
"""


@pytest.mark.parametrize("text", WRONG)
def test_a_name_that_does_not_exist_is_reported(text: str) -> None:
    wrong = [problem for _, problem in text_problems(f"A page.\n\n{text}\n", index_of(ROOT))]
    assert wrong == [WRONG[text]]


def test_names_that_exist_and_what_is_no_name_of_ours_are_left_alone() -> None:
    assert list(text_problems(RIGHT, index_of(ROOT))) == []


def test_every_name_of_pages_and_docstrings_exists() -> None:
    assert name_problems(ROOT, check_docs.named_pages()) == []


def test_a_wrong_name_in_a_docstring_is_reported(tmp_path: Path) -> None:
    module = tmp_path / "src" / "headwater" / "cli" / "__init__.py"
    module.parent.mkdir(parents=True)
    module.write_text('COMMANDS = {\n    "run": ("run", "run"),\n}\n\n"""See `Runner.go`."""\n')
    (tmp_path / "Makefile").write_text("test: setup\n")
    assert name_problems(tmp_path, []) == [
        "src/headwater/cli/__init__.py:5: `Runner.go`: no class Runner"
    ]


def test_make_check_fails_where_a_page_names_what_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert "scripts/check_docs.py" in makefile.split("\ncheck:")[1].split("\n\n")[0]
    page = tmp_path / "page.md"
    page.write_text("The loop is\nin `Pipelines.steps`.\n")
    monkeypatch.setattr(check_docs, "PAGES", [*check_docs.PAGES, page])
    monkeypatch.setattr(check_docs, "site_problems", list[str])  # it has no place in the site
    monkeypatch.setattr("sys.argv", ["check_docs.py"])
    assert check_docs.main() == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{page}:2: `Pipelines.steps`: no class Pipelines"
    assert said[1].endswith("1 problems")


def test_the_page_of_traps_names_a_test_for_each() -> None:
    text = (ROOT / "docs" / "substreams-traps.md").read_text("utf-8")
    assert len(set(re.findall(r"`(test_\w+)`", text))) > 30
