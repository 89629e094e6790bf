"""Kafka, with the real library against the mock cluster that librdkafka brings along."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headwater.effects import Message, kafka
from headwater.errors import (
    DeliveryError,
    DeliveryRefusedError,
    InvalidOptionError,
    MissingExtraError,
)
from tests.effects.samples import message, messages
from tests.shared import HANG_S

TOPIC = "transfers"


@pytest.fixture
def brokers() -> Iterator[str]:
    """A cluster in memory, reached over real sockets; it lives as long as its owner."""
    owner = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 3})
    listed = owner.list_topics(timeout=HANG_S).brokers.values()
    yield ",".join(f"{one.host}:{one.port}" for one in listed)
    owner.flush(1)


def consumed(brokers: str, count: int) -> list[Any]:
    """Read records of all partitions, in the order of each."""
    consumer = Consumer(
        {"bootstrap.servers": brokers, "group.id": "test", "auto.offset.reset": "earliest"}
    )
    try:
        partitions = consumer.list_topics(TOPIC, timeout=HANG_S).topics[TOPIC].partitions
        consumer.assign([TopicPartition(TOPIC, one, 0) for one in partitions])
        found: list[Any] = []
        while len(found) < count:
            record = consumer.poll(HANG_S)
            assert record is not None, f"only {len(found)} records came"
            assert record.error() is None
            found.append(record)
        assert consumer.poll(0.2) is None, "more came than were sent"
        return found
    finally:
        consumer.close()


def test_messages_are_confirmed_in_order_with_their_keys(brokers: str) -> None:
    deliver = kafka(TOPIC, {"bootstrap.servers": brokers})
    deliver(messages(150))
    found = consumed(brokers, 150)  # they are there as soon as the call returns
    deliver.close()
    assert [json.loads(one.value())["key"] for one in found] == [one.key for one in messages(150)]
    assert [dict(one.headers())["idempotency-key"].decode() for one in found] == [
        one.key for one in messages(150)
    ]
    assert len({one.partition() for one in found}) == 1
    assert {one.key() for one in found} == {b"one/transfers"}


def test_a_partition_key_of_ones_own(brokers: str) -> None:
    deliver = kafka(TOPIC, {"bootstrap.servers": brokers}, key=lambda one: str(one.block_number))
    deliver(messages(20))
    deliver.close()
    deliver(messages(1))  # a closed one opens again
    deliver.close()
    found = consumed(brokers, 21)
    assert len({one.partition() for one in found}) > 1
    assert {one.key().decode() for one in found} == {str(one + 1) for one in range(20)}


def test_brokers_that_cannot_be_reached_mean_later() -> None:
    deliver = kafka(TOPIC, {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, timeout_s=0.3)
    with pytest.raises(DeliveryError, match=r"E7003.*topic=transfers"):
        deliver(messages(2))
    deliver.close()


def test_a_message_that_is_too_large_is_refused_for_good(brokers: str) -> None:
    deliver = kafka(TOPIC, {"bootstrap.servers": brokers, "message.max.bytes": 2000})
    large: Message = message(payload=json.dumps({"value": "x" * 5000}))
    with pytest.raises(DeliveryRefusedError, match="MSG_SIZE_TOO_LARGE"):
        deliver([large])
    deliver.close()


def test_more_messages_than_the_producer_queues_wait_for_room(brokers: str) -> None:
    deliver = kafka(TOPIC, {"bootstrap.servers": brokers, "queue.buffering.max.messages": 10})
    deliver(messages(100))
    found = consumed(brokers, 100)
    deliver.close()
    assert [json.loads(one.value())["block"]["number"] for one in found] == [*range(1, 101)]


def test_what_cannot_work_is_refused_and_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidOptionError):
        kafka("", {"bootstrap.servers": "b"})
    with pytest.raises(InvalidOptionError, match=r"enable\.idempotence"):
        kafka(TOPIC, {"bootstrap.servers": "b", "enable.idempotence": False})
    assert "hidden" not in repr(kafka(TOPIC, {"sasl.password": "hidden"}))
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(MissingExtraError, match=r"headwater\[kafka\]"):
        kafka(TOPIC, {"bootstrap.servers": "b"})
