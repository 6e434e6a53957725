"""Avro encodings, written by hand."""

from __future__ import annotations


def long(number: int) -> bytes:
    """A zigzag varint."""
    rest, encoded = (number << 1) ^ (number >> 63), b""
    while rest > 0x7F:
        encoded += bytes([rest & 0x7F | 0x80])
        rest >>= 7
    return encoded + bytes([rest])


def sized(data: bytes) -> bytes:
    """Bytes after their length."""
    return long(len(data)) + data
