"""Decoded values are those of fastavro, for random pairs of writer's and reader's schemas."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafka_meta.typed.avro import decoder as decoders
from pyspark_kafka_meta.typed.avro import items as avro_items
from pyspark_kafka_meta.typed.avro.decoder import avro_decoder
from pyspark_kafka_meta.typed.avro.schema import arrow_type, parse_avro
from tests.budget import cases
from tests.unit.typed.avro.pairs import SchemaPair, read_with_fastavro, same

VALUES = 100


def differences(seed: int) -> tuple[list[str], int]:
    """What differs from fastavro for a pair, and the number of faults that both have."""
    pair = SchemaPair(seed)
    payloads = [pair.payload() for _ in range(VALUES)]
    reader = parse_avro(json.dumps(pair.reader))
    decoder = avro_decoder(parse_avro(json.dumps(pair.writer)), reader)
    decoded = decoder.decode(pa.array(payloads, pa.binary()))
    decoded.values.validate(full=True)
    assert decoded.values.type == decoder.type == arrow_type(reader)
    faults = {fault.row: fault.cause for fault in decoded.faults}
    found = []
    for row, (payload, ours) in enumerate(zip(payloads, decoded.values.to_pylist(), strict=True)):
        theirs = expected(payload, pair)
        if isinstance(theirs, Exception) != (row in faults) or (
            row not in faults and not same(ours, theirs, pair.reader)
        ):
            found.append(f"seed {seed}, row {row}: {faults.get(row, ours)} is not {theirs!r}")
        if row in faults:
            assert ours is None
    return found, len(faults)


def expected(payload: bytes, pair: SchemaPair) -> Any:
    try:
        return read_with_fastavro(payload, pair.writer, pair.reader)
    except Exception as error:
        return error


@pytest.mark.budget
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("few", [0, 24, 1000], ids=["arrays together", "as usual", "arrays one by one"])
def test_values_are_those_of_fastavro(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_items, "FEW", few)
    monkeypatch.setattr(decoders, "CHUNK_ROWS", 64)

    results = [differences(seed) for seed in range(few, few + cases(10, 34, 700))]

    assert [difference for found, _ in results for difference in found] == []
    assert sum(faults for _, faults in results) < 0.2 * VALUES * len(results)
