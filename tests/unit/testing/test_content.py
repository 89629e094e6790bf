"""Contents of simulated blocks: complete, typed as on the wire, consistent, reproducible."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from hashlib import blake2b, sha256
from typing import Any

import pytest

from headwater.query import base58
from headwater.testing.chain.content import FAMILIES, contents, evm_scenes
from headwater.testing.chain.content.solana import (
    discriminator,
    system_transfer_data,
    token_transfer_data,
)
from headwater.testing.chain.population import SYSTEM_PROGRAM, TOKEN_PROGRAM
from headwater.testing.chain.tree import ChainSim, ContentSettings, Network

Block = dict[str, Any]
EACH = pytest.mark.parametrize("network", list(Network))
MAIN = dict.fromkeys(Network, "transactions") | {
    Network.HYPERLIQUID: "fills",
    Network.SUBSTRATE: "extrinsics",
}

CHECKS: dict[str, Callable[[Any], bool]] = {
    "N": lambda value: type(value) is int and 0 <= value < 2**53,
    "H": lambda value: isinstance(value, str) and bool(re.fullmatch("0x([0-9a-f]{2})*", value)),
    "Q": lambda value: (
        isinstance(value, str) and bool(re.fullmatch("0x(0|[1-9a-f][0-9a-f]*)", value))
    ),
    "D": lambda value: isinstance(value, str) and bool(re.fullmatch("-?[0-9]+", value)),
    "ND": lambda value: CHECKS["N"](value) or CHECKS["D"](value),
    "b58": lambda value: isinstance(value, str) and bool(base58.decode(value)),
    "S": lambda value: isinstance(value, str),
    "B": lambda value: isinstance(value, bool),
    "J": lambda value: True,
    "V": lambda value: value in ("legacy", 0),
    "N[]": lambda value: all(map(CHECKS["N"], value)),
    "H[]": lambda value: all(map(CHECKS["H"], value)),
    "b58[]": lambda value: all(map(CHECKS["b58"], value)),
    "O": lambda value: isinstance(value, dict),
    "O[]": lambda value: all(map(CHECKS["O"], value)),
}

EVM = {
    "header": "number N hash H parentHash H timestamp N transactionsRoot H receiptsRoot H "
    "stateRoot H logsBloom H sha3Uncles H extraData H miner H nonce H mixHash H size N gasLimit Q "
    "gasUsed Q difficulty Q totalDifficulty Q? baseFeePerGas Q blobGasUsed Q excessBlobGas Q "
    "l1BlockNumber N? uncles H[]? withdrawalsRoot H? withdrawals O[]? "
    "parentBeaconBlockRoot H? requestsHash H? mainBlockGeneralGasLimit Q? sharedGasLimit Q? "
    "timestampMillisPart Q?",
    "transactions": "transactionIndex N hash H nonce ND from H to H? input H value Q gas Q "
    "gasPrice Q maxFeePerGas Q? maxPriorityFeePerGas Q? v Q r H s H yParity N? chainId N? "
    "sighash H? contractAddress H? gasUsed Q cumulativeGasUsed Q effectiveGasPrice Q type N "
    "status N logsBloom H? blobVersionedHashes H[]? accessList O[]? l1Fee Q? l1FeeScalar N? "
    "l1GasPrice Q? l1GasUsed Q? l1BlobBaseFee Q? l1BlobBaseFeeScalar N? l1BaseFeeScalar N? "
    "maxFeePerBlobGas Q? blobGasUsed Q? blobGasPrice Q? authorizationList O[]?",
    "logs": "logIndex N transactionIndex N transactionHash H address H data H topics H[]",
    "stateDiffs": "transactionIndex N address H key S kind S prev S? next S?",
}

TRACE_BASE = (
    "transactionIndex N traceAddress N[] subtraces N type S error S? revertReason S? action O"
)
TRACES = {
    "create": (
        TRACE_BASE + " result O",
        "from H value Q gas Q init H",
        "gasUsed Q? code H? address H?",
    ),
    "call": (
        TRACE_BASE + " result O",
        "callType S from H to H value Q? gas Q input H sighash H?",
        "gasUsed Q? output H?",
    ),
    "suicide": (TRACE_BASE, "address H refundAddress H balance Q", ""),
    "reward": (TRACE_BASE, "author H value Q type S", ""),
}

SOLANA = {
    "header": "number N hash b58 height N parentNumber N parentHash b58 timestamp N",
    "transactions": "transactionIndex N version V accountKeys b58[] addressTableLookups O[] "
    "numReadonlySignedAccounts N numReadonlyUnsignedAccounts N numRequiredSignatures N "
    "recentBlockhash b58 signatures b58[] err J computeUnitsConsumed D fee D loadedAddresses O? "
    "hasDroppedLogMessages B",
    "instructions": "transactionIndex N instructionAddress N[] programId b58 accounts b58[] "
    "data b58 computeUnitsConsumed D? error J isCommitted B hasDroppedLogMessages B "
    "d1 H? d2 H? d4 H? d8 H?",
    "logs": "transactionIndex N logIndex N instructionAddress N[] programId b58 kind S message S",
    "balances": "transactionIndex N account b58 pre D post D",
    "tokenBalances": "transactionIndex N account b58 preProgramId b58? preMint b58? "
    "preDecimals N? preOwner b58? preAmount D? postProgramId b58? postMint b58? postDecimals N? "
    "postOwner b58? postAmount D?",
    "rewards": "pubkey b58 lamports D postBalance D rewardType S? commission N?",
}


def check(row: dict[str, Any], description: str) -> None:
    words = description.split()
    types = dict(zip(words[::2], words[1::2], strict=True))
    assert row.keys() == types.keys()
    for name, kind in types.items():
        if row[name] is None:
            assert kind in ("J",) or kind.endswith("?"), name
        else:
            assert CHECKS[kind.rstrip("?")](row[name]), (name, kind, row[name])


def blocks(network: Network, count: int = 120, **settings: float) -> list[Block]:
    content = ContentSettings(**settings)  # type: ignore[arg-type]
    chain = ChainSim(7, network=network, content=content)
    chain.grow(count)
    return [contents(chain, block) for block in chain.canonical()]


def test_every_evm_field_has_its_wire_type() -> None:
    for block in blocks(Network.EVM):
        check(block["header"], EVM["header"])
        for family in ("transactions", "logs", "stateDiffs"):
            for row in block[family]:
                check(row, EVM[family])
        for row in block["traces"]:
            base, action, result = TRACES[row["type"]]
            check(row, base)
            check(row["action"], action)
            if result:
                check(row["result"], result)


def test_every_solana_field_has_its_wire_type() -> None:
    for block in blocks(Network.SOLANA):
        check(block["header"], SOLANA["header"])
        for family in FAMILIES[Network.SOLANA]:
            for row in block[family]:
                check(row, SOLANA[family])


def test_evm_numbers_agree_within_a_block() -> None:
    for block in blocks(Network.EVM):
        transactions = block["transactions"]
        assert [row["transactionIndex"] for row in transactions] == list(range(len(transactions)))
        assert [row["logIndex"] for row in block["logs"]] == list(range(len(block["logs"])))
        total = sum(int(row["gasUsed"], 16) for row in transactions)
        assert int(block["header"]["gasUsed"], 16) == total
        if transactions:
            assert int(transactions[-1]["cumulativeGasUsed"], 16) == total
        for log in block["logs"]:
            owner = transactions[log["transactionIndex"]]
            assert (owner["hash"], owner["status"]) == (log["transactionHash"], 1)


def test_evm_traces_form_one_tree_per_transaction() -> None:
    for block in blocks(Network.EVM):
        traces = [row for row in block["traces"] if row["type"] != "reward"]
        addresses = [(row["transactionIndex"], *row["traceAddress"]) for row in traces]
        assert addresses == sorted(set(addresses))
        for row, address in zip(traces, addresses, strict=True):
            children = [one for one in addresses if one[:-1] == address]
            assert children == [(*address, position) for position in range(row["subtraces"])]
            transaction = block["transactions"][row["transactionIndex"]]
            if not row["traceAddress"]:
                assert row["action"]["from"] == transaction["from"]
                assert (row["error"] is None) == (transaction["status"] == 1)
                if row["type"] == "create" and row["error"] is None:
                    assert row["result"]["address"] == transaction["contractAddress"]


def test_evm_state_differences_continue_one_another() -> None:
    for block in blocks(Network.EVM):
        state: dict[tuple[str, str], str | None] = {}
        for row in block["stateDiffs"]:
            place, kind = (row["address"], row["key"]), row["kind"]
            assert (row["prev"] is None) == (kind in "+=")
            assert (row["next"] is None) == (kind in "-=")
            if place in state and kind in "*-" and row["key"] not in ("nonce", "code"):
                assert state[place] == row["prev"]
            if kind != "=":
                state[place] = row["next"]


def test_an_evm_chain_holds_every_kind_of_event_trace_and_difference() -> None:
    seen: set[str] = set()
    values = set()
    for block in blocks(Network.EVM, 400):
        seen |= {f"trace {row['type']}" for row in block["traces"]}
        seen |= {f"error {row['traceAddress'] != []}" for row in block["traces"] if row["error"]}
        seen |= {f"diff {row['kind']}" for row in block["stateDiffs"]}
        seen |= {f"type {row['type']}" for row in block["transactions"]}
        seen |= {f"log {row['topics'][0]} {len(row['topics'])}" for row in block["logs"]}
        values |= {row["data"] for row in block["logs"]}
        seen |= {"creation" for row in block["transactions"] if row["to"] is None}
        seen |= {"string nonce" for row in block["transactions"] if isinstance(row["nonce"], str)}
    assert seen == {
        *(f"trace {kind}" for kind in TRACES),
        *("error True", "error False", "creation", "string nonce"),
        *(f"diff {kind}" for kind in "+-*="),
        *(f"type {kind}" for kind in range(5)),
        f"log {evm_scenes.TRANSFER} 3",
        f"log {evm_scenes.TRANSFER} 4",
        f"log {evm_scenes.APPROVAL} 3",
        f"log {evm_scenes.SWAP} 3",
        f"log {evm_scenes.SYNC} 1",
        f"log {evm_scenes.PAIR_CREATED} 3",
    }
    assert "0x" + "f" * 64 in values


def test_topics_and_sighashes_are_those_of_the_real_signatures() -> None:
    events = {
        "Transfer(address,address,uint256)": evm_scenes.TRANSFER,
        "Approval(address,address,uint256)": evm_scenes.APPROVAL,
        "Swap(address,uint256,uint256,uint256,uint256,address)": evm_scenes.SWAP,
        "Sync(uint112,uint112)": evm_scenes.SYNC,
        "PairCreated(address,address,address,uint256)": evm_scenes.PAIR_CREATED,
    }
    for signature, topic in events.items():
        assert "0x" + keccak256(signature.encode()).hex() == topic
    functions = {
        "transfer": "transfer(address,uint256)",
        "transfer_from": "transferFrom(address,address,uint256)",
        "approve": "approve(address,uint256)",
        "balance_of": "balanceOf(address)",
        "swap_tokens": "swapExactTokensForTokens(uint256,uint256,address[],address,uint256)",
        "swap": "swap(uint256,uint256,address,bytes)",
        "create_pair": "createPair(address,address)",
        "multicall": "multicall(bytes[])",
        "kill": "kill()",
    }
    assert functions.keys() == evm_scenes.SIGHASHES.keys()
    for name, signature in functions.items():
        expected = "0x" + keccak256(signature.encode())[:4].hex()
        assert expected == evm_scenes.SIGHASHES[name]


def test_a_swap_log_tells_the_amounts_of_its_transfers() -> None:
    swaps = 0
    for block in blocks(Network.EVM):
        logs = block["logs"]
        for index, log in enumerate(logs):
            if log["topics"][0] == evm_scenes.SWAP:
                swaps += 1
                amounts = [int(log["data"][2 + 64 * i : 66 + 64 * i], 16) for i in range(4)]
                moved = [int(logs[index - back]["data"], 16) for back in (3, 2)]
                assert [amount for amount in amounts if amount] == moved
    assert swaps > 10


def test_a_pool_of_the_population_is_announced_before_it_trades() -> None:
    chain = ChainSim(7)
    chain.grow(200)
    announced: set[str] = set()
    for block in chain.canonical():
        for log in contents(chain, block)["logs"]:
            if log["topics"][0] == evm_scenes.PAIR_CREATED:
                assert log["address"] == chain.population.factory
                announced.add("0x" + log["data"][26:66])
            if log["topics"][0] == evm_scenes.SWAP:
                assert log["address"] in announced
    assert announced > {pair.address for pair in chain.population.pairs}


def test_tokens_and_accounts_come_from_the_population() -> None:
    chain = ChainSim(7)
    chain.grow(50)
    for block in chain.canonical():
        full = contents(chain, block)
        assert {row["from"] for row in full["transactions"]} <= set(chain.population.accounts)
        approved = {
            row["address"] for row in full["logs"] if row["topics"][0] == evm_scenes.APPROVAL
        }
        assert approved <= set(chain.population.tokens)


def test_solana_instructions_form_trees_and_follow_their_transaction() -> None:
    kinds: set[str] = set()
    for block in blocks(Network.SOLANA):
        transactions = block["transactions"]
        addresses = [
            (row["transactionIndex"], *row["instructionAddress"]) for row in block["instructions"]
        ]
        assert addresses == sorted(set(addresses))
        for row, address in zip(block["instructions"], addresses, strict=True):
            owner = transactions[row["transactionIndex"]]
            loaded = owner["loadedAddresses"]
            keys = {*owner["accountKeys"], *loaded["readonly"], *loaded["writable"]}
            assert {row["programId"], *row["accounts"]} <= keys
            assert row["isCommitted"] == (owner["err"] is None)
            assert len(address) == 2 or address[:-1] in addresses
            kinds.add(f"depth {len(address) - 1}")
            kinds.add(type(owner["err"]).__name__)
            kinds.add(str(owner["version"]))
        places = {(row["transactionIndex"], *row["instructionAddress"]) for row in block["logs"]}
        assert places <= set(addresses)
    assert kinds == {"depth 1", "depth 2", "depth 3", "dict", "str", "NoneType", "legacy", "0"}


def test_solana_token_balances_follow_the_transfers() -> None:
    shapes: set[tuple[bool, bool]] = set()
    for block in blocks(Network.SOLANA, transfers_per_transaction=3):
        failed = {r["transactionIndex"] for r in block["transactions"] if r["err"] is not None}
        moved: dict[tuple[int, str], int] = {}
        for row in block["instructions"]:
            if row["programId"] == TOKEN_PROGRAM and row["isCommitted"]:
                amount = int.from_bytes(base58.decode(row["data"])[1:], "little")
                source, target, _ = row["accounts"]
                for account, change in ((source, -amount), (target, amount)):
                    place = (row["transactionIndex"], account)
                    moved[place] = moved.get(place, 0) + change
        for row in block["tokenBalances"]:
            shapes.add((row["preMint"] is None, row["postMint"] is None))
            pre, post = (int(row[f"{side}Amount"] or 0) for side in ("pre", "post"))
            place = (row["transactionIndex"], row["account"])
            assert min(pre, post) >= 0
            assert post - pre == (0 if row["transactionIndex"] in failed else moved.pop(place))
        assert not any(moved.values())
    assert shapes == {(False, False), (True, False), (False, True)}


def test_solana_balances_and_rewards_tell_of_fees_and_negative_rent() -> None:
    kinds: set[tuple[str, bool]] = set()
    for block in blocks(Network.SOLANA):
        for transaction in block["transactions"]:
            payer = transaction["accountKeys"][0]
            row = next(
                row
                for row in block["balances"]
                if (row["transactionIndex"], row["account"])
                == (transaction["transactionIndex"], payer)
            )
            assert int(row["pre"]) - int(row["post"]) >= 5000 or transaction["err"] is None
        kinds |= {(row["rewardType"], int(row["lamports"]) < 0) for row in block["rewards"]}
    assert kinds == {("Fee", False), ("Voting", False), ("Rent", True)}


def test_solana_data_is_encoded_as_the_real_programs_do() -> None:
    assert base58.encode(token_transfer_data(50_000_000_000)) == "3DXy58UDhJuu"
    assert base58.encode(system_transfer_data(1_185_186)) == "3Bxs4Ty4XnVSszuM"
    assert discriminator("swap").hex() == "f8c69e91e17587c8"
    assert discriminator("swap") == sha256(b"global:swap").digest()[:8]
    assert base58.decode(SYSTEM_PROGRAM) == bytes(32)
    assert len(base58.decode(TOKEN_PROGRAM)) == 32


@EACH
def test_contents_depend_on_the_block_and_not_on_the_order_of_calls(network: Network) -> None:
    one, other = (ChainSim(3, network=network) for _ in range(2))
    one.extend(10)
    other.extend(4)
    contents(other, other.head)
    other.extend(6)
    for block in reversed(one.canonical()):
        assert contents(one, block) == contents(other, block)


@pytest.mark.parametrize(
    ("network", "head", "digest"),
    [
        (
            Network.EVM,
            "0x1740ed8c3080cdde5320635b5199426e1511a5b5335d0113bf0e02c902746b23",
            "b4a542796254d2c60f2c0aaa1e6d84b5",
        ),
        (
            Network.SOLANA,
            "J8XYiWzqRKji2j3n4RtFDwRG3ET6nNvtsvojuaXnuSmX",
            "b92bcbc54d13fb3d33b6a18ea8d9f2b6",
        ),
    ],
)
def test_a_seed_means_the_same_chain_everywhere(network: Network, head: str, digest: str) -> None:
    chain = ChainSim(42, network=network)
    chain.grow(20)
    chain.fork(3)
    full = [contents(chain, block) for block in chain.canonical()]
    text = json.dumps(full, sort_keys=True).encode()
    assert chain.head.hash == head
    assert blake2b(text, digest_size=16).hexdigest() == digest


@EACH
def test_the_callers_changes_do_not_reach_other_readers(network: Network) -> None:
    chain = ChainSim(3, network=network)
    chain.extend(5)
    full = contents(chain, chain.head)
    full["header"].clear()
    for family in FAMILIES[network]:
        for row in full[family]:
            row.clear()
    assert contents(chain, chain.head)["header"]["hash"] == chain.head.hash


@EACH
def test_a_replaced_block_has_other_contents_but_recurring_transactions(network: Network) -> None:
    chain = ChainSim(
        5, network=network, content=ContentSettings(transactions_per_block=20), skipped_share=0
    )
    chain.extend(10)
    old = contents(chain, chain.head)[MAIN[network]]
    chain.fork(1, 1)
    new = contents(chain, chain.head)[MAIN[network]]
    name = "recentBlockhash" if network is Network.SOLANA else "hash"
    places = [{row[name]: at for at, row in enumerate(rows)} for rows in (old, new)]
    shared = places[0].keys() & places[1].keys()
    assert shared
    assert shared < places[0].keys()
    assert any(places[0][one] != places[1][one] for one in shared)


@EACH
def test_blocks_may_be_empty(network: Network) -> None:
    for block in blocks(network, 20, transactions_per_block=0):
        assert not any(block[family] for family in FAMILIES[network])


@EACH
def test_the_average_number_of_transactions_is_kept(network: Network) -> None:
    own = {Network.BITCOIN: 1, Network.SUBSTRATE: 1}.get(network, 0)  # coinbase, time
    per_trade = 2 if network is Network.HYPERLIQUID else 1
    counts = [
        len(block[MAIN[network]]) for block in blocks(network, 300, transactions_per_block=10)
    ]
    assert 9 < (sum(counts) / len(counts) - own) / per_trade < 11


def test_a_chain_without_failures_has_none() -> None:
    for block in blocks(Network.EVM, 50, failed_share=0):
        assert all(row["status"] == 1 for row in block["transactions"])


def keccak256(data: bytes) -> bytes:
    """Compute Keccak-256 as Ethereum does; slow, for signatures only."""
    lanes = [0] * 25
    padded = data + b"\x01" + bytes(-(len(data) + 2) % 136) + b"\x80"
    if (len(data) + 1) % 136 == 0:
        padded = data + b"\x81"
    for start in range(0, len(padded), 136):
        for lane in range(17):
            offset = start + 8 * lane
            lanes[lane] ^= int.from_bytes(padded[offset : offset + 8], "little")
        _permute(lanes)
    return b"".join(lane.to_bytes(8, "little") for lane in lanes[:4])


def _permute(lanes: list[int]) -> None:
    mask, register = 2**64 - 1, 1
    for _ in range(24):
        parity = [
            lanes[x] ^ lanes[x + 5] ^ lanes[x + 10] ^ lanes[x + 15] ^ lanes[x + 20]
            for x in range(5)
        ]
        for x in range(5):
            turned = parity[(x + 1) % 5]
            mixed = parity[x - 1] ^ ((turned << 1 | turned >> 63) & mask)
            for y in range(0, 25, 5):
                lanes[x + y] ^= mixed
        x, y, carried = 1, 0, lanes[1]
        for step in range(24):
            x, y = y, (2 * x + 3 * y) % 5
            turn = (step + 1) * (step + 2) // 2 % 64
            rotated = (carried << turn | carried >> (64 - turn)) & mask
            carried, lanes[x + 5 * y] = lanes[x + 5 * y], rotated
        for y in range(0, 25, 5):
            row = lanes[y : y + 5]
            for x in range(5):
                lanes[x + y] = row[x] ^ (~row[(x + 1) % 5] & mask & row[(x + 2) % 5])
        for power in range(7):
            register = (register << 1) ^ ((register >> 7) * 0x171)
            if register & 2:
                lanes[0] ^= 1 << ((1 << power) - 1)
