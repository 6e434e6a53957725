"""`compress` writes what every client reads; `decompress_into` reads every codec as producers write it, and writes no
further than its target."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import NoReturn

import cramjam
import pytest

from pyspark_kafka_meta.errors import CorruptBatchError
from pyspark_kafka_meta.kafka.records.compression import Codec, Compression, TargetFullError, compress, decompress_into
from tests.unit.kafka.records.handmade import COMPRESS, xerial_snappy

COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
TEXT = b"".join(b"record %d, " % number for number in range(20_000))


def decompress(codec: Codec, data: bytes, room: int = 1 << 20) -> bytes:
    target = memoryview(bytearray(room))
    return bytes(target[: decompress_into(codec, memoryview(data), target)])


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("text", [b"x", TEXT[:100], TEXT, random.Random(1).randbytes(100_000)])
def test_compressed_text_is_decompressed(codec: Codec, text: bytes) -> None:
    assert decompress(codec, COMPRESS[codec](text)) == text


@pytest.mark.parametrize(
    "compression",
    [
        *map(Compression, Codec),
        *(Compression(Codec.GZIP, level) for level in (-1, 1, 9)),
        *(Compression(Codec.LZ4, level) for level in (1, 9, 17)),
        *(Compression(Codec.ZSTD, level) for level in (-131072, -1, 1, 22)),
    ],
)
@pytest.mark.parametrize("text", [b"x", TEXT[:100], TEXT, random.Random(1).randbytes(100_000)])
def test_own_compressed_text_is_decompressed(compression: Compression, text: bytes) -> None:
    assert decompress(compression.codec, bytes(compress(compression, memoryview(text)))) == text


@pytest.mark.parametrize("level", [None, 1, 9, 12])
def test_lz4_blocks_are_independent_and_of_64_kib(level: int | None) -> None:
    """Brokers refuse linked blocks."""
    frame = bytes(compress(Compression(Codec.LZ4, level), memoryview(TEXT)))
    magic, flags, block_size = struct.unpack_from("<IBB", frame)
    checksum_bytes = 4 if flags & 0x10 else 0

    text, at = b"", 7
    while block_bytes := struct.unpack_from("<I", frame, at)[0]:
        block = frame[at + 4 : at + 4 + block_bytes]
        plain = bytearray(65536)
        text += plain[: cramjam.lz4.decompress_block_into(block, plain)]
        at += 4 + block_bytes + checksum_bytes

    assert (magic, flags & 0xE0, block_size) == (0x184D2204, 0x60, 0x40)  # version 1, independent; at most 64 KiB
    assert (text, at + 4) == (TEXT, len(frame))


def test_snappy_is_framed_as_by_java() -> None:
    framed = bytes(compress(Compression(Codec.SNAPPY), memoryview(TEXT)))

    text, at = b"", 16
    while at < len(framed):
        (block_bytes,) = struct.unpack_from(">i", framed, at)
        block = bytes(cramjam.snappy.decompress_raw(framed[at + 4 : at + 4 + block_bytes]))
        assert len(block) <= 32 * 1024
        text += block
        at += 4 + block_bytes

    assert framed[:16] == xerial_snappy(b"")
    assert (text, at) == (TEXT, len(framed))


@pytest.mark.parametrize(("codec", "level", "same"), [(Codec.GZIP, -1, 6), (Codec.LZ4, 9, 1), (Codec.LZ4, 17, 12)])
def test_levels_are_those_of_java(codec: Codec, level: int, same: int) -> None:
    text = memoryview(TEXT)

    assert compress(Compression(codec, level), text) == compress(Compression(codec, same), text)


@pytest.mark.parametrize(("codec", "default"), [(Codec.GZIP, -1), (Codec.LZ4, 9), (Codec.ZSTD, 3)])
def test_default_level_is_that_of_java(codec: Codec, default: int) -> None:
    text = memoryview(TEXT)

    assert compress(Compression(codec), text) == compress(Compression(codec, default), text)


@pytest.mark.parametrize(("codec", "low", "high"), [(Codec.GZIP, 1, 9), (Codec.LZ4, 9, 12), (Codec.ZSTD, -50, 19)])
def test_higher_level_compresses_more(codec: Codec, low: int, high: int) -> None:
    prose = memoryview(Path(__file__).read_bytes())  # TEXT is so regular that some zlibs do worse at level 9
    sizes = [len(compress(Compression(codec, level), prose)) for level in (low, high)]

    assert sizes[1] < sizes[0]


@pytest.mark.parametrize("codec", Codec)
def test_text_may_fill_the_target_to_its_last_byte(codec: Codec) -> None:
    assert decompress(codec, COMPRESS[codec](TEXT), room=len(TEXT)) == TEXT


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("room", [0, 1, len(TEXT) - 1])
def test_text_larger_than_the_target_is_not_corrupt(codec: Codec, room: int) -> None:
    with pytest.raises(TargetFullError):
        decompress(codec, COMPRESS[codec](TEXT), room)


@pytest.mark.parametrize("room", [0, 1, len(TEXT) - 1])
def test_raw_snappy_larger_than_the_target_is_not_corrupt(room: int) -> None:
    with pytest.raises(TargetFullError):
        decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT)), room)


def test_snappy_of_the_highest_ratio_is_read() -> None:
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(bytes(1 << 20)))) == bytes(1 << 20)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_several_frames_or_members_are_one_text(codec: Codec) -> None:
    assert decompress(codec, COMPRESS[codec](TEXT[:5000]) + COMPRESS[codec](TEXT[5000:])) == TEXT


@pytest.mark.parametrize("padding", [b"\0", bytes(4), bytes(1000), b"garbage", b"garbage" * 1000])
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4])
def test_bytes_after_the_compressed_data_are_ignored_as_in_java(codec: Codec, padding: bytes) -> None:
    assert decompress(codec, COMPRESS[codec](TEXT) + padding, room=len(TEXT)) == TEXT


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4])
def test_padded_text_larger_than_the_target_is_not_corrupt(codec: Codec) -> None:
    with pytest.raises(TargetFullError):
        decompress(codec, COMPRESS[codec](TEXT) + b"padding", room=len(TEXT) - 1)


def test_padding_after_several_gzip_members_is_ignored() -> None:
    members = COMPRESS[Codec.GZIP](TEXT[:5000]) + COMPRESS[Codec.GZIP](TEXT[5000:])

    assert decompress(Codec.GZIP, members + b"padding") == TEXT


def test_damaged_gzip_member_after_another_is_refused() -> None:
    member = bytearray(COMPRESS[Codec.GZIP](TEXT))
    member[-8] ^= 1  # its checksum

    with pytest.raises(CorruptBatchError, match="GZIP"):
        decompress(Codec.GZIP, COMPRESS[Codec.GZIP](TEXT) + member)


@pytest.mark.parametrize("checksums", [False, True])
def test_lz4_frame_with_any_header_ends_at_its_end_mark(checksums: bool) -> None:
    compressor = cramjam.lz4.Compressor(content_checksum=checksums, block_linked=False)
    compressor.compress(TEXT)

    assert decompress(Codec.LZ4, bytes(compressor.finish()) + b"padding") == TEXT


def test_snappy_streams_may_follow_each_other() -> None:
    framed = xerial_snappy(TEXT[:5000]) + xerial_snappy(b"") + xerial_snappy(TEXT[5000:])

    assert decompress(Codec.SNAPPY, framed) == TEXT


def test_snappy_blocks_may_hold_no_text() -> None:
    empty = xerial_snappy(b"x")[:16] + struct.pack(">i", 1) + bytes(cramjam.snappy.compress_raw(b""))

    assert decompress(Codec.SNAPPY, empty + xerial_snappy(TEXT)[16:]) == TEXT


def test_fewer_bytes_than_a_length_after_snappy_blocks_are_ignored_as_in_java() -> None:
    assert decompress(Codec.SNAPPY, xerial_snappy(TEXT) + b"abc") == TEXT


def test_snappy_is_raw_or_framed_in_blocks() -> None:
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT
    assert decompress(Codec.SNAPPY, xerial_snappy(TEXT, block_bytes=1000)) == TEXT


def test_linked_lz4_blocks_are_read() -> None:
    assert decompress(Codec.LZ4, bytes(cramjam.lz4.compress(TEXT))) == TEXT


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("kept", [0, 1, 5, 20, 100])
def test_truncated_data_are_refused(codec: Codec, kept: int) -> None:
    with pytest.raises(CorruptBatchError, match=codec.name):
        decompress(codec, COMPRESS[codec](TEXT)[:kept])


@pytest.mark.parametrize("length", [-1, -(2**31), 10_000, 2**31 - 1])
def test_xerial_block_of_a_wrong_length_is_refused(length: int) -> None:
    framed = xerial_snappy(TEXT[:1000])

    with pytest.raises(CorruptBatchError, match="SNAPPY"):
        decompress(Codec.SNAPPY, framed[:16] + struct.pack(">i", length) + framed[20:])


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(100)),  # claims 4 GiB
        (Codec.ZSTD, b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**50) + bytes(100)),  # claims 1 PiB
        (Codec.ZSTD, b"\x28\xb5\x2f\xfd\x00\xf8" + bytes(100)),  # a window of 2 TiB
        (Codec.LZ4, b"\x04\x22\x4d\x18\x68\x70" + struct.pack("<Q", 2**50) + bytes(100)),
    ],
)
def test_huge_claims_are_refused(codec: Codec, data: bytes) -> None:
    with pytest.raises(CorruptBatchError, match=codec.name):
        decompress(codec, data)


@pytest.mark.parametrize(
    ("codec", "error"), [(Codec.LZ4, "out of memory"), (Codec.ZSTD, "Allocation error : not enough memory")]
)
def test_data_are_not_corrupt_where_memory_ends(codec: Codec, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise cramjam.DecompressionError(error)

    monkeypatch.setattr(getattr(cramjam, codec.name.lower()), "decompress_into", fail)
    with pytest.raises(MemoryError, match=error):
        decompress_into(codec, memoryview(b"data"), memoryview(bytearray(9)))
