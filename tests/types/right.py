"""Programs that both type checkers accept. Nothing here runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from typing import Any, assert_type

from headwater import (
    BlockCursor,
    Flush,
    Head,
    PortalStream,
    Progress,
    StreamBatch,
    StreamHandle,
    bitcoin,
    clickhouse_target,
    create_target,
    delta_target,
    duckdb_target,
    evm,
    iceberg_target,
    parquet_target,
    pipe_to_iterator,
    portal_stream,
    postgres_target,
    solana,
    table,
    webhook,
)
from headwater.effects import Message
from headwater.targets import MemoryTarget

TRANSFER = "Transfer(address indexed from, address indexed to, uint256 value)"

outputs = {
    "all": evm.events("erc20.Transfer"),
    "number": evm.events(TRANSFER, range=12_000_000),
    "text": evm.events(TRANSFER, range="12,000,000"),
    "day": evm.events(TRANSFER, range=date(2024, 1, 1)),
    "moment": evm.events(TRANSFER, range=datetime(2024, 1, 1, tzinfo=UTC)),
    "pair": evm.events(TRANSFER, range=(0, 2999)),
    "days": evm.events(TRANSFER, range=("2024-01-01", "2024-02-01")),
    "open": evm.events(TRANSFER, range=(5, None)),
    "several": evm.events(TRANSFER, range=[(0, 9), (20, None)]),
    "named": evm.events(TRANSFER, range={"from": 5, "to": 9}),
}
chunks: list[tuple[int, int]] = [(0, 9), (20, 29)]
in_chunks = evm.events(TRANSFER, range=chunks)
stream = portal_stream(id="s", portal="https://portal.example/datasets/x", outputs=outputs)
assert_type(stream, PortalStream)

of_factory = evm.events(
    TRANSFER, contracts=evm.factory("0x1f98", "Made(address pool)", child="pool")
)
mixed = portal_stream(
    id="mixed",
    portal="https://portal.example/datasets/x",
    outputs={
        "events": of_factory,
        "calls": evm.calls("transfer(address to, uint256 amount)", source="traces"),
        "blocks": evm.blocks(fields=["number"]),
        "coins": bitcoin.outputs(),
        "slots": solana.blocks(range="latest"),
    },
    flush=Flush(blocks=10, seconds=1.5),
    on_config_change="evolve",
)


def large(data: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"transfers": data["transfers"].where("value > 1")}


def by_batch(data: Any, ctx: Any) -> Any:
    return data


def deliver(messages: list[Message]) -> None:
    assert_type(messages[0].key, str)


def write(read: Any) -> None:
    for batch in read(BlockCursor(5)):
        assert batch.data


piped = (
    stream.pipe(large)
    .pipe_batches(by_batch)
    .on_finalized("all", deliver)
    .on_finalized("pair", webhook("https://example.com/hook", secret="s"))
)
names = ["transfers"]
piped.pipe_to(duckdb_target("chain.duckdb"))
piped.pipe_to(
    postgres_target(
        "postgresql://localhost/chain",
        tables=names,
        on_data=lambda tx, data: tx.insert("transfers", data["transfers"]),
    )
)
piped.pipe_to([duckdb_target("a.duckdb", tables=["a", table("b", key=["id"])]), MemoryTarget()])
piped.pipe_to(clickhouse_target("http://localhost:8123/chain", tables=("transfers",)))
piped.pipe_to(create_target(write=write, fork=lambda previous: None), dashboard=9090)
handle = piped.start(delta_target("lake"))
assert_type(handle, StreamHandle)
assert_type(handle.last_progress, Progress | None)
handle.stop()
piped.pipe_to(iceberg_target("lake", tables=["transfers"]))
piped.pipe_to(parquet_target("files"))


def heads(batches: Iterator[StreamBatch]) -> Iterator[Head]:
    for batch in batches:
        assert_type(batch, StreamBatch)
        yield batch.ctx.stream.head


heads(iter(stream))
heads(pipe_to_iterator(stream, BlockCursor(7, "0xab"), lambda previous: previous[0]))
