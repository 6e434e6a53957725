"""The options of a query: values, defaults and errors."""

from __future__ import annotations

import pickle

import pytest

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.model import Address, TopicPartition
from pyspark_kafka_meta.options import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    ClientOptions,
    EventsOptions,
    FetchOptions,
    OffsetsSpec,
    SourceOptions,
)
from pyspark_kafka_meta.options.offsets import GroupSpec, LastDurationSpec, LastOffsetsSpec, TimestampsSpec
from pyspark_kafka_meta.where.syntax import Column, Comparison, Condition, Literal
from tests.partitions import T0, T1

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
MINIMAL = {**SERVERS, "subscribe": "t"}


def problems(options: dict[str, str]) -> list[str]:
    with pytest.raises(OptionError) as caught:
        SourceOptions.parse(options)
    return str(caught.value).split("\n")


# --- values -----------------------------------------------------------------------------------------------------------


BY_TOPIC = OffsetsSpec(by_partition=((T0, 5),), by_topic=(("u", EARLIEST_OFFSET), ("v", LATEST_OFFSET)))
T0_23 = OffsetsSpec(by_partition=((T0, 23), (T1, LATEST_OFFSET)))
GOOD = [
    ("subscribe", " b , a,b,, ", "topics", ("b", "a")),
    ("startingOffsets", " Earliest ", "starting_offsets", OffsetsSpec(EARLIEST_OFFSET)),
    ("startingOffsets", "latest", "starting_offsets", OffsetsSpec(LATEST_OFFSET)),
    ("endingOffsets", '{"t": {"1": -1, "0": 23}}', "ending_offsets", T0_23),
    ("startingOffsets", '{"v": "latest", "t": {"0": 5}, "u": "earliest"}', "starting_offsets", BY_TOPIC),
    ("startingOffsets", '{"t": "LATEST"}', "starting_offsets", OffsetsSpec(by_topic=(("t", LATEST_OFFSET),))),
    ("startingOffsets", "-10m", "starting_offsets", LastDurationSpec(600_000)),
    ("startingOffsets", " -2D ", "starting_offsets", LastDurationSpec(2 * 24 * 3_600_000)),
    ("startingOffsets", "-1000", "starting_offsets", LastOffsetsSpec(1000)),
    ("startingOffsets", "group: mine", "starting_offsets", GroupSpec("mine")),
    ("commitOffsetsToGroup", "mine", "commit_group", "mine"),
    ("startingOffsetsByTimestamp", '{"t": {"0": 23}}', "starting_times", TimestampsSpec(by_partition=((T0, 23),))),
    ("endingOffsetsByTimestamp", '{"t": {"0": 23}}', "ending_times", TimestampsSpec(by_partition=((T0, 23),))),
    ("maxTriggerDelay", "2h", "max_trigger_delay_ms", 7_200_000),
    ("maxTriggerDelay", "500", "max_trigger_delay_ms", 500),
    ("kafka.group.id", "mine", "group_id", "mine"),
    ("where", "a = 1", "where", Condition("a = 1", Comparison("=", Column(("a",), 0), Literal("int", 1, 4), 2))),
]


@pytest.mark.parametrize(("name", "text", "field", "value"), GOOD)
def test_a_source_option_is_read_whatever_the_case_of_its_name(name: str, text: str, field: str, value: object) -> None:
    for spelled in (name, name.lower(), name.upper()):
        assert getattr(SourceOptions.parse({**MINIMAL, spelled: text}), field) == value


LOCALHOST = (Address("localhost", 9092),)
GOOD_EVENTS = [
    ("eventsPath", "/tmp/my events", EventsOptions("/tmp/my events", None, LOCALHOST)),
    ("eventsPath", "file:/tmp/my%20events", EventsOptions("/tmp/my events", None, LOCALHOST)),
    ("eventsPath", "file:///tmp/events", EventsOptions("/tmp/events", None, LOCALHOST)),
    ("eventsPath", "s3://bucket/events", EventsOptions("s3://bucket/events", None, LOCALHOST)),
    ("eventsPath", "fsspec+dbfs:///events", EventsOptions("fsspec+dbfs:///events", None, LOCALHOST)),
    ("eventsTopic", "events", EventsOptions(None, "events", LOCALHOST)),
]


@pytest.mark.parametrize(("name", "text", "events"), GOOD_EVENTS)
def test_destination_of_events(name: str, text: str, events: EventsOptions) -> None:
    assert SourceOptions.parse({**MINIMAL, name: text}).events == events


def test_events_topic_may_be_in_another_cluster() -> None:
    given = {**MINIMAL, "eventsTopic": "events", "eventsBootstrapServers": "other:9093"}

    events = SourceOptions.parse(given).events
    assert events is not None
    assert events.bootstrap_servers == (Address("other", 9093),)
    (problem,) = problems({**given, "eventsBootstrapServers": "other"})
    assert problem.startswith("Option 'eventsBootstrapServers' must be host:port between commas")


GOOD_FETCH = [
    ("kafka.isolation.level", "read_committed", "read_committed", True),
    ("kafka.client.rack", "eu-1a", "client_rack", "eu-1a"),
    ("KAFKA.FETCH.MAX.BYTES", "7", "fetch_max_bytes", 7),
]


@pytest.mark.parametrize(("name", "text", "field", "value"), GOOD_FETCH)
def test_option_of_reading_is_parsed_and_makes_no_other_client(name: str, text: str, field: str, value: object) -> None:
    options = SourceOptions.parse({**MINIMAL, name: text})
    assert getattr(options.fetch, field) == value
    assert FetchOptions.parse({**SERVERS, name: text}) == options.fetch
    assert ClientOptions.parse({**SERVERS, name: text}) == options.client == SourceOptions.parse(MINIMAL).client


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("b1:1, b_2.x-y:65535", (Address("b1", 1), Address("b_2.x-y", 65535))),
        ("PLAINTEXT://b1:1,SASL_SSL://[::1]:2", (Address("b1", 1), Address("::1", 2))),
        ("[::1]:9092,[0:0::1]:9092", (Address("::1", 9092),)),
        ("a:9092,,a:9092", (Address("a", 9092),)),
    ],
)
def test_bootstrap_servers_keep_their_order_without_duplicates(text: str, addresses: tuple[Address, ...]) -> None:
    assert ClientOptions.parse({"kafka.bootstrap.servers": text}).bootstrap_servers == addresses


def test_assign_names_partitions_and_thereby_topics() -> None:
    options = SourceOptions.parse({**SERVERS, "assign": '{"u": [3], "t": [1, 0, 1]}'})

    assert options.assigned == (T0, T1, TopicPartition("u", 3))
    assert options.topics == ("t", "u")


# --- errors -----------------------------------------------------------------------------------------------------------

OFFSETS = 'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got '
BAD = [
    ("kafka.bootstrap.servers", "a", "'a' is not an address"),
    ("kafka.bootstrap.servers", "SSL://a", "'SSL://a' is not an address"),
    ("kafka.bootstrap.servers", "::1:9092", "IPv6 as [::1]:9092"),
    ("kafka.bootstrap.servers", "[zz]:9092", "in 'zz'"),
    ("kafka.bootstrap.servers", "a:0", "0 is not a whole number from 1 to 65535"),
    ("kafka.bootstrap.servers", "a:65536", "65536 is not"),
    ("kafka.bootstrap.servers", " , ", "must be host:port between commas"),
    ("kafka.client.id", "a\nb", "at most 255 printable characters"),
    ("kafka.client.rack", "a\nb", "'kafka.client.rack' must be at most 255 printable characters"),
    ("subscribe", " , ", "No topics to subscribe to as specified value for option 'subscribe' is ' , '"),
    ("subscribe", "good,a b", "('a b' is not a topic name)"),
    ("subscribe", "x" * 100_000, "xxx...' ('xxx"),
    ("subscribe", "..", "('..' is not a topic name)"),
    ("kafka.bootstrap.servers", "x" * 40_000 + ":9092", "('xxx"),
    ("startingOffsets", "foo", OFFSETS + "foo"),
    ("startingOffsets", "Earlist", OFFSETS + "Earlist (did you mean 'earliest'?)"),
    ("startingOffsets", '{"t":"lates"}', OFFSETS + '{"t":"lates"} (did you mean \'latest\'?)'),
    ("startingOffsets", ' {"t":', OFFSETS + ' {"t": (Expecting value: line 1 column 7'),
    ("startingOffsets", "23", OFFSETS + "23"),
    ("startingOffsets", "{}", OFFSETS + "{}"),
    ("startingOffsets", '{"t":{}}', OFFSETS),
    ("startingOffsets", '{"t":23}', OFFSETS),
    ("startingOffsets", '{"t":{"0":-3}}', "-3 is not a whole number from -2"),
    ("startingOffsets", '{"t":{"0":1.0}}', "1.0 is not"),
    ("startingOffsets", '{"t":{"0":true}}', "True is not"),
    ("startingOffsets", '{"t":{"00":1}}', "'00' is not a partition"),
    ("startingOffsets", '{"t":{"0":1,"0":2}}', "a name appears twice"),
    ("startingOffsets", "[" * 100_000, OFFSETS),
    ("startingOffsets", "-1", "write latest or earliest"),
    ("startingOffsets", "group: ", OFFSETS + "group: "),
    ("commitOffsetsToGroup", " ", "must be a group id"),
    ("startingOffsets", "-0", OFFSETS + "-0"),
    ("startingOffsets", "-10 parsecs", OFFSETS + "-10 parsecs"),
    ("startingOffsets", '{"t":"first"}', OFFSETS),
    ("endingOffsets", "-10m", "Option 'endingOffsets' must be latest or JSON"),
    ("startingOffsetsByTimestamp", '{"t":{"0":-1}}', 'Expected e.g. {"topicA":{"0":1700000000000}'),
    ("endingOffsetsByTimestamp", "latest", "Option 'endingOffsetsByTimestamp' must be JSON"),
    ("maxTriggerDelay", "soon", "must be a time like 15m"),
    ("maxTriggerDelay", "-1s", "must be a time like 15m"),
    ("eventsPath", " ", "Option 'eventsPath' must be a folder or the URI of one"),
    ("eventsPath", "/tmp/\0", "Option 'eventsPath' must be a folder or the URI of one"),
    ("eventsPath", "s3:/bucket/events", "such as s3://bucket/folder"),
    ("eventsPath", "s3a://bucket/events", "(write s3:// for s3a://)"),
    ("eventsPath", "dbfs:/events", "(pyarrow has no file system of that scheme, but s3, gs,"),
    ("eventsPath", "https://host/events", "(pyarrow has no file system of that scheme"),
    ("eventsPath", "file://tmp/events", "is file:///folder, without a host, or /folder)"),
    ("eventsPath", "file:events", "is file:///folder, without a host, or /folder)"),
    ("eventsTopic", "a,b", "Option 'eventsTopic' must be the name of one topic, got 'a,b'"),
    ("where", "key = f(1)", "got 'key = f(1)' (functions are not supported, at character 7: f(1))"),
    ("where", " ", "(a value is expected, at the end)"),
    ("where", "(" * 100_000, "must be a condition"),
]


@pytest.mark.parametrize(("name", "text", "expected"), BAD)
def test_a_value_that_cannot_be_used_is_named(name: str, text: str, expected: str) -> None:
    (problem,) = problems({**MINIMAL, name.lower(): text})

    assert name in problem
    assert expected in problem
    assert len(problem) < 700


@pytest.mark.parametrize("text", ['{"t":"first"}', "first", "t", "", "23", '"t"', "[1", "1{"])
def test_invalid_offset_is_refused_without_a_parser_message(text: str) -> None:
    assert problems({**MINIMAL, "endingOffsets": text}) == [
        f"Option 'endingOffsets' must be latest or JSON. {OFFSETS}{text}"
    ]


BAD_ASSIGN = ["t", "[]", "{}", '{"t":[]}', '{"t":0}', '{"t":[-1]}', '{"t":["0"]}', '{"t":[false]}', '{"..":[0]}']


@pytest.mark.parametrize("text", BAD_ASSIGN)
def test_assign_must_be_topics_with_lists_of_partitions(text: str) -> None:
    (problem,) = problems({**SERVERS, "assign": text})

    assert f'Expected e.g. {{"topicA":[0,1],"topicB":[0,1]}}, got {text}' in problem


@pytest.mark.parametrize("name", ["assign", "endingOffsetsByTimestamp"])
def test_parser_message_is_for_json_objects_only(name: str) -> None:
    given = {**SERVERS, **({} if name == "assign" else MINIMAL)}
    assert problems({**given, name: "t-0"})[0].endswith("got t-0")
    assert problems({**given, name: "{t-0}"})[0].endswith("(char 1))")


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("startingOffset", "startingOffsets"),
        ("bootstrap.servers", "kafka.bootstrap.servers"),
        ("group.id", "kafka.group.id"),
        ("maxoffsetpertrigger", "maxOffsetsPerTrigger"),
        ("kafka.max.partition.fetch.byte", "kafka.max.partition.fetch.bytes"),
    ],
)
def test_error_of_a_misspelt_option_names_the_right_option(misspelt: str, meant: str) -> None:
    assert problems({**MINIMAL, misspelt: "1"}) == [f"Unknown option '{misspelt}'. Did you mean '{meant}'?"]


@pytest.mark.parametrize("torn", ["MIIEvQIBADANBgkqhkiG9w0BAQ/+==", "kafka.-----BEGIN KEY-----", "s3cret word", ""])
def test_invalid_name_is_not_repeated(torn: str) -> None:
    (problem,) = problems({**MINIMAL, torn: "1"})
    assert problem.startswith("The name of an option is invalid")
    assert not torn or torn not in problem


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("kafka.fetch.size", ["kafka.fetch.min.bytes", "kafka.fetch.max.bytes", "kafka.fetch.max.wait.ms"]),
        ("offsets", ["endingOffsets", "startingOffsets", "minOffsetsPerTrigger"]),
    ],
)
def test_error_of_an_unknown_option_names_three_similar_options(name: str, nearest: list[str]) -> None:
    (problem,) = problems({**MINIMAL, name: "1"})
    assert problem == f"Unknown option '{name}'. The nearest are {', '.join(nearest)}."


@pytest.mark.parametrize(("name", "is_kafkas"), [("kafka.foo", True), ("foo", False)])
def test_similar_options_have_the_same_prefix(name: str, is_kafkas: bool) -> None:
    (problem,) = problems({**MINIMAL, name: "1"})
    nearest = problem.removesuffix(".").rpartition(" are ")[2].split(", ")
    assert [option.startswith("kafka.") for option in nearest] == [is_kafkas] * 3


def test_each_unknown_option_has_its_own_sentence() -> None:
    unknown = problems({**MINIMAL, "kafka.xyz": "1", "startingOffset": "1", "abc": "1"})
    assert [problem.partition(". ")[0] for problem in unknown] == [
        "Unknown option 'kafka.xyz'",
        "Unknown option 'startingOffset'",
        "Unknown option 'abc'",
    ]


def test_events_path_is_not_repeated_because_it_may_contain_keys() -> None:
    assert problems({**MINIMAL, "eventsPath": "s3 ://key:hunter2@bucket"}) == [
        "Option 'eventsPath' must be a folder or the URI of one, such as s3://bucket/folder"
    ]


@pytest.mark.parametrize("password", ["hunter2", "hunter2,x"])
def test_address_with_a_login_is_not_repeated(password: str) -> None:
    (problem,) = problems({**MINIMAL, "kafka.bootstrap.servers": f"good:9092,SASL_SSL://user:{password}@broker:9092"})

    assert "kafka.bootstrap.servers" in problem and "an address must have no login: use kafka.sasl.username" in problem
    assert "hunter2" not in problem


def test_one_error_lists_every_problem() -> None:
    assert problems({"startingOffset": "x", "minPartitions": "0", "includeHeaders": "1"}) == [
        "Unknown option 'startingOffset'. Did you mean 'startingOffsets'?",
        "minPartitions must be positive, a whole number, got '0'",
        "Option 'includeHeaders' must be false or true, got '1'",
        "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka consumer",
        "One of the following options must be specified for Kafka source: subscribe, subscribePattern, assign.",
    ]


@pytest.mark.parametrize("second", [{"assign": '{"t":[0]}'}, {"subscribepattern": "t.*"}], ids=["assign", "pattern"])
def test_strategies_exclude_each_other(second: dict[str, str]) -> None:
    assert problems({**MINIMAL, **second}) == [
        "Only one of the following options can be specified for Kafka source: subscribe, subscribePattern, assign."
    ]


def test_pattern_has_no_topics_before_planning() -> None:
    options = SourceOptions.parse({**SERVERS, "subscribePattern": "click-[a-z]+"})

    assert (options.topic_pattern, options.topics, options.assigned) == ("click-[a-z]+", (), None)


JAVA_ONLY = {
    " ": "Pattern to subscribe is empty",
    "a(": "missing ), unterminated subpattern",
    r"\p{Alpha}+": r"bad escape \p",
    r"\Qa.b\E": r"bad escape \Q",
    "(?<name>a)": "unknown extension",
    "[a-z&&[^b]]": "Possible set intersection",
    "[[a]b]": "Possible nested set",
}


@pytest.mark.parametrize(("text", "expected"), JAVA_ONLY.items())
def test_a_pattern_that_python_reads_otherwise_than_java_is_refused(text: str, expected: str) -> None:
    (problem,) = problems({**SERVERS, "subscribePattern": text})

    assert problem.startswith("Option 'subscribePattern' must be a regular expression")
    assert expected in problem


CONTRADICTIONS = {
    "The value of minOffsetsPerTrigger(9) is higher than the maxOffsetsPerTrigger(3).": {
        "minOffsetsPerTrigger": "9",
        "maxOffsetsPerTrigger": "3",
    },
    "The value of minPartitions(5) is higher than maxTasks(4).": {"minPartitions": "5", "maxTasks": "4"},
}


@pytest.mark.parametrize(("expected", "options"), CONTRADICTIONS.items())
def test_limits_that_contradict_each_other_are_refused(expected: str, options: dict[str, str]) -> None:
    assert problems({**MINIMAL, **options}) == [expected]


def test_error_lists_contradictions_and_invalid_values() -> None:
    bad = {"includeHeaders": "maybe", "maxOffsetsPerTrigger": "many", "minOffsetsPerTrigger": "9"}
    found = problems({**MINIMAL, **bad, "minPartitions": "5", "maxTasks": "4"})

    assert [problem.split(",")[0] for problem in found] == [
        "Option 'maxOffsetsPerTrigger' must be a whole number from 1 to 9223372036854775807",
        "Option 'includeHeaders' must be false or true",
        "The value of minPartitions(5) is higher than maxTasks(4).",
    ]


def test_client_without_topics_has_kafka_options_only() -> None:
    with pytest.raises(OptionError, match="Unknown option 'subscribe'"):
        ClientOptions.parse(MINIMAL)
    with pytest.raises(OptionError, match=r"'kafka\.bootstrap\.servers' must be specified"):
        ClientOptions.parse({})


# --- the kind of query ------------------------------------------------------------------------------------------------


def test_default_start_and_end_of_batches_and_streams() -> None:
    batch, stream = SourceOptions.parse(MINIMAL).for_batch(), SourceOptions.parse(MINIMAL).for_stream()

    assert (batch.starting_offsets, batch.ending_offsets) == (OffsetsSpec(EARLIEST_OFFSET), OffsetsSpec(LATEST_OFFSET))
    assert (stream.starting_offsets, stream.ending_offsets) == (OffsetsSpec(LATEST_OFFSET), None)


@pytest.mark.parametrize(("topic", "events"), [("team-kafkameta-events", {}), ("own", {"eventsTopic": "own"})])
def test_topics_of_events_have_no_latest_record_of_a_key(topic: str, events: dict[str, str]) -> None:
    given = {**MINIMAL, "subscribe": f"t,{topic}", **events}
    problem = f"topic {topic} has an event in each record, and none replaces another"
    with pytest.raises(OptionError, match=problem):
        SourceOptions.parse(given).for_batch(latest_by_key=True)
    with pytest.raises(OptionError, match=problem):
        SourceOptions.parse({**given, "startingOffsets": "latestByKey"}).for_stream()

    SourceOptions.parse(given).for_batch()
    other = {**given, "subscribe": "t", "eventsTopic": "t", "eventsBootstrapServers": "other:1"}
    SourceOptions.parse({**other, "startingOffsets": "latestByKey"}).for_stream()


def test_one_time_goes_before_times_by_partition_and_these_before_offsets() -> None:
    given = {**MINIMAL, "startingOffsets": "-5", "endingOffsets": '{"t":{"0":7}}'}
    assert SourceOptions.parse(given).for_batch().starting_offsets == LastOffsetsSpec(5)

    given |= {"startingOffsetsByTimestamp": '{"t":{"0":3}}', "endingOffsetsByTimestamp": '{"t":{"0":4}}'}
    batch = SourceOptions.parse(given).for_batch()
    assert batch.starting_offsets == TimestampsSpec(by_partition=((T0, 3),))
    assert batch.ending_offsets == TimestampsSpec(by_partition=((T0, 4),), or_latest=True)

    given |= {"startingTimestamp": "1", "endingTimestamp": "2", "startingOffsetsByTimestampStrategy": "latest"}
    batch = SourceOptions.parse(given).for_batch()
    assert batch.starting_offsets == TimestampsSpec(1, or_latest=True)
    assert batch.ending_offsets == TimestampsSpec(2, or_latest=True)


START_LATEST = (
    "starting offset can't be latest for batch queries on Kafka: set earliest, -10m or JSON, or use readStream"
)
AFTER_THE_END = "The specified start offset 9 is greater than the end offset 3"
BAD_RANGES = [
    ("latest", "latest", [START_LATEST]),
    ("earliest", "earliest", ["ending offset can't be earliest for batch queries on Kafka"]),
    ('{"t":"latest"}', "latest", ["startingOffsets for t can't be latest for batch queries on Kafka"]),
    ("earliest", '{"t":"earliest"}', ["ending offset for t can't be earliest for batch queries on Kafka"]),
    ('{"t":{"0":-1}}', "latest", ["startingOffsets for t-0 can't be latest for batch queries on Kafka"]),
    ("earliest", '{"t":{"0":-2}}', ["ending offset for t-0 can't be earliest for batch queries on Kafka"]),
    ('{"t":{"0":9,"1":3}}', '{"t":{"0":3,"1":3}}', [f"{AFTER_THE_END} for topic t partition 0."]),
    (
        '{"t":{"0":1,"1":2}}',
        '{"t":{"0":1},"u":{"0":2}}',
        [
            "The specified start offset and end offset should have the same topic-partitions. "
            "Only in startingOffsets: t-1. Only in endingOffsets: u-0."
        ],
    ),
    (
        "latest",
        '{"t":{"0":-2,"1":-2}}',
        [
            START_LATEST,
            "ending offset for t-0 can't be earliest for batch queries on Kafka",
            "ending offset for t-1 can't be earliest for batch queries on Kafka",
        ],
    ),
]


@pytest.mark.parametrize(("starting", "ending", "expected"), BAD_RANGES)
def test_batch_refuses_empty_and_inconsistent_offset_ranges(starting: str, ending: str, expected: list[str]) -> None:
    options = SourceOptions.parse({**MINIMAL, "startingOffsets": starting, "endingOffsets": ending})

    with pytest.raises(OptionError) as caught:
        options.for_batch()

    assert str(caught.value).split("\n") == expected


@pytest.mark.parametrize(
    ("starting", "ending"),
    [('{"t":{"0":9}}', '{"t":{"0":-1}}'), ('{"t":{"0":9}}', '{"t":"latest"}'), ('{"t":{"0":-2}}', "latest")],
)
def test_batch_accepts_offsets_that_only_brokers_can_compare(starting: str, ending: str) -> None:
    options = SourceOptions.parse({**MINIMAL, "startingOffsets": starting, "endingOffsets": ending})

    assert options.for_batch() == options.for_batch().for_batch()


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("endingOffsets", "latest", "offset"),
        ("endingOffsets", '{"t":{"0":5,"1":-1}}', "offset"),
        ("endingOffsets", '{"t":"latest"}', "offset"),
        ("endingTimestamp", "5", "timestamp"),
        ("endingOffsetsByTimestamp", '{"t":{"0":5}}', "timestamp"),
    ],
)
def test_stream_refuses_an_end_that_moves(name: str, text: str, what: str) -> None:
    with pytest.raises(OptionError, match=f"^ending {what} not valid in streaming queries"):
        SourceOptions.parse({**MINIMAL, name: text}).for_stream()


def test_batch_ignores_on_topic_recreated() -> None:
    options = SourceOptions.parse({**MINIMAL, "onTopicRecreated": "latest"})

    assert options.for_stream().on_topic_recreated == "latest"
    assert options.for_batch().on_topic_recreated is None


@pytest.mark.parametrize("name", ["kafka.group.id", "groupIdPrefix"])
def test_group_id_is_logged_once_at_planning(name: str, caplog: pytest.LogCaptureFixture) -> None:
    options = SourceOptions.parse({**MINIMAL, name: "mine"})
    assert caplog.messages == []
    for complete in (options.for_batch, options.for_stream):
        complete()
        assert f"Kafka option '{name}' has no effect" in caplog.messages[-1]
    assert len(caplog.messages) == 2


# --- what others rely on ----------------------------------------------------------------------------------------------


def test_options_can_be_hashed_and_pickled() -> None:
    options = SourceOptions.parse({**MINIMAL, "startingOffsets": '{"t":{"0":1}}'}).for_stream()

    assert pickle.loads(pickle.dumps(options)) == options
    assert len({options, SourceOptions.parse(MINIMAL), SourceOptions.parse(MINIMAL)}) == 2
