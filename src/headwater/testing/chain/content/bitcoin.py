"""A simulated Bitcoin block in the portal's wire form: every field of every entity.

What a transaction pays is what it spends but for the fee, which the coinbase collects. Scripts and
raw transactions are drawn.
"""

from __future__ import annotations

from headwater.query import base58
from headwater.testing.chain.content.block import Row, Rows, WholeContent, absent
from headwater.testing.chain.population import ContentSettings, Draw, Network, Population

SUBSIDY = 312_500_000
_COIN = 100_000_000
_SUPPLY = 2_099_999_997_690_000  # satoshis that will ever be
_LAST = 4_294_967_295
_NO_INPUT = absent(Network.BITCOIN, "input")


class BitcoinContent(WholeContent):
    """The contents of one block."""

    families = ("transactions", "inputs", "outputs")

    def _header(self) -> Row:
        block, draw = self._block, Draw(self._seed, self._block.hash, "header")
        size = 285 + 400 * len(self._rows["transactions"])
        return {
            **self._links,
            "timestamp": block.timestamp,
            "medianTime": block.timestamp - 3600,
            "version": 0x20000000 | draw.bits(28),
            "merkleRoot": draw.octets(32).hex(),
            "nonce": draw.bits(32),
            "target": "00" * 9 + draw.octets(4).hex() + "00" * 19,
            "bits": "17" + draw.octets(3).hex(),
            "difficulty": 103919634711492.17 + block.number,
            "chainWork": "00" * 12 + draw.octets(20).hex(),
            "strippedSize": size - 80,
            "size": size,
            "weight": 4 * size - 240,
        }

    def _fill(self, rows: Rows) -> None:
        drawn = [_Payment(Draw(key), self._people, self._settings) for key in self._keys]
        if drawn:
            self._add_coinbase(rows, sum(payment.fee for payment in drawn))
        for index, payment in enumerate(drawn, 1):
            rows["transactions"].append(_transaction(payment.draw, index))
            rows["inputs"] += [
                _input(payment.draw, index, at, value, self._people, self._block.number)
                for at, value in enumerate(payment.spent)
            ]
            rows["outputs"] += [
                _output(payment.draw, index, at, value, self._people)
                for at, value in enumerate(payment.paid)
            ]

    def _add_coinbase(self, rows: Rows, fees: int) -> None:
        draw = Draw(self._seed, self._block.hash, "coinbase")
        rows["transactions"].append(_transaction(draw, 0))
        rows["inputs"].append(
            {
                **_NO_INPUT,
                "transactionIndex": 0,
                "inputIndex": 0,
                "type": "coinbase",
                "sequence": _LAST,
                "coinbase": draw.octets(8).hex(),
                "txInWitness": ["00" * 32],
            }
        )
        rows["outputs"].append(_output(draw, 0, 0, SUBSIDY + fees, self._people))
        note = _output(draw, 0, 1, 0, self._people)
        note |= {"scriptPubKeyType": "nulldata", "scriptPubKeyAddress": None}
        rows["outputs"].append(note)


class _Payment:
    """The inputs and outputs of one transaction, in satoshis."""

    def __init__(self, draw: Draw, people: Population, settings: ContentSettings) -> None:
        self.draw = draw
        huge = draw.chance(settings.huge_value_share)
        self.spent = [_SUPPLY] if huge else [1000 + draw.bits(36) for _ in range(1 + draw.below(3))]
        self.fee = 200 + draw.below(500)
        left = sum(self.spent) - self.fee
        self.paid = []
        for _ in range(draw.count(settings.transfers_per_transaction)):
            part = draw.below(left // 2 + 1)
            self.paid.append(part)
            left -= part
        self.paid.append(left)


def _transaction(draw: Draw, index: int) -> Row:
    return {
        "transactionIndex": index,
        "hex": draw.octets(60).hex(),
        "txid": draw.octets(32).hex(),
        "hash": draw.octets(32).hex(),
        "size": 222,
        "vsize": 141,
        "weight": 561,
        "version": 2,
        "locktime": draw.below(900_000),
    }


def _input(draw: Draw, index: int, at: int, value: int, people: Population, number: int) -> Row:
    address = draw.pick(people.accounts)
    script = _script(address)
    return {
        "transactionIndex": index,
        "inputIndex": at,
        "type": "tx",
        "txid": draw.octets(32).hex(),
        "vout": draw.below(4),
        "scriptSigHex": draw.octets(20).hex(),
        "scriptSigAsm": "OP_0",
        "sequence": _LAST - draw.below(3),
        "coinbase": None,
        "txInWitness": [draw.octets(8).hex() for _ in range(draw.below(3))],
        "prevoutGenerated": draw.chance(0.1),
        "prevoutHeight": draw.below(number + 1),
        "prevoutValue": value / _COIN,
        **{f"prevout{key[0].upper()}{key[1:]}": item for key, item in script.items()},
    }


def _output(draw: Draw, index: int, at: int, value: int, people: Population) -> Row:
    address = draw.pick(people.accounts)
    return {
        "transactionIndex": index,
        "outputIndex": at,
        "value": value / _COIN,
        **_script(address),
    }


def _script(address: str) -> Row:
    """Return the script that pays an address."""
    is_key = address.startswith("1")
    digest = base58.decode(address)[1:21].hex()
    before, after = ("76a914", "88ac") if is_key else ("a914", "87")
    return {
        "scriptPubKeyHex": before + digest + after,
        "scriptPubKeyAsm": f"OP_HASH160 {digest}",
        "scriptPubKeyDesc": f"addr({address})",
        "scriptPubKeyType": "pubkeyhash" if is_key else "scripthash",
        "scriptPubKeyAddress": address,
    }
