"""Compresses the records of a batch. Decompresses into allocated memory, so that no size in a response allocates more.

Codecs as in Kafka's `CompressionType`. Snappy data are raw (librdkafka) or framed by xerial's `SnappyOutputStream`
(Java, which reads nothing else). Brokers refuse LZ4 frames of linked blocks, which pyarrow and `cramjam.lz4.compress`
write; pyarrow compresses faster with the other codecs. Only from 2.14 on does cramjam stop at the end of the memory for
every codec; before, not for gzip.

What follows the compressed data is ignored where Java ignores it: after gzip members, an LZ4 frame and snappy blocks.
"""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress
from enum import IntEnum
from typing import NamedTuple

import cramjam
import pyarrow as pa

from pyspark_kafka_meta.errors import CorruptBatchError

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version and compatible version
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_LENGTH = struct.Struct(">i")
_NEXT_STREAM = int.from_bytes(_XERIAL_MAGIC[: _BLOCK_LENGTH.size], "big", signed=True)
"""The begin of another header where the length of a block would be: streams may follow each other."""
_MAX_SNAPPY_RATIO = 22
"""Three bytes become at most 64."""
_TARGET_IS_FULL = "failed to write whole buffer"
"""cramjam's error when a target has no room, for every codec but snappy."""
_NO_MEMORY = ("out of memory", "not enough memory")
"""In the errors of lz4 and zstd. Another error of zstd, about damaged data, says "too much memory"."""
_GZIP_MAGIC = b"\x1f\x8b\x08"
_GZIP_WINDOW_BITS = 31  # of zlib, with the header and the trailer of gzip
_LZ4_HEADER = struct.Struct("<IBB")
_LZ4_BLOCK_LENGTH = struct.Struct("<I")
_LZ4_UNCOMPRESSED = 0x80000000
_LZ4_BLOCK_CHECKSUM, _LZ4_CONTENT_SIZE, _LZ4_CONTENT_CHECKSUM = 0x10, 0x08, 0x04


class TargetFullError(Exception):
    """The data decompress to more bytes than the target has."""


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_DEFAULT_LEVELS = {Codec.GZIP: 6, Codec.LZ4: 9, Codec.ZSTD: 3}
_LZ4_FAST = 0
"""cramjam's level for LZ4's fast mode."""


class Compression(NamedTuple):
    """A codec and its level as in Kafka's `compression.<codec>.level` (KIP-390). A level of None is Kafka's default.

    gzip has levels 1 to 9 and -1, the default, which is 6; zstd -131072 to 22, default 3; lz4 1 to 17, default 9.
    Level 9 of lz4 is its fast mode, as in Java, and so is level 1. The others are 4 to 15 times slower; those above 12
    equal 12.
    """

    codec: Codec
    level: int | None = None


def compress(compression: Compression, data: memoryview) -> bytes | memoryview:
    """The compressed data, or without a codec the data themselves."""
    codec, level = compression.codec, compression.level
    if level is None or (codec is Codec.GZIP and level == -1):
        level = _DEFAULT_LEVELS.get(codec)
    match codec:
        case Codec.NONE:
            return data
        case Codec.SNAPPY:
            return _framed_snappy(data)
        case Codec.LZ4:
            return _lz4_frame(data, level)
        case Codec.GZIP | Codec.ZSTD:
            return bytes(pa.Codec(codec.name.lower(), level).compress(data, asbytes=True))


def decompress_into(codec: Codec, data: memoryview, target: memoryview) -> int:
    """Returns the number of bytes written to `target`. `data` may be several gzip members, zstd frames, LZ4 frames or
    snappy streams.

    Raises:
        TargetFullError: `target` is too small.
        CorruptBatchError: the data are malformed or truncated.
        MemoryError: the library of the codec got no memory.
    """
    try:
        match codec:
            case Codec.NONE:
                if len(data) > len(target):
                    raise TargetFullError
                target[: len(data)] = data
                return len(data)
            case Codec.GZIP:
                return _gzip_into(data, target)
            case Codec.SNAPPY:
                return _snappy_into(data, target)
            case Codec.LZ4:
                return _lz4_into(data, target)
            case Codec.ZSTD:
                return int(cramjam.zstd.decompress_into(data, target))
    except (cramjam.DecompressionError, struct.error, ValueError, zlib.error) as error:
        if str(error) == _TARGET_IS_FULL:
            raise TargetFullError from None
        if str(error).endswith(_NO_MEMORY):
            raise MemoryError(f"{codec.name}: {error}") from None
        raise CorruptBatchError(f"its {codec.name} data are malformed: {error}") from None


def _framed_snappy(data: memoryview) -> bytes:
    framed = [_XERIAL_HEADER]
    codec = pa.Codec("snappy")
    for at in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = codec.compress(data[at : at + _XERIAL_BLOCK_BYTES], asbytes=True)
        framed += [_BLOCK_LENGTH.pack(len(block)), block]
    return b"".join(framed)


def _lz4_frame(data: memoryview, level: int | None) -> bytes:
    """One frame of independent blocks of 64 KiB."""
    fast = level == _DEFAULT_LEVELS[Codec.LZ4]
    compressor = cramjam.lz4.Compressor(level=_LZ4_FAST if fast else level, content_checksum=False, block_linked=False)
    compressor.compress(bytes(data))  # it takes no view
    return bytes(compressor.finish())


def _gzip_into(data: memoryview, target: memoryview) -> int:
    try:
        return int(cramjam.gzip.decompress_into(data, target))
    except cramjam.DecompressionError as error:
        if str(error) == _TARGET_IS_FULL or data[: len(_GZIP_MAGIC)] != _GZIP_MAGIC:
            raise
    return _padded_gzip_into(data, target)


def _padded_gzip_into(data: memoryview, target: memoryview) -> int:
    """As Java's `GZIPInputStream`: what does not begin as another member is ignored."""
    used, rest = 0, bytes(data)
    while rest.startswith(_GZIP_MAGIC):
        member = zlib.decompressobj(_GZIP_WINDOW_BITS)
        text = member.decompress(rest, len(target) - used + 1)
        if len(text) > len(target) - used:
            raise TargetFullError
        if not member.eof:
            raise ValueError("gzip: a member is cut off")
        target[used : used + len(text)] = text
        used, rest = used + len(text), member.unused_data
    return used


def _lz4_into(data: memoryview, target: memoryview) -> int:
    try:
        return int(cramjam.lz4.decompress_into(data, target))
    except cramjam.DecompressionError as error:
        if str(error) != _TARGET_IS_FULL:
            with suppress(struct.error):
                return int(cramjam.lz4.decompress_into(data[: _lz4_frame_bytes(data)], target))
        raise


def _lz4_frame_bytes(data: memoryview) -> int:
    """The bytes of the first frame, up to the end mark. Kafka's `Lz4BlockInputStream` reads no further."""
    _, flags, _ = _LZ4_HEADER.unpack_from(data)
    at = _LZ4_HEADER.size + (8 if flags & _LZ4_CONTENT_SIZE else 0) + 1  # the checksum of the header
    while length := _LZ4_BLOCK_LENGTH.unpack_from(data, at)[0]:
        at += _LZ4_BLOCK_LENGTH.size + length % _LZ4_UNCOMPRESSED + (4 if flags & _LZ4_BLOCK_CHECKSUM else 0)
    return int(at) + _LZ4_BLOCK_LENGTH.size + (4 if flags & _LZ4_CONTENT_CHECKSUM else 0)


def _snappy_into(data: memoryview, target: memoryview) -> int:
    """Follows xerial's `SnappyInputStream.hasNextChunk`, which ignores less than a length at the end."""
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _raw_snappy_into(data, target)
    at, used = len(_XERIAL_HEADER), 0
    while at + _BLOCK_LENGTH.size <= len(data):
        (length,) = _BLOCK_LENGTH.unpack_from(data, at)
        if length == _NEXT_STREAM:
            at += len(_XERIAL_HEADER)
            continue
        at += _BLOCK_LENGTH.size
        if not 0 <= length <= len(data) - at:
            raise ValueError(f"snappy: a block of {length} bytes where {len(data) - at} are left")
        used += _raw_snappy_into(data[at : at + length], target[used:])
        at += length
    return used


def _raw_snappy_into(data: memoryview, target: memoryview) -> int:
    size = cramjam.snappy.decompress_raw_len(data)
    if size > _MAX_SNAPPY_RATIO * len(data):
        raise ValueError(f"snappy: {len(data)} bytes cannot become {size}")
    if size > len(target):
        raise TargetFullError
    return int(cramjam.snappy.decompress_raw_into(data, target))
