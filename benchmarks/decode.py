"""Measures the decoding of fetched bytes to Arrow on one core, by value size, batch size and codec, and of envelopes.

    python -m benchmarks.decode [--changes] [CODEC ...]

With --changes it measures keys and values with Debezium's envelopes, as typed values alone and as changes, by turns:
thousands of records/s, and the ratio. A tenth of the changes are deletes with tombstones. Else it prints M records/s
and MB/s of decompressed records for all columns but the headers, then M records/s for the value column alone, and for
all columns with two headers per record. Measures CPU time, which other processes affect less.
"""

from __future__ import annotations

import argparse
import random
import statistics
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

import cramjam
from crc32c import crc32c

from benchmarks.envelopes import ENCODINGS, Encoding, changes, options_of, raw_batch
from pyspark_kafka_meta.arrow_reader import schemas_of
from pyspark_kafka_meta.changes.rows import change_rows
from pyspark_kafka_meta.changes.schema import changes_schema
from pyspark_kafka_meta.kafka.records.batches import read_batch_headers
from pyspark_kafka_meta.kafka.records.compression import Codec
from pyspark_kafka_meta.kafka.records.decoder import FetchedRecords, decode
from pyspark_kafka_meta.kafka.records.reusable_buffer import ReusableBuffer
from pyspark_kafka_meta.kafka.records.schema import HEADERS_COLUMN, RECORD_COLUMNS
from pyspark_kafka_meta.model import OffsetRange, TopicPartition
from pyspark_kafka_meta.testing import MockRegistry
from pyspark_kafka_meta.typed.reading import typed_rows

FETCH_BYTES = 8 * 1024 * 1024
BATCH_BYTES = (16_384, 131_072, 1_000_000)
VALUE_BYTES = (20, 200, 2000)
ROUNDS = 5
ENVELOPES = 20_000


@dataclass(frozen=True, slots=True)
class Fetch:
    """The fetched bytes of one partition, with the count and size of its records."""

    records: bytes
    count: int
    decompressed_bytes: int


def varint(number: int) -> bytes:
    raw = number << 1
    encoded = bytearray()
    while raw > 0x7F:
        encoded.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes((*encoded, raw))


def compress(codec: Codec, data: bytes) -> bytes:
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(data))
        case Codec.SNAPPY:
            return bytes(cramjam.snappy.compress_raw(data))
        case Codec.LZ4:
            return lz4_frame(data)
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data))


def lz4_frame(data: bytes) -> bytes:
    """Independent blocks of 64 KiB, as from Kafka's clients."""
    frame = [b"\x04\x22\x4d\x18\x60\x40\x82"]
    for at in range(0, len(data), 65536):
        block = bytes(cramjam.lz4.compress_block(data[at : at + 65536], store_size=False))
        frame += [struct.pack("<I", len(block)), block]
    return b"".join([*frame, bytes(4)])


def make_fetch(value_bytes: int, batch_bytes: int, codec: Codec, headers: bytes = b"\x00") -> Fetch:
    """Values of random words, a tenth shorter or longer than `value_bytes`, under keys of 10 bytes."""
    rng = random.Random(7)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randrange(3, 10))) for _ in range(5000)]
    text = " ".join(rng.choices(words, k=300_000)).encode()
    batches, count, size = [], 0, 0
    while size < FETCH_BYTES:
        records, in_batch, taken = [], 0, 0
        while taken < batch_bytes:
            at, length = rng.randrange(len(text) - 4096), int(value_bytes * rng.uniform(0.9, 1.1))
            key, value = b"key-%06d" % rng.randrange(10**6), text[at : at + length]
            body = b"".join((b"\x00", varint(in_batch // 10), varint(in_batch), varint(len(key)), key))
            body = b"".join((body, varint(len(value)), value, headers))
            records.append(varint(len(body)) + body)
            taken += len(records[-1])
            in_batch += 1
        batches.append(make_batch(count, in_batch, codec, compress(codec, b"".join(records))))
        count, size = count + in_batch, size + taken
    return Fetch(b"".join(batches), count, size)


def make_batch(base_offset: int, count: int, codec: Codec, data: bytes) -> bytes:
    now_ms = 1_700_000_000_000
    covered = struct.pack(">hiqqqhii", codec, count - 1, now_ms, now_ms + count, -1, -1, -1, count) + data
    return struct.pack(">qiibI", base_offset, len(covered) + 9, 0, 2, crc32c(covered)) + covered


def records_per_s(fetch: Fetch, columns: Sequence[str]) -> float:
    best_s = float("inf")
    memory = ReusableBuffer()
    for _ in range(ROUNDS):
        start = time.process_time()
        part = FetchedRecords(
            TopicPartition("topic-0", 0), fetch.records, read_batch_headers(fetch.records), 0, fetch.count
        )
        rows = sum(batch.num_rows for batch in decode([part], columns, memory=memory))
        best_s = min(best_s, time.process_time() - start)
        assert rows == fetch.count
    return fetch.count / best_s


def changes_rates(encoding: Encoding) -> tuple[float, float]:
    """Records per second as typed values, and as changes: medians."""
    given = list(changes(3, ENVELOPES))
    with MockRegistry() as registry:
        options, (key_frame, value_frame) = options_of(encoding, registry)
        assert options.changes is not None
        schemas, ranges = schemas_of(options, lambda *_: []), [OffsetRange(TopicPartition("t", 0), None, 0, 1)]
        keys, values = encoding.encode(given)
        keys, framed = [key_frame + key for key in keys], [value and value_frame + value for value in values]
        names = changes_schema(schemas, options.changes).type.names
        with (
            typed_rows(schemas, (), ["key", "value", "topic", "partition", "offset"], lambda _: None) as typed,
            change_rows(schemas, options.changes, ranges, (), names, lambda _: None, lambda *_: None) as rows,
        ):
            both = [(each.convert, raw_batch(each.raw_columns, keys, framed)) for each in (typed, rows)]
            seconds: list[list[float]] = [[], []]
            for _ in range(ROUNDS):
                for (convert, batch), taken in zip(both, seconds, strict=True):
                    start = time.process_time()
                    convert(batch)
                    taken.append(time.process_time() - start)
    typed_s, changes_s = map(statistics.median, seconds)
    return len(given) / typed_s, len(given) / changes_s


def measure_changes() -> None:
    print(f"{'format':>12} {'typed k/s':>10} {'changes k/s':>12} {'ratio':>6}")
    for name, encoding in ENCODINGS.items():
        typed, rows = changes_rates(encoding())
        print(f"{name:>12} {typed / 1e3:10.0f} {rows / 1e3:12.0f} {rows / typed:6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [codec.name.lower() for codec in Codec]
    parser.add_argument("codecs", nargs="*", metavar="CODEC", help=f"of {', '.join(names)}", default=names)
    parser.add_argument("--changes", action="store_true", help="of databases, by format")
    arguments = parser.parse_args()
    if arguments.changes:
        measure_changes()
        return
    codecs = [Codec[name.upper()] for name in arguments.codecs]
    two_headers = b"\x04" + varint(5) + b"trace" + varint(8) + b"12345678" + varint(3) + b"app" + varint(4) + b"shop"
    print(f"{'value':>7} {'batch':>9} {'codec':>7} {'all M/s':>8} {'MB/s':>6} {'value M/s':>10} {'headers M/s':>12}")
    for value_bytes in VALUE_BYTES:
        for batch_bytes in BATCH_BYTES:
            for codec in codecs:
                fetch = make_fetch(value_bytes, batch_bytes, codec)
                with_headers = make_fetch(value_bytes, batch_bytes, codec, two_headers)
                rate = records_per_s(fetch, RECORD_COLUMNS)
                value_rate = records_per_s(fetch, ["value"])
                headers_rate = records_per_s(with_headers, (*RECORD_COLUMNS, HEADERS_COLUMN))
                mb_per_s = rate * fetch.decompressed_bytes / fetch.count / 1e6
                print(
                    f"{value_bytes:5} B {batch_bytes // 1000:6} kB {codec.name:>7} {rate / 1e6:8.2f} {mb_per_s:6.0f} "
                    f"{value_rate / 1e6:10.2f} {headers_rate / 1e6:12.2f}"
                )


if __name__ == "__main__":
    main()
