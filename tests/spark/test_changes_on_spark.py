"""Changes that lie on executors are folded there, to what the driver would have made of them."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headwater import changes
from headwater.changes import Changes, TableSchema, add, max_, set_if_null, sub
from headwater.errors import (
    ChangeBlockError,
    ChangeFormError,
    DuplicateInsertError,
    UnknownTableError,
)
from headwater.spark import folding
from tests.targets.change_log.places import Place, Stream

BALANCE = TableSchema(
    "balance",
    key=["owner", "token"],
    columns={"owner": "text", "token": "integer", "amount": "integer", "note": "text"},
)
TRANSFER = TableSchema("transfer", key=["id"], columns={"id": "integer", "value": "integer"})
LARGE = 10**70


def many(seed: int, size: int = 4000) -> Changes:
    """Return random changes of few keys, some of which are written in two ways."""
    dice, made, there = Random(seed), Changes(block=1), set[int]()
    for at in range(size):
        made = made.at(1 + at // 100)
        token = dice.choice(["5", "05", "6"])
        key = {"owner": f"o{dice.randrange(40)}", "token": token}
        if dice.random() < 0.5:
            key = dict(reversed(key.items()))
        step = dice.choice([add, sub, max_])(LARGE + at)
        made.upsert("balance", key, amount=step, note=set_if_null(f"n{at}"))
        transfer = dice.randrange(200)
        if transfer in there:
            made.delete("transfer", transfer)
        else:
            made.insert("transfer", transfer, value=at)
        there ^= {transfer}
    return made


def commit(stream: Stream, frame: Any) -> None:
    """Commit changes of blocks up to 40, all of them final."""
    batch = stream.batch(40, frame, stream.state, final=40, branch="a")
    stream.target.commit([stream.target.prepare_batch(batch)], batch.state)


@pytest.mark.guarantee("CHANGE-1")
@pytest.mark.parametrize("kind", ["postgres", "duckdb"])
def test_executors_fold_what_the_driver_would(
    spark: SparkSession, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = many(3).toArrow()
    rows: list[Any] = []
    jobs: list[Any] = []
    fold_on_executors = folding.fold_on_executors

    def noted(*given: Any) -> Any:
        jobs.append(fold_on_executors(*given))
        return jobs[-1]

    monkeypatch.setattr(folding, "fold_on_executors", noted)
    for frame in (table, spark.createDataFrame(table).repartition(5)):
        place = Place(kind, tmp_path)
        stream = place.stream(BALANCE, TRANSFER)
        commit(stream, frame)
        query = "SELECT owner, token, amount, note FROM balance ORDER BY 1, 2"
        transfers = "SELECT id, value FROM transfer ORDER BY 1"
        rows.append((stream.rows(query), stream.rows(transfers)))
        stream.target.close()
    assert rows[0] == rows[1]
    assert len(rows[0][0]) == 80
    ((folded, blocks),) = jobs
    assert blocks == (1, 40)
    checked = changes.check(many(3), [BALANCE, TRANSFER])
    assert folded.num_rows == changes.fold(checked, finalized=40).num_rows


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (Changes(block=41).insert("transfer", 1, value=1), ChangeBlockError),
        (Changes(block=1).insert("stranger", 1, value=1), UnknownTableError),
        (
            Changes(block=1).insert("transfer", 1, value=1).insert("transfer", "01", value=2),
            DuplicateInsertError,
        ),
        (None, ChangeFormError),
    ],
)
def test_errors_of_executors_have_their_codes_and_leave_nothing(
    spark: SparkSession, made: Changes | None, error: type[Exception], tmp_path: Path
) -> None:
    stream = Place("duckdb", tmp_path).stream(BALANCE, TRANSFER)
    frame = spark.range(3) if made is None else spark.createDataFrame(made.toArrow())
    with pytest.raises(error):
        commit(stream, frame)
    assert stream.rows("SELECT * FROM transfer") == []
    stream.target.close()
