"""The simulated server's judgement of request bodies: what it refuses, matches and sends."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from headwater.testing.chain.content import FAMILIES, contents
from headwater.testing.chain.content.evm_scenes import APPROVAL, SWAP, TRANSFER
from headwater.testing.chain.population import SYSTEM_PROGRAM, TOKEN_PROGRAM
from headwater.testing.chain.tree import ChainSim, ContentSettings, Network, SimBlock
from headwater.testing.portal.select import BadRequest, Selection
from headwater.testing.portal.surface import SURFACES

Row = dict[str, Any]
EACH = pytest.mark.parametrize("network", list(Network))

CHAINS = {
    network: ChainSim(21, network=network, content=ContentSettings(transactions_per_block=12))
    for network in Network
}
for _chain in CHAINS.values():
    _chain.grow(40)

INDEX = {"transactionIndex": True}
EVM_FIELDS = {
    "transaction": INDEX,
    "log": {"logIndex": True},
    "trace": {**INDEX, "traceAddress": True, "type": True},
    "stateDiff": {**INDEX, "address": True, "key": True},
}
SOLANA_FIELDS = {
    "transaction": INDEX,
    "instruction": {**INDEX, "instructionAddress": True},
    "log": {**INDEX, "logIndex": True},
    "balance": {**INDEX, "account": True},
    "tokenBalance": {**INDEX, "account": True},
    "reward": {"pubkey": True, "rewardType": True},
}
NOTHING = {
    Network.EVM: ("logs", "address"),
    Network.SOLANA: ("logs", "programId"),
    Network.BITCOIN: ("inputs", "type"),
    Network.TRON: ("transactions", "type"),
    Network.HYPERLIQUID: ("fills", "coin"),
    Network.SUBSTRATE: ("events", "name"),
}
KEYS = {Network.EVM: EVM_FIELDS, Network.SOLANA: SOLANA_FIELDS}


@cache
def whole(network: Network, block: SimBlock) -> Row:
    """Return the complete contents of a block; no test changes them."""
    return contents(CHAINS[network], block)


def select(network: Network, fields: Row | None = None, **filters: Any) -> Selection:
    return Selection(network, {"type": network.value, "fields": fields or {}, **filters})


def read(selection: Selection, block: SimBlock, **options: bool) -> Row:
    line = selection.line(CHAINS[selection.network], block, **options)
    assert line is not None
    assert b"\n" not in line
    parsed: Row = json.loads(line)
    return parsed


def sent(network: Network, block: SimBlock, **filters: Any) -> dict[str, list[Row]]:
    """Return the keys of the rows that a request gets of a block, by family."""
    line = read(select(network, KEYS[network], **filters), block, boundary=True)
    return {family: line.get(family, []) for family in FAMILIES[network]}


def expected(
    network: Network, block: SimBlock, wanted: dict[str, Callable[[Row], bool]]
) -> dict[str, list[Row]]:
    """Return the same from a naive reading of the complete contents."""
    full = whole(network, block)
    surface = SURFACES[network]
    return {
        family: [
            {key: row[key] for key in KEYS[network][surface.families[family].entity]}
            for row in full[family]
            if family in wanted and wanted[family](row)
        ]
        for family in FAMILIES[network]
    }


def everything(network: Network) -> Row:
    surface = SURFACES[network]
    fields = {f.entity: dict.fromkeys(f.fields, True) for f in surface.families.values()}
    fields["block"] = dict.fromkeys(surface.block_fields, True)
    fields.get("trace", {}).pop("callType", None)
    return fields


# --- lines ----------------------------------------------------------------------------------------


@EACH
def test_asking_for_everything_gives_the_complete_contents(network: Network) -> None:
    asked: Row = {f: [{}] for f in FAMILIES[network] if SURFACES[network].families[f].is_asked}
    if network is Network.SUBSTRATE:
        asked["calls"] = [{"extrinsic": True}]
    selection = select(network, everything(network), **asked)
    for block in CHAINS[network].canonical():
        full = whole(network, block)
        line = read(selection, block, boundary=True)
        assert line == {key: value for key, value in full.items() if value}


@EACH
def test_number_and_hash_are_always_sent(network: Network) -> None:
    block = CHAINS[network].head
    line = read(select(network), block, boundary=True)
    assert line == {"header": {"number": block.number, "hash": block.hash}}


@EACH
def test_a_block_without_a_match_is_left_out_unless_it_must_be_sent(network: Network) -> None:
    chain = CHAINS[network]
    family, key = NOTHING[network]
    nothing = select(network, {}, **{family: [{key: []}]})
    assert nothing.line(chain, chain.head) is None
    assert read(nothing, chain.head, boundary=True).keys() == {"header"}
    all_blocks = select(network, includeAllBlocks=True)
    assert all_blocks.include_all_blocks
    assert read(all_blocks, chain.head).keys() == {"header"}


def test_a_match_without_selected_fields_still_gives_the_header() -> None:
    chain = CHAINS[Network.EVM]
    block = next(b for b in chain.canonical() if whole(Network.EVM, b)["logs"])
    assert read(select(Network.EVM, logs=[{}]), block).keys() == {"header"}


def test_fields_set_to_false_are_not_sent() -> None:
    chain = CHAINS[Network.EVM]
    selection = select(
        Network.EVM,
        {"block": {"timestamp": False}, "log": {"data": False, "logIndex": True}},
        logs=[{}],
    )
    block = next(b for b in chain.canonical() if whole(Network.EVM, b)["logs"])
    line = read(selection, block)
    assert line["header"].keys() == {"number", "hash"}
    assert all(row.keys() == {"logIndex"} for row in line["logs"])


def test_flat_trace_fields_are_sent_nested_by_type() -> None:
    chain = CHAINS[Network.EVM]
    fields = {
        "trace": {"type": True, "callTo": True, "createResultAddress": True, "callType": True}
    }
    selection = select(Network.EVM, fields, traces=[{}])
    shapes = {}
    for block in chain.canonical():
        for row in read(selection, block, boundary=True).get("traces", []):
            shapes[row["type"]] = {
                part: sorted(row[part]) for part in ("action", "result") if part in row
            }
    assert shapes == {
        "call": {"action": ["to", "type"]},
        "create": {"result": ["address"]},
        "suicide": {},
        "reward": {},
    }


def test_an_orphaned_block_keeps_its_own_line() -> None:
    chain = ChainSim(22)
    chain.extend(5)
    selection = select(Network.EVM, {"transaction": {"hash": True}}, transactions=[{}])
    orphan = chain.head
    line = selection.line(chain, orphan, boundary=True)
    chain.fork(2)
    assert selection.line(chain, orphan, boundary=True) == line
    assert selection.line(chain, chain.canonical(5, 5)[0], boundary=True) != line


# --- filters --------------------------------------------------------------------------------------

PEOPLE = CHAINS[Network.EVM].population
SOMEBODY = PEOPLE.accounts[:12]


def upper(text: str) -> str:
    return "0x" + text[2:].upper()


EVM_CASES: list[tuple[str, Row, Callable[[Row], bool]]] = [
    ("logs", {"topic0": [TRANSFER]}, lambda r: r["topics"][0] == TRANSFER),
    ("logs", {"topic0": [upper(SWAP), APPROVAL]}, lambda r: r["topics"][0] in (SWAP, APPROVAL)),
    (
        "logs",
        {"address": [upper(PEOPLE.tokens[0]), PEOPLE.tokens[1]], "topic0": [TRANSFER]},
        lambda r: r["address"] in PEOPLE.tokens[:2] and r["topics"][0] == TRANSFER,
    ),
    (
        "logs",
        {"topic1": ["0x" + "0" * 24 + one[2:] for one in SOMEBODY]},
        lambda r: len(r["topics"]) > 1 and "0x" + r["topics"][1][26:] in SOMEBODY,
    ),
    ("logs", {"topic3": ["0x" + "0" * 64]}, lambda r: False),
    ("logs", {"address": []}, lambda r: False),
    ("transactions", {"from": list(SOMEBODY)}, lambda r: r["from"] in SOMEBODY),
    ("transactions", {"to": [PEOPLE.router]}, lambda r: r["to"] == PEOPLE.router),
    ("transactions", {"sighash": ["0xA9059CBB"]}, lambda r: r["sighash"] == "0xa9059cbb"),
    ("transactions", {"type": [0, 3]}, lambda r: r["type"] in (0, 3)),
    (
        "transactions",
        {"firstNonce": 1000, "lastNonce": 500_000},
        lambda r: 1000 <= int(r["nonce"]) <= 500_000,
    ),
    ("traces", {"type": ["create", "suicide"]}, lambda r: r["type"] in ("create", "suicide")),
    (
        "traces",
        {"callTo": [PEOPLE.factory]},
        lambda r: r["type"] == "call" and r["action"]["to"] == PEOPLE.factory,
    ),
    (
        "traces",
        {"callFrom": [PEOPLE.router], "callSighash": ["0x23b872dd"]},
        lambda r: (
            r["type"] == "call"
            and (r["action"]["from"], r["action"]["sighash"]) == (PEOPLE.router, "0x23b872dd")
        ),
    ),
    (
        "traces",
        {"createFrom": [PEOPLE.factory]},
        lambda r: r["type"] == "create" and r["action"]["from"] == PEOPLE.factory,
    ),
    ("traces", {"createFrom": [PEOPLE.factory], "callTo": [PEOPLE.factory]}, lambda r: False),
    (
        "traces",
        {"suicideRefundAddress": list(PEOPLE.accounts)},
        lambda r: r["type"] == "suicide",
    ),
    ("traces", {"rewardAuthor": list(PEOPLE.producers)}, lambda r: r["type"] == "reward"),
    ("stateDiffs", {"kind": ["+", "-"]}, lambda r: r["kind"] in "+-"),
    ("stateDiffs", {"key": ["balance"]}, lambda r: r["key"] == "balance"),
    ("stateDiffs", {"address": list(SOMEBODY)}, lambda r: r["address"] in SOMEBODY),
]

CAST = CHAINS[Network.SOLANA].population
OWNERS = CAST.accounts[:20]

SOLANA_CASES: list[tuple[str, Row, Callable[[Row], bool]]] = [
    ("instructions", {"programId": [TOKEN_PROGRAM]}, lambda r: r["programId"] == TOKEN_PROGRAM),
    ("instructions", {"d1": ["0x03"]}, lambda r: r["d1"] == "0x03"),
    ("instructions", {"d4": ["0x02000000"]}, lambda r: r["programId"] == SYSTEM_PROGRAM),
    (
        "instructions",
        {"d8": ["0xF8C69E91E17587C8"], "isCommitted": True},
        lambda r: r["d8"] == "0xf8c69e91e17587c8" and r["isCommitted"],
    ),
    ("instructions", {"isCommitted": False}, lambda r: not r["isCommitted"]),
    (
        "instructions",
        {"a2": list(OWNERS)},
        lambda r: len(r["accounts"]) > 2 and r["accounts"][2] in OWNERS,
    ),
    ("instructions", {"a15": list(OWNERS)}, lambda r: False),
    ("transactions", {"feePayer": list(OWNERS)}, lambda r: r["accountKeys"][0] in OWNERS),
    ("logs", {"kind": ["data", "other"]}, lambda r: r["kind"] != "log"),
    ("logs", {"programId": [CAST.program]}, lambda r: r["programId"] == CAST.program),
    ("balances", {"account": list(OWNERS)}, lambda r: r["account"] in OWNERS),
    ("tokenBalances", {"preOwner": list(OWNERS)}, lambda r: r["preOwner"] in OWNERS),
    (
        "tokenBalances",
        {"postMint": [CAST.tokens[0]], "postProgramId": [TOKEN_PROGRAM]},
        lambda r: r["postMint"] == CAST.tokens[0],
    ),
    ("rewards", {"pubkey": [CAST.producers[0]]}, lambda r: r["pubkey"] == CAST.producers[0]),
]

CASES = [(Network.EVM, *case) for case in EVM_CASES]
CASES += [(Network.SOLANA, *case) for case in SOLANA_CASES]


@pytest.mark.parametrize(("network", "family", "wanted", "holds"), CASES)
def test_a_filter_matches_what_it_says(
    network: Network, family: str, wanted: Row, holds: Callable[[Row], bool]
) -> None:
    found = 0
    for block in CHAINS[network].canonical():
        got = sent(network, block, **{family: [wanted]})
        assert got == expected(network, block, {family: holds})
        found += len(got[family])
    assert bool(found) == any(
        holds(row) for block in CHAINS[network].canonical() for row in whole(network, block)[family]
    )


def test_discriminators_are_those_of_the_known_vectors() -> None:
    rows = [
        row
        for block in CHAINS[Network.SOLANA].canonical()
        for row in whole(Network.SOLANA, block)["instructions"]
    ]
    for row in rows:
        if row["programId"] == SYSTEM_PROGRAM:
            assert (row["d1"], row["d2"], row["d4"]) == ("0x02", "0x0200", "0x02000000")
        if row["programId"] == TOKEN_PROGRAM:
            assert row["d1"] == "0x03"


# --- relations ------------------------------------------------------------------------------------

Place = tuple[int, ...]


def place(row: Row) -> Place:
    path = row["traceAddress"] if "traceAddress" in row else row["instructionAddress"]
    return (row["transactionIndex"], *path)


def of_transactions(indexes: set[int]) -> Callable[[Row], bool]:
    return lambda row: row["transactionIndex"] in indexes


def at_places(places: set[Place]) -> Callable[[Row], bool]:
    return lambda row: place(row) in places


@pytest.mark.parametrize(
    ("family", "wanted", "flag", "target"),
    [
        ("logs", {"topic0": [SWAP]}, "transaction", "transactions"),
        ("logs", {"topic0": [SWAP]}, "transactionTraces", "traces"),
        ("logs", {"topic0": [SWAP]}, "transactionLogs", "logs"),
        ("logs", {"topic0": [SWAP]}, "transactionStateDiffs", "stateDiffs"),
        ("transactions", {"to": [PEOPLE.router]}, "logs", "logs"),
        ("transactions", {"to": [PEOPLE.router]}, "traces", "traces"),
        ("transactions", {"to": [PEOPLE.router]}, "stateDiffs", "stateDiffs"),
        ("traces", {"callTo": [PEOPLE.factory]}, "transaction", "transactions"),
        ("traces", {"callTo": [PEOPLE.factory]}, "transactionLogs", "logs"),
        ("stateDiffs", {"kind": ["-"]}, "transaction", "transactions"),
        ("instructions", {"d1": ["0x02"]}, "transaction", "transactions"),
        ("instructions", {"d1": ["0x02"]}, "transactionBalances", "balances"),
        ("instructions", {"d1": ["0x03"]}, "transactionTokenBalances", "tokenBalances"),
        ("instructions", {"d1": ["0x02"]}, "transactionInstructions", "instructions"),
        ("transactions", {"feePayer": list(OWNERS)}, "instructions", "instructions"),
        ("transactions", {"feePayer": list(OWNERS)}, "logs", "logs"),
        ("logs", {"kind": ["data"]}, "transaction", "transactions"),
        ("balances", {"account": list(OWNERS)}, "transaction", "transactions"),
        ("balances", {"account": list(OWNERS)}, "transactionInstructions", "instructions"),
        ("tokenBalances", {"preOwner": list(OWNERS)}, "transaction", "transactions"),
        ("tokenBalances", {"preOwner": list(OWNERS)}, "transactionInstructions", "instructions"),
    ],
)
def test_a_relation_pulls_in_what_is_of_the_same_transaction(
    family: str, wanted: Row, flag: str, target: str
) -> None:
    solana = {"d1", "feePayer", "account", "preOwner"} & wanted.keys() or wanted.get("kind") == [
        "data"
    ]
    network = Network.SOLANA if solana else Network.EVM
    pulled = 0
    for block in CHAINS[network].canonical():
        full = whole(network, block)
        plain = sent(network, block, **{family: [wanted]})
        matched = plain[family]
        if family == "logs" and network is Network.EVM:
            owners = {full["logs"][row["logIndex"]]["transactionIndex"] for row in matched}
        else:
            owners = {row["transactionIndex"] for row in matched}
        got = sent(network, block, **{family: [{**wanted, flag: True}]})
        related = expected(network, block, {target: of_transactions(owners)})
        assert got == {**plain, target: related[target]}
        pulled += len(related[target])
    assert pulled


def is_below(address: Place, other: Place) -> bool:
    return len(address) > len(other) and address[: len(other)] == other


def test_subtraces_and_parents_are_those_below_and_above() -> None:
    wanted = {"callTo": [pair.address for pair in PEOPLE.pairs]}
    below = above = 0
    for block in CHAINS[Network.EVM].canonical():
        matched = {place(row) for row in sent(Network.EVM, block, traces=[wanted])["traces"]}
        rows = sent(Network.EVM, block, traces=[{}])["traces"]
        for flag in ("subtraces", "parents"):
            filters = [{**wanted, flag: True}]
            got = {place(row) for row in sent(Network.EVM, block, traces=filters)["traces"]}
            related = {
                place(row)
                for row in rows
                for one in matched
                if (is_below(place(row), one) if flag == "subtraces" else is_below(one, place(row)))
            }
            assert got == matched | related
            below += len(related) * (flag == "subtraces")
            above += len(related) * (flag == "parents")
    assert below
    assert above


def test_inner_instructions_are_those_below() -> None:
    wanted = {"d8": ["0xf8c69e91e17587c8"]}
    pulled = 0
    for block in CHAINS[Network.SOLANA].canonical():
        matched = {
            place(row) for row in sent(Network.SOLANA, block, instructions=[wanted])["instructions"]
        }
        rows = sent(Network.SOLANA, block, instructions=[{}])["instructions"]
        filters = [{**wanted, "innerInstructions": True}]
        got = {
            place(row) for row in sent(Network.SOLANA, block, instructions=filters)["instructions"]
        }
        inner = {place(row) for row in rows if any(is_below(place(row), one) for one in matched)}
        assert got == matched | inner
        pulled += len(inner)
    assert pulled


def test_solana_logs_and_instructions_find_each_other() -> None:
    for block in CHAINS[Network.SOLANA].canonical():
        full = whole(Network.SOLANA, block)
        swaps = {place(row) for row in full["instructions"] if row["d8"] == "0xf8c69e91e17587c8"}
        filters = [{"d8": ["0xf8c69e91e17587c8"], "logs": True}]
        got = sent(Network.SOLANA, block, instructions=filters)
        wanted = {"instructions": at_places(swaps), "logs": at_places(swaps)}
        assert got == expected(Network.SOLANA, block, wanted)
        speakers = {place(row) for row in full["logs"] if row["kind"] == "data"}
        got = sent(Network.SOLANA, block, logs=[{"kind": ["data"], "instruction": True}])
        assert {place(row) for row in got["instructions"]} == speakers


def test_a_relation_belongs_to_its_own_filter_alone() -> None:
    for block in CHAINS[Network.EVM].canonical():
        got = sent(
            Network.EVM,
            block,
            logs=[{"topic0": [SWAP], "transaction": True}, {"topic0": [APPROVAL]}],
        )
        full = whole(Network.EVM, block)
        owners = {r["transactionIndex"] for r in full["logs"] if r["topics"][0] == SWAP}
        assert {row["transactionIndex"] for row in got["transactions"]} == owners


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "body", "text"),
    [
        (Network.EVM, {}, "unknown query type None"),
        (Network.EVM, {"type": "solana"}, "unknown query type 'solana'"),
        (Network.EVM, {"type": "EVM"}, "unknown query type"),
        (Network.EVM, {"type": "evm", "instructions": [{}]}, "`instructions` in the request"),
        (Network.EVM, {"type": "evm", "from": 5}, "`from` in the request"),
        (Network.EVM, {"type": "evm", "fields": []}, "`fields` must be an object"),
        (Network.EVM, {"type": "evm", "fields": {"logs": {}}}, "`logs` in `fields`"),
        (Network.EVM, {"type": "evm", "fields": {"log": []}}, "`fields.log` must be an object"),
        (Network.EVM, {"type": "evm", "fields": {"log": {"topic0": True}}}, "`topic0` in"),
        (Network.EVM, {"type": "evm", "fields": {"log": {"data": 1}}}, "true or false"),
        (Network.EVM, {"type": "evm", "includeAllBlocks": 1}, "`includeAllBlocks`"),
        (Network.EVM, {"type": "evm", "logs": {}}, "`logs` must be a list"),
        (Network.EVM, {"type": "evm", "logs": ["0x"]}, "must be an object"),
        (Network.EVM, {"type": "evm", "logs": [{"topic4": []}]}, "`topic4` in `logs`"),
        (Network.EVM, {"type": "evm", "logs": [{"traces": True}]}, "`traces` in `logs`"),
        (Network.EVM, {"type": "evm", "logs": [{"address": "0x"}]}, "must be a list"),
        (Network.EVM, {"type": "evm", "logs": [{"address": [1]}]}, "list of strings"),
        (Network.EVM, {"type": "evm", "logs": [{"transaction": "yes"}]}, "true or false"),
        (Network.EVM, {"type": "evm", "transactions": [{"type": ["2"]}]}, "list of integers"),
        (
            Network.EVM,
            {"type": "evm", "transactions": [{"firstNonce": [1]}]},
            "firstNonce` must be",
        ),
        (Network.EVM, {"type": "evm", "transactions": [{"lastNonce": -1}]}, "lastNonce"),
        (Network.EVM, {"type": "evm", "logs": [{}] * 101}, "101 item filters, at most 100"),
        (
            Network.EVM,
            {"type": "evm", "logs": [{}] * 60, "traces": [{}] * 41},
            "101 item filters, at most 100",
        ),
        (
            Network.SOLANA,
            {"type": "solana", "instructions": [{"d1": ["0x03"], "d8": ["0x" + "00" * 8]}]},
            "several widths: d1, d8",
        ),
        (Network.SOLANA, {"type": "solana", "instructions": [{"d1": ["03"]}]}, "2 hex digits"),
        (Network.SOLANA, {"type": "solana", "instructions": [{"d2": ["0x03"]}]}, "4 hex digits"),
        (Network.SOLANA, {"type": "solana", "instructions": [{"d0": []}]}, "`d0`"),
        (Network.SOLANA, {"type": "solana", "instructions": [{"a16": []}]}, "`a16`"),
        (
            Network.SOLANA,
            {"type": "solana", "instructions": [{"isCommitted": []}]},
            "true or false",
        ),
        (Network.SOLANA, {"type": "solana", "rewards": [{"transaction": True}]}, "`transaction`"),
        (Network.SOLANA, [], "must be a JSON object"),
    ],
)
def test_a_body_that_a_server_would_refuse_is_refused(
    network: Network, body: Any, text: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        Selection(network, body)
    assert text in str(refused.value)


def test_a_hundred_filters_and_every_known_name_are_accepted() -> None:
    select(Network.EVM, logs=[{}] * 100)
    for network in Network:
        fields = everything(network)
        filters: Row = {}
        for name, family in SURFACES[network].families.items():
            if not family.is_asked:
                continue
            single = (
                "isCommitted",
                "prevoutGenerated",
                "d2",
                "d4",
                "d8",
                "firstNonce",
                "lastNonce",
            )
            one: Row = {key: [] for key in family.filters if key not in single}
            filters[name] = [{**one, **dict.fromkeys(family.relations, True)}]
        select(network, fields, fromBlock=1, toBlock=1, parentBlockHash="x", **filters)


# --- the key --------------------------------------------------------------------------------------


def test_the_key_ignores_position_spelling_and_order() -> None:
    one = Selection(
        Network.EVM,
        {
            "type": "evm",
            "fromBlock": 1,
            "parentBlockHash": "0x1",
            "fields": {"log": {"data": True, "address": True}, "block": {"number": True}},
            "logs": [{"address": ["0xAB", "0xcd"], "topic0": None, "transaction": False}],
        },
    )
    other = Selection(
        Network.EVM,
        {
            "logs": [{"address": ["0xcd", "0xab"]}],
            "fields": {"log": {"address": True, "data": True, "topics": False}},
            "toBlock": 9,
            "fromBlock": 2,
            "type": "evm",
        },
    )
    assert one.key == other.key


def test_the_key_tells_selections_apart() -> None:
    bodies: list[Row] = [
        {},
        {"includeAllBlocks": True},
        {"fields": {"log": {"data": True}}},
        {"logs": [{}]},
        {"logs": [{"address": []}]},
        {"logs": [{"address": ["0xab"]}]},
        {"logs": [{"transaction": True}]},
        {"traces": [{}]},
    ]
    keys = {Selection(Network.EVM, {"type": "evm", **body}).key for body in bodies}
    assert len(keys) == len(bodies)
