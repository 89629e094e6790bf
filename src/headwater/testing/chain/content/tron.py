"""A simulated Tron block in the portal's wire form: every field of every entity.

Transfers of TRX and of TRC-10 tokens, calls of contracts with their logs and internal
transactions, votes. Addresses have their 41 but in logs, as on the wire.
"""

from __future__ import annotations

from headwater.testing.chain.content.block import Row, Rows, WholeContent, absent
from headwater.testing.chain.population import Draw, Network

TRANSFER = "ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
SIGHASH = "a9059cbb"
ASSETS = ("31303030323236", "31303032303030")
_NO_TRANSACTION = absent(Network.TRON, "transaction")
_NO_INTERNAL = absent(Network.TRON, "internalTransaction")
_TYPES = ("Transfer", "TransferAsset", "TriggerSmart", "TriggerSmart", "VoteWitness")


class TronContent(WholeContent):
    """The contents of one block."""

    families = ("transactions", "logs", "internalTransactions")

    def _header(self) -> Row:
        block, draw = self._block, Draw(self._seed, self._block.hash, "header")
        return {
            **self._links,
            "txTrieRoot": draw.octets(32).hex(),
            "version": None if draw.chance(0.05) else 35,
            "timestamp": 1000 * block.timestamp,
            "witnessAddress": draw.pick(self._people.producers),
            "witnessSignature": None if block.number == 0 else draw.octets(65).hex(),
        }

    def _fill(self, rows: Rows) -> None:
        for index, key in enumerate(self._keys):
            draw = Draw(key)
            kind = f"{draw.pick(_TYPES)}Contract"
            failed = draw.chance(self._settings.failed_share)
            value = self._value(draw, kind)
            rows["transactions"].append(self._transaction(draw, index, kind, value, failed))
            if kind == "TriggerSmartContract" and not failed:
                rows["logs"] += self._logs(draw, index, value)
                rows["internalTransactions"] += self._internal(draw, index, value)

    def _value(self, draw: Draw, kind: str) -> Row:
        people = self._people
        owner = {"owner_address": draw.pick(people.accounts)}
        if kind == "VoteWitnessContract":
            vote = {"vote_address": draw.pick(people.producers), "vote_count": 1 + draw.below(9)}
            return {"votes": [vote], **owner}
        if kind == "TriggerSmartContract":
            words = "00" * 12 + draw.pick(people.accounts)[2:] + f"{draw.bits(60):064x}"
            return {
                "data": SIGHASH + words if draw.chance(0.9) else draw.octets(3).hex(),
                **owner,
                "contract_address": draw.pick(people.tokens),
            }
        asset = {"asset_name": draw.pick(ASSETS)} if kind == "TransferAssetContract" else {}
        return {
            "amount": 1 + draw.bits(40),
            **asset,
            **owner,
            "to_address": draw.pick(people.accounts),
        }

    def _transaction(self, draw: Draw, index: int, kind: str, value: Row, failed: bool) -> Row:
        sent = 1000 * self._block.timestamp - draw.below(5000)
        is_call = kind == "TriggerSmartContract"
        result = "REVERT" if failed else "SUCCESS"
        return {
            **_NO_TRANSACTION,
            "transactionIndex": index,
            "hash": draw.octets(32).hex(),
            "ret": [{"contractRet": result}],
            "signature": [draw.octets(65).hex()],
            "type": kind,
            "parameter": {"value": value, "type_url": f"type.googleapis.com/protocol.{kind}"},
            "permissionId": 2 if draw.chance(0.1) else None,
            "refBlockBytes": draw.octets(2).hex(),
            "refBlockHash": draw.octets(8).hex(),
            "feeLimit": str(10**6 * (1 + draw.below(100))) if is_call else None,
            "expiration": sent + 60_000,
            "timestamp": sent * 10**6 if draw.chance(0.05) else sent,  # some write nanoseconds
            "rawDataHex": draw.octets(48).hex(),
            "fee": str(draw.bits(24)) if draw.chance(0.5) else None,
            "contractResult": f"{draw.below(2):064x}" if is_call else "",
            "contractAddress": value["contract_address"] if is_call else None,
            "resMessage": b"REVERT opcode executed".hex() if failed and is_call else None,
            "cancelUnfreezeV2Amount": {"BANDWIDTH": "0"} if draw.chance(0.02) else None,
            "result": result if is_call else None,
            "energyFee": str(draw.bits(22)) if is_call else None,
            "energyUsage": str(draw.bits(17)) if is_call else None,
            "energyUsageTotal": str(draw.bits(17)) if is_call else None,
            "netUsage": str(345),
            "energyPenaltyTotal": str(draw.bits(16)) if is_call else None,
        }

    def _logs(self, draw: Draw, index: int, value: Row) -> list[Row]:
        if not value["data"].startswith(SIGHASH):
            return []
        words = ["00" * 12 + value["owner_address"][2:], value["data"][8:72]]
        return [
            {
                "transactionIndex": index,
                "logIndex": at,
                "address": value["contract_address"][2:],
                "data": None if draw.chance(0.02) else value["data"][72:],
                "topics": [TRANSFER, *words],
            }
            for at in range(1 + draw.below(2))
        ]

    def _internal(self, draw: Draw, index: int, value: Row) -> list[Row]:
        return [
            {
                **_NO_INTERNAL,
                "transactionIndex": index,
                "internalTransactionIndex": at,
                "hash": draw.octets(32).hex(),
                "callerAddress": value["contract_address"],
                "transferToAddress": draw.pick(self._people.accounts),
                "callValueInfo": [{"callValue": str(draw.bits(30)), "tokenId": None}],
                "note": b"call".hex(),
                "rejected": True if draw.chance(0.05) else None,
            }
            for at in range(draw.below(3))
        ]
