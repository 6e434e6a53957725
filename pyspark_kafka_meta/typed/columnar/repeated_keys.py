"""Keys that a map has more than once in a payload: the last entry counts, as for the libraries of Avro, Protobuf and
JSON in Java and Python. Spark's `from_json` keeps all entries, and looks up the first.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pyspark_kafka_meta.arrow_arrays import Longs, number_array


def last_of_keys(owner: Longs, entries: pa.StructArray) -> tuple[Longs, pa.StructArray]:
    """The entries whose key does not follow again in the same map, with the maps' indexes.

    Args:
        owner: the index of the map of each entry, in order.
        entries: keys and values.
    """
    codes = entries.field(0).dictionary_encode().indices.to_numpy()
    pairs = owner * (int(codes.max(initial=0)) + 1) + codes
    _, from_end = np.unique(pairs[::-1], return_index=True)
    if len(from_end) == len(pairs):
        return owner, entries
    last = np.sort(len(pairs) - 1 - from_end)
    return owner[last], entries.take(number_array(last))
