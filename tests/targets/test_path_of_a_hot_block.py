"""How far a hot block goes through the code of a target: what can be read can be held."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import headwater
from headwater.targets import duckdb_target, postgres_target, table
from tests.targets.postgres_places import Stream, database

SOURCE = f"{Path(headwater.__file__).parent}/"
SIDES = ("targets/sql/", "targets/postgres/", "targets/duckdb/")
CROSSINGS, DEEP = 15, 13  # the loop calls `commit` eleven deep: 24 in all
FUNCTIONS = {"duckdb": 105, "postgres": 132}  # named ones; encoding for COPY is 25 of PostgreSQL's


class Trace(NamedTuple):
    """What a call went through: functions, the deepest stack, and calls between two sides."""

    functions: set[str]
    deepest: list[str]
    crossings: list[str]


@contextmanager
def followed() -> Iterator[Trace]:
    """Follow all calls of this thread; comprehensions and lambdas count for depth alone."""
    path = Trace(set(), [], [])

    def follow(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(SOURCE):
            return
        stack: list[str] = []
        caller: FrameType | None = frame
        while caller is not None:
            code, caller = caller.f_code, caller.f_back
            if code.co_filename.startswith(SOURCE):
                stack.append(f"{code.co_filename.removeprefix(SOURCE)} {code.co_qualname}")
        path.deepest[:] = stack if len(stack) > len(path.deepest) else path.deepest
        if not frame.f_code.co_name.startswith("<"):
            path.functions.add(stack[0])
        sides = [one for code in stack[:2] for one in SIDES if code.startswith(one)]
        if len(set(sides)) == 2:
            path.crossings.append(f"{stack[1]} -> {stack[0]}")

    sys.setprofile(follow)
    try:
        yield path
    finally:
        sys.setprofile(None)


def rows(number: int) -> pa.Table:
    """Return rows as of a log: texts, numbers in text, a time, integers."""
    return pa.table(
        {
            "block_number": pa.array([number] * 3, pa.int64()),
            "log_index": pa.array([0, 1, 2], pa.int64()),
            "owner": ["0xa", "0xb", "0xc"],
            "value": ["1", "2", str(10**30)],
            "timestamp": pa.array([number] * 3, pa.timestamp("us", "UTC")),
        }
    )


def upsert(tx: Any, data: Any) -> None:
    tx.upsert("t", data["t"])


MAKE: dict[str, Callable[..., Any]] = {
    "duckdb": lambda folder, **options: duckdb_target(folder / "a.duckdb", **options),
    "postgres": lambda folder, **options: postgres_target(database(), **options),
}


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("keyed", [False, True])
def test_a_hot_block_goes_through_few_functions_and_few_layers(
    kind: str, keyed: bool, tmp_path: Path
) -> None:
    options = {"tables": [table("t", key=["owner"])], "on_data": upsert} if keyed else {}
    target = MAKE[kind](tmp_path, **options)
    try:
        stream = Stream(target, "")
        for number in (2, 3, 4):  # the first ones create tables, and fill caches
            stream.block(number, {"t": rows(number)})
        with followed() as path:
            stream.block(5, {"t": rows(5)})
        assert len(stream.rows("SELECT * FROM t")) == (3 if keyed else 12)
    finally:
        target.close()
    assert any("commit" in one for one in path.functions), "nothing was followed"
    assert len(path.crossings) <= CROSSINGS, path.crossings
    assert len(path.deepest) <= DEEP, path.deepest
    assert len(path.functions) <= FUNCTIONS[kind], sorted(path.functions)
