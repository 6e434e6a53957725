"""Formats of keys and values: Avro, Protobuf and JSON to Arrow columns and back, without I/O."""
