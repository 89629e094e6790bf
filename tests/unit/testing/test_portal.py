import json
import zlib
from typing import Any

import pytest

from headwater.errors import InvalidOptionError
from headwater.portal.transport import Request
from headwater.testing import Behind, DropAfter, Finality, Network, PortalSim, Status
from headwater.testing.portal.answer import decoded
from tests.unit.testing.asking import (
    FIELDS,
    ask,
    chain_of,
    headers_of,
    look_up,
    numbers,
    request,
    sample_of,
)

# --- looking up -----------------------------------------------------------------------------------


def test_metadata_tells_the_first_block_and_more_when_expanded() -> None:
    portal = PortalSim(chain_of(5, start_block=40), dataset="mainnet")
    plain = json.loads(look_up(portal, "metadata").read())
    assert plain == {"dataset": "mainnet", "aliases": [], "real_time": True, "start_block": 40}
    for search in ("expand[]=metadata", "expand%5B%5D=metadata"):
        full = json.loads(look_up(portal, f"metadata?{search}").read())
        assert full["metadata"]["kind"] == "evm"
        assert full["metadata"]["evm"] == {"chain_id": 1}


def test_metadata_of_solana_has_no_chain_id() -> None:
    portal = PortalSim(chain_of(5, network=Network.SOLANA))
    details = json.loads(look_up(portal, "metadata?expand[]=metadata").read())["metadata"]
    assert details["kind"] == "solana"
    assert "evm" not in details


def test_head_and_finalized_head_are_those_of_the_replica() -> None:
    chain = chain_of(30, final=20)
    portal = PortalSim(chain)
    portal.replicas[0].lag(4)
    assert json.loads(look_up(portal, "head").read())["number"] == 25
    final = chain.finalized
    assert final is not None
    assert json.loads(look_up(portal, "finalized-head").read()) == {
        "number": 20,
        "hash": final.hash,
    }


def test_unknown_finality_is_null() -> None:
    assert look_up(PortalSim(chain_of(3)), "finalized-head").read() == b"null"


def test_a_timestamp_is_the_first_block_at_or_after_it() -> None:
    chain = chain_of(10)
    portal = PortalSim(chain)
    times = [block.timestamp for block in chain.canonical()]
    assert json.loads(look_up(portal, f"timestamps/{times[4]}/block").read()) == {"block_number": 4}
    late = look_up(portal, f"timestamps/{times[4] + 1}/block")
    assert json.loads(late.read()) == {"block_number": 5}
    assert look_up(portal, f"timestamps/{times[-1] + 1}/block").status == 404


@pytest.mark.parametrize("route", ["", "nothing", "timestamps/soon/block", "timestamps/1", "a/b/c"])
def test_an_unknown_route_is_404(route: str) -> None:
    assert look_up(PortalSim(chain_of(3)), route).status == 404


def test_the_wrong_method_is_405() -> None:
    portal = PortalSim(chain_of(3))
    assert look_up(portal, "stream").status == 405
    assert portal.respond(Request("POST", "head", b"{}")).status == 405


# --- requests that are refused --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (None, "needed"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "object"),
        (b'{"type":"evm"}', "fromBlock"),
        (b'{"type":"evm","fromBlock":-1}', "fromBlock"),
        (b'{"type":"evm","fromBlock":true}', "fromBlock"),
        (b'{"type":"evm","fromBlock":"7"}', "fromBlock"),
        (b'{"type":"evm","fromBlock":50,"toBlock":1.5}', "toBlock"),
        (b'{"type":"evm","fromBlock":50,"toBlock":49}', "below"),
        (b'{"type":"evm","fromBlock":50,"parentBlockHash":7}', "parentBlockHash"),
        (b'{"type":"evm","fromBlock":9}', "dataset starts from block 10"),
        (b'{"type":"solana","fromBlock":50}', "solana"),
        (b'{"type":"evm","fromBlock":50,"logs":[' + b"{}," * 90_000 + b"{}]}", "larger"),
    ],
)
def test_a_bad_request_is_400_and_says_why(body: bytes | None, says: str) -> None:
    answer = PortalSim(chain_of(60, start_block=10)).respond(Request("POST", "stream", body))
    assert answer.status == 400
    assert answer.headers["content-type"].startswith("text/plain")
    assert says in answer.read().decode()


# --- blocks ---------------------------------------------------------------------------------------


def test_blocks_come_in_order_with_the_head_of_the_replica() -> None:
    chain = chain_of(30, final=20)
    answer = ask(PortalSim(chain), 5)
    assert answer.status == 200
    assert [header["hash"] for header in headers_of(answer)] == [
        block.hash for block in chain.canonical(5)
    ]
    final = chain.finalized
    assert final is not None
    assert answer.headers == {
        "content-type": "application/jsonl",
        "x-sqd-data-source": "real_time",
        "x-sqd-finalized-head-number": "20",
        "x-sqd-finalized-head-hash": final.hash,
        "x-sqd-head-number": "29",
    }


def test_an_answer_stops_at_the_end_of_the_range_or_after_its_share_of_blocks() -> None:
    portal = PortalSim(chain_of(300), blocks_per_answer=10)
    assert numbers(ask(portal, 5, toBlock=9)) == [5, 6, 7, 8, 9]
    assert numbers(ask(portal, 5, toBlock=5)) == [5]
    assert numbers(ask(portal, 5)) == list(range(5, 15))


def test_the_share_of_blocks_can_vary_by_chance() -> None:
    portal = PortalSim(chain_of(300), blocks_per_answer=(1, 20))
    sizes = {len(numbers(ask(portal, 0))) for _ in range(40)}
    assert len(sizes) > 5
    assert min(sizes) >= 1
    assert max(sizes) <= 20


@pytest.mark.parametrize("network", Network)
def test_following_the_last_line_reads_the_whole_chain_once(network: Network) -> None:
    chain = chain_of(500, network=network)
    portal = PortalSim(chain, blocks_per_answer=(1, 90))
    seen: list[str] = []
    cursor: tuple[int, str] | None = None
    while cursor is None or cursor[1] != chain.head.hash:
        anchor: dict[str, Any] = {} if cursor is None else {"parentBlockHash": cursor[1]}
        answer = ask(portal, 0 if cursor is None else cursor[0] + 1, **anchor)
        assert answer.status == 200
        headers = headers_of(answer)
        seen += [header["hash"] for header in headers]
        cursor = headers[-1]["number"], headers[-1]["hash"]
    assert seen == [block.hash for block in chain.canonical()]
    assert ask(portal, cursor[0] + 1, parentBlockHash=cursor[1]).status == 204


def test_a_filtered_answer_has_the_matches_and_the_two_ends() -> None:
    chain = chain_of(400)
    everything = ask(
        PortalSim(chain), 0, fields={"block": {"number": True}, "log": {"address": True}}, logs=[{}]
    )
    lines = [json.loads(line) for line in everything.read().splitlines()]
    rare = _rarest_address(lines)
    expected = [
        line["header"]["number"]
        for line in lines
        if rare in {log["address"] for log in line.get("logs", [])}
    ]
    found = ask(
        PortalSim(chain),
        0,
        includeAllBlocks=False,
        fields={"block": {"number": True}, "log": {"address": True}},
        logs=[{"address": [rare]}],
    )
    assert numbers(found) == sorted({0, *expected, 399})


def test_a_query_that_matches_nothing_still_tells_how_far_it_got() -> None:
    portal = PortalSim(chain_of(200), blocks_per_answer=70)
    assert numbers(ask(portal, 3, includeAllBlocks=False)) == [3, 72]
    assert numbers(ask(portal, 3, toBlock=3, includeAllBlocks=False)) == [3]


def test_a_range_of_skipped_slots_is_an_empty_200() -> None:
    chain = chain_of(300, network=Network.SOLANA, skipped_share=0.5)
    block = next(one for one in chain.canonical() if one.number - one.parent_number > 1)
    slot = block.number - 1
    answer = ask(PortalSim(chain), slot, toBlock=slot, parentBlockHash=block.parent_hash)
    assert (answer.status, answer.read()) == (200, b"")


def test_lines_are_the_same_however_they_were_asked_for_and_kept() -> None:
    chain = chain_of(200)
    portal = PortalSim(chain)
    whole = ask(portal, 0, logs=[{}], fields={**FIELDS, "log": {"data": True}}).read()
    for first in (0, 1, 63, 64, 65, 130):
        for last in (first, 63, 64, 199):
            if last < first:
                continue
            answer = ask(
                portal,
                first,
                toBlock=last,
                logs=[{}],
                fields={**FIELDS, "log": {"data": True}},
            )
            assert answer.read() == b"".join(whole.splitlines(keepends=True)[first : last + 1])


def test_lines_survive_the_moment_when_their_span_is_filled() -> None:
    chain = chain_of(60)
    portal = PortalSim(chain)
    kept = [ask(portal, 0).read()]
    for number in range(60, 70):
        chain.extend()
        kept.append(ask(portal, number).read())
    assert ask(portal, 0).read() == b"".join(kept)


def test_a_small_cache_changes_nothing() -> None:
    chain = chain_of(300)
    kept, forgotten = PortalSim(chain), PortalSim(chain, cache_bytes=1)
    for first in (0, 100, 290, 0):
        assert ask(kept, first).read() == ask(forgotten, first).read()


def test_a_replaced_block_is_never_served_from_the_cache() -> None:
    chain = chain_of(128)
    portal = PortalSim(chain)
    before = headers_of(ask(portal, 0))
    chain.fork(100)
    after = headers_of(ask(portal, 0))
    assert [header["hash"] for header in after] == [block.hash for block in chain.canonical()]
    assert before[27] == after[27]
    assert before[28] != after[28]


# --- the end of the chain, and forks --------------------------------------------------------------


def test_at_the_head_there_is_nothing_but_the_head_is_still_told() -> None:
    chain = chain_of(30, final=20)
    answer = ask(PortalSim(chain, no_content_delay=5), 30, parentBlockHash=chain.head.hash)
    assert (answer.status, answer.read(), answer.delay) == (204, b"", 5)
    assert answer.headers["x-sqd-head-number"] == "29"
    assert answer.headers["x-sqd-finalized-head-number"] == "20"


def test_an_anchor_that_was_replaced_is_409_with_a_bounded_ascending_sample() -> None:
    chain = chain_of(100)
    old = chain.canonical(95, 95)[0]
    chain.fork(10)
    answer = ask(PortalSim(chain, sample_size=20), 96, parentBlockHash=old.hash)
    assert sample_of(answer) == [(block.number, block.hash) for block in chain.canonical(76, 95)]
    assert answer.headers["content-type"] == "application/json"


def test_the_anchor_is_judged_by_the_block_that_precedes_the_range() -> None:
    chain = chain_of(100, network=Network.SOLANA, skipped_share=0.5)
    portal = PortalSim(chain)
    for block in chain.canonical()[:-1]:
        assert ask(portal, block.number + 1, parentBlockHash=block.hash).status == 200
    assert ask(portal, 50, parentBlockHash=chain.head.hash).status == 409


def test_an_anchor_before_the_first_block_is_answered_with_what_the_chain_says() -> None:
    chain = chain_of(10, start_block=50)
    first = chain.canonical()[0]
    assert sample_of(ask(PortalSim(chain), 50, parentBlockHash="0xabc")) == [
        (49, first.parent_hash)
    ]


def test_a_fork_without_a_newer_block_is_409_or_hidden_until_there_is_one() -> None:
    chain = chain_of(50)
    old = chain.head
    chain.fork(3, 3)
    assert ask(PortalSim(chain), 50, parentBlockHash=old.hash).status == 409
    hiding = PortalSim(chain, conflict_before_no_content=False)
    assert ask(hiding, 50, parentBlockHash=old.hash).status == 204
    chain.extend(1)
    assert ask(hiding, 50, parentBlockHash=old.hash).status == 409


def test_a_replica_that_is_behind_says_204_or_409_with_its_own_newest_blocks() -> None:
    chain = chain_of(50, final=45)
    waiting, contradicting = PortalSim(chain), PortalSim(chain, behind="conflict", sample_size=3)
    for portal in (waiting, contradicting):
        portal.replicas[0].lag(10)
    assert ask(waiting, 50, parentBlockHash=chain.head.hash).status == 204
    answer = ask(contradicting, 50, parentBlockHash=chain.head.hash)
    assert sample_of(answer) == [(block.number, block.hash) for block in chain.canonical(37, 39)]
    assert ask(contradicting, 50).status == 204


def test_two_replicas_can_tell_different_stories() -> None:
    chain = chain_of(50)
    portal = PortalSim(chain, replicas=2, behind=Behind.CONFLICT)
    portal.replicas[1].freeze()
    old = chain.head
    chain.fork(5)
    assert ask(portal, 50, parentBlockHash=old.hash).status == 409
    assert ask(portal, 50, parentBlockHash=old.hash).status == 204
    assert [exchange.replica for exchange in portal.ledger] == [0, 1]


# --- finalized-stream -----------------------------------------------------------------------------


def test_the_finalized_stream_ends_at_finality() -> None:
    chain = chain_of(50, final=30)
    portal = PortalSim(chain)
    answer = ask(portal, 20, route="finalized-stream")
    assert numbers(answer) == list(range(20, 31))
    assert answer.headers["x-sqd-data-source"] == "network"
    assert ask(portal, 31, route="finalized-stream").status == 204
    portal.replicas[0].report(Finality.LAGGING, behind=5)
    assert numbers(ask(portal, 20, route="finalized-stream"))[-1] == 25


def test_the_finalized_stream_is_empty_without_finality() -> None:
    assert ask(PortalSim(chain_of(50)), 0, route="finalized-stream").status == 204


def test_the_finalized_stream_ignores_the_anchor_unless_told_to_check_it() -> None:
    chain = chain_of(50, final=30)
    portal, strict = PortalSim(chain), PortalSim(chain, finalized_stream_conflicts=True)
    wrong: dict[str, Any] = {"parentBlockHash": chain.head.hash, "route": "finalized-stream"}
    assert ask(portal, 20, **wrong).status == 200
    assert sample_of(ask(strict, 20, **wrong)) == [(19, chain.canonical(19, 19)[0].hash)]
    assert ask(portal, 31, **wrong).status == 204
    assert ask(strict, 31, **wrong).status == 409


# --- encodings and chunks -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offered", "accepted", "chosen"),
    [
        (("gzip", "zstd"), "gzip, zstd", "gzip"),
        (("zstd", "gzip"), "gzip, zstd", "zstd"),
        (("gzip", "zstd"), "zstd", "zstd"),
        (("gzip", "zstd"), "gzip;q=0, zstd;q=0.5", "zstd"),
        (("gzip", "zstd"), "*", "gzip"),
        (("gzip", "zstd"), "identity", None),
        (("gzip", "zstd"), "br", None),
        ((), "gzip, zstd", None),
    ],
)
def test_the_encoding_is_the_first_offered_that_is_accepted(
    offered: tuple[str, ...], accepted: str, chosen: str | None
) -> None:
    chain = chain_of(100)
    plain = ask(PortalSim(chain), 0).read()
    answer = ask(PortalSim(chain, encodings=offered), 0, headers={"accept-encoding": accepted})
    assert answer.headers.get("content-encoding") == chosen
    assert b"".join(decoded(answer.chunks(), chosen)) == plain


def test_only_blocks_are_compressed() -> None:
    chain = chain_of(10)
    accept = {"accept-encoding": "gzip"}
    portal = PortalSim(chain)
    conflict = ask(portal, 5, parentBlockHash="0x1", headers=accept)
    nothing = ask(portal, 10, headers=accept)
    assert "content-encoding" not in {**conflict.headers, **nothing.headers}


def test_chunks_cut_lines_anywhere_and_repeat_by_seed() -> None:
    chain = chain_of(100)
    answer = ask(PortalSim(chain, chunk_bytes=(1, 200)), 0)
    pieces = [bytes(chunk) for chunk in answer.chunks()]
    assert b"".join(pieces) == answer.read()
    assert pieces == [bytes(chunk) for chunk in answer.chunks()]
    assert all(1 <= len(piece) <= 200 for piece in pieces)
    assert sum(not piece.endswith(b"\n") for piece in pieces) > len(pieces) / 2
    assert min(map(len, pieces)) < 5
    assert len(list(ask(PortalSim(chain, chunk_bytes=None), 0).chunks())) <= 40


def test_a_compressed_body_cut_by_a_drop_is_half_a_compressed_body() -> None:
    portal = PortalSim(chain_of(300))
    portal.faults.add(DropAfter())
    answer = ask(portal, 0, headers={"accept-encoding": "gzip"})
    assert answer.sent < answer.size
    engine = zlib.decompressobj(31)
    engine.decompress(answer.read())
    assert not engine.eof


# --- as a whole -----------------------------------------------------------------------------------


def test_the_same_seed_and_requests_give_the_same_answers() -> None:
    def run() -> list[tuple[int, bytes]]:
        portal = PortalSim(chain_of(100, final=50), seed=5, replicas=3, blocks_per_answer=(1, 9))
        portal.replicas[2].lag(5)
        portal.faults.add(Status(503), probability=0.3, times=None)
        answers = [ask(portal, first) for first in range(0, 100, 3)]
        return [(answer.status, answer.read()) for answer in answers]

    first, second = run(), run()
    assert first == second
    assert {status for status, _ in first} == {200, 503, 204}


def test_options_that_cannot_work_are_refused() -> None:
    chain = chain_of(3)
    with pytest.raises(InvalidOptionError):
        PortalSim(chain, blocks_per_answer=0)
    with pytest.raises(InvalidOptionError):
        PortalSim(chain, chunk_bytes=(0, 5))
    with pytest.raises(InvalidOptionError):
        PortalSim(chain, encodings=("br",))
    with pytest.raises(ValueError, match="sulk"):
        PortalSim(chain, behind="sulk")


def test_selections_are_kept_for_a_bounded_number_of_queries() -> None:
    portal = PortalSim(chain_of(3))
    for number in range(100):
        address = f"0x{number:040x}"
        assert ask(portal, 0, logs=[{"address": [address]}]).status == 200
    assert portal.respond(request(portal, 0)).status == 200


def _rarest_address(lines: list[dict[str, list[dict[str, str]]]]) -> str:
    counts: dict[str, int] = {}
    for line in lines:
        for address in {log["address"] for log in line.get("logs", [])}:
            counts[address] = counts.get(address, 0) + 1
    return min(counts, key=lambda address: (counts[address], address))


# --- the real-time service ------------------------------------------------------------------------


def real_time(blocks: int = 60, **options: Any) -> PortalSim:
    return PortalSim(chain_of(blocks, final=20), surface="hotblocks", **options)


def test_the_real_time_service_keeps_a_window_and_says_what_left_it() -> None:
    portal = real_time(window=30)
    assert json.loads(look_up(portal, "metadata?expand[]=metadata").read()) == {
        "dataset": "simulated", "aliases": [], "real_time": True, "start_block": 30
    }  # fmt: skip
    refused = ask(portal, 10)
    assert refused.status == 400
    assert refused.read() == b"blocks from 10 to 29 are not available in the dataset"
    assert ask(portal, 30).status == 200
    portal.chain.fork(20, 5)
    assert portal.oldest == 30, "what was forgotten stays so"


def test_the_real_time_service_names_blocks_of_one_chunk_in_a_conflict() -> None:
    portal = real_time()
    tip = portal.chain.head
    samples = {
        tip.number + 1: [tip.number],
        40: [39],
        45: [39, 40, 41, 42, 43, 44],
    }
    for first, expected in samples.items():
        answer = ask(portal, first, parentBlockHash="0xforeign")
        assert [number for number, _ in sample_of(answer)] == expected
    above = ask(portal, tip.number + 2, parentBlockHash="0xforeign")
    assert above.status == 204
    assert not [name for name in above.headers if "head" in name]
    for first, status in ((40, 204), (21, 409)):
        final = ask(portal, first, route="finalized-stream", parentBlockHash="0xforeign")
        assert final.status == status


def test_the_real_time_service_finds_no_block_by_time_and_always_compresses() -> None:
    portal = real_time()
    assert look_up(portal, "timestamps/1700000000/block").status == 404
    for accepted, encoding in (("identity", "gzip"), ("", "gzip"), ("gzip, zstd", "zstd")):
        answer = portal.respond(request(portal, 50), {"accept-encoding": accepted})
        assert answer.headers["content-encoding"] == encoding
