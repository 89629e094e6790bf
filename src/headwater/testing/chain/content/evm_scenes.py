"""What one simulated EVM transaction does: its call tree and its events, before wire form.

Every scene is a small story that real chains hold: a payment, token transfers, an approval, an NFT
sale, a swap through a router, a deployment, a pool launched by a factory, a contract's end. Events
use the real topics and the real ABI encoding, so a decoder written for a real chain reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headwater.testing.chain.population import ContentSettings, Draw, Pair, Population, pair_of

TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
APPROVAL = "0x8c5be1e5ebec7d5bd14f71427d1e84f3dd0314c0f7b2291e5b200ac8c7c3b925"
SWAP = "0xd78ad95fa46c994b6551d0da85fc275fe613ce37657fb8d5e3d130840159d822"
SYNC = "0x1c411e9a96e071241c2f21f7726b17ae89e3cab4c78be50e062b03a9fffbbad1"
PAIR_CREATED = "0x0d3648bd0f6ba80134a33ba9275ac585d9d315f0ad8355cddefde31afa28d0e9"

SIGHASHES = {
    "transfer": "0xa9059cbb",  # transfer(address,uint256)
    "transfer_from": "0x23b872dd",  # transferFrom(address,address,uint256)
    "approve": "0x095ea7b3",  # approve(address,uint256)
    "balance_of": "0x70a08231",  # balanceOf(address)
    # swapExactTokensForTokens(uint256,uint256,address[],address,uint256)
    "swap_tokens": "0x38ed1739",
    "swap": "0x022c0d9f",  # swap(uint256,uint256,address,bytes)
    "create_pair": "0xc9c65396",  # createPair(address,address)
    "multicall": "0xac9650d8",  # multicall(bytes[])
    "kill": "0x41c0e1b5",  # kill()
}

UINT256_MAX = 2**256 - 1


@dataclass(frozen=True, slots=True)
class Event:
    """One log, before it has an index."""

    address: str
    topics: list[str]
    data: str = "0x"


@dataclass(slots=True)
class Frame:
    """One call, creation or self-destruction, with what it calls in turn."""

    kind: str
    sender: str
    to: str
    value: int = 0
    input: str = "0x"
    call_type: str = "call"
    output: str = "0x"
    error: str | None = None
    reason: str | None = None
    children: list[Frame] = field(default_factory=list)


@dataclass(slots=True)
class Scene:
    """All that one transaction does."""

    root: Frame
    events: list[Event] = field(default_factory=list)
    failed: bool = False


def play(draw: Draw, people: Population, settings: ContentSettings, pairs: Sequence[Pair]) -> Scene:
    """Draw one transaction's story; `pairs` are the pools that exist by now."""
    sender = draw.pick(people.accounts)
    scene = draw.pick(_SCENES)(_Stage(draw, people, settings, pairs, sender))
    if draw.chance(settings.failed_share):
        fail(scene, draw)
    return scene


def announce(draw: Draw, people: Population, pair: Pair, index: int) -> Scene:
    """Return the transaction in which the factory creates one of the population's pools."""
    sender = draw.pick(people.accounts)
    creation = _creation(draw, people.factory, pair, index)
    root = Frame("call", sender, people.factory, input=_create_pair_input(pair))
    root.children.append(creation)
    return Scene(root, [pair_created(people.factory, pair, index)])


def word(value: int) -> str:
    """Return an unsigned integer as one ABI word, without prefix."""
    return f"{value:064x}"


def address_word(address: str) -> str:
    """Return an address as one ABI word, without prefix."""
    return "0" * 24 + address[2:]


def amount(draw: Draw, settings: ContentSettings) -> int:
    """Draw a token amount: mostly plausible, now and then up to the largest uint256."""
    if draw.chance(settings.huge_value_share):
        return UINT256_MAX if draw.chance(0.5) else draw.bits(256)
    return draw.bits(20 + draw.below(60))


@dataclass(frozen=True, slots=True)
class _Stage:
    draw: Draw
    people: Population
    settings: ContentSettings
    pairs: Sequence[Pair]
    sender: str


def _payment(stage: _Stage) -> Scene:
    to = stage.draw.pick(stage.people.accounts)
    return Scene(Frame("call", stage.sender, to, value=stage.draw.bits(64)))


def _token_transfers(stage: _Stage) -> Scene:
    draw, people = stage.draw, stage.people
    count = draw.count(stage.settings.transfers_per_transaction)
    calls, events = [], []
    for _ in range(count):
        token, to = draw.pick(people.tokens), draw.pick(people.accounts)
        value = amount(draw, stage.settings)
        source = stage.sender if count == 1 else draw.pick(people.accounts)
        calls.append(_transfer_call(token, people.router, source, to, value))
        events.append(_transfer(token, source, to, value))
    if count == 1:
        only = events[0]
        data = SIGHASHES["transfer"] + only.topics[2][2:] + only.data[2:]
        return Scene(Frame("call", stage.sender, only.address, input=data, output=_true()), events)
    root = Frame("call", stage.sender, people.router, input=SIGHASHES["multicall"] + word(count))
    root.children = calls
    if draw.chance(0.3):
        root.children.append(_failing_call(people.router, draw.pick(people.tokens)))
    return Scene(root, events)


def _approval(stage: _Stage) -> Scene:
    token, spender = stage.draw.pick(stage.people.tokens), stage.people.router
    value = UINT256_MAX if stage.draw.chance(0.5) else amount(stage.draw, stage.settings)
    data = SIGHASHES["approve"] + address_word(spender) + word(value)
    topics = [APPROVAL, "0x" + address_word(stage.sender), "0x" + address_word(spender)]
    event = Event(token, topics, "0x" + word(value))
    return Scene(Frame("call", stage.sender, token, input=data, output=_true()), [event])


def _collectible(stage: _Stage) -> Scene:
    collection, to = (
        stage.draw.pick(stage.people.collections),
        stage.draw.pick(stage.people.accounts),
    )
    token_id = stage.draw.below(10_000)
    parties = [address_word(stage.sender), address_word(to), word(token_id)]
    event = Event(collection, [TRANSFER, *("0x" + party for party in parties)])
    data = SIGHASHES["transfer_from"] + "".join(parties)
    return Scene(Frame("call", stage.sender, collection, input=data), [event])


def _swap(stage: _Stage) -> Scene:
    if not stage.pairs:
        return _token_transfers(stage)
    draw, people, sender = stage.draw, stage.people, stage.sender
    pair = draw.pick(stage.pairs)
    sold, bought = draw.bits(70) + 1, draw.bits(70) + 1
    forward = draw.chance(0.5)
    source, wanted = (pair.token0, pair.token1) if forward else (pair.token1, pair.token0)
    words = [word(sold), word(bought * 9 // 10), word(0xA0), address_word(sender), word(2**32 - 1)]
    words += [word(2), address_word(source), address_word(wanted)]
    root = Frame("call", sender, people.router, input=SIGHASHES["swap_tokens"] + "".join(words))
    root.children = [
        _transfer_call(source, people.router, sender, pair.address, sold),
        pool_call(people.router, pair, source, wanted, sender, bought),
    ]
    return Scene(root, swap_events(people.router, pair, sender, sold, bought, forward=forward))


def _deployment(stage: _Stage) -> Scene:
    draw = stage.draw
    frame = Frame("create", stage.sender, draw.hex(20), value=draw.below(1000))
    frame.input = draw.hex(40 + draw.below(60))
    frame.output = draw.hex(20 + draw.below(40))
    return Scene(frame)


def _launch(stage: _Stage) -> Scene:
    """Create a pool and trade in it at once: a child that exists in this block alone."""
    draw, people, sender = stage.draw, stage.people, stage.sender
    pair = pair_of(draw.hex(20), draw.pick(people.tokens), draw.hex(20))
    index = 1000 + draw.below(1_000_000)
    sold, bought = draw.bits(60) + 1, draw.bits(60) + 1
    root = Frame("call", sender, people.router, input=SIGHASHES["multicall"] + word(2))
    root.children = [
        create_call(draw, people, people.factory, pair, index),
        _transfer_call(pair.token0, people.router, sender, pair.address, sold),
        pool_call(people.router, pair, pair.token0, pair.token1, sender, bought),
    ]
    events = swap_events(people.router, pair, sender, sold, bought, forward=True)
    return Scene(root, [pair_created(people.factory, pair, index), *events])


def _destruction(stage: _Stage) -> Scene:
    doomed = stage.draw.hex(20)
    root = Frame("call", stage.sender, doomed, input=SIGHASHES["kill"])
    root.children = [Frame("suicide", doomed, stage.sender, value=stage.draw.bits(60))]
    return Scene(root)


_SCENES: tuple[Callable[[_Stage], Scene], ...] = (
    *(_payment, _payment, _token_transfers, _token_transfers, _token_transfers, _token_transfers),
    *(_approval, _collectible, _swap, _swap, _swap, _deployment, _launch, _destruction),
)


def fail(scene: Scene, draw: Draw) -> None:
    """Undo a scene: no events, no output, the last inner call is what broke it."""
    scene.failed = True
    scene.events = []
    errors = ("execution reverted", "out of gas", "invalid opcode")
    scene.root.error = draw.pick(errors)
    scene.root.output = "0x"
    if scene.root.error == errors[0]:
        scene.root.reason = "ERC20: transfer amount exceeds balance"
    if scene.root.children:
        del scene.root.children[1:]
        scene.root.children[0].error = scene.root.error
        scene.root.children[0].children = []


def swap_events(
    router: str, pair: Pair, to: str, sold: int, bought: int, *, forward: bool
) -> list[Event]:
    """Return what a trade logs: two transfers, the reserves, the swap."""
    source, wanted = (pair.token0, pair.token1) if forward else (pair.token1, pair.token0)
    amounts = (sold, 0, 0, bought) if forward else (0, sold, bought, 0)
    reserves = word(sold * 1000) + word(bought * 1000)
    topics = [SWAP, "0x" + address_word(router), "0x" + address_word(to)]
    return [
        _transfer(source, to, pair.address, sold),
        _transfer(wanted, pair.address, to, bought),
        Event(pair.address, [SYNC], "0x" + reserves),
        Event(pair.address, topics, "0x" + "".join(map(word, amounts))),
    ]


def _transfer(token: str, source: str, to: str, value: int) -> Event:
    topics = [TRANSFER, "0x" + address_word(source), "0x" + address_word(to)]
    return Event(token, topics, "0x" + word(value))


def pair_created(factory: str, pair: Pair, index: int) -> Event:
    """Return the event with which a factory announces a pool."""
    topics = [PAIR_CREATED, "0x" + address_word(pair.token0), "0x" + address_word(pair.token1)]
    return Event(factory, topics, "0x" + address_word(pair.address) + word(index + 1))


def _create_pair_input(pair: Pair) -> str:
    return SIGHASHES["create_pair"] + address_word(pair.token0) + address_word(pair.token1)


def _creation(draw: Draw, factory: str, pair: Pair, index: int) -> Frame:
    return Frame(
        "create", factory, pair.address, input="0x60806040" + word(index), output=draw.hex(32)
    )


def _transfer_call(token: str, caller: str, source: str, to: str, value: int) -> Frame:
    data = SIGHASHES["transfer_from"] + address_word(source) + address_word(to) + word(value)
    return Frame("call", caller, token, input=data, output=_true())


def create_call(draw: Draw, people: Population, factory: str, pair: Pair, index: int = 0) -> Frame:
    """Return the call that makes a factory create a pool."""
    call = Frame("call", people.router, factory, input=_create_pair_input(pair))
    call.children = [_creation(draw, factory, pair, index)]
    return call


def pool_call(router: str, pair: Pair, source: str, wanted: str, to: str, bought: int) -> Frame:
    """Return the call that trades in a pool, with what the pool calls in turn."""
    amounts = (0, bought) if source == pair.token0 else (bought, 0)
    words = [*map(word, amounts), address_word(to), word(0x80), word(0)]
    call = Frame("call", router, pair.address, input=SIGHASHES["swap"] + "".join(words))
    payout = SIGHASHES["transfer"] + address_word(to) + word(bought)
    probe = SIGHASHES["balance_of"] + address_word(pair.address)
    call.children = [
        Frame("call", pair.address, wanted, input=payout, output=_true()),
        Frame(
            "call", pair.address, source, input=probe, call_type="staticcall", output="0x" + word(1)
        ),
    ]
    return call


def _failing_call(caller: str, token: str) -> Frame:
    data = SIGHASHES["balance_of"] + address_word(caller)
    return Frame("call", caller, token, input=data, call_type="staticcall", error="out of gas")


def _true() -> str:
    return "0x" + word(1)
