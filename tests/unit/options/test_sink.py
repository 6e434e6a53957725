"""The options of a query that writes: values, defaults and errors, also of options of the other side."""

from __future__ import annotations

import pickle

import pytest

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import (
    OPTIONS,
    EventsOptions,
    ProducerOptions,
    Query,
    SinkOptions,
    SourceOptions,
    TransactionOptions,
    option_table,
)

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


def test_the_defaults_are_kafkas_but_for_larger_batches_and_requests() -> None:
    reading = SourceOptions.parse(READ)

    assert SinkOptions.parse(SERVERS) == SinkOptions(
        client=reading.client,
        events=EventsOptions(None, None, (Address("localhost", 9092),)),
        topic=None,
        producer=ProducerOptions(
            acks=-1,
            idempotent=True,
            compression_type="none",
            gzip_level=None,
            lz4_level=None,
            zstd_level=None,
            batch_bytes=1_000_000,
            max_request_bytes=8 << 20,
            buffer_bytes=32 << 20,
            delivery_timeout_ms=120_000,
            max_block_ms=60_000,
            max_in_flight=5,
            ignore_keys=False,
        ),
        transaction=TransactionOptions(None, None, "kafkameta-decisions", None, None, False),
    )


GOOD = [
    ("kafka.acks", "ALL", "acks", -1),
    ("kafka.acks", " -1 ", "acks", -1),
    ("kafka.acks", "1", "acks", 1),
    ("kafka.enable.idempotence", "False", "idempotent", False),
    ("kafka.compression.type", "none", "compression_type", "none"),
    ("kafka.compression.type", "gzip", "compression_type", "gzip"),
    ("kafka.compression.type", "snappy", "compression_type", "snappy"),
    ("kafka.compression.type", "LZ4", "compression_type", "lz4"),
    ("kafka.compression.type", "zstd", "compression_type", "zstd"),
    ("kafka.batch.size", "1", "batch_bytes", 1),
    ("kafka.max.request.size", "2147483647", "max_request_bytes", 2**31 - 1),
    ("kafka.buffer.memory", "9223372036854775807", "buffer_bytes", 2**63 - 1),
    ("kafka.delivery.timeout.ms", "30000", "delivery_timeout_ms", 30_000),
    ("kafka.max.block.ms", "0", "max_block_ms", 0),
    ("kafka.max.in.flight.requests.per.connection", "1", "max_in_flight", 1),
    ("kafka.partitioner.ignore.keys", "true", "ignore_keys", True),
]


@pytest.mark.parametrize(("name", "text", "field", "value"), GOOD)
def test_a_producer_option_is_read_whatever_the_case_of_its_name(
    name: str, text: str, field: str, value: object
) -> None:
    for spelled in (name, name.lower(), name.upper()):
        assert getattr(SinkOptions.parse({**SERVERS, spelled: text}).producer, field) == value


OF_TRANSACTIONS = [
    ("kafka.transactional.id", " orders of 2026 ", "transactional_id", "orders of 2026"),
    ("kafka.transaction.timeout.ms", "60000", "timeout_ms", 60_000),
    ("decisionsTopic", "decisions", "decisions_topic", "decisions"),
    ("txnAppId", "nightly load", "txn_app_id", "nightly load"),
    ("txnVersion", "9223372036854775807", "txn_version", 2**63 - 1),
    ("onChangedBatch", "skip", "skip_changed_batches", True),
]


@pytest.mark.parametrize(("name", "text", "field", "value"), OF_TRANSACTIONS)
def test_an_option_of_transactions_is_read_whatever_the_case_of_its_name(
    name: str, text: str, field: str, value: object
) -> None:
    given = {"kafka.transactional.id": "id", "txnAppId": "app", "txnVersion": "0"} | {name: text}

    for spelled in (given, {key.lower(): given[key] for key in given}):
        assert getattr(SinkOptions.parse(SERVERS | spelled).transaction, field) == value


LEVELS = [("gzip", 1), ("gzip", 9), ("lz4", 1), ("lz4", 17), ("zstd", -131072), ("zstd", 0), ("zstd", 22)]


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
    (problem,) = problems({**SERVERS, "eventsBootstrapServers": "other:1"})
    assert problem.startswith("Option 'eventsBootstrapServers' has no effect without 'eventsTopic'")


# --- errors -----------------------------------------------------------------------------------------------------------

BAD = [
    ("topic", "a,b", "must be the name of one topic, got 'a,b'"),
    ("kafka.acks", "0", "got '0' (without acknowledgements a task does not know whether its rows were written)"),
    ("kafka.acks", "2", "must be all, -1 or 1, got '2'"),
    ("kafka.acks", "al", "(did you mean 'all'?)"),
    ("kafka.enable.idempotence", "yes", "must be true or false, got 'yes'"),
    ("kafka.compression.type", "lz5", "got 'lz5' (did you mean 'lz4'?)"),
    ("kafka.compression.gzip.level", "0", "must be a whole number from 1 to 9"),
    ("kafka.compression.lz4.level", "18", "must be a whole number from 1 to 17"),
    ("kafka.compression.zstd.level", "23", "must be a whole number from -131072 to 22"),
    ("kafka.batch.size", "0", "must be a whole number from 1 to 2147483647"),
    ("kafka.max.request.size", "1MB", "must be a whole number from 1 to 2147483647"),
    ("kafka.buffer.memory", "0", "must be a whole number from 1 to 9223372036854775807"),
    ("kafka.delivery.timeout.ms", "2m", "must be a whole number from 0 to 2147483647"),
    ("kafka.max.block.ms", "-1", "must be a whole number from 0 to 9223372036854775807"),
    ("kafka.max.in.flight.requests.per.connection", "0", "must be a whole number from 1 to"),
    ("kafka.partitioner.ignore.keys", "", "must be false or true"),
    ("kafka.transactional.id", "  ", "must be 1 to 255 printable characters"),
    ("kafka.transactional.id", "a\nb", "must be 1 to 255 printable characters"),
    ("kafka.transactional.id", "clicks/2026/11", "not end with two numbers after slashes"),
    ("kafka.client.id", "a\nb", "must be at most 255 printable characters"),
    ("eventsTopic", "a,b", "must be the name of one topic"),
    ("auto.register.schemas", "yes", "must be false or true, got 'yes'"),
]
BAD_OF_TRANSACTIONS = [
    ("kafka.transaction.timeout.ms", "0", "must be a whole number from 1 to 2147483647"),
    ("decisionsTopic", "a,b", "must be the name of one topic, got 'a,b'"),
    ("txnAppId", "x" * 256, "must be 1 to 255 printable characters"),
    ("txnVersion", "-1", "must be a whole number from 0 to 9223372036854775807"),
    ("onChangedBatch", "ignore", "must be fail or skip, got 'ignore'"),
]


@pytest.mark.parametrize(("name", "text", "expected"), BAD)
def test_a_value_that_cannot_be_used_is_named(name: str, text: str, expected: str) -> None:
    (problem,) = problems({**SERVERS, name.lower(): text})

    assert problem.startswith(f"Option '{name}' ")
    assert expected in problem


@pytest.mark.parametrize(("name", "text", "expected"), BAD_OF_TRANSACTIONS)
def test_a_value_of_transactions_that_cannot_be_used_is_named(name: str, text: str, expected: str) -> None:
    (problem,) = problems({**TRANSACTIONAL, "txnAppId": "app", "txnVersion": "0"} | {name: text})

    assert problem.startswith(f"Option '{name}' ")
    assert expected in problem


def test_every_sink_option_has_a_good_and_a_bad_case() -> None:
    levels = {f"kafka.compression.{codec}.level" for codec, _ in LEVELS}
    assert {name for name, *_ in GOOD + OF_TRANSACTIONS} | levels | {"topic", *REGISTERS} == SINK_ONLY | {
        "decisionsTopic"
    }
    assert {name for name, *_ in BAD + BAD_OF_TRANSACTIONS} >= SINK_ONLY


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
    (REGISTERS, "Option 'auto.register.schemas' has no effect without 'schema.registry.url' and a format"),
    (
        {**TYPED, **REGISTERS, "valueSchemaVersion": "2"},
        "Set either 'auto.register.schemas' or 'valueSchemaVersion', not both",
    ),
    (
        {**TYPED, "valueSchema": '"int"', "valueSchemaVersion": "2"},
        "Set either 'valueSchema' or 'valueSchemaVersion', not both",
    ),
    (
        {**TYPED, "valueSubjectNameStrategy": "record", "valueRecordName": "a,b"},
        "Option 'valueRecordName' must be one name in a write",
    ),
    (
        {"schema.registry.url": "http://a:1", "keyFormat": "avro"},
        "Without the option topic the subjects of schemas are unknown: set it, or 'keySubject', or "
        "'keySubjectNameStrategy' to record",
    ),
    (
        {"kafka.acks": "1", "kafka.enable.idempotence": "true"},
        "Must set kafka.acks to all in order to use the idempotent producer.",
    ),
    (
        {IN_FLIGHT: "6"},
        f"To use the idempotent producer, {IN_FLIGHT} must be set to at most 5. Current value is 6.",
    ),
    (
        {"kafka.delivery.timeout.ms": "29999"},
        "kafka.delivery.timeout.ms (29999) should be equal to or larger than kafka.request.timeout.ms (30000).",
    ),
    (
        {"kafka.request.timeout.ms": "120001"},
        "kafka.delivery.timeout.ms (120000) should be equal to or larger than kafka.request.timeout.ms (120001).",
    ),
    (
        {"kafka.compression.type": "zstd", "kafka.compression.gzip.level": "9"},
        "Option 'kafka.compression.gzip.level' has no effect without 'kafka.compression.type' gzip: set this type or "
        "remove the level",
    ),
    (
        {"kafka.compression.zstd.level": "0"},
        "Option 'kafka.compression.zstd.level' has no effect without 'kafka.compression.type' zstd: set this type or "
        "remove the level",
    ),
    (
        {"kafka.transactional.id": "orders", "kafka.acks": "1"},
        "Must set kafka.acks to all in order to use kafka.transactional.id.",
    ),
    (
        {"kafka.transactional.id": "orders", "kafka.enable.idempotence": "false"},
        "Cannot set kafka.transactional.id without also enabling kafka.enable.idempotence.",
    ),
    *(
        (
            {"kafka.transactional.id": "orders", name: "1"},
            "Options 'txnAppId' and 'txnVersion' name a batch write together: set both or none",
        )
        for name in ("txnAppId", "txnVersion")
    ),
    *(
        (
            {name: value},
            f"Option '{name}' has no effect without 'kafka.transactional.id': set it or remove the option",
        )
        for name, value, *_ in OF_TRANSACTIONS[1:]
    ),
]


@pytest.mark.parametrize(("options", "expected"), CONTRADICTIONS)
def test_options_that_contradict_each_other_are_refused(options: dict[str, str], expected: str) -> None:
    assert problems({**SERVERS, **options}) == [expected]


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


LOGIN = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.username": "me",
    "kafka.sasl.password": "hunter2",
}
