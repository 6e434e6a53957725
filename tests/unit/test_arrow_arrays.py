"""What every release of Arrow since 18 does with arrays, and what some do wrong."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from pyspark_kafka_meta.arrow_arrays import list_array, null_unless

OFFSETS = pa.py_buffer(np.array([0, 2], np.int32))


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.struct([("a", pa.string())])])
def test_values_of_a_slice_become_null(kind: pa.DataType) -> None:
    texts = ["first", "second", None, "third", "fourth"]
    given = pa.array([{"a": text} for text in texts] if pa.types.is_struct(kind) else texts, kind)
    found = null_unless(np.array([True, False, True, True]), given[1:])

    found.validate(full=True)
    assert found.to_pylist() == [given[1].as_py(), None, given[3].as_py(), given[4].as_py()]


def uncounted() -> pa.StructArray:
    """Entries of which Arrow has not counted the null keys: there are none."""
    keys = pa.Array.from_buffers(pa.string(), 2, pa.array(["a", "b", None]).buffers())
    return pa.StructArray.from_arrays([keys, pa.array([1, 2])], ["key", "value"])


def test_entries_become_a_map(request: pytest.FixtureRequest) -> None:
    """Also where assertions are left out. If the map is not right, Arrow ends the process."""
    program = (
        f"import pyarrow as pa; from {__name__} import OFFSETS, list_array, uncounted\n"
        "print(list_array(pa.map_(pa.string(), pa.int64()), 1, [None, OFFSETS], uncounted()).to_pylist())"
    )
    command = [sys.executable, "-O", "-c", program]
    ran = subprocess.run(command, cwd=request.config.rootpath, capture_output=True, text=True, check=False)

    assert ran.stdout == "[[('a', 1), ('b', 2)]]\n", ran.stderr


def test_a_null_key_is_refused() -> None:
    entries = pa.StructArray.from_arrays([pa.array(["a", None]), pa.array([1, 2])], ["key", "value"])
    with pytest.raises(ValueError, match="a key of a map is null"):
        list_array(pa.map_(pa.string(), pa.int64()), 1, [None, OFFSETS], entries)
