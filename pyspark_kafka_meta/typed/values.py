"""What decoders and encoders of all value formats have in common: Arrow columns in, Arrow columns out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a value cannot be decoded.

    Attributes:
        row: index in the decoded column.
        cause: a short sentence without the value itself.
    """

    row: int
    cause: str


class Decoded(NamedTuple):
    """A decoded column.

    Attributes:
        values: one for each input value; null where the input is null or at fault.
        faults: in the order of rows.
    """

    values: pa.Array
    faults: list[Fault]


class UnwritableValueError(ValueError):
    """A value that the schema does not allow.

    Attributes:
        row: index in the column.
        cause: a short sentence that names the field, without the value itself.
    """

    def __init__(self, row: int, cause: str) -> None:
        super().__init__(row, cause)
        self.row, self.cause = row, cause

    def __str__(self) -> str:
        return f"row {self.row}: {self.cause}"


class ValueDecoder(Protocol):
    """Decodes values of one writer's schema to the reader's type."""

    @property
    def type(self) -> pa.DataType:
        """Of all decoded columns."""

    def decode(self, values: pa.Array) -> Decoded:
        """Decodes a column of type binary, without frames."""


class ValueEncoder(Protocol):
    """Encodes columns of one type with one schema."""

    @property
    def type(self) -> pa.DataType:
        """That columns must have; strings and bytes may have Arrow's large types too, which Spark can choose."""

    def encode(self, values: pa.Array) -> pa.Array:
        """A column of type binary, without frames; null where the value is null.

        Raises:
            UnwritableValueError: the schema does not allow a value.
        """


def inner_path(path: str, name: str) -> str:
    """Of a field in the field at a path."""
    return f"{path}.{name}" if path else name
