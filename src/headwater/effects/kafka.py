"""Delivery to Kafka: an idempotent producer, and every message confirmed before it is settled.

Needs the extra `kafka` (confluent-kafka).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from headwater.address import Secret
from headwater.core.callbacks import Callback
from headwater.effects.message import Message
from headwater.errors import (
    DeliveryError,
    DeliveryRefusedError,
    InvalidOptionError,
    MissingExtraError,
)

KEY = "idempotency-key"
_FOR_GOOD = ("MSG_SIZE_TOO_LARGE", "INVALID_MSG", "INVALID_RECORD")
PartitionKey = Callable[[Message], str]


def kafka(
    topic: str,
    config: Mapping[str, Any],
    *,
    key: PartitionKey | None = None,
    timeout_s: float = 30.0,
) -> Kafka:
    """Return a deliverer for `on_finalized` that produces messages to a topic.

    Each value is the message as JSON, with its idempotency key in the header `idempotency-key`.

    Args:
        topic: where to.
        config: of the producer, as confluent-kafka takes it: at least `bootstrap.servers`.
        key: the key of the record, by which Kafka chooses a partition. Left out, all messages of an
            output have the same, so they stay in one partition and in order. A key of your own,
            such as an account, keeps the order of each account.
        timeout_s: how long the confirmation of a batch may take.
    """
    if not isinstance(topic, str) or not topic or not config:
        raise InvalidOptionError("kafka needs a topic and the configuration of a producer")
    if config.get("enable.idempotence") is False:
        raise InvalidOptionError("without enable.idempotence the order of messages can be lost")
    try:
        library = import_module("confluent_kafka")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "kafka needs the package confluent-kafka: pip install 'headwater[kafka]'"
        ) from error
    return Kafka(library, topic, config, Callback("key", key or _by_output, "message"), timeout_s)


class Kafka:
    """Made by `kafka`. Called by the courier, in its thread; it may be used again after `close`."""

    def __init__(
        self,
        library: Any,
        topic: str,
        config: Mapping[str, Any],
        key: PartitionKey,
        timeout_s: float,
    ) -> None:
        self._library = library
        self._topic = topic
        self._key = key
        self._timeout_s = timeout_s
        wanted = {"message.timeout.ms": int(timeout_s * 1000), **config, "enable.idempotence": True}
        self._config = Secret(wanted)  # with passwords and keys
        self._producer: Any = None

    def __call__(self, messages: Sequence[Message]) -> None:
        """Produce a batch, and wait until the brokers have confirmed all of it.

        Raises:
            DeliveryRefusedError: a message can never be stored.
            DeliveryError: not all were confirmed.
        """
        errors: list[Any] = []
        unconfirmed = len(messages)

        def confirmed(error: Any, record: Any) -> None:
            nonlocal unconfirmed
            if error is None:
                unconfirmed -= 1
            else:
                errors.append(error)

        try:
            if self._producer is None:
                self._producer = self._library.Producer(self._config.reveal())
            for message in messages:
                self._produce(message, confirmed)
            self._producer.flush(self._timeout_s)
        except self._library.KafkaException as error:
            errors.append(error.args[0])
        if errors or unconfirmed:
            self.close()
            self._raise(errors, unconfirmed)

    def close(self) -> None:
        """Let go of the producer, and of what is under way: it must not be sent later."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            producer.poll(0)

    def __repr__(self) -> str:
        return f"kafka({self._topic})"

    def _produce(self, message: Message, confirmed: Callable[[Any, Any], None]) -> None:
        value, headers = message.to_json().encode(), {KEY: message.key}
        while True:
            try:
                self._producer.produce(
                    self._topic, value, self._key(message), on_delivery=confirmed, headers=headers
                )
            except BufferError:
                if self._producer.flush(self._timeout_s):  # full: room comes with confirmations
                    return  # it counts as not confirmed
                continue
            self._producer.poll(0)
            return

    def _raise(self, errors: Sequence[Any], unconfirmed: int) -> None:
        names = sorted({error.name() for error in errors})
        reason = ", ".join(names) or f"{unconfirmed} messages were not confirmed in time"
        if any(name in _FOR_GOOD for name in names):
            raise DeliveryRefusedError("Kafka refuses messages", topic=self._topic, reason=reason)
        raise DeliveryError("Kafka did not take messages", topic=self._topic, reason=reason)


def _by_output(message: Message) -> str:
    return f"{message.stream}/{message.output}"
