"""Partitions that many tests are about."""

from __future__ import annotations

from pyspark_kafka_meta.model import TopicPartition

T0, T1, T2, T3 = (TopicPartition("t", number) for number in range(4))
U0 = TopicPartition("u", 0)
