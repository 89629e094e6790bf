"""Side effects, once their blocks are final: `stream.on_finalized(output, deliver)`.

`deliver` is a function of a list of `Message`s, or one of `webhook(…)` and `kafka(…)`.
"""

from headwater.effects.dead_letters import DeadLetter, dead_letters, replay_dead_letters
from headwater.effects.kafka import kafka
from headwater.effects.message import Message
from headwater.effects.outbox import Outbox, Subscription
from headwater.effects.webhook import verify_signature, webhook

__all__ = [
    "DeadLetter",
    "Message",
    "Outbox",
    "Subscription",
    "dead_letters",
    "kafka",
    "replay_dead_letters",
    "verify_signature",
    "webhook",
]
