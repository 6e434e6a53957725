"""Decodes JSON texts of Kafka Connect into Arrow arrays: their payloads, by the schemas beside them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pyarrow as pa

from pyspark_kafka_meta.arrow_arrays import binary_array, in_order, memory_of
from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.connect_json.envelope import payloads
from pyspark_kafka_meta.typed.connect_json.schema import ConnectSchema, kinds_of_writer, parse_connect
from pyspark_kafka_meta.typed.formats import COMPILED_SCHEMAS, Decoded, Fault
from pyspark_kafka_meta.typed.json.columns import cast_each, with_fields
from pyspark_kafka_meta.typed.json.decoder import JsonDecoder
from pyspark_kafka_meta.typed.json.schema import JsonSchema, column_type


class ConnectJsonDecoder:
    """A `ValueDecoder`. Payloads of all writers that are read as the same kinds are decoded together."""

    def __init__(self, reader: ConnectSchema, is_lenient: Callable[[str], bool]) -> None:
        """`is_lenient` is as of `SchemaText`."""
        self.type = column_type(reader.kinds)
        self._reader, self._is_lenient = reader, is_lenient
        self._kinds = lru_cache(COMPILED_SCHEMAS)(self._kinds_of_writer)
        self._decoder = lru_cache(COMPILED_SCHEMAS)(lambda kinds: JsonDecoder(JsonSchema(kinds)))

    def decode(self, values: pa.Array) -> Decoded:
        found, memory = payloads(values), memory_of(values)
        faults, arrays, places = list(found.faults), [], []
        writers: dict[pa.DataType, list[int]] = {}
        for index, schema in enumerate(found.schemas):
            try:
                writers.setdefault(self._kinds(schema), []).append(index)
            except ValueSchemaError as error:
                faults += [Fault(row, str(error)) for row in np.flatnonzero(found.which == index).tolist()]
        for kinds, indexes in writers.items():
            # Of one writer, all rows, others as null: then no value has to be put in order.
            is_here = np.isin(found.which, indexes) if len(found.schemas) > 1 else found.which == indexes[0]
            rows = np.flatnonzero(is_here) if len(writers) > 1 else np.arange(len(values))
            lengths = np.where(is_here, found.lengths, -1)[rows]
            decoded = self._decoder(kinds).decode(binary_array(memory, found.at[rows], lengths))
            array, not_held = cast_each(self.type, with_fields(self.type, decoded.values))
            faults += [Fault(int(rows[fault.row]), fault.cause) for fault in decoded.faults]
            faults += [Fault(int(rows[index]), "a decimal has more digits than its column") for index in not_held]
            arrays.append(array)
            places.append(rows)
        return Decoded(in_order(arrays, places, len(values), self.type), sorted(faults, key=lambda fault: fault.row))

    def _kinds_of_writer(self, schema: bytes | None) -> pa.DataType:
        """Values without a schema have the reader's. Raises ValueSchemaError."""
        if schema is None:
            return self._reader.kinds
        try:
            return kinds_of_writer(parse_connect(schema.decode()), self._reader, self._is_lenient)
        except UnicodeDecodeError:
            raise ValueSchemaError("its schema is not UTF-8") from None
