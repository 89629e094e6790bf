"""Transactions around pools that anybody may register: what factories are tested with.

A block's contents know nothing of the blocks before it, so pools trade before they are created too,
are created twice, and in blocks that are orphaned later; transactions that belong to a height are
included again by the other branch, mostly at another index. The factory of the chain creates pools,
and so do launchpads, which a registrar announces: factories that are children themselves.

On only with `ContentSettings(pool_share=…)`, so that other chains stay what they are.
"""

from __future__ import annotations

from headwater.testing.chain.draw import Draw
from headwater.testing.chain.population import Pair, Population
from headwater.testing.chain.settings import ContentSettings
from headwater.testing.content import evm_scenes as scenes

LAUNCHPAD_ADDED = "0x77c45924d48d1d341ca1c3b812d336988cec4f90f0ed113a5dfc70d7dfd8849b"


def play_pools(draw: Draw, people: Population, settings: ContentSettings) -> scenes.Scene:
    """Draw one transaction: some creations and trades, in any order, mostly of one pool."""
    sender, steps = draw.pick(people.accounts), 1 + draw.below(3)
    if steps == 1 and draw.chance(0.5):
        scene = _direct_trade(draw, people, sender)
    else:
        root = scenes.Frame("call", sender, people.router)
        root.input = scenes.SIGHASHES["multicall"] + scenes.word(steps)
        scene, usual = scenes.Scene(root), draw.pick(people.pools)
        for _ in range(steps):
            pool = usual if draw.chance(0.7) else draw.pick(people.pools)
            _step(draw, people, sender, scene, pool)
    if draw.chance(settings.failed_share):
        scenes.fail(scene, draw)
    return scene


def _step(draw: Draw, people: Population, sender: str, scene: scenes.Scene, pool: Pair) -> None:
    kind = draw.below(8)
    if kind == 0:
        topics = [LAUNCHPAD_ADDED, "0x" + scenes.address_word(draw.pick(people.launchpads))]
        scene.root.children.append(scenes.Frame("call", people.router, people.registrar))
        scene.events.append(scenes.Event(people.registrar, topics))
    elif kind <= 2:
        factory, index = draw.pick((people.factory, *people.launchpads)), draw.below(1000)
        scene.root.children.append(scenes.create_call(draw, people, factory, pool, index))
        scene.events.append(scenes.pair_created(factory, pool, index))
    else:
        _trade(draw, people, sender, scene, pool)


def _direct_trade(draw: Draw, people: Population, sender: str) -> scenes.Scene:
    """Return a trade whose transaction calls the pool itself."""
    scene = scenes.Scene(scenes.Frame("call", sender, people.router))
    _trade(draw, people, sender, scene, draw.pick(people.pools))
    (scene.root,) = scene.root.children
    scene.root.sender = sender
    return scene


def _trade(draw: Draw, people: Population, sender: str, scene: scenes.Scene, pair: Pair) -> None:
    sold, bought = draw.bits(60) + 1, draw.bits(60) + 1
    call = scenes.pool_call(people.router, pair, pair.token0, pair.token1, sender, bought)
    scene.root.children.append(call)
    scene.events += scenes.swap_events(people.router, pair, sender, sold, bought, forward=True)
