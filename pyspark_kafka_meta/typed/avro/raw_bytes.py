"""Values of an Avro schema that is `bytes`, as Confluent's `KafkaAvroSerializer` writes them: without their length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pyspark_kafka_meta.arrow_arrays import binary_array, memory_of, offsets_of
from pyspark_kafka_meta.typed.avro.encoder import avro_encoder
from pyspark_kafka_meta.typed.avro.schema import Primitive
from pyspark_kafka_meta.typed.values import Decoded, ValueDecoder, ValueEncoder


@dataclass(frozen=True, slots=True)
class RawBytesDecoder:
    """A `ValueDecoder` from that of values with a length."""

    decoder: ValueDecoder

    @property
    def type(self) -> pa.DataType:
        return self.decoder.type

    def decode(self, values: pa.Array) -> Decoded:
        return self.decoder.decode(avro_encoder(Primitive("bytes"), pa.binary()).encode(values))


@dataclass(frozen=True, slots=True)
class RawBytesEncoder:
    """A `ValueEncoder` from that of values with a length."""

    encoder: ValueEncoder

    @property
    def type(self) -> pa.DataType:
        return self.encoder.type

    def encode(self, values: pa.Array) -> pa.BinaryArray:
        encoded = self.encoder.encode(values)
        offsets, data, is_valid = offsets_of(encoded), memory_of(encoded), np.asarray(encoded.is_valid())
        starts, in_length = offsets[:-1].copy(), np.flatnonzero(is_valid)
        while len(in_length):
            goes_on = data[starts[in_length]] >= 0x80
            starts[in_length] += 1
            in_length = in_length[goes_on]
        return binary_array(data, starts, np.where(is_valid, offsets[1:] - starts, -1))
