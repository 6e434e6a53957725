"""Damaged values are faults, or decode as with fastavro; their neighbours stay right, and memory stays bounded."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from random import Random

import pyarrow as pa
import pytest
from fastavro.read import SchemaResolutionError

from pyspark_kafka_meta.typed.avro.decoder import avro_decoder
from pyspark_kafka_meta.typed.avro.schema import parse_avro
from pyspark_kafka_meta.typed.formats import Decoded, ValueDecoder
from tests.budget import cases
from tests.unit.typed.avro.pairs import SchemaPair, read_with_fastavro, same
from tests.unit.typed.avro.written import long

MUTATIONS_OF_A_PAIR = 100
BASE_BYTES = 4_000_000
BYTES_OF_A_BYTE = 2_000
"""Memory for each byte of the input, in any of the random schemas."""
POOLS: list[pa.MemoryPool] = []
"""Arrays must not outlive the pool that they are allocated from."""
FAULTS_OF_FASTAVRO = (EOFError, IndexError, SchemaResolutionError)


def mutated(payload: bytes, random: Random) -> bytes:
    at = random.randrange(len(payload) + 1)
    match random.randrange(6):
        case 0:
            return payload[:at]
        case 1:
            return payload + random.randbytes(random.randint(1, 3))
        case 2:
            number = random.choice((-1, 2**31 - 1, -(2**31), 2**62, -(2**63), random.getrandbits(20)))
            return payload[:at] + long(number) + payload[at + 1 :]
        case 3:
            return payload[:at] + b"\xff" * random.randint(1, 12) + payload[at:]
        case 4:
            return payload[:at] + payload[at + 1 :]
    return payload[:at] + random.randbytes(1) + payload[at + 1 :]


def decoded_within_bounds(decoder: ValueDecoder, payloads: list[bytes]) -> Decoded:
    given = pa.array(payloads, pa.binary())
    usual_pool = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual_pool)
    POOLS.append(pool)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        decoded = decoder.decode(given)
        peak = tracemalloc.get_traced_memory()[1] + pool.max_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual_pool)
    assert peak < BASE_BYTES + BYTES_OF_A_BYTE * sum(map(len, payloads))
    return decoded


def problems(seed: int) -> Iterator[str]:
    """What is wrong after some values of a pair were damaged."""
    pair, random = SchemaPair(seed), Random(seed)
    decoder = avro_decoder(parse_avro(json.dumps(pair.writer)), parse_avro(json.dumps(pair.reader)))
    intact = [pair.payload() for _ in range(MUTATIONS_OF_A_PAIR)]
    damaged = [mutated(payload, random) for payload in intact]
    expected = decoder.decode(pa.array(intact, pa.binary()))
    decoded = decoded_within_bounds(decoder, [each for both in zip(intact, damaged, strict=True) for each in both])
    faults = {fault.row for fault in decoded.faults}
    if not decoded.values.take(list(range(0, 2 * len(intact), 2))).equals(expected.values):
        yield f"seed {seed}: an intact value has changed"
    if {row // 2 for row in faults if row % 2 == 0} != {fault.row for fault in expected.faults}:
        yield f"seed {seed}: an intact value has become a fault"
    for row in range(1, 2 * len(intact), 2):
        if row not in faults and not decodes_as_fastavro(damaged[row // 2], decoded.values[row], pair):
            yield f"seed {seed}, value {row}: {damaged[row // 2]!r} is no fault"


def decodes_as_fastavro(payload: bytes, ours: pa.Scalar, pair: SchemaPair) -> bool:
    try:
        theirs = read_with_fastavro(payload, pair.writer, pair.reader)
        return same(ours.as_py(), theirs, pair.reader)
    except FAULTS_OF_FASTAVRO:
        return False
    except (ValueError, OverflowError):  # not in Python's date, time or uuid; or a string that becomes bytes, not UTF-8
        return True


@pytest.mark.budget
@pytest.mark.timeout(1200)
def test_damaged_values_are_faults_or_decode_as_with_fastavro() -> None:
    assert [problem for seed in range(cases(5, 20, 1_000)) for problem in problems(seed)] == []
