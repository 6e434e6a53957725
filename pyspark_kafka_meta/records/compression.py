"""Decompresses the records of a batch into allocated memory, so that no size in a response allocates more.

Codecs as in Kafka's `CompressionType`; snappy data are raw (librdkafka) or framed by xerial's `SnappyOutputStream`
(Java). Only from 2.14 on does cramjam stop at the end of the memory for every codec; before, not for gzip.
"""

from __future__ import annotations

import struct
from enum import IntEnum

import cramjam

from pyspark_kafka_meta.errors import CorruptBatchError

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16  # the magic, a version and a compatible version
_BLOCK_LENGTH = struct.Struct(">i")


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def decompress_into(codec: Codec, data: memoryview, target: memoryview) -> int:
    """Returns the number of bytes written to `target`. `data` may be several gzip members, zstd frames or LZ4 frames.

    Raises:
        CorruptBatchError: the data are malformed, truncated, or do not fit `target`.
    """
    try:
        match codec:
            case Codec.NONE:
                target[: len(data)] = data
                return len(data)
            case Codec.GZIP:
                return int(cramjam.gzip.decompress_into(data, target))
            case Codec.SNAPPY:
                return _snappy_into(data, target)
            case Codec.LZ4:
                return int(cramjam.lz4.decompress_into(data, target))
            case Codec.ZSTD:
                return int(cramjam.zstd.decompress_into(data, target))
    except (cramjam.DecompressionError, struct.error, ValueError) as error:
        raise CorruptBatchError(
            f"its {codec.name} data do not decompress to at most {len(target)} bytes: {error}"
        ) from None


def _snappy_into(data: memoryview, target: memoryview) -> int:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return int(cramjam.snappy.decompress_raw_into(data, target))
    at, used = _XERIAL_HEADER_BYTES, 0
    while at < len(data):
        (length,) = _BLOCK_LENGTH.unpack_from(data, at)
        at += _BLOCK_LENGTH.size
        if not 0 <= length <= len(data) - at:
            raise ValueError(f"snappy: a block of {length} bytes where {len(data) - at} are left")
        used += int(cramjam.snappy.decompress_raw_into(data[at : at + length], target[used:]))
        at += length
    return used
