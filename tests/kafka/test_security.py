"""Real brokers with TLS, SASL and ACLs: with each login clients read, stream, produce, commit and report events."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.network import connection
from pyspark_kafka_meta.kafka.network.connection import ConnectionSettings
from pyspark_kafka_meta.kafka.network.security.sasl_login import log_in
from pyspark_kafka_meta.kafka.protocol.frame_codec import API_VERSIONS, request_schema
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.options import ClientOptions, SinkOptions
from pyspark_kafka_meta.tools.cli.main import app
from pyspark_kafka_meta.write.input_columns import SinkColumns
from pyspark_kafka_meta.write.task_writer import TaskWriter
from tests.kafka.secured_kafka import GROUP, MECHANISMS, RECORDS, SASL, SESSION_MS, TOPIC, SecuredKafka
from tests.unit.scene import RecordingPublisher

pytestmark = pytest.mark.kafka

by_each_protocol = pytest.mark.parametrize("secured", MECHANISMS, indirect=True)


def client_options(secured: SecuredKafka, options: dict[str, str]) -> ClientOptions:
    return ClientOptions.parse({"kafka.bootstrap.servers": secured.servers, **options})


def assert_login_works(secured: SecuredKafka, login: dict[str, str], folder: Path) -> None:
    before = secured.read(folder, login)
    client = client_options(secured, login)
    columns = SinkColumns(key=None, value=0, headers=None, topic=None, partition=None, timestamp=None)
    rows = pa.record_batch([pa.array([str(number) for number in range(RECORDS)])], ["value"])
    committed = {TopicPartition(TOPIC, 0): before}
    with closing(KafkaClient(client, RecordingPublisher([]))) as made:
        producer = SinkOptions.parse({"kafka.bootstrap.servers": secured.servers}).producer
        TaskWriter(made, producer, columns, TOPIC).write([rows])
        made.groups.commit(GROUP, committed)
        assert made.groups.committed(GROUP, committed) == committed
    assert secured.read(folder, login) == before + RECORDS > RECORDS


@by_each_protocol
def test_every_way_in_reads_produces_and_commits(secured: SecuredKafka, tmp_path: Path) -> None:
    for name, login in secured.logins().items():
        assert_login_works(secured, login, tmp_path / name)


@pytest.mark.parametrize("secured", SASL, indirect=True)
def test_tokens_of_a_class_of_the_users_get_in(secured: SecuredKafka, tmp_path: Path) -> None:
    login = {**secured.logins()["OAUTHBEARER"], "oauthTokenProvider": "tests.kafka.secured_kafka:AliceTokens"}
    named = {name: text for name, text in login.items() if not name.startswith("kafka.sasl.oauthbearer.")}
    assert_login_works(secured, named, tmp_path)


@pytest.mark.slow
@pytest.mark.spark
@by_each_protocol
def test_spark_reads_streams_and_reports_events_by_every_way_in(
    secured: SecuredKafka, spark: SparkSession, tmp_path: Path, wait_for: Callable[..., Any]
) -> None:
    for name, login in secured.logins().items():
        events = f"events-{uuid.uuid4().hex}"
        secured.create_topic(events)
        cluster = {"kafka.bootstrap.servers": secured.servers, **login, "metricsTopic": events}
        assert_batch_and_stream_agree(spark, cluster, tmp_path / name)
        wait_for(partial(all_roles_reported, spark, cluster))


def assert_batch_and_stream_agree(spark: SparkSession, cluster: dict[str, str], folder: Path) -> None:
    """Both read the same rows, and no file or progress report contains a secret."""
    options = {**cluster, "metricsPath": str(folder / "events"), "subscribe": TOPIC, "startingOffsets": "earliest"}
    rows = spark.read.format("kafkameta").options(**options).load().count()
    table = f"secured_{uuid.uuid4().hex}"
    stream = spark.readStream.format("kafkameta").options(**options).load().writeStream.format("memory")
    query = stream.queryName(table).option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()

    assert rows >= RECORDS
    assert spark.table(table).count() == rows
    written = [path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()]
    assert len(written) > 2
    assert not any("canary" in text for text in written)
    assert "canary" not in str(query.lastProgress)


def all_roles_reported(spark: SparkSession, cluster: dict[str, str]) -> bool:
    """Whether the topic of events, read with the same login, has refreshes of planners and readers."""
    side = spark.read.format("kafkameta").options(**cluster, table="refresh_events").load()
    roles = {row.role for row in side.where("outcome = 'changed'").select("role").distinct().collect()}
    return roles >= {"planner", "reader"}


@pytest.mark.parametrize("secured", SASL, indirect=True)
def test_a_session_is_renewed_on_the_same_connection(
    secured: SecuredKafka, monkeypatch: pytest.MonkeyPatch, wait_for: Callable[..., Any]
) -> None:
    lifetimes: list[float] = []

    def counted(*arguments: Any) -> float:
        lifetimes.append(log_in(*arguments))
        return lifetimes[-1]

    monkeypatch.setattr(connection, "log_in", counted)
    security = client_options(secured, secured.options()).security
    settings = ConnectionSettings("test", connect_timeout_ms=5_000, max_frame_bytes=1 << 20, security=security)
    client = connection.Connection(secured.kafka.address(2), settings, time.monotonic() + 10)
    request = request_schema(API_VERSIONS, 2).ApiVersionsRequest()

    def has_logged_in_again() -> bool:
        client.call(API_VERSIONS, request, time.monotonic() + 5)
        return len(lifetimes) == 3

    try:
        wait_for(has_logged_in_again)
    finally:
        client.close()
    assert lifetimes == [pytest.approx(SESSION_MS, rel=0.1)] * 3


@by_each_protocol
def test_the_command_line_takes_its_secrets_out_of_a_file_of_kafkas_tools(
    secured: SecuredKafka, tmp_path: Path
) -> None:
    config = tmp_path / "client.properties"
    escaped = {name: text.replace("\\", "\\\\").replace("\n", "\\n") for name, text in secured.options().items()}
    config.write_text("".join(f"{name.removeprefix('kafka.')}={text}\n" for name, text in escaped.items()))
    place = ["--bootstrap-servers", secured.servers, "--config", str(config)]
    seen = CliRunner().invoke(app, ["metadata", *place, "--topic", TOPIC, "--refresh", "--json"])
    refused = CliRunner().invoke(app, ["metadata", *place, "--option", "security.protocol=PLAINTEXT"])

    assert seen.exit_code == 0, seen.stderr
    assert [event["reason"] for event in json.loads(seen.stdout)["events"]] == ["bootstrap", "bootstrap", "on_demand"]
    assert (refused.exit_code, refused.stdout, len(refused.stderr.splitlines())) == (1, "", 1)
    assert "canary" not in refused.stderr
