"""The demo's DuckDB file: whether it may be replaced, what it holds, and what it must hold.

The expected rows are worked out from the simulator's contents, in plain Python and without the
client, the decoders, Spark or the target: what all of these agree on by mistake, this would notice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.core import BlockCursor
from headwater.errors import InvalidOptionError
from headwater.targets.duckdb import DuckDBTarget, duckdb_target
from headwater.targets.duckdb.dialect import TableName
from headwater.targets.sql.side_tables import CONFIG
from headwater.targets.sql.text import compose
from headwater.testing import ChainSim
from headwater.testing.chain.content.evm_scenes import APPROVAL, TRANSFER
from headwater.testing.oracle import Oracle

STREAM_ID = "headwater-demo"

Row = tuple[Any, ...]
Tables = Mapping[str, Iterable[Row]]

COLUMNS: dict[str, tuple[str, ...]] = {
    "transfers": ("from", "to", "value", "amount"),
    "approvals": ("owner", "spender", "value"),
}
"""What each table holds beside the columns of every log."""

LOG_COLUMNS = (
    "block_number",
    "block_hash",
    "seconds",
    "transaction_hash",
    "transaction_index",
    "log_index",
    "address",
)
_FIELDS = ("logIndex", "transactionIndex", "transactionHash", "address", "topics", "data")


@dataclass(frozen=True, slots=True)
class Places:
    """Where the demo leaves what it made."""

    folder: Path

    @property
    def database(self) -> Path:
        """The tables."""
        return self.folder / "chain.duckdb"

    @property
    def picture(self) -> Path:
        """The chain with its forks."""
        return self.folder / "forks.png"

    @property
    def spark_log(self) -> Path:
        """What Spark says on standard error."""
        return self.folder / "spark.log"


def make_room(places: Places) -> None:
    """Create the folder, and remove the file of an earlier demo; refuse to remove anything else."""
    try:
        places.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidOptionError(
            f"--out must be a directory that can be written: {error.strerror}", got=places.folder
        ) from None
    if not places.database.exists():
        places.picture.unlink(missing_ok=True)
        return
    if not _is_ours(duckdb_target(places.database)):
        raise InvalidOptionError(
            "--out holds a chain.duckdb that the demo did not make, so it is left alone; "
            "name another directory",
            got=places.folder,
        )
    places.picture.unlink(missing_ok=True)
    places.database.unlink()
    places.database.with_name("chain.duckdb.wal").unlink(missing_ok=True)


def count_rows(target: DuckDBTarget, tables: Sequence[str]) -> dict[str, int]:
    """Count what is committed, also while the stream runs."""
    return {
        name: target.query(_on("SELECT count(*) AS n FROM {table}", name)).column("n")[0].as_py()
        for name in tables
    }


def read_rows(target: DuckDBTarget, name: str) -> list[Row]:
    """Return all rows of one of the simulated chain's tables, as `expected_tables` has them."""
    found = target.query(
        _on("SELECT *, epoch(timestamp)::BIGINT AS seconds FROM {table}", name)
    ).to_pydict()
    return list(zip(*(found[one] for one in (*LOG_COLUMNS, *COLUMNS[name])), strict=True))


def top_tokens(target: DuckDBTarget, limit: int) -> list[dict[str, Any]]:
    """Return the tokens that were transferred most often."""
    found: list[dict[str, Any]] = target.query(
        'SELECT address, count(*) AS transfers, count(DISTINCT "from") AS senders, '
        "median(amount) AS middle FROM transfers "
        "GROUP BY address ORDER BY transfers DESC, address LIMIT ?",
        [limit],
    ).to_pylist()
    return found


def _on(template: str, table: str) -> str:
    return compose(template, table=TableName("main", table))


def _is_ours(target: DuckDBTarget) -> bool:
    """Tell whether a file holds the demo's stream and nothing else."""
    names = set(
        target.query("SELECT table_name FROM duckdb_tables()").column("table_name").to_pylist()
    )
    if "sync" not in names:
        return not names
    streams = set(target.query("SELECT DISTINCT id FROM sync").column("id").to_pylist())
    claimed = set(
        target.query("SELECT table_name FROM sync__tables WHERE id = ?", [STREAM_ID])
        .column("table_name")
        .to_pylist()
    )
    known = {"sync", "sync__tables", CONFIG, *claimed, *(f"{name}__snapshots" for name in claimed)}
    return streams <= {STREAM_ID} and names <= known


def expected_tables(chain: ChainSim, tip: BlockCursor | None) -> dict[str, list[Row]]:
    """Return the rows that the demo's tables must hold if they end in this block."""
    oracle = Oracle(chain, "logs", _is_erc20, _FIELDS)
    tables: dict[str, list[Row]] = {name: [] for name in COLUMNS}
    for block in oracle.branch(tip):
        for log in oracle.rows_of(block):
            name = "transfers" if log["topics"][0] == TRANSFER else "approvals"
            first, second = (f"0x{topic[-40:]}" for topic in log["topics"][1:])
            value = str(int(log["data"], 16))
            if name == "transfers" and first == second:
                continue  # the demo's transform drops what an account sends to itself
            amount = (float(value),) if name == "transfers" else ()
            tables[name].append(
                (
                    block.number,
                    block.hash,
                    block.timestamp,
                    log["transactionHash"],
                    log["transactionIndex"],
                    log["logIndex"],
                    log["address"],
                    first,
                    second,
                    value,
                    *amount,
                )
            )
    return tables


def disagreements(held: Tables, expected: Tables) -> list[str]:
    """Return one sentence for each table that is not as expected; none is what we want."""
    found = []
    for name in sorted({*held, *expected}):
        ours, theirs = Counter(held.get(name, ())), Counter(expected.get(name, ()))
        extra, lacking = ours - theirs, theirs - ours
        if extra or lacking:
            example = min([*extra, *lacking], key=repr)
            found.append(
                f"{name}: {extra.total()} rows too many or different, {lacking.total()} missing; "
                f"first in block {example[0]}, log {example[5]}"
            )
    return found


def _is_erc20(log: Mapping[str, Any]) -> bool:
    return len(log["topics"]) == 3 and log["topics"][0] in (TRANSFER, APPROVAL)
