"""The options of a query that writes: values, defaults and errors, also of options of the other side."""

from __future__ import annotations

import pickle

import pytest

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.options import OPTIONS, Query, SinkOptions, SourceOptions, option_table

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
TRANSACTIONAL = {**SERVERS, "kafka.transactional.id": "orders"}
READ = {**SERVERS, "subscribe": "t"}
TYPED = {"topic": "t", "schema.registry.url": "http://a:1", "valueFormat": "avro"}
REGISTERS = {"auto.register.schemas": "true"}
SINK_ONLY = {option.name for option in OPTIONS.values() if option.queries in Query.WRITES} - {"table"}


def problems(options: dict[str, str]) -> list[str]:
    with pytest.raises(OptionError) as caught:
        SinkOptions.parse(options)
    return str(caught.value).split("\n")


# --- values -----------------------------------------------------------------------------------------------------------


GOOD = [
    ("kafka.acks", "ALL", -1),
    ("kafka.acks", " -1 ", -1),
    ("kafka.acks", "1", 1),
    ("kafka.transactional.id", " orders of 2026 ", "orders of 2026"),
    ("decisionsTopic", "decisions", "decisions"),
    ("txnAppId", "nightly load", "nightly load"),
    (
        "newTopicConfig",
        '{"retention.ms": -1, "a.b": "c", "d": true, "e": 0.5}',
        (("a.b", "c"), ("d", "true"), ("e", "0.5"), ("retention.ms", "-1")),
    ),
]


@pytest.mark.parametrize(("name", "text", "value"), GOOD)
def test_value_is_read(name: str, text: str, value: object) -> None:
    assert OPTIONS[name].value(text) == value


LEVELS = [("gzip", 1), ("lz4", 17), ("zstd", 0)]


@pytest.mark.parametrize(("codec", "level"), LEVELS)
def test_compression_has_the_level_of_its_codec(codec: str, level: int) -> None:
    given = {**SERVERS, "kafka.compression.type": codec}

    assert SinkOptions.parse(given).producer.compression_level is None
    producer = SinkOptions.parse({**given, f"kafka.compression.{codec}.level": str(level)}).producer
    assert producer.compression_level == level


def test_topic_of_all_rows() -> None:
    assert SinkOptions.parse({**SERVERS, "TOPIC": "clicks"}).topic == "clicks"


def test_location_of_the_checkpoint_is_sparks() -> None:
    assert SinkOptions.parse({**SERVERS, "checkpointlocation": "/c"}) == SinkOptions.parse(SERVERS)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"kafka.acks": "1"}, False),
        ({"kafka.acks": "1", "KAFKA.ENABLE.IDEMPOTENCE": "false"}, False),
        ({"kafka.acks": "all"}, True),
        ({"kafka.acks": "all", "kafka.enable.idempotence": "true"}, True),
    ],
)
def test_idempotence_is_off_when_only_the_leader_acknowledges(options: dict[str, str], expected: bool) -> None:
    assert SinkOptions.parse({**SERVERS, **options}).producer.idempotent is expected


def test_a_worker_that_reads_and_writes_has_one_client() -> None:
    shared = {**SERVERS, "kafka.request.timeout.ms": "5", "kafka.client.id": "c", "eventsTopic": "m"}
    written = SinkOptions.parse({**shared, "kafka.acks": "1"})
    read = SourceOptions.parse({**shared, "subscribe": "t", "kafka.fetch.max.bytes": "7", "kafka.client.rack": "r"})

    assert (written.client, written.events) == (read.client, read.events)


@pytest.mark.parametrize("name", ["eventsPath", "eventsTopic"])
def test_events_of_a_sink_go_where_those_of_a_source_go(name: str) -> None:
    given = {name: "events", "eventsTopic": "events", "eventsBootstrapServers": "other:1"}

    assert SinkOptions.parse({**SERVERS, **given}).events == SourceOptions.parse({**READ, **given}).events


# --- errors -----------------------------------------------------------------------------------------------------------

BAD = [
    ("topic", "a,b", "must be the name of one topic, got 'a,b'"),
    ("kafka.acks", "0", "got '0' (without acknowledgements a task does not know whether its rows were written)"),
    ("kafka.acks", "2", "must be all, -1 or 1, got '2'"),
    ("kafka.acks", "al", "(did you mean 'all'?)"),
    ("kafka.transactional.id", "  ", "must be 1 to 255 printable characters"),
    ("kafka.transactional.id", "a\nb", "must be 1 to 255 printable characters"),
    ("kafka.transactional.id", "clicks/2026/11", "not end with two numbers after slashes"),
    ("kafka.client.id", "a\nb", "must be at most 255 printable characters"),
    ("eventsTopic", "a,b", "must be the name of one topic"),
    ("decisionsTopic", "a,b", "must be the name of one topic, got 'a,b'"),
    ("txnAppId", "x" * 256, "must be 1 to 255 printable characters"),
    ("newTopicConfig", "retention.ms=1", "must be JSON. Expected e.g. {"),
    ("newTopicConfig", '{"a": {}}', "must be JSON. Expected e.g. {"),
    ("newTopicPartitions", "0", "must be a whole number from 1 to"),
    ("newTopicReplicas", "40000", "must be a whole number from 1 to 32767"),
]


@pytest.mark.parametrize(("name", "text", "expected"), BAD)
def test_a_value_that_cannot_be_used_is_named(name: str, text: str, expected: str) -> None:
    with pytest.raises(OptionError) as refused:
        OPTIONS[name].value(text)

    assert str(refused.value).startswith(f"Option '{name}' ")
    assert expected in str(refused.value)


def test_typed_values_of_a_write() -> None:
    named = {"valueSubjectNameStrategy": "record", "valueRecordName": "a.B", "valueSchema": '"int"'}
    typed = SinkOptions.parse({**SERVERS, **TYPED, **REGISTERS, **named}).typed
    assert typed.auto_register
    assert typed.columns[0].subjects(("t",)) == ("a.B",)
    assert not SinkOptions.parse({**SERVERS, **TYPED}).typed.auto_register
    without_topic = {**TYPED, **named}
    del without_topic["topic"]
    assert SinkOptions.parse({**SERVERS, **without_topic}).topic is None


IN_FLIGHT = "kafka.max.in.flight.requests.per.connection"
CONTRADICTIONS: list[tuple[dict[str, str], str]] = [
    ({"createTopics": "true"}, "'createTopics' has no effect without 'topic'"),
    ({"topic": "t", "newTopicPartitions": "3"}, "'newTopicPartitions' has no effect without 'createTopics'"),
    (REGISTERS, "'auto.register.schemas' has no effect without 'schema.registry.url' and a format"),
    ({**TYPED, **REGISTERS, "valueSchemaVersion": "2"}, "either 'auto.register.schemas' or 'valueSchemaVersion'"),
    ({**TYPED, "valueSchema": '"int"', "valueSchemaVersion": "2"}, "Set either 'valueSchema' or 'valueSchemaVersion'"),
    ({**TYPED, "valueSubjectNameStrategy": "record", "valueRecordName": "a,b"}, "'valueRecordName' must be one name"),
    ({"schema.registry.url": "http://a:1", "keyFormat": "avro"}, "or 'keySubject', or 'keySubjectNameStrategy' to"),
    ({"kafka.acks": "1", "kafka.enable.idempotence": "true"}, "Must set kafka.acks to all"),
    ({IN_FLIGHT: "6"}, f"{IN_FLIGHT} must be set to at most 5. Current value is 6."),
    ({"kafka.delivery.timeout.ms": "29999"}, "(29999) should be equal to or larger than kafka.request.timeout.ms"),
    ({"kafka.request.timeout.ms": "120001"}, "kafka.delivery.timeout.ms (120000) should be equal to or larger than"),
    ({"kafka.transactional.id": "orders", "kafka.acks": "1"}, "to all in order to use kafka.transactional.id"),
    ({"kafka.transactional.id": "a", "kafka.enable.idempotence": "false"}, "without also enabling kafka.enable.idem"),
]


@pytest.mark.parametrize(("options", "expected"), CONTRADICTIONS)
def test_options_that_contradict_each_other_are_refused(options: dict[str, str], expected: str) -> None:
    (problem,) = problems({**SERVERS, **options})
    assert expected in problem


@pytest.mark.parametrize(
    "options",
    [
        {IN_FLIGHT: "6", "kafka.enable.idempotence": "false"},
        {IN_FLIGHT: "6", "kafka.acks": "1"},
        {"kafka.delivery.timeout.ms": "5", "kafka.request.timeout.ms": "5"},
    ],
)
def test_options_that_contradict_defaults_alone_are_accepted(options: dict[str, str]) -> None:
    assert SinkOptions.parse({**SERVERS, **options})


def test_one_error_lists_every_problem() -> None:
    assert problems({"kafka.acks": "1", "kafka.enable.idempotence": "maybe", "topics": "t", IN_FLIGHT: "x"}) == [
        "Unknown option 'topics'. Did you mean 'topic'?",
        "Option 'kafka.enable.idempotence' must be true or false, got 'maybe'",
        f"Option '{IN_FLIGHT}' must be a whole number from 1 to 2147483647, got 'x'",
        "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka producer",
    ]


def test_stream_numbers_its_writes_itself() -> None:
    batch = SinkOptions.parse({**TRANSACTIONAL, "txnAppId": "app", "txnVersion": "7"})
    with pytest.raises(OptionError, match=r"^Options 'txnAppId' and 'txnVersion' are for batch writes"):
        batch.for_stream()

    stream = SinkOptions.parse(TRANSACTIONAL)
    assert stream.for_stream() == stream


# --- options of the other side ----------------------------------------------------------------------------------------


READ_ONLY = {option.name for option in OPTIONS.values() if not option.queries & Query.WRITES}


@pytest.fixture(autouse=True)
def _nothing_was_logged_before() -> None:
    option_table._warn_once.cache_clear()


@pytest.mark.parametrize("name", sorted(READ_ONLY))
def test_sink_ignores_each_option_of_reading_with_a_warning(name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert SinkOptions.parse({**SERVERS, name.lower(): "x"}) == SinkOptions.parse(SERVERS)
    assert caplog.messages == [f"Option '{name}' has no effect in a write"]


@pytest.mark.parametrize("name", [*sorted(SINK_ONLY), "checkpointLocation"])
def test_source_ignores_each_option_of_writing_with_a_warning(name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert SourceOptions.parse({**READ, name.lower(): "x"}) == SourceOptions.parse(READ)
    assert caplog.messages == [f"Option '{name}' has no effect in a read"]


def test_an_option_without_effect_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        SinkOptions.parse({**SERVERS, "subscribe": "t"})
    assert len(caplog.messages) == 1


def test_a_read_and_a_write_may_share_all_options() -> None:
    shared = {**TRANSACTIONAL, "subscribe": "t", "topic": "u", "kafka.acks": "all", "failOnDataLoss": "false"}
    assert SinkOptions.parse(shared).topic == "u"
    assert SourceOptions.parse(shared).topics == ("t",)


def test_source_names_subscribe_for_topics() -> None:
    with pytest.raises(OptionError, match=r"^Unknown option 'topics'\. Did you mean 'subscribe'\?$"):
        SourceOptions.parse({**READ, "topics": "t"})


# --- what others rely on ----------------------------------------------------------------------------------------------


def test_options_can_be_hashed_and_pickled() -> None:
    options = SinkOptions.parse({**SERVERS, "topic": "t", "kafka.sasl.mechanism": "PLAIN"} | LOGIN)

    assert pickle.loads(pickle.dumps(options)) == options
    assert len({options, SinkOptions.parse(SERVERS), SinkOptions.parse(SERVERS)}) == 2


LOGIN = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.username": "me", "kafka.sasl.password": "hunter2"}
