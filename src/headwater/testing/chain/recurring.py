"""What names the transactions of a simulated block: some by the block, some by its height.

Those of the height are in every block that ever stands there, mostly at another place: a real
chain includes again what a replaced block held.
"""

from __future__ import annotations

from hashlib import blake2b

from headwater.testing.chain.draw import Draw
from headwater.testing.chain.settings import ContentSettings
from headwater.testing.chain.tree import SimBlock


def transaction_keys(seed: int, block: SimBlock, settings: ContentSettings) -> list[str]:
    """Return a key for each transaction, in block order."""
    average, share = settings.transactions_per_block, settings.recurring_share
    own, recurring = f"{seed}/{block.hash}", f"{seed}/{block.number}"
    keys = [
        f"{name}/{index}"
        for name, part in ((own, average * (1 - share)), (recurring, average * share))
        for index in range(Draw(name, "count").count(part))
    ]
    salt = block.hash.encode()
    return sorted(keys, key=lambda key: blake2b(key.encode() + salt).digest())
