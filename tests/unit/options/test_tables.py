"""The options of each table, and errors about other options."""

from __future__ import annotations

import pytest

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import (
    EARLIEST_OFFSET,
    ClusterOptions,
    EventTableOptions,
    FetchOptions,
    OffsetsSpec,
    Table,
    choose_table,
    option_table,
)

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
TOPIC = {**SERVERS, "eventsTopic": "events"}


@pytest.mark.parametrize(
    ("options", "table"),
    [
        ({**SERVERS, "subscribe": "t", "maxOffsetsPerTrigger": "5", "eventsTopic": "m"}, "records"),
        ({"eventsPath": "/e", "startingOffsets": "latest", "maxFilesPerTrigger": "5"}, "refresh_events"),
        ({**TOPIC, "eventsBootstrapServers": "m:1", "maxOffsetsPerTrigger": "5"}, "refresh_events"),
        ({}, "caches"),
        (TOPIC, "caches"),
        ({**SERVERS, "kafka.client.id": "me"}, "brokers"),
        ({**SERVERS, "subscribe": "t"}, "partitions"),
        ({**SERVERS, "decisionsTopic": "d"}, "transactions"),
    ],
)
def test_table_accepts_its_options(options: dict[str, str], table: str) -> None:
    assert choose_table({**options, "TABLE": table.upper()}) == (Table(table), options)


def test_default_table_is_records() -> None:
    assert choose_table(SERVERS) == (Table.RECORDS, SERVERS)


EVENTS_OF_TOPIC = {"table": "refresh_events", **TOPIC}
FROM_A_TOPIC = "has no effect in table refresh_events from a topic"


@pytest.mark.parametrize(
    ("options", "unused"),
    [
        ({"table": "brokers", "subscribe": "t"}, "'subscribe' has no effect in table brokers"),
        ({"table": "partitions", "eventsPath": "/e"}, "'eventsPath' has no effect in table partitions"),
        ({"table": "brokers", "kafka.acks": "1"}, "'kafka.acks' has no effect in table brokers"),
        ({"table": "brokers", "DecisionsTopic": "d"}, "'decisionsTopic' has no effect in table brokers"),
        ({"table": "transactions", "subscribe": "t"}, "'subscribe' has no effect in table transactions"),
        (
            {"table": "caches", "startingOffsets": "latest"},
            "'startingOffsets' has no effect in table caches from files",
        ),
        ({"table": "caches", **SERVERS}, "'kafka.bootstrap.servers' has no effect in table caches from files"),
        ({**EVENTS_OF_TOPIC, "eventsPath": "/e"}, f"'eventsPath' {FROM_A_TOPIC}"),
        ({**EVENTS_OF_TOPIC, "maxFilesPerTrigger": "3"}, f"'maxFilesPerTrigger' {FROM_A_TOPIC}"),
    ],
)
def test_option_of_another_is_ignored(options: dict[str, str], unused: str, caplog: pytest.LogCaptureFixture) -> None:
    option_table._warn_once.cache_clear()
    ignored = unused.split("'")[1].lower()

    _, used = choose_table(options)

    assert used == {name: text for name, text in options.items() if name.lower() not in ("table", ignored)}
    assert caplog.messages == [f"Option {unused}"]


@pytest.mark.parametrize(
    ("options", "parse", "problem"),
    [
        ({"table": "cache"}, choose_table, "'table' must be records or latest or refresh_events"),
        ({"table": "Partition"}, choose_table, r"got 'Partition' \(did you mean 'partitions'\?\)$"),
        ({}, ClusterOptions.parse, "'kafka.bootstrap.servers' must be specified"),
        ({**SERVERS, "subscribe": " "}, ClusterOptions.parse, "No topics to subscribe to"),
        ({**SERVERS, "colour": "red"}, ClusterOptions.parse, "Unknown option 'colour'"),
        ({**SERVERS, "decisionsTopic": "a,b"}, ClusterOptions.parse, "'decisionsTopic' must be the name of one topic"),
        ({"colour": "red"}, EventTableOptions.parse, "Unknown option 'colour'"),
        ({"eventTopic": "events"}, EventTableOptions.parse, "Did you mean 'eventsTopic'?"),
        ({**TOPIC, "eventsTopics": "e"}, EventTableOptions.parse, "Did you mean 'eventsTopic'?"),
        ({"eventsTopic": "events"}, EventTableOptions.parse, "'kafka.bootstrap.servers' must be specified"),
        ({**SERVERS, "eventsTopic": "a,b"}, EventTableOptions.parse, "'eventsTopic' must be the name of one topic"),
        ({**TOPIC, "eventsBootstrapServers": "m"}, EventTableOptions.parse, "'eventsBootstrapServers' must be host"),
        ({"startingOffsets": '{"t":{"0":1}}'}, EventTableOptions.parse, "'startingOffsets' must be earliest or latest"),
        ({"maxFilesPerTrigger": "0"}, EventTableOptions.parse, "'maxFilesPerTrigger' must be a whole number from 1"),
    ],
)
def test_invalid_option_is_refused(options: dict[str, str], parse: object, problem: str) -> None:
    assert callable(parse)
    with pytest.raises(OptionError, match=problem):
        parse(options)


def test_event_files_start_at_earliest_by_default() -> None:
    assert EventTableOptions.parse({"eventsPath": "/e"}) == EventTableOptions(path="/e", max_files=1_000)
    assert EventTableOptions.parse({"STARTINGOFFSETS": "latest"}).starts_latest


def test_events_topic_has_its_own_cluster_and_makes_no_events() -> None:
    topic = EventTableOptions.parse({**TOPIC, "eventsBootstrapServers": "metrics:1"}).topic

    assert topic is not None
    assert (topic.client.bootstrap_servers, topic.topics) == ((Address("metrics", 1),), ("events",))
    assert (topic.starting_offsets, topic.events) == (OffsetsSpec(EARLIEST_OFFSET), None)
    assert not topic.fail_on_data_loss


def test_tables_of_the_cluster_take_options_of_reading() -> None:
    options = {**SERVERS, "kafka.isolation.level": "read_committed", "kafka.client.rack": "r", "subscribe": "t"}

    assert choose_table({**options, "table": "partitions"}) == (Table.PARTITIONS, options)
    assert ClusterOptions.parse(options).fetch == FetchOptions.parse(options)
    with pytest.raises(OptionError, match=r"'kafka\.isolation\.level' must be"):
        ClusterOptions.parse({**SERVERS, "kafka.isolation.level": "zz"})


def test_transactions_table_has_the_decisions_topic_of_sinks_by_default() -> None:
    assert ClusterOptions.parse(SERVERS).decisions_topic == "kafkameta-decisions"
    assert ClusterOptions.parse({**SERVERS, "decisionstopic": "d"}).decisions_topic == "d"


def test_partitions_table_has_all_topics_by_default() -> None:
    assert ClusterOptions.parse(SERVERS).topics is None
    assert ClusterOptions.parse({**SERVERS, "Subscribe": "a,b"}).topics == ("a", "b")
