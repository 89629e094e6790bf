import pytest

from headwater.core import BlockCursor
from headwater.errors import InvalidOptionError
from headwater.testing import Balance, Finality, Network, Replica, ReplicaSet
from tests.unit.testing.asking import chain_of


def test_a_live_replica_is_always_at_the_head() -> None:
    chain = chain_of(10)
    replica = Replica(chain, 0)
    chain.extend(5)
    assert replica.view().tip == chain.head
    chain.fork(3)
    assert replica.view().tip == chain.head


def test_a_lagging_replica_stays_a_distance_behind_and_never_below_the_first_block() -> None:
    chain = chain_of(10, start_block=100)
    replica = Replica(chain, 0).lag(3)
    assert replica.view().tip.number == 106
    chain.extend(5)
    assert replica.view().tip.number == 111
    assert replica.lag(1000).view().tip.number == 100


def test_a_frozen_replica_keeps_a_branch_that_the_chain_gave_up() -> None:
    chain = chain_of(10)
    old = chain.head
    replica = Replica(chain, 0).freeze()
    chain.fork(4)
    chain.extend(10)
    view = replica.view()
    assert view.tip == old
    assert [block.hash for block in view.blocks(0, 100)][-1] == old.hash
    assert view.at_or_below(8) != chain.at_or_below(8)
    assert view.at_or_below(5) == chain.at_or_below(5)


def test_a_replica_can_be_frozen_at_any_block_and_wakes_up_again() -> None:
    chain = chain_of(10)
    block = chain.canonical(4, 4)[0]
    replica = Replica(chain, 0).freeze(block.hash)
    assert replica.view().tip == block
    assert replica.live().view().tip == chain.head


def test_a_view_never_shows_a_block_above_its_tip() -> None:
    chain = chain_of(20)
    view = Replica(chain, 0).lag(10).view()
    assert view.blocks(0, 100)[-1] == view.tip
    assert view.at_or_below(15) == view.tip
    assert view.first_from(view.tip.number) == view.tip
    assert view.first_from(view.tip.number + 1) is None
    assert view.first_at(chain.head.timestamp) is None
    assert view.sample(100)[-1] == view.tip.cursor


def test_the_first_block_of_a_range_is_found_across_skipped_slots() -> None:
    chain = chain_of(300, network=Network.SOLANA, skipped_share=0.5)
    view = Replica(chain, 0).view()
    held = [block.number for block in chain.canonical()]
    for number in range(held[-1] + 1):
        found = view.first_from(number)
        assert found is not None
        assert found.number == next(one for one in held if one >= number)


def test_a_sample_is_bounded_ascending_and_ends_at_the_number_asked_for() -> None:
    chain = chain_of(200, network=Network.SOLANA, skipped_share=0.3)
    view = Replica(chain, 0).view(sample_size=10)
    up_to = chain.canonical()[150].number
    sample = view.sample(up_to)
    assert len(sample) == 10
    assert sample[-1].number == up_to
    assert sample == sorted(sample, key=lambda block: block.number)


def test_a_time_is_looked_up_on_the_branch_that_the_replica_holds() -> None:
    chain = chain_of(10)
    replica = Replica(chain, 0).freeze()
    old = chain.head
    chain.fork(5, 20)
    view = replica.view()
    assert view.first_at(old.timestamp) == old
    assert view.first_at(old.timestamp + 1) is None
    assert view.first_at(0) == chain.canonical(0, 0)[0]


@pytest.mark.parametrize(
    ("finality", "behind", "number"),
    [
        (Finality.TRUE, 0, 20),
        (Finality.LAGGING, 5, 15),
        (Finality.LAGGING, 500, 0),
        (Finality.REGRESSED, 0, 0),
        (Finality.WRONG_HASH, 0, 20),
    ],
)
def test_reported_finality_can_be_true_late_old_or_wrong(
    finality: Finality, behind: int, number: int
) -> None:
    chain = chain_of(30, final=20)
    reported = Replica(chain, 0).report(finality, behind).view().finalized
    assert reported is not None
    assert reported.number == number
    canonical = chain.canonical(number, number)[0].cursor
    assert (reported == canonical) == (finality is not Finality.WRONG_HASH)


def test_hidden_finality_is_not_reported_but_known() -> None:
    chain = chain_of(30, final=20)
    view = Replica(chain, 0).report(Finality.HIDDEN).view()
    assert view.finalized is None
    assert view.final == chain.finalized


def test_a_replica_below_finality_reports_its_own_tip() -> None:
    chain = chain_of(30, final=20)
    assert Replica(chain, 0).lag(19).view().finalized == BlockCursor(
        10, chain.canonical(10, 10)[0].hash
    )


def test_a_replica_on_an_abandoned_branch_reports_final_only_what_really_is() -> None:
    chain = chain_of(30)
    replica = Replica(chain, 0).freeze()
    chain.fork(10, 20)
    chain.finalize(chain.head.number)
    assert replica.view().final == chain.canonical(19, 19)[0]


def test_without_finality_nothing_is_reported() -> None:
    assert Replica(chain_of(5), 0).view().finalized is None


def test_requests_go_round_unless_a_replica_is_pinned() -> None:
    replicas = ReplicaSet(chain_of(5), 3)
    assert [replicas.choose().index for _ in range(4)] == [0, 1, 2, 0]
    replicas.pin(2, times=2)
    replicas.pin(0)
    assert [replicas.choose().index for _ in range(4)] == [2, 2, 0, 1]


def test_a_random_choice_is_repeatable_by_seed() -> None:
    def run(seed: int) -> list[int]:
        replicas = ReplicaSet(chain_of(5), 3, seed=seed, balance=Balance.RANDOM)
        return [replicas.choose().index for _ in range(30)]

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert set(run(1)) == {0, 1, 2}


def test_what_cannot_be_is_refused() -> None:
    chain = chain_of(5)
    with pytest.raises(InvalidOptionError):
        ReplicaSet(chain, 0)
    with pytest.raises(InvalidOptionError):
        ReplicaSet(chain, 2).pin(2)
    with pytest.raises(InvalidOptionError):
        Replica(chain, 0).lag(-1)


def test_a_replica_says_where_it_is() -> None:
    replicas = ReplicaSet(chain_of(5, final=2), 2)
    assert len(replicas) == 2
    assert [str(replica).split(",")[0][:12] for replica in replicas] == [
        "r0 live at 4",
        "r1 live at 4",
    ]
