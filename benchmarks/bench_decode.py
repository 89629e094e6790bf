"""How fast do block lines become columns? Events, calls, and transfers of Solana.

Parsing stands beside pyarrow.json and msgspec structs, decoding beside eth-abi or plain Python (row
by row) on the same items in the same run, so read the ratios; other load on the machine lowers all
figures alike. Exit code 1 below the limits.

    .venv/bin/python benchmarks/bench_decode.py
"""

from __future__ import annotations

import io
import json
import platform
import random
import sys
import time
from collections.abc import Callable

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from eth_abi.abi import decode, encode

from headwater.core import BlockRange
from headwater.decode import (
    CallsOutput,
    EventsOutput,
    InstructionsOutput,
    bitcoin,
    decode_outputs,
    evm,
    hyperliquid,
    parse_logs,
    solana,
)
from headwater.decode.lines.entities import Wanted, read_entities, wire_type
from headwater.decode.output import decoded_from
from headwater.query import EVM, SOLANA, Field, Network, base58

LIMIT_ROWS_S = 5_000_000
LIMIT_MB_S = 120
ROUNDS = 25
BLOCKS, LOGS = 1_000, 100
ETH_ABI_ROWS = 2_000
EVERYTHING = [BlockRange(0)]
BATCH = "erc1155.TransferBatch"
NOTE = "Note(address indexed author, string title, bytes body)"


def word(chance: random.Random, size: int) -> str:
    return chance.randbytes(size).hex()


def amount(chance: random.Random) -> int:
    """Mostly below 2^90, as amounts of tokens are; three in a hundred use all bits."""
    return chance.getrandbits(chance.randrange(1, 90) if chance.random() < 0.97 else 256)


def transfer_data(chance: random.Random) -> bytes:
    return amount(chance).to_bytes(32)


def small_data(chance: random.Random) -> bytes:
    return chance.getrandbits(chance.randrange(1, 90)).to_bytes(32)


def batch_data(chance: random.Random) -> bytes:
    count = chance.randrange(1, 6)
    numbers = [[amount(chance) for _ in range(count)] for _ in range(2)]
    return encode(["uint256[]", "uint256[]"], numbers)


def note_data(chance: random.Random) -> bytes:
    title = "".join(chance.choice("abcdefgh ") for _ in range(chance.randrange(0, 60)))
    return encode(["string", "bytes"], [title, chance.randbytes(chance.randrange(0, 200))])


def make_lines(output: EventsOutput, data: Callable[[random.Random], bytes]) -> list[bytes]:
    chance = random.Random(7)
    lines = []
    for number in range(20_000_000, 20_000_000 + BLOCKS):
        logs = [
            {
                "logIndex": index,
                "transactionIndex": index // 2,
                "transactionHash": f"0x{word(chance, 32)}",
                "address": f"0x{word(chance, 20)}",
                "data": f"0x{data(chance).hex()}",
                "topics": [
                    output.event.topic0,
                    *(f"0x{'0' * 24}{word(chance, 20)}" for _ in output.event.indexed),
                ],
            }
            for index in range(LOGS)
        ]
        header = {
            "number": number,
            "hash": f"0x{word(chance, 32)}",
            "parentHash": f"0x{word(chance, 32)}",
            "timestamp": 1_717_281_407 + number,
        }
        block = {"header": header, "logs": logs}
        lines.append(json.dumps(block, separators=(",", ":")).encode())
    return lines


def best(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


# --- the other parsers ----------------------------------------------------------------------------


class Header(msgspec.Struct, gc=False):
    number: int
    hash: str
    timestamp: int


class Log(msgspec.Struct, gc=False, rename="camel"):
    log_index: int
    transaction_index: int
    transaction_hash: str
    address: str
    topics: list[str]
    data: str


class Block(msgspec.Struct, gc=False):
    header: Header
    logs: list[Log] = []  # msgspec copies empty defaults


NAMES = ("log_index", "transaction_index", "transaction_hash", "address", "topics", "data")
decode_block = msgspec.json.Decoder(Block).decode


def parse_with_structs(lines: list[bytes]) -> pa.Table:
    blocks = [decode_block(line) for line in lines]
    logs = [log for block in blocks for log in block.logs]
    headers = [block.header for block in blocks for _ in block.logs]
    columns = {name: [getattr(log, name) for log in logs] for name in NAMES}
    return pa.table({**columns, "number": [header.number for header in headers],
                     "hash": [header.hash for header in headers],
                     "timestamp": [header.timestamp for header in headers]})  # fmt: skip


def parse_with_arrow(lines: list[bytes]) -> pa.Table:
    log = [("logIndex", pa.int32()), ("transactionIndex", pa.int32()),
           ("transactionHash", pa.string()), ("address", pa.string()), ("data", pa.string()),
           ("topics", pa.list_(pa.string()))]  # fmt: skip
    header = [("number", pa.int64()), ("hash", pa.string()), ("timestamp", pa.int64())]
    schema = pa.schema([("header", pa.struct(header)), ("logs", pa.list_(pa.struct(log)))])
    table = pj.read_json(
        io.BytesIO(b"\n".join(lines)),
        read_options=pj.ReadOptions(use_threads=False, block_size=8 << 20),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    logs = pc.list_flatten(table["logs"]).combine_chunks().flatten()
    headers = table["header"].take(pc.list_parent_indices(table["logs"])).combine_chunks().flatten()
    return pa.table([*logs, *headers], names=[name for name, _ in [*log, *header]])


def parse_with_json(lines: list[bytes]) -> pa.Table:
    return pa.Table.from_pylist([log for line in lines for log in json.loads(line)["logs"]])


# --- eth-abi --------------------------------------------------------------------------------------


def decode_with_eth_abi(kinds: list[str], topics: list[list[bytes]], datas: list[bytes]) -> object:
    return [
        ([decode(["address"], topic)[0] for topic in row], decode(kinds, data))
        for row, data in zip(topics, datas, strict=True)
    ]


def eth_abi_rows_s(output: EventsOutput, logs: pa.Table) -> float:
    """Rows per second of eth-abi, from bytes: turning hex into bytes is not counted."""
    head = logs.slice(0, ETH_ABI_ROWS)
    names = [f"topic{slot}" for slot in range(1, len(output.event.indexed) + 1)]
    columns = [[bytes.fromhex(one.decode()) for one in head[name].to_pylist()] for name in names]
    datas = [bytes.fromhex(one.decode()) for one in head["data"].to_pylist()]
    kinds = output.event.signature.partition("(")[2][:-1].split(",")[len(names) :]
    rows = [list(row) for row in zip(*columns, strict=True)]
    return ETH_ABI_ROWS / best(lambda: decode_with_eth_abi(kinds, rows, datas), 3)


# --- calls and instructions -----------------------------------------------------------------------

CALL = "transfer(address to, uint256 amount)"


def item_lines(collections: dict[str, Callable[[random.Random, int], object]]) -> list[bytes]:
    chance = random.Random(7)
    lines = []
    for number in range(BLOCKS // 2):
        header = {"number": number, "hash": f"0x{word(chance, 32)}", "timestamp": number}
        items = {name: [make(chance, at) for at in range(LOGS)]
                 for name, make in collections.items()}  # fmt: skip
        lines.append(json.dumps({"header": header, **items}, separators=(",", ":")).encode())
    return lines


def call_item(chance: random.Random, at: int) -> dict[str, object]:
    data = f"0xa9059cbb{'0' * 24}{word(chance, 20)}{amount(chance):064x}"
    sender, to = (f"0x{word(chance, 20)}" for _ in range(2))
    return {"transactionIndex": at, "hash": f"0x{word(chance, 32)}", "from": sender, "to": to,
            "input": data, "sighash": data[:10], "status": 1}  # fmt: skip


def transfer_item(chance: random.Random, at: int) -> dict[str, object]:
    data = b"\x03" + chance.getrandbits(chance.randrange(20, 64)).to_bytes(8, "little")
    keys = [base58.encode(chance.randbytes(32)) for _ in range(3)]
    return {"transactionIndex": at, "instructionAddress": [0, at % 3], "programId": solana.TOKEN,
            "accounts": keys, "data": base58.encode(data), "isCommitted": True}  # fmt: skip


def signed_item(chance: random.Random, at: int) -> dict[str, object]:
    return {"transactionIndex": at, "signatures": [base58.encode(chance.randbytes(64))]}


def wanted(network: Network, output: CallsOutput | InstructionsOutput) -> dict[str, Wanted]:
    selected = dict(output.query.fields)
    return {
        name: Wanted(tuple(one for one in network.entity(name).fields
                           if one.wire in selected[name]), tuple(EVERYTHING))
        for name, _ in decoded_from(output)
    }  # fmt: skip


def read_with_arrow(lines: list[bytes], fields: tuple[Field, ...]) -> None:
    item = pa.struct([pa.field(one.wire, wire_type(one)) for one in fields])
    header = pa.struct([("number", pa.int64()), ("hash", pa.string()), ("timestamp", pa.int64())])
    schema = pa.schema([("header", header), ("transactions", pa.list_(item))])
    table = pj.read_json(
        io.BytesIO(b"\n".join(lines)),
        read_options=pj.ReadOptions(use_threads=False, block_size=8 << 20),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    pc.list_flatten(table["transactions"]).combine_chunks().flatten()
    table["header"].take(pc.list_parent_indices(table["transactions"])).combine_chunks().flatten()


def plain_transfers(items: list[dict[str, object]]) -> list[tuple[object, ...]]:
    rows = []
    for item in items:
        data = base58.decode(str(item["data"]))
        if item["programId"] == solana.TOKEN and data[0] == 3:
            accounts = item["accounts"]
            assert isinstance(accounts, list)
            rows.append((int.from_bytes(data[1:9], "little"), *accounts[:3]))
    return rows


def paid_item(chance: random.Random, at: int) -> dict[str, object]:
    address = base58.encode(chance.randbytes(25))
    return {"transactionIndex": at // 3, "outputIndex": at % 3,
            "value": chance.getrandbits(36) / 10**8, "scriptPubKeyHex": word(chance, 25),
            "scriptPubKeyType": "pubkeyhash", "scriptPubKeyAddress": address}  # fmt: skip


def txid_item(chance: random.Random, at: int) -> dict[str, object]:
    return {"transactionIndex": at, "txid": word(chance, 32)}


def fill_item(chance: random.Random, at: int) -> dict[str, object]:
    return {"fillIndex": at, "user": f"0x{word(chance, 20)}", "coin": chance.choice(["BTC", "ETH"]),
            "px": chance.getrandbits(30) / 1000, "sz": chance.getrandbits(20) / 10**5, "side": "B",
            "time": 1_700_000_000_000 + at, "startPosition": 0.0, "dir": "Open Long",
            "closedPnl": 0.0, "hash": f"0x{word(chance, 32)}", "oid": chance.getrandbits(37),
            "crossed": True, "fee": 0.01, "tid": chance.getrandbits(50), "feeToken": "USDC",
            "builderFee": None, "cloid": None, "builder": None, "twapId": None}  # fmt: skip


def plain_paid(lines: list[bytes]) -> pa.Table:
    rows: list[dict[str, object]] = []
    for line in lines:
        block = json.loads(line)
        number, listed = block["header"]["number"], block["transactions"]
        names = {one["transactionIndex"]: one["txid"] for one in listed}
        rows += [{**one, "block": number, "txid": names[one["transactionIndex"]],
                  "value": round(one["value"] * 10**8),
                  "scriptPubKeyHex": bytes.fromhex(one["scriptPubKeyHex"])}
                 for one in block["outputs"]]  # fmt: skip
    return pa.Table.from_pylist(rows)


def plain_fills(lines: list[bytes]) -> pa.Table:
    return pa.Table.from_pylist(
        [{**one, "block": block["header"]["number"]} for block in map(json.loads, lines)
         for one in block["fills"]]
    )  # fmt: skip


def bench_tables() -> None:
    print("\n| raw tables, lines to columns | M rows/s | json.loads, from_pylist | headwater is |")
    print("|---|---|---|---|")
    rows, ranges = BLOCKS // 2 * LOGS, {"t": EVERYTHING}
    paid = item_lines({"outputs": paid_item, "transactions": txid_item})
    fills = item_lines({"fills": fill_item})
    for name, output, lines, plain in (
        ("outputs of Bitcoin", bitcoin.outputs(), paid, plain_paid),
        ("fills of Hyperliquid", hyperliquid.fills(), fills, plain_fills),
    ):
        ours = rows / best(lambda o=output, n=lines: decode_outputs({"t": o}, n, ranges), 7)  # type: ignore[misc]
        other = rows / best(lambda p=plain, n=lines: p(n), 3)  # type: ignore[misc]
        print(f"| {name} | {ours / 1e6:.2f} | {other / 1e6:.2f} | {ours / other:.1f}x |")


def bench_items() -> None:
    calls = evm.calls(CALL)
    lines = item_lines({"transactions": call_item})
    size, fields = sum(map(len, lines)) / 1e6, wanted(EVM, calls)
    structs = size / best(lambda: read_entities(lines, EVM, fields), 7)
    arrow = size / best(lambda: read_with_arrow(lines, fields["transaction"].fields), 7)
    print(f"\nreading transactions: {structs:,.0f} MB/s; pyarrow.json {arrow:,.0f} MB/s\n")
    entities = read_entities(lines, EVM, fields)
    rate = BLOCKS // 2 * LOGS / best(lambda: calls.decode(entities, EVERYTHING))
    texts = entities["transaction"]["input"].to_pylist()[:ETH_ABI_ROWS]
    raw = [bytes.fromhex(one[10:]) for one in texts]
    other = len(raw) / best(lambda: [decode(["address", "uint256"], one) for one in raw], 3)
    print("| decoding | M rows/s | row by row, M rows/s | headwater is |\n|---|---|---|---|")
    print(f"| calls of {CALL}, beside eth-abi | {rate / 1e6:.2f} | {other / 1e6:.4f} | "
          f"{rate / other:,.0f}x |")  # fmt: skip
    transfers = solana.instructions("spl_token.transfer")
    lines = item_lines({"instructions": transfer_item, "transactions": signed_item})
    entities = read_entities(lines, SOLANA, wanted(SOLANA, transfers))
    rate = BLOCKS // 2 * LOGS / best(lambda: transfers.decode(entities, EVERYTHING))
    items = [one for line in lines[:50] for one in json.loads(line)["instructions"]]
    other = len(items) / best(lambda: plain_transfers(items), 3)
    print(f"| SPL Token transfers of Solana, beside plain Python | {rate / 1e6:.2f} | "
          f"{other / 1e6:.4f} | {rate / other:,.0f}x |")  # fmt: skip


def main() -> int:
    transfers = evm.events("erc20.Transfer")
    lines = make_lines(transfers, transfer_data)
    megabytes = sum(map(len, lines)) / 1e6
    machine = f"Python {platform.python_version()}, {platform.machine()}"
    print(f"{megabytes:.1f} MB, {BLOCKS} blocks of {LOGS} logs, {machine},")
    print(f"per second of CPU time of one core, best of {ROUNDS}\n")
    pa.set_cpu_count(1)
    print("| parser | MB/s | M logs/s | headwater is |\n|---|---|---|---|")
    ours = best(lambda: parse_logs(lines))
    for name, seconds in (
        ("headwater", ours),
        ("pyarrow.json, explicit schema, flattened", best(lambda: parse_with_arrow(lines), 5)),
        ("msgspec structs, column lists", best(lambda: parse_with_structs(lines), 5)),
        ("json.loads, from_pylist", best(lambda: parse_with_json(lines), 1)),
    ):
        rate, logs_s = megabytes / seconds, BLOCKS * LOGS / seconds / 1e6
        print(f"| {name} | {rate:,.0f} | {logs_s:.2f} | {seconds / ours:.2f}x |")

    print("\n| decoding | M rows/s | eth-abi, M rows/s | headwater is |\n|---|---|---|---|")
    rates = []
    for output, data in (
        (transfers, transfer_data),
        (evm.events("erc20.Transfer", decimals=["value"]), small_data),
        (evm.events(BATCH), batch_data),
        (evm.events(NOTE), note_data),
    ):
        logs = parse_logs(make_lines(output, data))
        rate = logs.num_rows / best(lambda o=output, t=logs: o.decode({"log": t}, EVERYTHING))  # type: ignore[misc]
        other = eth_abi_rows_s(output, logs)
        asked = " as decimal(38, 0)" if data is small_data else ""
        print(f"| {output.event.signature}{asked} | {rate / 1e6:.2f} | {other / 1e6:.4f} | "
              f"{rate / other:,.0f}x |")  # fmt: skip
        rates.append(rate)

    bench_items()
    bench_tables()
    print(f"\nlimits {LIMIT_MB_S} MB/s parsed, {LIMIT_ROWS_S:,} Transfer rows/s decoded")
    return 0 if megabytes / ours >= LIMIT_MB_S and rates[0] >= LIMIT_ROWS_S else 1


if __name__ == "__main__":
    sys.exit(main())
