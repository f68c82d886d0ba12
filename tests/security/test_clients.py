"""Stock clients over every mechanism and protocol, and what they are told when they are wrong."""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError
from confluent_kafka import Consumer, KafkaError, Producer
from kafka import KafkaConsumer, KafkaProducer

from tests.security.secured import MECHANISMS, PROTOCOLS, Secured

WAYS = [(protocol, mechanism) for protocol in PROTOCOLS for mechanism in MECHANISMS]


@pytest.mark.parametrize(("protocol", "mechanism"), [*WAYS, ("ONEWAY", None), ("SSL", None)])
def test_librdkafka(secured: Secured, protocol: str, mechanism: str | None) -> None:
    topic = secured.new_topic()
    settings = secured.confluent(protocol, mechanism)
    if protocol == "SSL":
        settings |= {"ssl.certificate.location": secured.client_file, "ssl.key.location": secured.client_file}
    producer = Producer(settings)
    producer.produce(topic, b"x" * 300_000)
    assert producer.flush(10) == 0
    consumer = Consumer(settings | {"group.id": topic, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        message = consumer.poll(15)
        assert message is not None
        assert message.error() is None
        assert message.value() == b"x" * 300_000
    finally:
        consumer.close()


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_kafka_python(secured: Secured, protocol: str, mechanism: str) -> None:
    topic = secured.new_topic()
    user, password = secured.credentials(mechanism)
    settings = {
        "bootstrap_servers": secured.address(protocol),
        "security_protocol": protocol,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
        "ssl_cafile": secured.ca_file,
    }
    producer = KafkaProducer(**settings)
    producer.send(topic, b"hello").get(10)
    producer.close()
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=10_000, **settings)
    assert next(consumer).value == b"hello"
    consumer.close()


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_aiokafka(secured: Secured, protocol: str, mechanism: str) -> None:
    topic = secured.new_topic()
    user, password = secured.credentials(mechanism)

    async def go() -> None:
        settings = {
            "bootstrap_servers": secured.address(protocol),
            "security_protocol": protocol,
            "sasl_mechanism": mechanism,
            "sasl_plain_username": user,
            "sasl_plain_password": password,
            "ssl_context": ssl.create_default_context(cafile=secured.ca_file),
        }
        async with AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait(topic, b"ahoj")
        async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **settings) as consumer:
            assert (await asyncio.wait_for(consumer.getone(), 10)).value == b"ahoj"

    asyncio.run(go())


def first_error(settings: dict[str, Any]) -> KafkaError:
    """The first thing that librdkafka complains about."""
    errors: list[KafkaError] = []
    producer = Producer(settings | {"error_cb": errors.append, "log_level": 0})
    deadline = time.monotonic() + 10
    while not errors:
        assert time.monotonic() < deadline, "nobody complained"
        producer.poll(0.1)
    return errors[0]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", ["alice", "carol", "nobody"])
def test_librdkafka_is_told_that_its_credentials_are_wrong(secured: Secured, mechanism: str, user: str) -> None:
    settings = secured.confluent("SASL_PLAINTEXT", mechanism) | {"sasl.username": user, "sasl.password": "wrong"}
    error = first_error(settings)
    assert error.code() == KafkaError._AUTHENTICATION
    assert ("Invalid username or password" if mechanism == "PLAIN" else "invalid credentials") in error.str()


def test_aiokafka_is_told_too(secured: Secured) -> None:
    async def go() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=secured.address("SASL_PLAINTEXT"),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_plain_username="alice",
            sasl_plain_password="wrong",
        )
        try:
            with pytest.raises(KafkaConnectionError):
                await producer.start()
        finally:
            await producer.stop()

    asyncio.run(go())


def test_a_listener_that_requires_a_certificate_refuses_who_has_none(secured: Secured) -> None:
    assert "certificate required" in first_error(secured.confluent("SSL")).str()
