"""Aliases: a writer's schema with the names that a reader's schema has now for the same types and fields.

Source: `org.apache.avro.Schema.applyAliases`. So an alias of a field comes before a field of that name, and counts only
in the record of the same name.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.avro.schema import (
    Array,
    AvroSchema,
    Enumeration,
    Fixed,
    Map,
    Named,
    Record,
    Recursive,
    Union,
    parts,
)


def renamed(writer: AvroSchema, reader: AvroSchema) -> AvroSchema:
    """The writer's schema with the reader's names, and without aliases.

    Raises:
        ValueSchemaError: two fields of a record, or two branches of a union, get the same name.
    """
    own = _Names().apply(writer)
    if own == _Names().apply(reader):
        return own
    names = _Names()
    names.add(reader)
    return names.apply(writer)


class _Names:
    """A reader's names, by alias: of types, and of the fields in each record."""

    def __init__(self) -> None:
        self._types: dict[str, str] = {}
        self._fields: dict[str, dict[str, str]] = {}
        self._records: dict[str, Named | None] = {}

    def add(self, schema: AvroSchema) -> None:
        """Those of a schema and its parts."""
        if isinstance(schema, Record | Enumeration | Fixed):
            self._types |= dict.fromkeys(schema.aliases, schema.name)
        if isinstance(schema, Record):
            fields = self._fields.setdefault(schema.name, {})
            for field in schema.fields:
                fields |= dict.fromkeys(field.aliases, field.name)
        for part in parts(schema):
            self.add(part)

    def apply(self, schema: AvroSchema) -> AvroSchema:
        match schema:
            case Array(items):
                return Array(self.apply(items))
            case Map(values):
                return Map(self.apply(values))
            case Union(branches):
                return self._union(branches)
            case Record():
                return self._record(schema)
            case Recursive(name):
                return Recursive(self._types.get(name, name), self._records)
            case Enumeration() | Fixed():
                return replace(schema, name=self._types.get(schema.name, schema.name), aliases=())
        return schema

    def _union(self, branches: tuple[AvroSchema, ...]) -> Union:
        union = Union(tuple(map(self.apply, branches)))
        names = [branch.name for branch in union.branches if isinstance(branch, Named | Recursive)]
        if len(set(names)) < len(names):
            raise ValueSchemaError("by the reader's aliases, two types in a union of the writer have the same name")
        return union

    def _record(self, record: Record) -> Record:
        name = self._types.get(record.name, record.name)
        names = self._fields.get(name, {})
        fields = [
            replace(field, name=names.get(field.name, field.name), type=self.apply(field.type), aliases=())
            for field in record.fields
        ]
        if len({field.name for field in fields}) < len(fields):
            raise ValueSchemaError(f"by the reader's aliases, two fields of the writer's record {name!r} are the same")
        self._records[name] = renamed = Record(name, tuple(fields))
        return renamed
