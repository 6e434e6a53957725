"""`kafkameta read`: its rows as JSON lines and as tables, which rows, and how it ends."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from pyspark_kafka_meta.testing import MockCluster
from pyspark_kafka_meta.tools.cli import read as read_module
from pyspark_kafka_meta.tools.cli.main import app
from pyspark_kafka_meta.tools.console import readable

TOPIC = "page-views"
TERMINAL = {"FORCE_COLOR": "1", "TERM": "dumb", "COLUMNS": "140", "LINES": "50"}
DAY_MS = 86_400_000


@pytest.fixture
def produce(mock_cluster: MockCluster) -> Callable[..., None]:
    """Writes records to the topic, each a day after the one before."""
    mock_cluster.create_topic(TOPIC, partitions=2)
    producer = Producer({"bootstrap.servers": mock_cluster.bootstrap_servers})
    days = iter(range(1, 1_000))

    def write(*values: str | bytes | None, **others: Any) -> None:
        for value in values:
            day = next(days)
            producer.produce(TOPIC, value, **{"partition": day % 2, "timestamp": day * DAY_MS, **others})
        assert producer.flush(30) == 0

    return write


@pytest.fixture
def run(mock_cluster: MockCluster) -> Callable[..., Any]:
    def read(*arguments: str, env: Mapping[str, str] | None = None) -> Any:
        command = ["read", TOPIC, "--bootstrap-servers", mock_cluster.bootstrap_servers, *arguments]
        return CliRunner().invoke(app, command, env=dict(env or {}))

    return read


def rows_of(result: Any) -> list[dict[str, Any]]:
    assert (result.exit_code, result.stderr) == (0, "")
    return [json.loads(line) for line in result.stdout.splitlines()]


def values(result: Any) -> list[Any]:
    return [row["value"] for row in rows_of(result)]


def test_the_newest_rows_of_all_partitions_are_the_last(produce: Callable[..., None], run: Callable[..., Any]) -> None:
    produce(*map(str, range(30)))

    assert values(run()) == [str(number) for number in range(20, 30)]
    assert values(run("--last", "3")) == ["27", "28", "29"]
    assert values(run("--last", "99")) == [str(number) for number in range(30)]
    assert sorted(values(run("--option", "startingOffsets=-3"))) == ["24", "25", "26", "27", "28", "29"]


def test_it_goes_back_until_there_are_as_many_rows(
    produce: Callable[..., None], run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(*map(str, range(300)))
    rows = read_module._rows
    kept = lambda *given: (row for row in rows(*given) if int(row["value"]) < 100)  # noqa: E731 - the others are gone
    monkeypatch.setattr(read_module, "_rows", kept)

    assert values(run("--last", "3")) == ["97", "98", "99"]
    assert len(values(run("--last", "200"))) == 100


def test_condition_against_the_newest_offsets_goes_back(produce: Callable[..., None], run: Callable[..., Any]) -> None:
    produce(*map(str, range(300)))

    assert values(run("--last", "3", "--option", "where=offset < 10")) == ["17", "18", "19"]
    assert values(run("--option", "where=offset < 0")) == []


def test_times_of_years_that_python_lacks_are_numbers(produce: Callable[..., None], run: Callable[..., Any]) -> None:
    """Of a producer that writes microseconds as milliseconds."""
    produce("far", timestamp=1_700_000_000_000_000)
    produce("near")

    rows = rows_of(run())
    assert [row["value"] for row in rows] == ["near", "far"]
    assert [row["timestamp"] for row in rows] == ["1970-01-03 00:00:00+00:00", 1_700_000_000_000_000_000]
    assert "far" in run(env=TERMINAL).stdout


def test_nested_times_of_years_that_python_lacks_are_numbers() -> None:
    day, time, times = pa.date32(), pa.timestamp("us"), pa.list_(pa.timestamp("us", "UTC"))
    kind = pa.struct([("day", day), ("time", time), ("times", times), ("by_name", pa.map_(pa.string(), time))])
    far = {"day": 10**7, "time": 10**18, "times": [10**18, None], "by_name": [("a", 10**18)]}

    assert read_module._values(pa.array([None, far], kind)) == [None, far]
    assert read_module._values(pa.array([10**7, 0], day)) == [10**7, date(1970, 1, 1)]


def test_nan_is_a_text_in_json(produce: Callable[..., None], run: Callable[..., Any]) -> None:
    produce('{"x": NaN}', '{"x": -Infinity}')
    shown = rows_of(run("--option", "valueFormat=json", "--option", "valueSchema=x double"))
    assert [row["value"]["x"] for row in shown] == ["NaN", "-Infinity"]


def test_row_has_text_where_bytes_are_text_else_base64(produce: Callable[..., None], run: Callable[..., Any]) -> None:
    produce("\x1bä", b"\xff", None, b"", key="k-1", headers=[("h", b"\xff"), ("h", None)])
    rows = rows_of(run())

    assert [row["value"] for row in rows] == ["\x1bä", {"base64": "/w=="}, None, ""]
    assert rows[0]["headers"] == [{"key": "h", "value": {"base64": "/w=="}}, {"key": "h", "value": None}]
    assert (rows[0]["key"], rows[0]["timestamp"]) == ("k-1", "1970-01-02 00:00:00+00:00")


def test_values_and_changes_are_typed_by_options(produce: Callable[..., None], run: Callable[..., Any]) -> None:
    produce('{"id": 1, "tags": {"a": 0.5}, "at": "2030-01-31"}', key="k-1")
    typed = ["--option", "valueFormat=json", "--option", "valueSchema=id int, tags map<string,double>, at date"]
    changes = ["--option", "changes=upsert", "--option", "keyFormat=bytes"]

    assert values(run(*typed)) == [{"id": 1, "tags": {"a": 0.5}, "at": "2030-01-31"}]
    (change,) = rows_of(run(*typed, *changes))
    assert (change["id"], change["_change"]["op"], change["_change"]["offset"]) == (1, "u", 0)


def test_a_terminal_shows_a_table_that_nothing_can_steer(produce: Callable[..., None], run: Callable[..., Any]) -> None:
    produce("\x1b[2J", None, b"\xff", key="k-1", headers=[("trace-id", b"7")])
    text = run(env=TERMINAL).stdout
    as_map = run("--option", "headersAsMap=true", env=TERMINAL).stdout

    assert '{"trace-id": "7"}' in as_map
    assert text.splitlines()[0].split() == ["key", "value", "partition", "offset", "timestamp", "headers"]
    assert all(shown in text for shown in (r"\x1b[2J", "null", '{"base64": "/w=="}', "trace-id=7"))
    assert "\x1b[2J" not in text


@pytest.mark.parametrize(("arguments", "first"), [((), ["a", "b"]), (("--option", "startingOffsets=latest"), [])])
def test_follow_goes_on_until_ctrl_c(
    arguments: tuple[str, ...],
    first: list[str],
    produce: Callable[..., None],
    run: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: Iterator[str] = iter(["c", "d"])

    def pause(_: float) -> None:
        value = next(pauses, None)
        if value is None:
            raise KeyboardInterrupt
        produce(value)

    monkeypatch.setattr(read_module, "sleep", pause)
    produce("a", "b")

    assert values(run("--follow", *arguments)) == [*first, "c", "d"]


def test_ctrl_c_ends_it(produce: Callable[..., None], run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    produce("a")
    monkeypatch.setattr(read_module, "_rows", interrupted)
    assert run().exit_code == 130


def test_a_closed_pipe_ends_it_without_a_word(
    produce: Callable[..., None], run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    produce("a")
    monkeypatch.setattr("typer.echo", closed)
    result = run()

    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--since", "soon"], "--since must be a time like 10m"),
        (["--option", "sasl.password=s3cret"], "'kafka.sasl.password' has no effect without"),
        (["--follow", "--option", "table=latest"], "--follow excludes table latest"),
        (["--option", "valueFormat=json"], "valueSchema"),
    ],
)
def test_a_mistake_is_one_line_without_values(arguments: list[str], text: str, run: Callable[..., Any]) -> None:
    result = run(*arguments)

    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert text in result.stderr
    assert "s3cret" not in result.stderr


@pytest.mark.parametrize(
    ("value", "shown"), [(b"\xc3\xa4", "ä"), (b"", ""), (b"\x80", {"base64": "gA=="}), (1.5, "1.5")]
)
def test_bytes_become_text_or_base64(value: object, shown: object) -> None:
    assert readable(value) == shown
