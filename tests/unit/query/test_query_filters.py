"""Filters: what is accepted, how it is written, and every way to be refused."""

from typing import Any

import pytest

from headwater.errors import DiscriminatorError, QueryError
from headwater.query import EvmQuery, Filter, Query, SolanaQuery

USDC = "0xa0b86991c6218b36c1d19d4a2e9eb0ce3606eb48"
DAI = "0x6b175474e89094c44da98b954eedeac495271d0f"
TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
TOKEN = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA"
SYSTEM = "1" * 32  # 32 zero bytes


def add(query: Query, family: str, arguments: dict[str, Any]) -> Filter:
    return query.add_filter(family, **arguments).filters[0]


def test_a_filter_is_written_in_the_wires_names_and_in_catalogue_order() -> None:
    query = EvmQuery().add_logs(transaction=True, topic0=[TRANSFER], address=[USDC])
    assert query.filters == (
        Filter("logs", (("address", (USDC,)), ("topic0", (TRANSFER,))), ("transaction",)),
    )


def test_hex_is_lower_cased_and_duplicates_go_keeping_order() -> None:
    query = EvmQuery().add_logs(address=[USDC.upper().replace("0X", "0x"), DAI, USDC])
    assert query.filters[0].condition("address") == (USDC, DAI)
    assert query.filters[0].condition("topic0") is None


def test_lists_may_be_any_iterable_and_sets_are_put_in_order() -> None:
    from_set = EvmQuery().add_logs(address={USDC, DAI})
    from_generator = EvmQuery().add_logs(address=(item for item in (DAI, USDC)))
    assert from_set.filters[0].condition("address") == (DAI, USDC)
    assert from_generator.filters == from_set.filters


def test_a_filter_without_keys_matches_all() -> None:
    assert EvmQuery().add_logs().filters[0].document() == {}


def test_a_flag_that_is_false_is_left_out() -> None:
    assert EvmQuery().add_logs(transaction=False) == EvmQuery().add_logs()


def test_a_repeated_filter_is_kept_once_in_its_first_place() -> None:
    query = EvmQuery().add_logs(address=[USDC, DAI]).add_logs().add_logs(address=[DAI, USDC])
    assert [item.document() for item in query.filters] == [{"address": [USDC, DAI]}, {}]


@pytest.mark.parametrize(
    ("query", "wire"),
    [
        (
            EvmQuery().add_transactions(from_=[USDC], sighash=["0xA9059CBB"], type=[0, 2]),
            {"from": [USDC], "sighash": ["0xa9059cbb"], "type": [0, 2]},
        ),
        (
            EvmQuery().add_transactions(first_nonce=0, last_nonce=9, state_diffs=True),
            {"firstNonce": 0, "lastNonce": 9, "stateDiffs": True},
        ),
        (
            EvmQuery().add_traces(type=["call"], call_sighash=["0xa9059cbb"], parents=True),
            {"type": ["call"], "callSighash": ["0xa9059cbb"], "parents": True},
        ),
        (
            EvmQuery().add_state_diffs(key=["balance", TRANSFER], kind=["+", "="]),
            {"key": ["balance", TRANSFER], "kind": ["+", "="]},
        ),
        (
            SolanaQuery().add_instructions(
                program_id=[TOKEN], d1=["0x0C"], a15=[SYSTEM], is_committed=False, logs=True
            ),
            {
                "programId": [TOKEN],
                "d1": ["0x0c"],
                "a15": [SYSTEM],
                "isCommitted": False,
                "logs": True,
            },
        ),
        (
            SolanaQuery().add_transactions(fee_payer=[TOKEN], instructions=True),
            {"feePayer": [TOKEN], "instructions": True},
        ),
        (
            SolanaQuery().add_logs(kind=["data"], instruction=True),
            {"kind": ["data"], "instruction": True},
        ),
        (SolanaQuery().add_balances(account=[TOKEN]), {"account": [TOKEN]}),
        (SolanaQuery().add_token_balances(post_mint=[TOKEN]), {"postMint": [TOKEN]}),
        (SolanaQuery().add_rewards(pubkey=[TOKEN]), {"pubkey": [TOKEN]}),
    ],
)
def test_every_family_has_its_builder(query: Query, wire: dict[str, object]) -> None:
    assert [item.document() for item in query.filters] == [wire]


def test_filters_are_found_by_family() -> None:
    query = EvmQuery().add_logs(address=[USDC]).add_traces().add_logs()
    found = [item.document() for item in query.filters_of("logs")]
    assert found == [{"address": [USDC]}, {}]
    assert query.filters_of("state_diffs") == ()


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_a_discriminator_of_the_right_width_is_accepted(width: int) -> None:
    value = "0x" + "f8" * width
    added = add(SolanaQuery(), "instructions", {f"d{width}": [value]})
    assert added.condition(f"d{width}") == (value,)


@pytest.mark.parametrize("key", ["d1", "d2", "d4", "d8"])
@pytest.mark.parametrize("value", ["0x", "0x030", "0x" + "00" * 3, "03", "0xzz", b"\x03", 3])
def test_a_malformed_discriminator_is_refused(key: str, value: object) -> None:
    with pytest.raises(DiscriminatorError) as caught:
        add(SolanaQuery(), "instructions", {key: [value]})
    assert caught.value.code == "E0003"
    assert f"instructions.{key} takes 0x-hex of {key[1]} byte" in str(caught.value)


def test_discriminators_of_two_widths_in_one_filter_are_refused() -> None:
    with pytest.raises(DiscriminatorError, match="got=d1, d8") as caught:
        SolanaQuery().add_instructions(d8=["0x" + "00" * 8], d1=["0x03"])
    assert caught.value.code == "E0003"


def test_discriminators_of_two_widths_in_two_filters_are_fine() -> None:
    query = SolanaQuery().add_instructions(d1=["0x03"]).add_instructions(d2=["0x0300"])
    assert len(query.filters) == 2


@pytest.mark.parametrize(
    ("query", "family", "arguments", "words"),
    [
        (EvmQuery(), "logs", {"adress": [USDC]}, "did you mean 'address'"),
        (EvmQuery(), "logs", {"topic4": [TRANSFER]}, "logs filter 'topic4' is not known"),
        (EvmQuery(), "logs", {"transactionLogs": True}, "did you mean 'transaction_logs'"),
        (EvmQuery(), "transactions", {"from": [USDC]}, "did you mean 'from_'"),
        (EvmQuery(), "instructions", {}, "evm filter family 'instructions' is not known"),
        (SolanaQuery(), "tokenBalances", {}, "did you mean 'token_balances'"),
        (SolanaQuery(), "instructions", {"a16": [TOKEN]}, "'a16' is not known"),
        (EvmQuery(), "logs", {"address": USDC}, "takes a list of 0x-hex of 20 bytes"),
        (EvmQuery(), "logs", {"address": None}, "takes a list"),
        (EvmQuery(), "logs", {"address": {USDC: 1}}, "takes a list"),
        (EvmQuery(), "logs", {"address": b"\x00" * 20}, "takes a list"),
        (EvmQuery(), "logs", {"address": [b"\x00" * 20]}, "takes 0x-hex of 20 bytes"),
        (EvmQuery(), "logs", {"address": [USDC[:-1]]}, "takes 0x-hex of 20 bytes"),
        (EvmQuery(), "logs", {"address": [USDC[2:]]}, "takes 0x-hex of 20 bytes"),
        (EvmQuery(), "logs", {"address": [USDC[:-1] + "g"]}, "takes 0x-hex of 20 bytes"),
        (EvmQuery(), "logs", {"address": [TRANSFER]}, "takes 0x-hex of 20 bytes"),
        (EvmQuery(), "logs", {"topic0": [USDC]}, "takes 0x-hex of 32 bytes"),
        (EvmQuery(), "logs", {"transaction": 1}, "logs.transaction takes True or False"),
        (EvmQuery(), "transactions", {"sighash": ["0xa9059c"]}, "takes 0x-hex of 4 bytes"),
        (EvmQuery(), "transactions", {"type": ["0x2"]}, "takes non-negative integer"),
        (EvmQuery(), "transactions", {"type": [True]}, "takes non-negative integer"),
        (EvmQuery(), "transactions", {"type": [-1]}, "takes non-negative integer"),
        (EvmQuery(), "transactions", {"last_nonce": 2**53}, "takes non-negative integer"),
        (EvmQuery(), "transactions", {"last_nonce": [1]}, "takes non-negative integer"),
        (EvmQuery(), "traces", {"type": ["delegatecall"]}, "'create' or 'call' or 'suicide'"),
        (EvmQuery(), "traces", {"type": [1]}, "'create' or 'call' or 'suicide'"),
        (EvmQuery(), "state_diffs", {"key": ["storage"]}, "'balance' or 'code' or 'nonce' or"),
        (EvmQuery(), "state_diffs", {"kind": ["changed"]}, r"'\+' or '-'"),
        (SolanaQuery(), "logs", {"kind": ["Log"]}, "'log' or 'data' or 'other'"),
        (SolanaQuery(), "instructions", {"program_id": [TOKEN[:-1]]}, "base58 of 32 bytes"),
        (SolanaQuery(), "instructions", {"program_id": ["1" + TOKEN]}, "base58 of 32 bytes"),
        (SolanaQuery(), "instructions", {"program_id": ["0" + TOKEN[1:]]}, "base58 of 32 bytes"),
        (SolanaQuery(), "instructions", {"program_id": [b"\x00" * 32]}, "base58 of 32 bytes"),
        (SolanaQuery(), "instructions", {"is_committed": 1}, "is_committed takes True or False"),
        (SolanaQuery(), "rewards", {"pubkey": [""]}, "base58 of 32 bytes"),
    ],
)
def test_what_a_portal_would_not_understand_is_refused(
    query: Query, family: str, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(QueryError, match=words) as caught:
        add(query, family, arguments)
    assert caught.value.code == "E0005"


@pytest.mark.parametrize("empty", [[], (), set(), iter(())])
def test_an_empty_list_is_refused_because_it_matches_nothing(empty: Any) -> None:
    with pytest.raises(QueryError, match=r"logs\.address is an empty list") as caught:
        EvmQuery().add_logs(address=empty)
    assert caught.value.code == "E0005"
    assert "matches nothing" in str(caught.value)


def test_an_empty_list_of_discriminators_is_refused() -> None:
    with pytest.raises(DiscriminatorError, match="empty list") as caught:
        SolanaQuery().add_instructions(d8=[])
    assert caught.value.code == "E0003"


def test_a_long_wrong_value_is_shown_shortened() -> None:
    with pytest.raises(QueryError) as caught:
        EvmQuery().add_logs(address=["0x" + "ab" * 500])
    assert caught.value.code == "E0005"
    assert len(str(caught.value.facts["got"])) == 78
