"""Two outputs in one stream never leak rows into each other: filters, parameters, ranges.

Each output must give, from lines that answer all outputs together, exactly what it gives from lines
that answer it alone, and nothing outside its own ranges.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core import BlockRange
from headwater.decode import (
    Output,
    bitcoin,
    decode_outputs,
    evm,
    hyperliquid,
    solana,
    substrate,
    tron,
)
from headwater.query import plan_requests
from headwater.testing import ChainSim, Network, Selection
from headwater.testing.chain.population import Population
from headwater.testing.chain.tree import SimBlock
from tests.sampling import examples

BLOCKS = 24


@cache
def chain_of(network: Network) -> tuple[ChainSim, list[SimBlock]]:
    chain = ChainSim(seed=9, network=network)
    return chain, chain.extend(BLOCKS)


@cache
def seen(network: Network) -> dict[str, list[Any]]:
    """Addresses, accounts and the like that occur in the chain."""
    if network is Network.EVM:
        lines = lines_of({"t": evm.transactions(), "l": evm.logs()}, network)
        blocks = [json.loads(line) for line in lines]
        items = [one for block in blocks for one in block.get("transactions", [])]
        logs = [one for block in blocks for one in block.get("logs", [])]
        topics = [one["topics"] for one in logs if one["topics"]]
        return {
            "address": sorted({one["address"] for one in logs}),
            "to": sorted({one["to"] for one in items if one["to"]}),
            "from": sorted({one["from"] for one in items}),
            "topic0": sorted({one[0] for one in topics}),
            "person": sorted({f"0x{one[1][26:]}" for one in topics if len(one) > 2}),
        }
    lines = lines_of({"i": solana.instructions_raw()}, network)
    items = [one for line in lines for one in json.loads(line).get("instructions", [])]
    return {
        "program": sorted({one["programId"] for one in items}),
        "account": sorted({one["accounts"][0] for one in items if one["accounts"]}),
    }


def lines_of(
    outputs: dict[str, Output],
    network: Network,
    ranges: dict[str, list[BlockRange]] | None = None,
) -> list[bytes]:
    """What a portal answers to the requests that the stream would send."""
    chain, blocks = chain_of(network)
    asked = [
        (one, output.query)
        for name, output in outputs.items()
        for one in (ranges[name] if ranges else [BlockRange(0)])
    ]
    lines = []
    for block_range, query in plan_requests(asked):
        selection = Selection(network, json.loads(query.body(0)))
        for block in blocks:
            if block.number in block_range:
                line = selection.line(chain, block, boundary=True)
                if line is not None:
                    lines.append(line)
    return lines


def some(values: list[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True)


@st.composite
def evm_outputs(draw: st.DrawFn) -> Output:
    known = seen(Network.EVM)

    def maybe(**filters: st.SearchStrategy[Any]) -> dict[str, Any]:
        return {name: draw(one) for name, one in filters.items() if draw(st.booleans())}

    kind = draw(st.integers(0, 8))
    if kind == 0:
        filters = maybe(contracts=some(known["address"]))
        filters["params"] = maybe(**{"from": some(known["person"]), "to": some(known["person"])})
        return evm.events("erc20.Transfer", **filters)
    if kind == 1:
        return evm.logs(fields=draw(st.sampled_from([["topics"], ["data", "address"], []])),
                        **maybe(address=some(known["address"]),
                                topic0=some(known["topic0"])))  # fmt: skip
    if kind == 2:
        return evm.transactions(
            fields=draw(st.sampled_from([["value"], ["input", "gas"], []])),
            **maybe(to=some(known["to"]), from_=some(known["from"]), type=some([0, 1, 2, 3]),
                    first_nonce=st.integers(0, 2**20)),
        )  # fmt: skip
    if kind == 3:
        kinds = some(["call", "create", "suicide", "reward"])
        filters = maybe(type=kinds, call_to=some(known["to"]), call_from=some(known["from"]))
        fields = draw(st.sampled_from([[], ["call_value", "create_gas"]]))
        return evm.traces(fields=fields, **filters)
    if kind == 4:
        return evm.state_diffs(**maybe(address=some(known["to"]), kind=some(["+", "*"]),
                                       key=some(["balance", "nonce"])))  # fmt: skip
    if kind == 8:
        filters = maybe(params=st.fixed_dictionaries({"to": some(known["person"])}))
        other = evm.events("erc20.Approval", **maybe(contracts=some(known["address"])))
        return evm.union(evm.events("erc20.Transfer", **filters), other)
    if kind == 5:
        return evm.blocks(fields=draw(st.sampled_from([[], ["miner", "gas_used"]])))
    source: Any = "transactions" if kind == 6 else "traces"
    return evm.calls("transfer(address to, uint256 amount) returns (bool)", source=source,
                     **maybe(contracts=some(known["address"])))  # fmt: skip


@st.composite
def solana_outputs(draw: st.DrawFn) -> Output:
    known = seen(Network.SOLANA)
    kind = draw(st.integers(0, 6))
    committed = draw(st.booleans())
    if kind == 0:
        return solana.instructions("spl_token.transfer", committed_only=committed)
    if kind == 1:
        return solana.instructions("system.transfer", committed_only=committed)
    if kind == 2:
        filters: dict[str, Any] = {}
        if draw(st.booleans()):
            filters["a0"] = draw(some(known["account"]))
        if committed:
            filters["is_committed"] = draw(st.booleans())
        return solana.instructions_raw(program_id=draw(some(known["program"])), **filters)
    if kind == 3:
        return solana.logs(program_id=draw(some(known["program"])),
                           kind=draw(some(["log", "data", "other"])))  # fmt: skip
    if kind == 4:
        return solana.balances(account=draw(some(known["account"])))
    if kind == 5:
        return solana.transactions(fee_payer=draw(some(known["account"])), fields=["err"])
    return solana.rewards() if committed else solana.blocks()


def filtered(draw: st.DrawFn, choices: dict[Any, dict[str, list[Any]]], **options: Any) -> Output:
    """One of some tables, with some of the filters that it has."""
    make = draw(st.sampled_from(list(choices)))
    filters = {name: draw(some(values)) for name, values in choices[make].items()
               if draw(st.booleans())}  # fmt: skip
    output: Output = make(**filters, **options)
    return output


def people(network: Network) -> Population:
    return chain_of(network)[0].population


@st.composite
def bitcoin_outputs(draw: st.DrawFn) -> Output:
    accounts = list(people(Network.BITCOIN).accounts)
    scripts = ["pubkeyhash", "scripthash", "nulldata"]
    return filtered(draw, {
        bitcoin.blocks: {},
        bitcoin.transactions: {},
        bitcoin.inputs: {"type": ["tx", "coinbase"], "prevout_script_pub_key_address": accounts,
                         "prevout_script_pub_key_type": scripts},
        bitcoin.outputs: {"script_pub_key_address": accounts, "script_pub_key_type": scripts},
    })  # fmt: skip


@st.composite
def tron_outputs(draw: st.DrawFn) -> Output:
    cast = people(Network.TRON)
    accounts, contracts = list(cast.accounts), list(cast.tokens)
    return filtered(draw, {
        tron.blocks: {},
        tron.transactions: {"type": ["TransferContract", "VoteWitnessContract"]},
        tron.transfers: {"owner": accounts, "to": accounts},
        tron.asset_transfers: {"owner": accounts, "asset": ["31303030323236"]},
        tron.contract_calls: {"owner": accounts, "contract": contracts, "sighash": ["a9059cbb"]},
        tron.logs: {"address": contracts, "topic2": ["00" * 12 + one[2:] for one in accounts]},
        tron.internal_transactions: {"caller": contracts, "transfer_to": accounts},
    })  # fmt: skip


@st.composite
def hyperliquid_outputs(draw: st.DrawFn) -> Output:
    cast = people(Network.HYPERLIQUID)
    return filtered(draw, {
        hyperliquid.blocks: {},
        hyperliquid.fills: {"user": list(cast.accounts), "coin": list(cast.tokens),
                            "dir": ["Buy", "Open Long"], "fee_token": ["USDC"],
                            "builder": list(cast.producers)},
    })  # fmt: skip


@st.composite
def substrate_outputs(draw: st.DrawFn) -> Output:
    cast = people(Network.SUBSTRATE)
    contracts, programs = list(cast.tokens), list(cast.producers)
    return filtered(draw, {
        substrate.blocks: {},
        substrate.extrinsics: {},
        substrate.calls: {"name": ["Utility.batch", "Balances.transfer_keep_alive"]},
        substrate.ethereum_transactions: {"to": contracts, "sighash": ["0xa9059cbb"]},
        substrate.events: {"name": ["Balances.Transfer", "EVM.Log"]},
        substrate.evm_logs: {"address": contracts, "topic0": [substrate_topic()]},
        substrate.contracts_events: {"contract_address": programs},
        substrate.gear_messages_enqueued: {"program_id": programs},
        substrate.gear_user_messages_sent: {"program_id": programs},
        substrate.revive_contract_emitted: {"contract": contracts, "topic0": [substrate_topic()]},
    })  # fmt: skip


def substrate_topic() -> str:
    return "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"


MAKERS = {
    Network.EVM: evm_outputs,
    Network.SOLANA: solana_outputs,
    Network.BITCOIN: bitcoin_outputs,
    Network.TRON: tron_outputs,
    Network.HYPERLIQUID: hyperliquid_outputs,
    Network.SUBSTRATE: substrate_outputs,
}


@st.composite
def ranges_of(draw: st.DrawFn, network: Network) -> list[BlockRange]:
    _, blocks = chain_of(network)
    low, high = sorted(draw(st.lists(st.sampled_from(blocks), min_size=2, max_size=2)),
                       key=lambda block: block.number)  # fmt: skip
    return [BlockRange(low.number, draw(st.sampled_from([high.number, None])))]


@pytest.mark.guarantee("DECODE-2")
@pytest.mark.parametrize("network", list(Network))
@settings(max_examples=examples(60))
@given(data=st.data())
def test_an_output_gives_beside_others_what_it_gives_alone(
    network: Network, data: st.DataObject
) -> None:
    listed = data.draw(st.lists(MAKERS[network](), min_size=1, max_size=4))
    outputs = {f"o{at}": one for at, one in enumerate(listed)}
    ranges = {name: data.draw(ranges_of(network)) for name in outputs}
    together = decode_outputs(outputs, lines_of(outputs, network, ranges), ranges).tables
    for name, output in outputs.items():
        own = {name: ranges[name]}
        lines = lines_of({name: output}, network, own)
        alone = decode_outputs({name: output}, lines, own).tables[name]
        assert together[name].to_pylist() == alone.to_pylist()
        assert all(
            any(number in one for one in ranges[name])
            for number in together[name]["block_number"].to_pylist()
        )
