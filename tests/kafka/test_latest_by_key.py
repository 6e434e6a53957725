"""The latest record of each key of a real topic, while a transactional producer writes and the topic is compacted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_kafka_meta.testing import LocalKafka
from tests.kafka.changing_keys import BROKER_CONFIG, read_while_written

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalKafka]:
    with LocalKafka(1, config=BROKER_CONFIG) as cluster:
        yield cluster


def test_no_key_is_older_missing_or_twice_while_its_topic_is_written_and_compacted(cluster: LocalKafka) -> None:
    """In tables that are read meanwhile, and in a stream that begins with the latest records; and at the end both are
    equal to what was written."""
    read_while_written(cluster, 30_000)
