"""One broker of three has an expired certificate: what the others can do goes on, with a warning."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_kafka_meta.errors import TlsError
from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.kafka.metadata.refresh_events import Origin, Role
from pyspark_kafka_meta.options import SinkOptions
from pyspark_kafka_meta.testing import LocalKafka
from pyspark_kafka_meta.testing.kafka_config import HOST
from pyspark_kafka_meta.write.input_columns import SinkColumns
from pyspark_kafka_meta.write.task_writer import TaskWriter
from tests.kafka.cluster_tools import create_topic
from tests.kafka.harness import Stream

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]

STARTS = 10
"""Addresses are tried in random order."""
HEALTHY, EXPIRED = "of-the-others", "of-the-expired"
VALUE = SinkColumns(key=None, value=0, headers=None, topic=None, partition=None, timestamp=None)


@pytest.fixture(scope="module")
def kafka() -> Iterator[LocalKafka]:
    with LocalKafka(3, security="SSL") as cluster:
        first, *others = cluster.broker_ids
        create_topic(cluster, HEALTHY, [[other, first] for other in others])
        create_topic(cluster, EXPIRED, [[first]])
        expire(cluster, first)
        yield cluster


def expire(cluster: LocalKafka, broker_id: int) -> None:
    """Restart a broker with a certificate that has expired."""
    cluster.stop(broker_id)
    old = cluster._security.authority.issue("broker", [HOST], timedelta(hours=-1))
    (cluster._node(broker_id).folder / "broker.pem").write_text(old.key + old.certificate)
    cluster.start(broker_id)
    cluster.wait_until_up()


def write(kafka: LocalKafka, topic: str, rows: int) -> None:
    sink = SinkOptions.parse(
        {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": topic, **kafka.client_options()}
    )
    with closing(client_without_events(sink.client, Origin(role=Role.WRITER))) as client:
        batch = pa.record_batch([pa.array([b"1"] * rows)], ["value"])
        TaskWriter(client, sink.producer, VALUE, topic).write([batch])


def test_topics_that_other_brokers_lead_are_written_and_read(
    kafka: LocalKafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(STARTS):
        caplog.clear()
        write(kafka, HEALTHY, 5)
        stream = Stream(kafka.bootstrap_servers, [HEALTHY], tmp_path / str(number), **kafka.client_options())
        with closing(stream):
            stream.run_batch()
        assert len(stream.rows) == 5 * (number + 1)
        warnings = [text for text in caplog.messages if "has expired: renew it on the broker. Asking other" in text]
        assert len(warnings) <= 3, "one for each client"


def test_a_topic_that_the_broker_leads_says_why_it_cannot_be_read(kafka: LocalKafka, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(TlsError, match=f"certificate of {kafka.address(kafka.broker_ids[0])} has expired: renew it"):
        Stream(kafka.bootstrap_servers, [EXPIRED], tmp_path, **kafka.client_options())
    assert time.monotonic() - began < 30, "the API timeout is 60 s"
