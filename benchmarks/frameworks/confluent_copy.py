"""confluent-kafka by hand, as its example `eos-transactions.py`: two processes, each with half of the partitions."""

import multiprocessing
import sys
import time

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

PROCESSES = 2
CONSUME_RECORDS = 10_000
CONSUME_TIMEOUT_S = 0.02


def copy(number: int, servers: str, source: str, target: str, commit_ms: str) -> None:
    """Raises KafkaException: restart the process, which continues from the committed offsets."""
    settings = {"group.id": target, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": servers, "isolation.level": "read_committed", **settings})
    partitions = sorted(consumer.list_topics(source).topics[source].partitions)
    consumer.assign([TopicPartition(source, partition) for partition in partitions[number::PROCESSES]])
    producer = Producer({"bootstrap.servers": servers, "transactional.id": f"{target}-{number}"})
    producer.init_transactions()
    while True:
        producer.begin_transaction()
        commit_at = time.monotonic() + int(commit_ms) / 1000
        while time.monotonic() < commit_at:
            for message in consumer.consume(CONSUME_RECORDS, CONSUME_TIMEOUT_S):
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                while True:
                    try:
                        producer.produce(target, message.value(), message.key())
                        break
                    except BufferError:
                        producer.poll(0.1)
            producer.poll(0)
        offsets = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
        producer.commit_transaction()


if __name__ == "__main__":
    for other in range(1, PROCESSES):
        multiprocessing.Process(target=copy, args=(other, *sys.argv[1:]), daemon=True).start()
    copy(0, *sys.argv[1:])
