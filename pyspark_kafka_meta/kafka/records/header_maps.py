"""`header_maps`: the headers of records as maps."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def header_maps(headers: pa.ListArray) -> pa.MapArray:
    """Maps of keys to values. Of headers with the same key, the last counts, as in Kafka's `Headers.lastHeader`."""
    rows = pc.list_parent_indices(headers).to_numpy().astype(np.int64)
    keys, values = headers.flatten().flatten()
    names = keys.dictionary_encode()
    places = rows * max(1, len(names.dictionary)) + names.indices.to_numpy()
    _, from_end = np.unique(places[::-1], return_index=True)
    last = np.sort(len(places) - 1 - from_end)
    starts = pa.array(np.searchsorted(rows[last], np.arange(len(headers) + 1)).astype(np.int32))
    is_null = pa.concat_arrays([headers.is_null(), pa.array([False])])
    return pa.MapArray.from_arrays(pc.if_else(is_null, None, starts), keys.take(last), values.take(last))
