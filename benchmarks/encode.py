"""Measures the encoding of Arrow columns to record batches on one core, by value size, batch size and codec.

    python -m benchmarks.encode [CODEC ...]

50,000 rows for 6 partitions are encoded together. Prints M records/s and MB/s of records before compression, from rows
to the bytes of a Produce request: sizes, partitions by key, varints, compression, checksums. Then the size of the
records through the size of the batches, and M records/s with two headers per record. Measures CPU time, which other
processes affect less.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import replace

import numpy as np
import pyarrow as pa

from pyspark_kafka_meta.kafka.records.compression import Codec, Compression
from pyspark_kafka_meta.kafka.records.encoder import Records, encode, record_sizes
from pyspark_kafka_meta.kafka.records.schema import HEADERS_COLUMN, records_arrow_schema
from pyspark_kafka_meta.model import ProducerIdAndEpoch
from pyspark_kafka_meta.write.partitioner import Partitioner, RowTopics

ROWS = 50_000
PARTITIONS = 6
BATCH_BYTES = (16_384, 131_072, 1_000_000)
VALUE_BYTES = (20, 200, 2000)
ROUNDS = 5
PRODUCER = ProducerIdAndEpoch(1, 0)


def make_records(value_bytes: int) -> Records:
    """Values of random words, a tenth shorter or longer than `value_bytes`, under keys of 9 bytes."""
    rng = random.Random(7)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randrange(3, 10))) for _ in range(5000)]
    text = " ".join(rng.choices(words, k=300_000)).encode()
    values = []
    for _ in range(ROWS):
        at = rng.randrange(len(text) - 4096)
        values.append(text[at : at + int(value_bytes * rng.uniform(0.9, 1.1))])
    keys = [b"key-%05d" % rng.randrange(10**5) for _ in range(ROWS)]
    timestamp_ms = 1_700_000_000_000 + np.arange(ROWS) // 100
    return Records(pa.array(keys, pa.binary()), pa.array(values, pa.binary()), None, timestamp_ms)


def with_two_headers(records: Records) -> Records:
    headers = [{"key": "trace", "value": b"12345678"}, {"key": "app", "value": b"shop"}]
    kind = records_arrow_schema([HEADERS_COLUMN]).field(0).type
    return replace(records, headers=pa.array([headers] * ROWS, kind))


def encode_all(records: Records, batch_bytes: int, codec: Codec) -> tuple[int, int]:
    """Returns the bytes of the records before compression, and the bytes of the batches."""
    sizes = record_sizes(records)
    partitioner = Partitioner(False, batch_bytes, random.Random(7))
    topics = RowTopics(["topic-0"], np.zeros(ROWS, np.int32), np.array([PARTITIONS], np.int32))
    partition = partitioner.assign(topics, records, sizes, None, lambda _: range(PARTITIONS))
    batches = encode(records, partition, sizes, batch_bytes, Compression(codec))
    sent_bytes = sum(len(batch.to_bytes(PRODUCER, 0)) for batch in batches)
    return sum(batch.records_bytes for batch in batches), sent_bytes


def records_per_s(records: Records, batch_bytes: int, codec: Codec) -> float:
    best_s = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        encode_all(records, batch_bytes, codec)
        best_s = min(best_s, time.process_time() - start)
    return ROWS / best_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [codec.name.lower() for codec in Codec]
    parser.add_argument("codecs", nargs="*", metavar="CODEC", help=f"of {', '.join(names)}", default=names)
    codecs = [Codec[name.upper()] for name in parser.parse_args().codecs]
    print(f"{'value':>7} {'batch':>9} {'codec':>7} {'M/s':>8} {'MB/s':>6} {'ratio':>6} {'headers M/s':>12}")
    for value_bytes in VALUE_BYTES:
        records = make_records(value_bytes)
        with_headers = with_two_headers(records)
        for batch_bytes in BATCH_BYTES:
            for codec in codecs:
                rate = records_per_s(records, batch_bytes, codec)
                headers_rate = records_per_s(with_headers, batch_bytes, codec)
                records_bytes, sent_bytes = encode_all(records, batch_bytes, codec)
                mb_per_s = rate * records_bytes / ROWS / 1e6
                print(
                    f"{value_bytes:5} B {batch_bytes // 1000:6} kB {codec.name:>7} {rate / 1e6:8.2f} {mb_per_s:6.0f} "
                    f"{records_bytes / sent_bytes:6.2f} {headers_rate / 1e6:12.2f}"
                )


if __name__ == "__main__":
    main()
