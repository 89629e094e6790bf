"""Token transfers and balances of an EVM chain, read from its node, in PostgreSQL.

NODE=rpc+http://localhost:8545 DATABASE_URL=postgresql://localhost/chain headwater run pipeline.py
"""

import os

from headwater import aggregate, evm, portal_stream
from headwater.targets import postgres_target

came = aggregate(
    "balances",
    source="transfers",
    keys={"token": "address", "owner": "to"},
    add={"amount": "value"},
)
went = aggregate(
    "balances",
    source="transfers",
    keys={"token": "address", "owner": "from"},
    sub={"amount": "value"},
)
first = int(os.environ.get("FIRST_BLOCK", "0"))

stream = portal_stream(
    id="tokens",
    portal=os.environ[
        "NODE"
    ],  # several nodes and portals, with spaces between, take over from each other
    outputs={"transfers": evm.events("erc20.Transfer", range=first)},
    poll_interval_s=0.05,
)
target = postgres_target(os.environ["DATABASE_URL"], aggregates=[came, went])
