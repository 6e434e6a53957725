"""`header_maps`: the headers of records as maps."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafka_meta.arrow_arrays import last_of_keys


def header_maps(headers: pa.ListArray) -> pa.MapArray:
    """Maps of keys to values. Of headers with the same key, the last counts, as in Kafka's `Headers.lastHeader`."""
    rows, entries = last_of_keys(pc.list_parent_indices(headers).to_numpy().astype(np.int64), headers.flatten())
    starts = pa.array(np.searchsorted(rows, np.arange(len(headers) + 1)).astype(np.int32))
    is_null = pa.concat_arrays([headers.is_null(), pa.array([False])])
    return pa.MapArray.from_arrays(pc.if_else(is_null, None, starts), entries.field(0), entries.field(1))
