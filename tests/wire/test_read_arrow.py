"""`read_arrow`: rows as Spark gets them, in a process without pyspark, and when its connections close."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer

from pyspark_kafka_meta import read_arrow
from pyspark_kafka_meta.errors import AuthorizationError, KafkaMetaError, OptionError, UnknownTopicError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.protocol.apis import FETCH
from pyspark_kafka_meta.kafka.protocol.error_codes import TOPIC_AUTHORIZATION_FAILED
from pyspark_kafka_meta.testing import MockCluster

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "read_without_spark.py"
TOPIC = "page-views"
VALUES = ['{"id": 1}', None, "", '{"id": 2, "name": "b"}', "{"]
"""Of partition 0."""


@pytest.fixture
def kafka(mock_cluster: MockCluster) -> dict[str, str]:
    """A topic with a partition of each of these: `VALUES`, a thousand records, and none."""
    mock_cluster.create_topic(TOPIC, partitions=3)
    producer = Producer({"bootstrap.servers": mock_cluster.bootstrap_servers})
    for value in VALUES:
        producer.produce(TOPIC, value, b"key", 0, headers={"trace-id": b"\xff"})
    for number in range(1_000):
        producer.produce(TOPIC, str(number), partition=1)
    assert producer.flush(30) == 0
    return {"kafka.bootstrap.servers": mock_cluster.bootstrap_servers, "subscribe": TOPIC}


@pytest.fixture
def open_clients(monkeypatch: pytest.MonkeyPatch) -> list[KafkaClient]:
    """The clients that are not closed."""
    clients: list[KafkaClient] = []
    begin, close = KafkaClient.__init__, KafkaClient.close
    monkeypatch.setattr(KafkaClient, "__init__", lambda *given: (begin(*given), clients.append(given[0]))[0])
    monkeypatch.setattr(KafkaClient, "close", lambda client: (clients.remove(client), close(client)))
    return clients


@pytest.mark.usefixtures("no_pyspark")
def test_rows_have_the_columns_of_a_query_without_pyspark(kafka: dict[str, str]) -> None:
    rows = read_arrow(**kafka, includeHeaders=True).read_all()
    first, numbers = (rows.filter(pc.field("partition") == partition) for partition in (0, 1))
    (row, *_) = first.to_pylist()

    assert rows.column_names == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "headers",
    ]
    assert first["value"].to_pylist() == [value if value is None else value.encode() for value in VALUES]
    assert (row["key"], row["headers"]) == (b"key", [{"key": "trace-id", "value": b"\xff"}])
    assert numbers["offset"].to_pylist() == [int(value) for value in numbers["value"].to_pylist()] == list(range(1_000))


@pytest.mark.usefixtures("no_pyspark")
@pytest.mark.parametrize(
    "typed", [{}, {"valueFormat": "json", "valueSchema": "id bigint", "onMalformedRecord": "null"}]
)
def test_headers_may_be_maps(kafka: dict[str, str], typed: dict[str, str]) -> None:
    rows = read_arrow(**kafka, **typed, includeHeaders=True, headersAsMap=True).read_all()

    assert rows.schema.field("headers").type == pa.map_(pa.string(), pa.binary())
    with_headers, without = (rows.filter(pc.field("partition") == partition)["headers"] for partition in (0, 1))
    assert with_headers.to_pylist() == [[("trace-id", b"\xff")]] * len(VALUES)
    assert without.null_count == 1_000


JSON = {"valueFormat": "json", "valueSchema": "id bigint, name string", "onMalformedRecord": "null"}
CHANGED_IDS = (1, None, None, 2, None)
MALFORMED = [{"id": 1, "name": None}, None, None, {"id": 2, "name": "b"}, None]


@pytest.mark.usefixtures("no_pyspark")
@pytest.mark.parametrize(
    ("options", "columns", "expected"),
    [
        (JSON, ["value"], [(value,) for value in MALFORMED]),
        (
            {**JSON, "onMalformedRecord": "record", "includeRaw": "true"},
            ["value_raw", "offset"],
            [(value if value is None else value.encode(), offset) for offset, value in enumerate(VALUES)],
        ),
        ({**JSON, "changes": "upsert", "keyFormat": "bytes"}, ["key", "id"], [(b"key", n) for n in CHANGED_IDS]),
        ({"table": "latest"}, ["value", "offset"], [(b"{", 4)]),
        (
            {"endingOffsets": '{"page-views": {"0": 2}}', "startingOffsets": '{"page-views": {"0": 1}}'},
            ["value"],
            [(None,)],
        ),
        ({}, [], [()] * len(VALUES)),
        ({**JSON, "where": "value.id IN (1, 2) AND offset > 0"}, ["offset"], [(3,)]),
        ({"table": "latest", "where": "offset < 4"}, ["value"], []),
    ],
    ids=["typed", "raw", "changes", "latest", "offsets", "no columns", "where", "where of latest"],
)
def test_options_and_columns_choose_the_rows(
    options: dict[str, str], columns: list[str], expected: list[Any], kafka: dict[str, str]
) -> None:
    del kafka["subscribe"]
    rows = read_arrow(columns=columns, **kafka, assign='{"page-views": [0]}', **options).read_all()

    assert rows.column_names == columns
    assert [tuple(row.values()) for row in rows.to_pylist()] == expected
    assert rows.num_rows == len(expected)


@pytest.mark.parametrize(
    ("given", "columns", "error", "text"),
    [
        ({"strtingOffsets": "-10"}, None, OptionError, "Did you mean 'startingOffsets'"),
        ({"table": "brokers"}, None, OptionError, "table brokers can be read in Spark alone"),
        (
            {**JSON, "onMalformedRecord": "deadLetter", "deadLetterTopic": "letters"},
            None,
            OptionError,
            "deadLetter needs a query of Spark",
        ),
        ({}, ["valeu", "key"], OptionError, "no column valeu: the columns are key, value, topic"),
        ({"startingOffsets": "latest"}, None, OptionError, "can't be latest"),
        ({"subscribe": "page-veiws"}, None, UnknownTopicError, "page-veiws does not exist"),
    ],
)
def test_what_cannot_be_read_is_an_error_before_the_first_row(
    given: dict[str, str],
    columns: list[str] | None,
    error: type[KafkaMetaError],
    text: str,
    kafka: dict[str, str],
    open_clients: list[KafkaClient],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(error, match=text):
        read_arrow(columns=columns, **{**kafka, **given})
    assert open_clients == []


def test_connections_close_after_the_last_row(kafka: dict[str, str], open_clients: list[KafkaClient]) -> None:
    reader = read_arrow(**kafka)
    assert len(open_clients) == 1

    assert sum(batch.num_rows for batch in reader) == 1_005
    assert open_clients == []


@pytest.mark.parametrize("batches", [0, 1])
def test_connections_close_with_readers(batches: int, kafka: dict[str, str], open_clients: list[KafkaClient]) -> None:
    reader = read_arrow(**kafka)
    for _ in range(batches):
        reader.read_next_batch()
    assert len(open_clients) == 1

    del reader
    assert open_clients == []


def test_an_error_of_a_broker_keeps_its_type(
    kafka: dict[str, str], mock_cluster: MockCluster, open_clients: list[KafkaClient]
) -> None:
    for partition in range(3):
        mock_cluster.push_partition_errors(TOPIC, partition, FETCH.key, TOPIC_AUTHORIZATION_FAILED)
    reader = read_arrow(**kafka)

    with pytest.raises(AuthorizationError, match=TOPIC):
        reader.read_all()
    assert open_clients == []


def test_ctrl_c_ends(kafka: dict[str, str], open_clients: list[KafkaClient], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    reader = read_arrow(**kafka)
    monkeypatch.setattr("pyspark_kafka_meta.read.fetching.task_reader.decode", interrupted)

    with pytest.raises(KeyboardInterrupt):
        reader.read_all()
    assert open_clients == []


@pytest.mark.parametrize(("options", "count"), [({}, 0), ({"eventsPath": "events"}, 1)])
def test_events_are_written_only_where_an_option_says(
    options: dict[str, str], count: int, kafka: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path)
    read_arrow(**kafka, **options).read_all()

    assert len(list(tmp_path.rglob("*.jsonl"))) == count


@pytest.mark.thorough  # the workflow installs both
def test_the_example_counts_in_polars_and_in_duckdb(
    kafka: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("polars")
    pytest.importorskip("duckdb")
    servers = kafka["kafka.bootstrap.servers"]
    monkeypatch.setattr("sys.argv", ["example", "--bootstrap-servers", servers, "--topic", TOPIC])
    runpy.run_path(str(EXAMPLE), run_name="__main__")

    counts = re.findall(r"│ +(\d+) +[┆│] +(\d+) +│", capsys.readouterr().out)
    assert counts == [("0", "5"), ("1", "1000")] * 2
