"""A consumer as a process of its own, for tests that kill it: prints what it was given and what it read.

Arguments: bootstrap servers, group, topic, and librdkafka settings as KEY=VALUE. Lines: `assigned P…`, `revoked P…`,
`read PARTITION OFFSET`. It commits after every record it has printed, so a record may be seen twice, never lost.
"""

import sys

from confluent_kafka import Consumer, KafkaException, TopicPartition


def say(*words: object) -> None:
    print(*words, flush=True)


def main(bootstrap: str, group: str, topic: str, *settings: str) -> None:
    extra = dict(setting.split("=", 1) for setting in settings)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
            **extra,
        }
    )

    def show(what: str) -> object:
        def on_change(_: Consumer, partitions: list[TopicPartition]) -> None:
            say(what, *sorted(each.partition for each in partitions))

        return on_change

    consumer.subscribe([topic], on_assign=show("assigned"), on_revoke=show("revoked"))  # type: ignore[arg-type]  # object: a closure
    while True:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            say("read", message.partition(), message.offset())
            try:
                consumer.commit(message=message, asynchronous=False)
            except KafkaException as error:
                say("refused", error.args[0].name())


if __name__ == "__main__":
    main(*sys.argv[1:])
