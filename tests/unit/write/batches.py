"""Encoded record batches with short values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pyspark_kafka_meta.kafka.records.compression import Codec, Compression
from pyspark_kafka_meta.kafka.records.encoder import EncodedBatch, Records, encode, record_sizes


def records(count: int) -> Records:
    """Records without keys, whose values are their numbers."""
    values = pa.array([str(number).encode() for number in range(count)], pa.binary())
    return Records(pa.nulls(count, pa.binary()), values, None, np.zeros(count, np.int64))


def encoded_batch(count: int) -> EncodedBatch:
    rows = records(count)
    (batch,) = encode(rows, np.zeros(count, np.int32), record_sizes(rows), 1_000_000, Compression(Codec.NONE, None))
    return batch
