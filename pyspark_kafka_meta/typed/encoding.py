"""Keys and values that are not bytes: a column of any type becomes bytes with a schema, and the frame that names it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafka_meta.arrow_arrays import list_lengths, number_array
from pyspark_kafka_meta.errors import InvalidRowError, RecordTooLargeError
from pyspark_kafka_meta.typed.formats import UnwritableValueError, ValueEncoder
from pyspark_kafka_meta.typed.framing import header_frames, id_header


@dataclass(frozen=True, slots=True)
class ColumnEncoding:
    """
    Attributes:
        column: `key` or `value`.
        frame: precedes each value; empty for none.
        header_frame: value of a header of each record with a value; empty for none.
    """

    column: str
    encoder: ValueEncoder
    frame: bytes
    header_frame: bytes = b""

    def encode(self, values: pa.Array, first_row: int) -> pa.BinaryArray:
        """The records' keys or values; null remains null.

        Args:
            first_row: number of the first row in errors.

        Raises:
            InvalidRowError: the schema does not allow a value.
            RecordTooLargeError: the encoded values do not fit into an Arrow array.
        """
        try:
            encoded = self.encoder.encode(values)
            return pc.binary_join_element_wise(self.frame, encoded, b"") if self.frame else encoded
        except UnwritableValueError as error:
            raise InvalidRowError(
                f"row {first_row + error.row} cannot be written with the schema of {self.column}: {error.cause}"
            ) from None
        except pa.ArrowCapacityError:
            raise RecordTooLargeError(
                f"rows {first_row} to {first_row + len(values) - 1} have too many bytes of {self.column} to encode "
                "together: lower spark.sql.execution.arrow.maxRecordsPerBatch"
            ) from None

    def with_header(self, headers: pa.ListArray, encoded: pa.BinaryArray) -> pa.ListArray:
        """The records' headers, with the frame of each value that is not null as the last one. A record that has it
        already, because it was read with it, gets no other, as in Confluent's `HeaderSchemaIdSerializer`."""
        is_added = np.asarray(encoded.is_valid()).copy()
        if (found := header_frames(headers, id_header(self.column))) is not None:
            is_added[found.rows[np.asarray(pc.equal(found.frames, self.header_frame))]] = False
        items, counts = headers.flatten(), list_lengths(headers)
        offsets = np.zeros(len(headers) + 1, np.int32)
        np.cumsum(counts + is_added, out=offsets[1:])
        order, is_old = np.full(offsets[-1], len(items)), np.ones(offsets[-1], np.bool_)
        is_old[offsets[1:][is_added] - 1] = False
        order[is_old] = np.arange(len(items))
        header = pa.array([{"key": id_header(self.column), "value": self.header_frame}], items.type)
        return pa.ListArray.from_arrays(
            number_array(offsets), pa.concat_arrays([items, header]).take(number_array(order)), type=headers.type
        )

    def without_header(self, headers: pa.ListArray) -> pa.ListArray:
        """The records' headers without those that name a schema, as rows have that were read with them: readers prefer
        a header to the frame before the value."""
        if header_frames(headers, id_header(self.column)) is None:
            return headers
        items, counts = headers.flatten(), list_lengths(headers)
        is_kept = pc.fill_null(pc.not_equal(items.field("key"), id_header(self.column)), True)
        kept = np.append(0, np.cumsum(is_kept.to_numpy(zero_copy_only=False)))
        offsets = kept[np.append(0, np.cumsum(counts))].astype(np.int32)
        return pa.ListArray.from_arrays(number_array(offsets), items.filter(is_kept), type=headers.type)
