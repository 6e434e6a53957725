"""Records of changes become rows: against an oracle over dicts, and case by case."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafka_meta.changes.rows import change_rows
from pyspark_kafka_meta.changes.schema import changes_schema
from pyspark_kafka_meta.client_facts import MalformedRecords
from pyspark_kafka_meta.errors import MalformedRecordError, TruncatedTableError, ValueSchemaError
from pyspark_kafka_meta.kafka.records.schema import records_arrow_schema
from pyspark_kafka_meta.model import OffsetRange, TopicPartition
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.typed.reading import WriteLetters, query_schemas

UNAVAILABLE = "__debezium_unavailable_value"
UNAVAILABLE_BYTES = base64.b64encode(UNAVAILABLE.encode()).decode()
ROW = "struct<name string, id bigint, data binary, tags array<string>, counts array<int>>"
SOURCE = "struct<ts_ms bigint, snapshot string, lsn bigint, sequence string>"
ENVELOPE = f"before {ROW}, after {ROW}, source {SOURCE}, op string, ts_ms bigint, ts_us bigint"
TOPICS = ("shop", "store")
NO_KEY = "it has no key, or a key without id: set 'keyFormat' to bytes if the table has no key"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Record(NamedTuple):
    """Attributes:
    value: a dict, null, or bytes that are no JSON.
    """

    value: Any
    key: dict[str, Any] | None
    partition: int = 0
    topic: str = "shop"


def envelope(op: str | None, after: Any = None, before: Any = None, **others: Any) -> dict[str, Any]:
    return {"op": op, "after": after, "before": before, "ts_ms": 1_000, "source": {"ts_ms": 500}, **others}


def options(without: Sequence[str] = (), **given: str) -> SourceOptions:
    formats = {"valueFormat": "json", "valueSchema": ENVELOPE, "keySchema": "id bigint", "changes": "debezium", **given}
    chosen = {name: text for name, text in formats.items() if name not in without}
    return SourceOptions.parse({"kafka.bootstrap.servers": "a:1", "subscribe": ",".join(TOPICS), **chosen})


def encoded(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()


def batches(records: Sequence[Record], size: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """As read, with offsets that rise in all partitions together."""
    schema = records_arrow_schema(columns)
    numbered = list(enumerate(records))
    for rows in (numbered[first : first + size] for first in range(0, len(numbered), size)):
        values = [
            {
                "key": encoded(each.key),
                "value": encoded(each.value),
                "topic": each.topic,
                "partition": each.partition,
                "offset": offset,
                "timestamp": offset,
            }
            for offset, each in rows
        ]
        yield pa.RecordBatch.from_pylist(values, schema)


def converted(
    records: Sequence[Record],
    size: int = 100,
    generations: Mapping[str, int] | None = None,
    facts: list[Any] | None = None,
    counts: list[tuple[str, str, int]] | None = None,
    without: Sequence[str] = (),
    latest_by_key: bool = False,
    write_letters: WriteLetters | None = None,
    **given: str,
) -> list[dict[str, Any]]:
    """The rows of records."""
    parsed = options(without, **given)
    assert parsed.changes is not None
    schemas = query_schemas(parsed.typed, parsed.topics)
    kind = changes_schema(schemas, parsed.changes).type
    ranges = [
        OffsetRange(TopicPartition(topic, 0), None, 0, 1, generation=number, latest_by_key=latest_by_key)
        for topic, number in {**dict.fromkeys(TOPICS, 0), **(generations or {})}.items()
    ]
    seen = [] if facts is None else facts
    counted = [] if counts is None else counts
    with change_rows(
        schemas,
        parsed.changes,
        ranges,
        (),
        kind.names,
        seen.append,
        lambda *count: counted.append(count),
        write_letters,
    ) as rows:
        found = [rows.convert(batch) for batch in batches(records, size, rows.raw_columns)]
    for batch in found:
        batch.validate(full=True)
        assert batch.schema.types == [field.type for field in kind]
        assert not any(batch.column(field.name).null_count for field in kind if not field.nullable)
    return [row for batch in found for row in batch.to_pylist()]


def oracle(records: Iterable[Record], on_truncate: str) -> Iterator[dict[str, Any]]:
    """The rows of records, with onMalformedRecord null."""
    deletes = dict[tuple[str, int], Any]()
    for offset, (value, key, partition, topic) in enumerate(records):
        deleted = deletes.pop((topic, partition), None)
        is_json = not isinstance(value, bytes)
        op = (value or {"op": "tombstone"}).get("op") if is_json else None
        if op == "tombstone" and key is not None and key == deleted:
            continue
        if op == "d":
            deletes[topic, partition] = key
        if op == "m" or (op == "t" and on_truncate == "skip"):
            continue
        image = (
            (value or {}).get("before" if op == "d" else "after") if is_json and op in ("c", "u", "r", "d") else None
        )
        is_good = op in ("c", "u", "r", "d", "t", "tombstone")
        is_good &= (key is not None or op == "t") and (image is not None or op not in ("c", "u", "r"))
        image = image if is_good and image is not None else {}
        missing = [
            name
            for name, placeholder in (
                ("name", UNAVAILABLE),
                ("data", UNAVAILABLE_BYTES),
                ("tags", [UNAVAILABLE]),
                ("counts", [*UNAVAILABLE.encode()]),
            )
            if op != "r" and image.get(name) == placeholder
        ]
        row = {name: None if name in missing else image.get(name) for name in ("name", "data", "tags", "counts")}
        source = value.get("source") if is_json and value else None
        yield {
            "id": key and key["id"],
            **row,
            "data": None if row["data"] is None else base64.b64decode(row["data"]),
            "op": op if is_good else None,
            "deleted": op in ("d", "tombstone") if is_good else None,
            "sequence": offset + (3 << 48 if topic == "store" else 0),
            "unavailable": missing,
            "snapshot": None if source is None or source["snapshot"] == "false" else source["snapshot"],
            "changed_at": source and EPOCH + timedelta(milliseconds=source["ts_ms"]),
            "offset": offset,
        }  # fmt: skip


placeholders = {
    "name": UNAVAILABLE,
    "data": UNAVAILABLE_BYTES,
    "tags": [UNAVAILABLE],
    "counts": [*UNAVAILABLE.encode()],
}
images = st.fixed_dictionaries(
    {},
    optional={
        "id": st.integers(0, 2),
        "name": st.sampled_from(["", "a", UNAVAILABLE]),
        "data": st.sampled_from(["", "AAE=", UNAVAILABLE_BYTES]),
        "tags": st.one_of(st.lists(st.sampled_from(["a", UNAVAILABLE]), max_size=2)),
        "counts": st.sampled_from([[], [1], [0] * len(UNAVAILABLE), [*UNAVAILABLE.encode()]]),
    },
)
envelopes = st.fixed_dictionaries(
    {"op": st.sampled_from(["c", "u", "d", "d", "r", "t", "m", "x", None])},
    optional={
        "before": st.one_of(st.none(), images),
        "after": images,
        "source": st.fixed_dictionaries({"ts_ms": st.integers(0, 9), "snapshot": st.sampled_from(["false", "last"])}),
    },
)
record = st.builds(
    Record,
    st.one_of(st.none(), st.none(), envelopes, envelopes, st.just(b"{")),
    st.one_of(st.builds(lambda number: {"id": number}, st.integers(0, 1)), st.none()),
    st.integers(0, 1),
    st.sampled_from(TOPICS),
)


@given(st.lists(record, max_size=30), st.integers(1, 30), st.sampled_from(["skip", "row"]))
def test_rows_are_those_of_an_oracle(records: list[Record], size: int, on_truncate: str) -> None:
    rows = converted(records, size, {"store": 3}, onTruncate=on_truncate, onMalformedRecord="null")

    expected = list(oracle(records, on_truncate))
    names = ("op", "deleted", "sequence", "unavailable", "snapshot", "changed_at", "offset")
    assert [{**row, **{name: row["_change"][name] for name in names}, "_change": 0} for row in rows] == [
        {**row, "_change": 0} for row in expected
    ]


def ops(rows: Sequence[Mapping[str, Any]]) -> list[str | None]:
    return [row["_change"]["op"] for row in rows]


@pytest.mark.parametrize("size", [1, 10])
def test_a_tombstone_is_a_delete_unless_the_delete_of_its_key_precedes_it(size: int) -> None:
    delete, one, two = envelope("d", before={"id": 1}), {"id": 1}, {"id": 2}
    records = [
        Record(delete, one),
        Record(None, one, topic="store"),
        Record(None, one),
        Record(None, one),
        Record(delete, one),
        Record(None, two),
    ]

    rows = converted(records, size)
    assert [(row["_change"]["offset"], row["_change"]["op"], row["_change"]["deleted"]) for row in rows] == [
        (0, "d", True),
        (1, "tombstone", True),
        (3, "tombstone", True),
        (4, "d", True),
        (5, "tombstone", True),
    ]


def test_a_changed_key_is_a_delete_and_a_create() -> None:
    rows = converted([
        Record(envelope("d", before={"id": 1, "name": "a"}), {"id": 1}),
        Record(None, {"id": 1}),
        Record(envelope("c", {"id": 2, "name": "a"}), {"id": 2}),
    ])  # fmt: skip

    assert [(row["id"], row["name"], row["_change"]["op"]) for row in rows] == [(1, "a", "d"), (2, "a", "c")]


def test_a_truncate_fails_unless_there_is_a_rule() -> None:
    records = [Record(envelope("c", {"id": 1}), {"id": 1}), Record(envelope("t"), None)]

    with pytest.raises(TruncatedTableError, match=r"shop-0 at offset 1: the table was truncated: set 'onTruncate'"):
        converted(records)
    assert ops(converted(records, onTruncate="skip")) == ["c"]
    row = converted(records, onTruncate="row")[1]
    assert (row["id"], row["_change"]["op"], row["_change"]["deleted"]) == (None, "t", False)


@pytest.mark.parametrize(
    ("value", "key", "cause"),
    [
        (envelope("x"), {"id": 1}, "its op is none of Debezium's (c, u, r, d, t, m)"),
        ({"id": 1}, {"id": 1}, "its op is none of Debezium's (c, u, r, d, t, m)"),
        (envelope("u"), {"id": 1}, "it has no row after the change"),
        (envelope("c", {"id": 1}), None, NO_KEY),
        (None, None, NO_KEY),
        (None, {"other": 1}, NO_KEY),
    ],
)
def test_what_is_no_change_is_malformed_with_a_cause(value: Any, key: Any, cause: str) -> None:
    record, facts = Record(value, key), list[Any]()

    with pytest.raises(MalformedRecordError, match="shop-0 at offset 0: the value cannot be decoded: it"):
        converted([record])
    (row,) = converted([record], facts=facts, onMalformedRecord="record")
    assert (row["_change"]["op"], row["_change"]["deleted"]) == (None, None)
    assert row["_change"]["error"] == {"cause": cause, "schema_id": None, "raw": encoded(value)}
    assert facts == [MalformedRecords(TopicPartition("shop", 0), f"offset 0: {cause}", None, "value", 1)]


def test_of_values_that_cannot_be_decoded_the_cause_is_that_of_the_format() -> None:
    (row,) = converted([Record(b"{", {"id": 1})], onMalformedRecord="record")

    assert (row["id"], row["_change"]["op"], row["_change"]["error"]["raw"]) == (1, None, b"{")
    assert converted([Record(b"{", {"id": 1})], onMalformedRecord="null")[0]["_change"]["op"] is None


JSON_ROW = {
    "id": {"type": "integer"},
    "at": {"title": "io.debezium.time.ZonedTimestamp", "connect.type": "string", "type": "string"},
    "price": {
        "title": "org.apache.kafka.connect.data.Decimal",
        "connect.type": "bytes",
        "connect.parameters": {"scale": "2", "connect.decimal.precision": "4"},
        "type": "string",
    },
}


def json_schema(**row: Any) -> str:
    """Of envelopes, as Confluent's converter names the types of Connect in it."""
    image = {"type": "object", "properties": row}
    return json.dumps({"type": "object", "properties": {"op": {"type": "string"}, "before": image, "after": image}})


def test_json_without_a_schema_has_exact_decimals_if_json_schema_names_them() -> None:
    (row,) = converted(
        [Record(envelope("c", {"id": 1, "price": "BNI="}), {"id": 1})], valueSchema=json_schema(**JSON_ROW)
    )

    assert row["price"] == Decimal("12.34")


@pytest.mark.parametrize(
    ("image", "cause"),
    [
        ({"at": "+294276-12-31T23:59:59Z"}, "at cannot be timestamp[us, tz=UTC]"),
        ({"price": "AMNQ"}, "price cannot be decimal128(4, 2)"),
    ],
)
def test_the_cause_of_a_value_that_a_column_cannot_hold_has_both(image: dict[str, str], cause: str) -> None:
    records = [
        Record(envelope("c", {"id": number, **given}), {"id": number}) for number, given in ((1, {}), (2, image))
    ]
    rows = converted(records, valueSchema=json_schema(**JSON_ROW), onMalformedRecord="record")

    assert [row["_change"]["error"] and row["_change"]["error"]["cause"] for row in rows] == [
        None,
        f"its column {cause}",
    ]
    assert rows[1]["id"] == 2


def test_messages_and_heartbeats_are_no_rows() -> None:
    records = [
        Record(envelope("m", message={"prefix": "p"}), {"prefix": "p"}),
        Record({"ts_ms": 5}, {"serverName": "s"}, topic="__debezium-heartbeat.s"),
        Record(envelope("r", {"id": 1}), {"id": 1}),
    ]

    assert ops(converted(records)) == ["r"]


def test_the_row_before_is_in_the_change_if_asked_for() -> None:
    update = envelope("u", {"id": 1, "name": "b"}, {"id": 1, "name": "a", "data": "AAE="})
    rows = converted([Record(update, {"id": 1}), Record(None, {"id": 1})], includeBefore="true")

    before = {"name": "a", "id": 1, "data": b"\x00\x01", "tags": None, "counts": None}
    assert [row["_change"]["before"] for row in rows] == [
        {**before, "data": rows[0]["_change"]["before"]["data"]},
        None,
    ]


def test_a_table_without_keys_has_the_columns_of_its_rows() -> None:
    given: dict[str, Any] = {"keyFormat": "bytes", "valueSchema": ENVELOPE.replace("id bigint", "key string")}
    rows = converted([Record(envelope("c", {"key": "k"}), None)], without=["keySchema"], **given)

    assert [(row["key"], row["_change"]["op"]) for row in rows] == [("k", "c")]


@pytest.mark.parametrize("size", [1, 10])
def test_a_tombstone_without_a_key_is_skipped_if_the_table_has_none(size: int) -> None:
    """Its null key goes to any partition, so that it need not follow its delete."""
    delete, counts = envelope("d", before={"id": 1}), list[tuple[str, str, int]]()
    records = [Record(delete, None), Record(None, None), Record(envelope("c", {"id": 2}), None), Record(None, None)]
    rows = converted([*records, Record(None, {"id": 3})], size, counts=counts, without=["keySchema"], keyFormat="bytes")

    assert [(row["id"], row["_change"]["op"]) for row in rows] == [(1, "d"), (2, "c"), (None, "tombstone")]
    assert sum(count for _, op, count in counts if op == "skipped") == 2


@pytest.mark.parametrize("value", [{"id": 1}, None])
def test_rows_that_replace_others_need_a_key_also_of_bytes(value: Any) -> None:
    with pytest.raises(MalformedRecordError, match=r"it has no key, which 'changes' upsert needs\. Set 'onMalformed"):
        converted(
            [Record(value, None)], without=["keySchema"], changes="upsert", keyFormat="bytes", valueSchema="id bigint"
        )


def test_there_is_no_row_before_in_envelopes_without_it() -> None:
    schema = ENVELOPE.removeprefix(f"before {ROW}, ")
    (row,) = converted([Record(envelope("u", {"id": 1}), {"id": 1})], valueSchema=schema, includeBefore="true")

    assert row["_change"]["before"] is None


def test_a_delete_needs_none_of_the_other_columns() -> None:
    """And its tombstone says nothing new."""
    day = {"title": "io.debezium.time.Date", "connect.type": "int32", "type": "integer"}
    schema = json_schema(id={"type": "integer"}, day=day)
    records = [Record(envelope("d", before={"id": 1, "day": 2**40}), {"id": 1}), Record(None, {"id": 1})]

    (found,) = converted(records, valueSchema=schema)
    assert (found["id"], found["day"], found["_change"]["op"]) == (1, None, "d")


@pytest.mark.parametrize("before", ["", "before struct<id bigint, name bigint>, "])
def test_a_delete_has_null_where_the_row_before_has_another_column_or_none(before: str) -> None:
    schema = ENVELOPE.replace(f"before {ROW}, ", before)
    records = [Record(envelope("c", {"id": 1, "name": "a"}), {"id": 1}), Record(envelope("d"), {"id": 1})]

    created, deleted = converted(records, valueSchema=schema)
    assert (created["name"], deleted["id"], deleted["name"], deleted["data"]) == ("a", 1, None, None)


def test_the_row_before_has_null_where_it_has_another_column() -> None:
    schema = ENVELOPE.replace(ROW, "struct<id bigint, name bigint>", 1)
    records = [Record(envelope("u", {"id": 1}, {"id": 1, "name": 5}), {"id": 1}), Record(envelope("u", {}), {"id": 1})]

    rows = converted(records, valueSchema=schema, includeBefore="true")
    assert [row["_change"]["before"] for row in rows] == [
        {"id": 1, "name": None, "data": None, "tags": None, "counts": None},
        None,
    ]


def test_rows_are_counted_without_columns() -> None:
    parsed = options()
    assert parsed.changes is not None
    schemas = query_schemas(parsed.typed, parsed.topics)
    records = [Record(envelope("c", {"id": 1}), {"id": 1}), Record(envelope("m"), {"id": 1})]
    ranges = [OffsetRange(TopicPartition("shop", 0), None, 0, 2)]
    with change_rows(schemas, parsed.changes, ranges, (), [], print, print) as rows:
        assert [rows.convert(batch).num_rows for batch in batches(records, 9, rows.raw_columns)] == [1]


def test_records_are_counted_by_topic_and_op() -> None:
    image, counts = {"id": 1}, list[tuple[str, str, int]]()
    deleted = [Record(envelope("d", before=image), image), Record(None, image)]
    others = [
        Record(envelope("c", image), image, topic="shop2"),
        Record(envelope("x"), image),
        Record(envelope("m"), None),
    ]
    converted([*deleted, *others, Record(None, image)], counts=counts, onMalformedRecord="null")

    assert sorted(counts) == [
        ("shop", "d", 1),
        ("shop", "malformed", 1),
        ("shop", "skipped", 2),
        ("shop", "tombstone", 1),
        ("shop2", "c", 1),
    ]


def sqlserver(commit: str, change: str | None, event: int | None) -> dict[str, Any]:
    return {"commit_lsn": f"00000027:{commit}:0003", "change_lsn": change, "event_serial_no": event, "schema": "dbo"}


def binlog(file: str, pos: int, row: int) -> dict[str, Any]:
    return {"file": file, "pos": pos, "row": row, "server_id": 223_344, "gtid": None, "thread": 7}


CHANGE_LSN = "00000027:00000758:000"
ORDERED: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "postgresql": (
        "sequence string, lsn bigint, txId bigint",
        [
            *({"sequence": '[null,"90"]', "lsn": 90} for _ in range(2)),  # a snapshot
            {"sequence": '[null,"95"]', "lsn": 95},
            {"sequence": '["100","95"]', "lsn": 95},  # began first, and committed last
            {"sequence": '["100","205"]', "lsn": 205},
            {"sequence": '["210","210"]', "lsn": None},  # an incremental snapshot
            {"sequence": '["1000","101"]', "lsn": 101},
            {"sequence": '[null,"2000"]', "lsn": 2000},  # another snapshot, with a new slot
        ],
    ),
    "sqlserver": (
        "commit_lsn string, change_lsn string, event_serial_no bigint, schema string",
        [
            sqlserver("00000758", None, None),  # a snapshot
            sqlserver("00000ac0", f"{CHANGE_LSN}3", 1),
            sqlserver("00000ac0", f"{CHANGE_LSN}3", 2),
            sqlserver("00000ac0", f"{CHANGE_LSN}5", 1),
            sqlserver("00000ac1", f"{CHANGE_LSN}2", 1),
            sqlserver("00000ad0", None, None),  # another snapshot
        ],
    ),
    "oracle": (
        "scn string, commit_scn string, txId string, ssn bigint",
        [
            {"scn": "900", "commit_scn": None},  # a snapshot
            {"scn": "1590", "commit_scn": "1600"},
            {"scn": "1595", "commit_scn": "1600"},
            {"scn": "1580", "commit_scn": "1601"},
            {"scn": "1700", "commit_scn": None},  # another snapshot
            {"scn": "1690", "commit_scn": "18446744073709551615"},
        ],
    ),
    "mysql": (
        "server_id bigint, gtid string, file string, pos bigint, row int, thread bigint",
        [
            binlog("mysql-bin-changelog.999998", 154, 0),  # a snapshot
            binlog("mysql-bin-changelog.999999", 4, 0),
            binlog("mysql-bin-changelog.999999", 4, 1),
            binlog("mysql-bin-changelog.999999", 1154, 0),
            binlog("mysql-bin-changelog.1000000", 154, 0),
            binlog("mysql-bin-changelog.1000000", 154, 10),
        ],
    ),
}


@pytest.mark.parametrize("connector", ORDERED)
def test_positions_sort_as_the_database_committed_and_snapshots_where_they_began(connector: str) -> None:
    kind, sources = ORDERED[connector]
    schema = f"before {ROW}, after {ROW}, op string, source struct<ts_ms bigint, snapshot string, {kind}>"
    changes = [Record(envelope("c", {"id": 1}, source=source), {"id": 1}) for source in sources]
    rows = converted([Record(None, {"id": 1}), *changes], changeOrder="source", valueSchema=schema)

    sequences = [row["_change"]["sequence"] for row in rows]
    found = [(each["position"], each["sequence"]) for each in sequences]
    assert found == sorted(found)
    assert len(found) == len(sources), "without the tombstone"
    assert len({position for position, _ in found}) == len({json.dumps(source) for source in sources})


@pytest.mark.parametrize("sequence", [None, "[null,null]", '["100",null]', "[]"])
def test_a_change_without_a_position_is_malformed_when_positions_are_the_order(sequence: str | None) -> None:
    schema = f"before {ROW}, after {ROW}, op string, source struct<sequence string, lsn bigint, txId bigint>"
    record = Record(envelope("c", {"id": 1}, source={"sequence": sequence}), {"id": 1})
    (row,) = converted([record], changeOrder="source", valueSchema=schema, onMalformedRecord="record")

    assert "no position in the database" in row["_change"]["error"]["cause"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"valueSchema": "id bigint, op string"}, "not Debezium's envelope"),
        ({"valueSchema": "op string, after string", "changeOrder": "source"}, "no struct 'after'"),  # of MongoDB
        ({"changes": "upsert"}, "is Debezium's envelope, with the row before and after .*: set 'changes' to debezium"),
        ({"changes": "upsert", "valueSchema": "`_change` int"}, "several columns would have the name _change"),
        ({"changes": "upsert", "valueSchema": "key int", "keySchema": '"long"'}, "would have the name key"),
        ({"changes": "upsert", "valueSchema": "a int, A int"}, "several columns would have the name a"),
        ({"changes": "upsert", "valueSchema": "array<int>"}, "with fields"),
        ({"valueSchema": "op string, after struct<a int>", "changeOrder": "source"}, "'changeOrder' source needs"),
    ],
)
def test_schemas_that_changes_cannot_have_are_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueSchemaError, match=problem):
        converted([], **given)


def test_columns_of_the_key_come_first_in_the_order_of_the_table() -> None:
    parsed = options(
        keySchema="k2 int, k1 int, other int", valueSchema="op string, after struct<a int, k1 int, k2 int>"
    )
    assert parsed.changes is not None
    kind = changes_schema(query_schemas(parsed.typed, parsed.topics), parsed.changes).type

    assert kind.names == ["other", "k1", "k2", "a", "_change"]
    assert [field.name for field in kind if not field.nullable] == ["other", "k1", "k2", "_change"]


@pytest.mark.parametrize(("latest_by_key", "ids"), [(False, [1, 2, 3]), (True, [1, 3])])
def test_a_delete_without_a_tombstone_has_no_row_among_the_latest_of_each_key(
    latest_by_key: bool, ids: list[int]
) -> None:
    """Debezium's option tombstones.on.delete is false."""
    rows = [envelope("c", {"id": 1}), envelope("d", None, {"id": 2}), envelope("u", {"id": 3})]
    records = [Record(value, {"id": number}) for number, value in enumerate(rows, 1)]

    assert [row["id"] for row in converted(records, latest_by_key=latest_by_key)] == ids


def test_a_null_as_text_has_no_row_among_the_latest_of_each_key() -> None:
    """As JsonConverter writes it; the record has bytes."""
    records = [Record(b"null", {"id": 1}), Record({"id": 2}, {"id": 2})]
    rows = converted(records, latest_by_key=True, changes="upsert", valueSchema="id bigint, name string")

    assert [row["id"] for row in rows] == [2]


@pytest.mark.parametrize("size", [1, 2, 100])
def test_malformed_changes_become_letters_and_no_rows(size: int) -> None:
    key, row = {"id": 1}, {"name": "a", "id": 1}
    records = [
        Record(b"no JSON", key),
        Record(envelope("c", row), key),
        Record(envelope("x", row), key),
        Record(envelope("d", None, row), key),
        Record(b"nor this", key),
        Record(None, key),
        Record(envelope("u", row), None),
    ]
    written, counts = list[pa.RecordBatch](), list[tuple[str, str, int]]()
    rows = converted(
        records, size, counts=counts, write_letters=written.extend, onMalformedRecord="deadLetter", deadLetterTopic="x"
    )

    assert [row["_change"]["op"] for row in rows][:2] == ["c", "d"]
    letters = [letter for batch in written for letter in batch.to_pylist()]
    places = [each["value"] for letter in letters for each in letter["headers"] if each["key"].endswith("s.offset")]
    assert sorted(places) == [b"0", b"2", b"4", b"6"]
    assert {letter["value"] for letter in letters} == {encoded(records[number].value) for number in (0, 2, 4, 6)}
    assert sum(count for _, op, count in counts if op == "malformed") == 4
    assert sum(count for _, _, count in counts) == len(records)
