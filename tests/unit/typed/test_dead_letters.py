"""Malformed records become letters instead of rows, and letters become these records again."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafka_meta.client_facts import MalformedRecords
from pyspark_kafka_meta.errors import ConnectError, DeadLetterError, MalformedRecordError, OptionError
from pyspark_kafka_meta.kafka.records.schema import records_arrow_schema
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.typed import dead_letters
from pyspark_kafka_meta.typed.dead_letters import Letter, read_letter
from pyspark_kafka_meta.typed.reading import LETTER_COLUMNS, Malformed, QuerySchemas, query_schemas, typed_rows

GOOD = b'{"id": 1}'
NAMES = st.text(min_size=1, max_size=9).filter(lambda name: not name.startswith("__connect."))
HEADERS = st.none() | st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=5)), max_size=3)


LETTERS = {"onMalformedRecord": "deadLetter", "deadLetterTopic": "letters"}


def schemas(given: Mapping[str, str] = LETTERS, **others: str) -> QuerySchemas:
    source = {"kafka.bootstrap.servers": "a:1", "subscribe": "my-orders", "valueFormat": "json"}
    parsed = SourceOptions.parse({**source, "valueSchema": "id BIGINT", **given, **others})
    return query_schemas(parsed.typed, parsed.topics)


def record(offset: int = 42, **others: Any) -> dict[str, Any]:
    whole = {"key": b"k", "value": b"nonsense", "topic": "my-orders", "partition": 7, "offset": offset}
    return {**whole, "timestamp": 5_000_000, "headers": None, **others}


def rows_and_letters(
    query: QuerySchemas, *batches: Sequence[dict[str, Any]], columns: Sequence[str] = ("offset",), offsets: int = 100
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[MalformedRecords]]:
    """What a task makes of these records, and its facts."""
    rows, letters, facts = list[pa.RecordBatch](), list[dict[str, Any]](), list[Any]()

    def write(written: Sequence[pa.RecordBatch]) -> None:
        letters.extend(letter for batch in written for letter in batch.to_pylist())

    with typed_rows(query, (), [*columns, "value"], facts.append, offsets, write) as typed:
        for batch in batches:
            raw = pa.RecordBatch.from_pylist(list(batch), records_arrow_schema(typed.raw_columns))
            rows.append(typed.convert(raw))
    return pa.Table.from_batches(rows).to_pylist(), letters, facts


def said(letter: dict[str, Any]) -> dict[str, str]:
    return {each["key"]: each["value"].decode() for each in letter["headers"]}


def test_a_letter_is_the_record_with_the_headers_of_kafka_connect() -> None:
    own = [{"key": "trace", "value": b"\xff"}]
    _, (letter,), (fact,) = rows_and_letters(schemas(), [record(headers=own)])

    assert (letter["key"], letter["value"], letter["headers"][:1], letter["timestamp"]) == (
        b"k",
        b"nonsense",
        own,
        None,
    )
    expected = {
        "__connect.errors.topic": "my-orders",
        "__connect.errors.partition": "7",
        "__connect.errors.offset": "42",
        "__connect.errors.stage": "VALUE_CONVERTER",
        "__connect.errors.class.name": "json",
        "__connect.errors.exception.class.name": "pyspark_kafka_meta.errors.MalformedRecordError",
        "__connect.errors.exception.message": fact.error.removeprefix("offset 42: "),
        "__connect.errors.timestamp": "5000",
    }
    assert said({"headers": letter["headers"][1:]}) == expected


@given(
    key=st.none() | st.binary(max_size=5), value=st.binary(min_size=1, max_size=5), headers=HEADERS, own=st.booleans()
)
def test_a_letter_has_the_whole_record(key: bytes | None, value: bytes, headers: Any, own: bool) -> None:
    given_headers = headers and [{"key": name, "value": text} for name, text in headers]
    raw = record(key=key, value=b"x" + value, headers=given_headers, timestamp=253_402_300_800_000_000)
    _, (letter,), _ = rows_and_letters(schemas(deadLetterKey="offset" if own else "record"), [raw])
    read = read_letter(letter["key"], letter["value"], letter["headers"])

    assert read is not None
    assert letter["key"] == (b"my-orders-7-42" if own else key)
    assert (read.partition, read.offset, read.name) == (TopicPartition("my-orders", 7), 42, "my-orders-7-42")
    assert (read.key, read.value, read.headers) == (key, raw["value"], given_headers or [])
    assert read.timestamp_us == raw["timestamp"]


def test_only_good_records_are_rows() -> None:
    batches = [record(1), record(2, value=GOOD), record(3, value=None)], [record(4)], [record(5, value=GOOD)]
    rows, letters, facts = rows_and_letters(schemas(), *batches)

    assert rows == [{"offset": 2, "value": {"id": 1}}, {"offset": 3, "value": None}, {"offset": 5, "value": {"id": 1}}]
    assert [said(letter)["__connect.errors.offset"] for letter in letters] == ["1", "4"]
    assert [fact.malformed_records for fact in facts] == [2]


def test_a_record_with_a_malformed_key_and_value_is_one_letter() -> None:
    query = schemas(keyFormat="json", keySchema="id BIGINT")
    rows, (letter,), facts = rows_and_letters(query, [record(key=b"bad", timestamp=-1_000)], columns=["key"])

    assert rows == []
    assert letter["key"] == b"bad"
    assert said(letter)["__connect.errors.stage"] == "KEY_CONVERTER"
    assert "__connect.errors.timestamp" not in said(letter)
    assert [fact.malformed_column for fact in facts] == ["key", "value"]


def test_letters_name_the_schema_id_in_a_frame() -> None:
    malformed = Malformed(0, "no such schema", 70_000)
    written = Mock()
    letters = dead_letters.DeadLetters(schemas().typed, written)
    columns = records_arrow_schema(LETTER_COLUMNS)
    letters.add(pa.RecordBatch.from_pylist([record()], columns), {0: ("value", malformed)})
    letters.flush()
    letters.flush()

    (((batch,),), _) = written.call_args
    assert said(batch.to_pylist()[0])["__connect.errors.schema.id"] == "70000"
    written.assert_called_once()


def test_letters_of_many_bytes_do_not_wait_for_the_end_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "PENDING_BYTES", 1)
    written = Mock()
    with typed_rows(schemas(), (), ["value"], Mock(), 100, written) as rows:
        for offset in (1, 2):
            rows.convert(pa.RecordBatch.from_pylist([record(offset)], records_arrow_schema(rows.raw_columns)))
            assert written.call_count == offset
    assert written.call_count == 2


def test_letters_before_rows_that_spark_has_are_written_though_it_needs_no_more() -> None:
    written = Mock()

    def task() -> Generator[pa.RecordBatch, None, None]:
        with typed_rows(schemas(), (), ["value"], Mock(), 100, written) as rows:
            for offset in (1, 2):
                yield rows.convert(pa.RecordBatch.from_pylist([record(offset)], records_arrow_schema(rows.raw_columns)))

    batches = task()
    next(batches)
    batches.close()

    (((batch,),), _) = written.call_args
    assert said(batch.to_pylist()[0])["__connect.errors.offset"] == "1"


def test_letters_that_cannot_be_written_fail_the_task() -> None:
    write = Mock(side_effect=ConnectError("no broker responded"))
    with pytest.raises(DeadLetterError, match=r"1 malformed records .*'deadLetterTopic' letters.*no broker responded"):  # noqa: SIM117
        with typed_rows(schemas(), (), ["value"], Mock(), 100, write) as rows:
            rows.convert(pa.RecordBatch.from_pylist([record()], records_arrow_schema(rows.raw_columns)))


@pytest.mark.parametrize(
    ("most", "offsets", "allowed"),
    [("0", 9, 0), ("3", 9, 3), ("0.07", 100, 7), ("0.01", 3, 1), (".5", 5, 3), ("1.0", 4, 4)],
)
@pytest.mark.parametrize("given", [LETTERS, {"onMalformedRecord": "null"}], ids=["letters", "null"])
def test_task_with_more_fails_without_letters(most: str, offsets: int, allowed: int, given: dict[str, str]) -> None:
    query, write, read = schemas(given, maxMalformedRecords=most), Mock(), 0
    with pytest.raises(MalformedRecordError, match=f"than the {allowed} that 'maxMalformedRecords' allows.*-7 at offs"):  # noqa: SIM117
        with typed_rows(query, (), ["value"], Mock(), offsets, write if given is LETTERS else None) as rows:
            for read in range(allowed + 1):
                rows.convert(pa.RecordBatch.from_pylist([record(read)], records_arrow_schema(rows.raw_columns)))

    assert (read, write.call_count) == (allowed, 0)


def test_other_records_are_no_letters() -> None:
    place = {"topic": b"t", "partition": b"1", "offset": b"2"}
    headers = [{"key": f"__connect.errors.{name}", "value": value} for name, value in place.items()]

    assert read_letter(b"k", b"v", headers) == Letter(TopicPartition("t", 1), 2, "", b"k", b"v", [], None)
    for others in (None, [], headers[:2], [*headers[:2], {"key": "__connect.errors.offset", "value": b"two"}]):
        assert read_letter(b"k", b"v", others) is None
    assert read_letter(None, None, [*headers[:2], {"key": "__connect.errors.offset", "value": None}]) is None


@pytest.mark.parametrize("time", [None, b"2026-01-02 03:04:05"])
def test_letters_with_another_time_are_letters(time: bytes | None) -> None:
    said = {"topic": b"t", "partition": b"1", "offset": b"2", "timestamp": time}
    letter = read_letter(None, b"v", [{"key": f"__connect.errors.{name}", "value": said[name]} for name in said])

    assert letter is not None
    assert letter.timestamp_us is None


def test_letters_that_nobody_writes_are_refused() -> None:
    with pytest.raises(OptionError, match="deadLetter is for Spark's queries"), typed_rows(schemas(), (), [], Mock()):
        pass
