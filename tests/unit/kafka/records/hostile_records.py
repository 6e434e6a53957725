"""Decodes record batches of hostile sizes, each in a process of its own with limited memory (RLIMIT_AS).

    python -m tests.unit.kafka.records.hostile_records CASE ...

Prints a line of JSON for each case: its name, and the number of rows or the error.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.kafka.records.compression import Codec
from pyspark_kafka_meta.kafka.records.decoder import decode
from pyspark_kafka_meta.kafka.records.encoder import varints
from tests.unit.kafka.records.handmade import ALL_COLUMNS, COMPRESS, batch_of, fetched, nullable, varint, xerial_snappy

MIB = 1 << 20
CONSTANT_MIB = 128
"""Memory that does not depend on the record batch. Half of it is reused for most batches."""
FEW_RECORDS_MIB = 8
"""The same for a few small records: most of it is of the libraries."""


@dataclass(frozen=True)
class Case:
    """A record batch, and what `decode` does with it.

    Attributes:
        batch: builds the record batch, of `mib` decompressed.
        times: limit of the memory beside `CONSTANT_MIB`, as a multiple of the decompressed size.
        outcome: the number of rows, or the name of the error.
        constant_mib: of the limit.
    """

    batch: Callable[[int], bytes]
    mib: int
    times: float
    outcome: int | str
    constant_mib: int = CONSTANT_MIB


def one_record(key: bytes | None, value: bytes | None, header_count: int, headers: bytes) -> bytes:
    body = b"\x00\x00\x00" + nullable(key) + nullable(value) + varint(header_count) + headers
    return varint(len(body)) + body


def batch(body: bytes, codec: Codec = Codec.ZSTD, records: int = 1) -> bytes:
    return batch_of(COMPRESS[codec](body), attributes=codec, record_count=records, last_offset_delta=records - 1)


def empty_headers(mib: int) -> bytes:
    count = mib * MIB // 2
    return batch(one_record(None, None, count, b"\x00\x01" * count))


def empty_headers_of_many_records(mib: int) -> bytes:
    """Each of 1 MiB."""
    headers = varint(MIB // 2) + b"\x00\x01" * (MIB // 2)
    bodies = [b"\x00\x00" + varint(offset) + b"\x01\x01" + headers for offset in range(mib)]
    return batch(b"".join(varint(len(body)) + body for body in bodies), records=mib)


def tiny_records(mib: int) -> bytes:
    """Of 7 to 10 bytes, with nothing in them."""
    return batch(tiny_records_body(mib * MIB // 10), records=mib * MIB // 10)


def few_records(codec: Codec) -> Callable[[int], bytes]:
    return lambda _: batch(tiny_records_body(100), codec, records=100)


def tiny_records_body(count: int) -> bytes:
    zero, offset = np.zeros(count, np.int64), np.arange(count, dtype=np.int64)
    size = 6 + (offset > 63) + (offset > 8191) + (offset > 1048575)
    return bytes(varints(size, zero, zero, offset, zero - 1, zero - 1, zero).buffers()[2])


def more_records_than_there_are(_: int) -> bytes:
    return batch(tiny_records_body(100), records=2**31 - 1)


def bomb(codec: Codec) -> Callable[[int], bytes]:
    def compressed(mib: int) -> bytes:
        zeros = bytes(MIB)
        if codec is Codec.SNAPPY:
            block = xerial_snappy(zeros, MIB)
            return batch_of(block[:16] + block[16:] * mib, attributes=codec)
        return batch_of(COMPRESS[codec](zeros) * mib, attributes=codec)

    return compressed


def large_value(mib: int) -> bytes:
    return batch(one_record(None, bytes(mib * MIB), 0, b""))


def header_keys(key_bytes: int, byte: bytes) -> Callable[[int], bytes]:
    def batch_of_keys(mib: int) -> bytes:
        count = mib * MIB // key_bytes
        return batch(one_record(None, None, count, (nullable(byte * key_bytes) + nullable(None)) * count))

    return batch_of_keys


CASES = {
    "empty headers": Case(empty_headers, 6, 6, 1),
    "empty headers of many records": Case(empty_headers_of_many_records, 6, 4, 6),
    "tiny records": Case(tiny_records, 10, 3, 10 * MIB // 10),
    "large value": Case(large_value, 70, 4, 1),
    "header keys of 1 MB": Case(header_keys(MIB, b"k"), 20, 4, 1),
    "header keys of 1 MB that are not UTF-8": Case(header_keys(MIB, b"\xff"), 20, 6, 1),
    **{f"few records, {codec.name}": Case(few_records(codec), 0, 0, 100, FEW_RECORDS_MIB) for codec in Codec},
    "more records than there are": Case(more_records_than_there_are, 0, 0, "CorruptBatchError"),
    "ZSTD bomb of 1 GiB": Case(bomb(Codec.ZSTD), 1024, 0.25, "BatchTooLargeError"),
}
"""Some seconds in all."""
SLOW_CASES = {
    "many empty headers": Case(empty_headers, 120, 6, 1),
    "many empty headers of many records": Case(empty_headers_of_many_records, 63, 4, 63),
    "many tiny records": Case(tiny_records, 120, 3, 120 * MIB // 10),
    "larger value": Case(large_value, 250, 3, 1),
    "header key of 250 MB that is not UTF-8": Case(header_keys(250 * MIB, b"\xff"), 250, 7, 1),
    **{
        f"{codec.name} bomb of 1 GiB": Case(bomb(codec), 1024, 0.25, "BatchTooLargeError")
        for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
    },
}


def memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def outcome_of(case: Case) -> int | str:
    part = fetched(case.batch(case.mib))
    limit = memory_bytes() + int((case.times * case.mib + case.constant_mib) * MIB)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        return sum(int(rows.num_rows) for rows in decode([part], ALL_COLUMNS))
    except (KafkaMetaError, MemoryError) as error:
        return type(error).__name__


def main() -> None:
    for name in sys.argv[1:]:
        if (pid := os.fork()) == 0:
            os.write(1, json.dumps([name, outcome_of((CASES | SLOW_CASES)[name])]).encode() + b"\n")
            os._exit(0)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
