"""Keys and values that are not bytes: a column of any type becomes bytes with a schema, and the frame that names it."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafka_meta.errors import InvalidRowError, RecordTooLargeError
from pyspark_kafka_meta.formats.values import UnwritableValueError, ValueEncoder


@dataclass(frozen=True, slots=True)
class ColumnEncoding:
    """
    Attributes:
        column: `key` or `value`.
        frame: precedes each value; empty for none.
    """

    column: str
    encoder: ValueEncoder
    frame: bytes

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
