"""A simulated EVM block in the portal's wire form: every field of every entity.

Numbers agree within a block: cumulative gas, trace addresses, states before and after. What would
need Keccak (blooms, roots, hashes) is drawn instead.

A block reward belongs to no transaction; its trace carries the index after the last one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

from headwater.testing.chain.content import evm_scenes as scenes
from headwater.testing.chain.content.block import BlockContent, Row, absent, transaction_keys
from headwater.testing.chain.content.evm_scenes import TRANSFER, Frame, Scene
from headwater.testing.chain.population import ContentSettings, Draw, Network, Pair, Population

_GAS_PER_FRAME = 25_000
SYNTHETIC = 0xFFFF_FFE2  # the index of a log that a node adds of its own
_BASE_GAS = 21_000
_GAS_PRICE = 10**9
_REWARD = 2 * 10**18
LAUNCHPAD_ADDED = "0x77c45924d48d1d341ca1c3b812d336988cec4f90f0ed113a5dfc70d7dfd8849b"
_NO_HEADER = absent(Network.EVM, "block")
_NO_TRANSACTION = absent(Network.EVM, "transaction")


@dataclass(frozen=True, slots=True)
class _Transaction:
    key: str
    hash: str
    nonce: int
    scene: scenes.Scene
    gas_used: int


class EvmContent(BlockContent):
    """The contents of one block."""

    families = ("transactions", "logs", "traces", "stateDiffs")

    def _header(self) -> Row:
        block = self._block
        draw = Draw(self._seed, block.hash, "header")
        hashes = ("transactionsRoot", "receiptsRoot", "stateRoot", "sha3Uncles", "mixHash")
        quantities = {"difficulty": 0, "totalDifficulty": 58_750_003_716_598_352_816_469}
        return {
            **_NO_HEADER,
            **self._links,
            "timestamp": block.timestamp,
            **{name: draw.hex(32) for name in hashes},
            "logsBloom": draw.hex(256),
            "extraData": draw.hex(draw.below(32)),
            "miner": self._producer,
            "nonce": "0x0000000000000000",
            "size": 600 + 300 * len(self._txs),
            "gasLimit": hex(30_000_000),
            "gasUsed": hex(sum(tx.gas_used for tx in self._txs)),
            **{name: hex(value) for name, value in quantities.items()},
            "baseFeePerGas": hex(7 + draw.bits(36)),
            "blobGasUsed": hex(131_072 * draw.below(7)),
            "excessBlobGas": hex(131_072 * draw.below(100)),
            "uncles": [],
            "withdrawalsRoot": draw.hex(32),
            "withdrawals": [self._withdrawal(draw, index) for index in range(2)],
            "parentBeaconBlockRoot": draw.hex(32),
            "requestsHash": draw.hex(32),
        }

    @cached_property
    def _txs(self) -> list[_Transaction]:
        return [self._transaction(key, announced) for key, announced in self._named()]

    @cached_property
    def _transactions(self) -> list[Row]:
        rows, cumulative = [], 0
        for index, tx in enumerate(self._txs):
            cumulative += tx.gas_used
            rows.append(self._transaction_row(tx, index, cumulative))
        return rows

    @cached_property
    def _logs(self) -> list[Row]:
        rows: list[Row] = []
        for index, tx in enumerate(self._txs):
            rows.extend(
                {
                    "logIndex": log_index,
                    "transactionIndex": index,
                    "transactionHash": tx.hash,
                    "address": event.address,
                    "data": event.data,
                    "topics": event.topics,
                }
                for log_index, event in enumerate(tx.scene.events, len(rows))
            )
        share = self._settings.synthetic_log_share
        if rows and Draw(self._seed, self._block.hash, "synthetic").chance(share):
            rows[-1]["logIndex"] = SYNTHETIC
        return rows

    @cached_property
    def _traces(self) -> list[Row]:
        rows: list[Row] = []
        for index, tx in enumerate(self._txs):
            _add_traces(rows, index, [], tx.scene.root, tx.gas_used * 5 // 4 - _BASE_GAS)
        if self._txs and Draw(self._seed, self._block.hash, "reward").chance(0.125):
            action = {"author": self._producer, "value": hex(_REWARD), "type": "block"}
            rows.append({**_trace_base(len(self._txs), [], 0, "reward"), "action": action})
        return rows

    @cached_property
    def _state_diffs(self) -> list[Row]:
        diffs = StateDiffs(f"{self._seed}/{self._block.hash}")
        for index, tx in enumerate(self._txs):
            diffs.apply(index, tx.scene, tx.gas_used, tx.nonce)
        return diffs.rows

    @property
    def _producer(self) -> str:
        return Draw(self._seed, self._block.hash, "producer").pick(self._people.producers)

    def _named(self) -> list[tuple[str, int | None]]:
        """Return what names each transaction, in block order, and the pool that it announces."""
        announced = self._since_start - 1
        pair = f"{self._seed}/pair/{announced}"
        is_time = 0 <= announced < len(self._people.pairs)
        more = [pair] if is_time and self._settings.transactions_per_block else []
        salt = self._block.hash[:32]
        keys = transaction_keys(self._seed, self._block, self._settings, more, salt)
        return [(key, announced if key == pair else None) for key in keys]

    def _transaction(self, key: str, announced: int | None) -> _Transaction:
        draw, people = Draw(key), self._people
        tx_hash, nonce = draw.hex(32), draw.bits(64 if draw.chance(0.02) else 20)
        share = self._settings.pool_share
        if announced is None and share and draw.chance(share):
            scene = _play_pools(draw, people, self._settings)
        elif announced is None:
            traded = people.pairs[: max(self._since_start - 1, 0)]
            scene = scenes.play(draw, people, self._settings, traded)
        else:
            scene = scenes.announce(draw, people, people.pairs[announced], announced)
        gas_used = _BASE_GAS + _GAS_PER_FRAME * _size(scene.root)
        return _Transaction(key, tx_hash, nonce, scene, gas_used)

    def _transaction_row(self, tx: _Transaction, index: int, cumulative_gas: int) -> Row:
        draw, root = Draw(tx.key, "wire"), tx.scene.root
        creation = root.kind == "create"
        kind = (2, 2, 0, 1, 3)[draw.below(4 if creation else 5)]
        if kind == 2 and not creation and tx.hash.endswith("0"):
            kind = 4
        parity, price = draw.below(2), 10**9 + draw.bits(36)
        fees = kind >= 2
        return {
            **_NO_TRANSACTION,
            "transactionIndex": index,
            "hash": tx.hash,
            "nonce": tx.nonce if tx.nonce < 2**53 else str(tx.nonce),
            "from": root.sender,
            "to": None if creation else root.to,
            "input": root.input,
            "value": hex(root.value),
            "gas": hex(tx.gas_used * 5 // 4),
            "gasPrice": hex(price),
            "maxFeePerGas": hex(2 * price) if fees else None,
            "maxPriorityFeePerGas": hex(10**9) if fees else None,
            "v": hex(parity if kind else 37 + parity),
            "r": draw.hex(32),
            "s": draw.hex(32),
            "yParity": parity if kind else None,
            "chainId": 1,
            "sighash": root.input[:10] if len(root.input) >= 10 and not creation else None,
            "contractAddress": root.to if creation and not tx.scene.failed else None,
            "gasUsed": hex(tx.gas_used),
            "cumulativeGasUsed": hex(cumulative_gas),
            "effectiveGasPrice": hex(price),
            "type": kind,
            "status": 0 if tx.scene.failed else 1,
            "logsBloom": draw.hex(256),
            "blobVersionedHashes": [draw.hex(32)] if kind == 3 else None,
            "accessList": [{"address": root.to, "storageKeys": [draw.hex(32)]}] if kind else None,
            "maxFeePerBlobGas": hex(draw.bits(30)) if kind == 3 else None,
            "blobGasUsed": hex(131_072) if kind == 3 else None,
            "blobGasPrice": hex(1 + draw.bits(20)) if kind == 3 else None,
            "authorizationList": [self._authorization(draw, root.to)] if kind == 4 else None,
        }

    def _authorization(self, draw: Draw, address: str | None) -> Row:
        return {
            "chainId": "0x1",
            "address": address,
            "nonce": str(draw.bits(60)),
            "yParity": draw.below(2),
            "r": draw.hex(32),
            "s": draw.hex(32),
        }

    def _withdrawal(self, draw: Draw, index: int) -> Row:
        return {
            "index": hex(self._block.height * 2 + index),
            "validatorIndex": hex(draw.bits(20)),
            "address": draw.pick(self._people.producers),
            "amount": hex(draw.bits(34)),
        }


def _size(frame: scenes.Frame) -> int:
    return 1 + sum(map(_size, frame.children))


def _trace_base(index: int, address: list[int], subtraces: int, kind: str) -> Row:
    return {
        "transactionIndex": index,
        "traceAddress": address,
        "subtraces": subtraces,
        "type": kind,
        "error": None,
        "revertReason": None,
    }


def _add_traces(
    rows: list[Row], index: int, address: list[int], frame: scenes.Frame, gas: int
) -> None:
    """Append a frame and what it calls, depth first, as a node's tracer lists them."""
    row = _trace_base(index, address, len(frame.children), frame.kind)
    row["error"], row["revertReason"] = frame.error, frame.reason
    broken = frame.error is not None
    used = None if broken else hex(_GAS_PER_FRAME * _size(frame))
    if frame.kind == "suicide":
        row["action"] = {
            "address": frame.sender,
            "refundAddress": frame.to,
            "balance": hex(frame.value),
        }
    elif frame.kind == "create":
        row["action"] = {
            "from": frame.sender,
            "value": hex(frame.value),
            "gas": hex(gas),
            "init": frame.input,
        }
        row["result"] = {
            "gasUsed": used,
            "code": None if broken else frame.output,
            "address": None if broken else frame.to,
        }
    else:
        row["action"] = {
            "callType": frame.call_type,
            "from": frame.sender,
            "to": frame.to,
            "value": None if frame.call_type == "staticcall" else hex(frame.value),
            "gas": hex(gas),
            "input": frame.input,
            "sighash": frame.input[:10] if len(frame.input) >= 10 else None,
        }
        row["result"] = {"gasUsed": used, "output": None if broken else frame.output}
    rows.append(row)
    for position, child in enumerate(frame.children):
        _add_traces(rows, index, [*address, position], child, gas * 63 // 64)


def _play_pools(draw: Draw, people: Population, settings: ContentSettings) -> scenes.Scene:
    """Draw one transaction around pools: some creations and trades, mostly of one pool.

    A block's contents know nothing of the blocks before it, so pools trade before they are created
    too, are created twice, and in blocks that are orphaned later. The factory of the chain creates
    pools, and so do launchpads, which a registrar announces: factories that are children
    themselves. Only with `ContentSettings(pool_share=…)`, so that other chains stay what they are.
    """
    sender, steps = draw.pick(people.accounts), 1 + draw.below(3)
    if steps == 1 and draw.chance(0.5):
        scene = _direct_pool_trade(draw, people, sender)
    else:
        root = scenes.Frame("call", sender, people.router)
        root.input = scenes.SIGHASHES["multicall"] + scenes.word(steps)
        scene, usual = scenes.Scene(root), draw.pick(people.pools)
        for _ in range(steps):
            pool = usual if draw.chance(0.7) else draw.pick(people.pools)
            _pool_step(draw, people, sender, scene, pool)
    if draw.chance(settings.failed_share):
        scenes.fail(scene, draw)
    return scene


def _pool_step(
    draw: Draw, people: Population, sender: str, scene: scenes.Scene, pool: Pair
) -> None:
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
        _pool_trade(draw, people, sender, scene, pool)


def _direct_pool_trade(draw: Draw, people: Population, sender: str) -> scenes.Scene:
    """Return a trade whose transaction calls the pool itself."""
    scene = scenes.Scene(scenes.Frame("call", sender, people.router))
    _pool_trade(draw, people, sender, scene, draw.pick(people.pools))
    (scene.root,) = scene.root.children
    scene.root.sender = sender
    return scene


def _pool_trade(
    draw: Draw, people: Population, sender: str, scene: scenes.Scene, pair: Pair
) -> None:
    sold, bought = draw.bits(60) + 1, draw.bits(60) + 1
    call = scenes.pool_call(people.router, pair, pair.token0, pair.token1, sender, bought)
    scene.root.children.append(call)
    scene.events += scenes.swap_events(people.router, pair, sender, sold, bought, forward=True)


class StateDiffs:
    """The state differences that a block's transactions make, in order.

    Balances, nonces, code and token storage are followed through the transactions; the kind of a
    difference (`+`, `-`, `*`, `=`) follows from what stood there before and after.
    """

    def __init__(self, salt: str) -> None:
        self.rows: list[dict[str, Any]] = []
        self._salt = salt
        self._state: dict[tuple[str, str], str | None] = {}

    def apply(self, index: int, scene: Scene, gas_used: int, nonce: int) -> None:
        """Add the differences that one transaction makes; a failed one still pays its gas."""
        changed: dict[tuple[str, str], str | None] = {}
        root = scene.root
        self._pay(changed, root.sender, -gas_used * _GAS_PRICE)
        self._state[root.sender, "nonce"] = hex(nonce)
        changed[root.sender, "nonce"] = hex(nonce + 1)
        if not scene.failed:
            if root.kind != "suicide" and root.value:
                self._pay(changed, root.sender, -root.value)
                self._pay(changed, root.to, root.value)
            for frame in _frames(root):
                self._run(changed, frame)
            for event in scene.events:
                if event.topics[0] == TRANSFER and len(event.topics) == 3:
                    value = int(event.data, 16)
                    self._move(changed, event.address, event.topics[1], -value)
                    self._move(changed, event.address, event.topics[2], value)
        for (address, key), after in sorted(changed.items()):
            before = self._before(address, key)
            self.rows.append(_difference(index, address, key, before, after))
            self._state[address, key] = after

    def _run(self, changed: dict[tuple[str, str], str | None], frame: Frame) -> None:
        """Follow what a frame does to accounts as such: creation, destruction, a mere look."""
        if frame.error is not None:
            return
        if frame.kind == "create":
            for key in ("code", "nonce"):
                self._state[frame.to, key] = None
            changed[frame.to, "code"] = frame.output
            changed[frame.to, "nonce"] = "0x1"
        elif frame.kind == "suicide":
            self._state[frame.sender, "balance"] = hex(frame.value)
            self._state[frame.sender, "code"] = "0x6001ff"
            changed[frame.sender, "balance"] = changed[frame.sender, "code"] = None
            self._pay(changed, frame.to, frame.value)
        elif frame.call_type == "staticcall":
            self._pay(changed, frame.to, 0)

    def _pay(self, changed: dict[tuple[str, str], str | None], address: str, value: int) -> None:
        place = (address, "balance")
        balance = int(changed.get(place) or self._before(*place) or "0x0", 16)
        changed[place] = hex(max(balance + value, 1))

    def _move(
        self, changed: dict[tuple[str, str], str | None], token: str, holder: str, value: int
    ) -> None:
        """Change a holder's balance in a token's storage; zero clears the slot."""
        slot = "0x" + blake2b((token + holder).encode(), digest_size=32).hexdigest()
        stored = changed[token, slot] if (token, slot) in changed else self._before(token, slot)
        balance = min(max(int(stored or "0x0", 16) + value, 0), 2**256 - 1)
        changed[token, slot] = f"0x{balance:064x}" if balance else None

    def _before(self, address: str, key: str) -> str | None:
        """Return what stood there before this transaction; drawn where the block is the first."""
        if (address, key) not in self._state:
            draw = Draw(self._salt, address, key)
            if key == "balance":
                self._state[address, key] = hex(10**21 + draw.bits(70))
            else:
                slot = f"0x{draw.bits(90):064x}"
                self._state[address, key] = None if draw.chance(0.3) else slot
        return self._state[address, key]


def _difference(
    index: int, address: str, key: str, before: str | None, after: str | None
) -> dict[str, Any]:
    if before == after:
        kind, before, after = "=", None, None
    elif before is None:
        kind = "+"
    elif after is None:
        kind = "-"
    else:
        kind = "*"
    return {
        "transactionIndex": index,
        "address": address,
        "key": key,
        "kind": kind,
        "prev": before,
        "next": after,
    }


def _frames(frame: Frame) -> list[Frame]:
    frames = [frame]
    for child in frame.children:
        frames += _frames(child)
    return frames
