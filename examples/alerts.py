"""Side effects that cannot be taken back: delivered once their block is final, at least once."""

from headwater import duckdb_target, evm, portal_stream
from headwater.testing import simulated_portal

sent = {}


def send(messages):  # a webhook or Kafka: headwater.effects
    for message in messages:
        sent[message.key] = message.block_number  # the key never changes: twice is harmless


with simulated_portal(seed=7, blocks=60, finality_depth=20) as portal:
    outputs = {"transfers": evm.events("erc20.Transfer", range=(0, 59))}
    stream = portal_stream(id="alerts", portal=portal.url, outputs=outputs)
    stream.on_finalized("transfers", send).pipe_to(duckdb_target("alerts.duckdb"))
    final = portal.chain.finalized.number
    assert max(sent.values()) <= final
    print(f"{len(sent)} messages of blocks up to {final}; the rest waits until it is final")
