"""Frames before encoded values."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pyspark_kafka_meta.typed.formats import Fault
from pyspark_kafka_meta.typed.framing import unframe


@pytest.mark.parametrize("id_bytes", [4, 8])
def test_ids_and_payloads_of_a_column(id_bytes: int) -> None:
    frames = [b"\0" + schema_id.to_bytes(id_bytes, "big") for schema_id in (7, 2**31 - 1, 7)]
    values = pa.array([frames[0] + b"a", None, frames[1], frames[2] + b"bcd"], pa.binary())

    unframed = unframe(values, id_bytes)

    assert unframed.rows.tolist() == [0, 2, 3]
    assert unframed.schema_ids.tolist() == [7, 2**31 - 1, 7]
    assert unframed.payloads.to_pylist() == [b"a", b"", b"bcd"]
    assert unframed.payloads.type == pa.binary()
    assert unframed.faults == []


def test_a_value_without_a_frame_is_a_fault() -> None:
    values = pa.array([b"\0\0\0\0\7a", b'{"json": true}', b"\0\0\0\0", b"", None, b"\0\xff\xff\xff\xfe"], pa.binary())

    unframed = unframe(values, 4)

    assert unframed.faults == [
        Fault(1, "no frame: its first byte is not 0"),
        Fault(2, "no frame: 4 bytes are shorter than a frame of 5 bytes"),
        Fault(3, "no frame: 0 bytes are shorter than a frame of 5 bytes"),
        Fault(5, "no frame: its schema id is negative"),
    ]
    assert unframed.rows.tolist() == [0]


@pytest.mark.parametrize("values", [[], [None, None]])
def test_a_column_without_values(values: list[None]) -> None:
    unframed = unframe(pa.array(values, pa.binary()), 4)

    assert unframed.payloads.to_pylist() == []
    assert unframed.faults == []


def test_a_slice_of_a_column() -> None:
    values = pa.array([b"x" * 9, b"\0\0\0\0\7a", b"\0\0\0\0\10b", b"y"], pa.binary())[1:3]

    unframed = unframe(values, 4)

    assert unframed.schema_ids.tolist() == [7, 8]
    assert unframed.payloads.to_pylist() == [b"a", b"b"]
