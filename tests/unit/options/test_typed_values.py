"""The options of typed keys and values, and of the schema registry."""

from __future__ import annotations

import logging
import pickle

import pytest

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.options import Framing, OnMalformedRecord, SinkOptions, SourceOptions, SubjectNameStrategy
from pyspark_kafka_meta.typed.avro import Avro

MINIMAL = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}
URL = {"schema.registry.url": "http://localhost:8081"}
AVRO = {**URL, "valueFormat": "avro"}
SECRET = "kept-secret"


def problems(options: dict[str, str]) -> list[str]:
    with pytest.raises(OptionError) as caught:
        SourceOptions.parse({**MINIMAL, **options})
    return str(caught.value).split("\n")


def test_keys_and_values_are_bytes_by_default() -> None:
    assert SourceOptions.parse(MINIMAL).typed.columns == ()


def test_the_options_of_a_typed_value() -> None:
    (value,) = SourceOptions.parse({**MINIMAL, **AVRO}).typed.columns

    assert (value.column, value.format, value.framing) == ("value", Avro, Framing.CONFLUENT)
    assert (value.schema, value.is_latest, value.subjects(("t", "u"))) == (None, True, ("t-value", "u-value"))


def test_without_a_registry_values_have_no_frames() -> None:
    (key,) = SourceOptions.parse({**MINIMAL, "keyFormat": "avro", "keySchema": '"int"'}).typed.columns

    assert (key.column, key.framing, key.schema, key.is_latest) == ("key", Framing.NONE, '"int"', False)


@pytest.mark.parametrize(
    ("strategy", "subjects"), [("topic", ("t-value",)), ("record", ("a.B", "C")), ("topic-record", ("t-a.B", "t-C"))]
)
def test_subjects_are_named_as_the_strategy_says(strategy: str, subjects: tuple[str, ...]) -> None:
    names = {} if strategy == "topic" else {"valueRecordName": " a.B, C,"}
    typed = SourceOptions.parse({**MINIMAL, **AVRO, "valueSubjectNameStrategy": strategy, **names}).typed

    assert typed.columns[0].strategy == SubjectNameStrategy(strategy)
    assert typed.columns[0].subjects(("t",)) == subjects


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("shop.Order-1, a$b", ("shop.Order-1", "a$b")),
        ("Order of a customer", ("Order of a customer",)),
        (' "Order, new" ,b', ("Order, new", "b")),
        ('say "hi"', ('say "hi"',)),
        ('"say ""hi"", you"', ('say "hi", you',)),
        (":.staging:orders-value", (":.staging:orders-value",)),
    ],
)
def test_record_names_are_any_texts(text: str, names: tuple[str, ...]) -> None:
    given = {"valueSubjectNameStrategy": "record", "valueRecordName": text}
    assert SourceOptions.parse({**MINIMAL, **AVRO, **given}).typed.columns[0].subjects(("t",)) == names


def test_a_subject_may_be_given_for_all_topics() -> None:
    named = {"subscribePattern": "t.*", "valueSubject": ":.staging:orders-value"}
    typed = SourceOptions.parse({"kafka.bootstrap.servers": "a:1", **AVRO, **named}).typed
    assert typed.columns[0].subjects(("t", "u")) == (":.staging:orders-value",)


REGISTRY, BEARER = "schema.registry.", "schema.registry.bearer.auth."
TRUSTSTORE = {f"{REGISTRY}ssl.truststore.location": "ca.pem"}
ISSUER = {
    f"{BEARER}issuer.endpoint.url": "https://a/token",
    f"{BEARER}client.id": "me",
    f"{BEARER}client.secret": SECRET,
}
LETTERS = {"onMalformedRecord": "deadLetter", "deadLetterTopic": "my-letters"}
GOOD = [
    ({"valueSchemaVersion": "3"}, lambda typed: typed.value_version == 3),
    ({"valueSchemaVersion": "LATEST"}, lambda typed: typed.value_version == "latest"),
    ({"valueFraming": "apicurio"}, lambda typed: typed.columns[0].framing is Framing.APICURIO),
    ({"valueFraming": "confluent-header"}, lambda typed: typed.columns[0].framing is Framing.CONFLUENT_HEADER),
    ({"enableStableIdentifiersForUnionType": "true"}, lambda typed: typed.columns[0].stable_members),
    ({"recursiveFieldMaxDepth": "3"}, lambda typed: typed.columns[0].max_depth == 3),
    ({"includeRaw": "true"}, lambda typed: typed.includes_raw),
    ({"onMalformedRecord": "record"}, lambda typed: typed.on_malformed is OnMalformedRecord.RECORD),
    ({**LETTERS, "deadLetterKey": "offset"}, lambda typed: typed.dead_letter_has_own_key),
    (LETTERS, lambda typed: (typed.dead_letter_topic, typed.dead_letter_has_own_key) == ("my-letters", False)),
    ({"onMalformedRecord": "null", "maxMalformedRecords": "7"}, lambda typed: typed.most_malformed(9) == 7),
    ({"onMalformedRecord": "null", "maxMalformedRecords": "0.07"}, lambda typed: typed.most_malformed(100) == 7),
    ({f"{REGISTRY}url": "http://a:1/x/, http://b,"}, lambda typed: typed.registry.urls == ("http://a:1/x", "http://b")),
    ({f"{REGISTRY}url": "HTTPS://a", **TRUSTSTORE}, lambda typed: typed.registry.urls == ("https://a",)),
    (
        {**ISSUER, f"{BEARER}scope": "api", f"{BEARER}credentials.source": "OAUTHBEARER"},
        lambda typed: (typed.registry.oauth.oauth_client_id, typed.registry.oauth.oauth_scope) == ("me", "api"),
    ),
    ({**ISSUER, **TRUSTSTORE}, lambda typed: typed.registry.oauth.truststore_location == "ca.pem"),
    ({f"{BEARER}custom.provider.class": "a.b:C"}, lambda typed: typed.registry.oauth.oauth_token_provider == "a.b:C"),
    ({f"{BEARER}logical.cluster": "lsrc-1"}, lambda typed: typed.registry.oauth is None),
    ({f"{REGISTRY}timeout.ms": "500"}, lambda typed: typed.registry.timeout_ms == 500),
]


@pytest.mark.parametrize(("options", "holds"), GOOD, ids=lambda case: str(case) if isinstance(case, dict) else "")
def test_a_value_is_read(options: dict[str, str], holds: object) -> None:
    typed = SourceOptions.parse({**MINIMAL, **AVRO, **options}).typed

    assert callable(holds) and holds(typed)
    assert pickle.loads(pickle.dumps(typed)) == typed


def test_tls_of_the_registry_is_that_of_a_broker_with_its_own_options() -> None:
    registry = SourceOptions.parse({**MINIMAL, **AVRO, **TRUSTSTORE, f"{REGISTRY}url": "https://a"}).typed.registry

    assert registry is not None
    assert (registry.security.uses_tls, registry.security.truststore_location) == (True, "ca.pem")


INT = {"valueFormat": "avro", "valueSchema": '"int"'}
JSON = {"valueFormat": "json", "valueSchema": "{}"}
BAD = [
    ({"valueFormat": "arvo"}, "'valueFormat' must be bytes or avro or connect-json or json or protobuf, got 'arvo' ("),
    ({"valueFormat": "avro"}, "'valueFormat' avro needs 'schema.registry.url' or 'valueSchema'"),
    ({"valueSchema": '"int"'}, "'valueSchema' has no effect without 'valueFormat': set it or remove the option"),
    ({"onMalformedRecord": "null"}, "'onMalformedRecord' has no effect without 'valueFormat' or 'keyFormat'"),
    (LETTERS, "'onMalformedRecord' has no effect without 'valueFormat' or 'keyFormat': set it"),
    ({**AVRO, "onMalformedRecord": "deadLetter"}, "'onMalformedRecord' deadLetter needs 'deadLetterTopic'"),
    (
        {**AVRO, "onMalformedRecord": "null", "deadLetterTopic": "letters"},
        "'deadLetterTopic' has no effect without 'onMalformedRecord' deadLetter: set it or remove the option",
    ),
    ({**AVRO, **LETTERS, "deadLetterTopic": "t"}, "'deadLetterTopic' is one of the topics that are read"),
    ({**AVRO, **LETTERS, "deadLetterTopic": "a/b"}, "'deadLetterTopic' must be the name of one topic, got 'a/b"),
    ({**AVRO, "maxMalformedRecords": "3"}, "'maxMalformedRecords' has no effect without 'onMalformedRecord'"),
    ({**AVRO, **LETTERS, "maxMalformedRecords": "1.5"}, "a whole number from 0, or a share from 0.0 to 1.0, got"),
    ({**JSON, "enableStableIdentifiersForUnionType": "true"}, "UnionType' has no effect without a format avro"),
    ({**AVRO, "valueFormat": "protobuf", "valueFraming": "apicurio-header"}, "not supported for protobuf: use confl"),
    ({**JSON, "recursiveFieldMaxDepth": "2"}, "'recursiveFieldMaxDepth' has no effect without a format avro or prot"),
    ({**INT, "valueFraming": "confluent"}, "needs 'schema.registry.url', as a frame has only a schema id"),
    ({**URL, **INT, "valueSchemaVersion": "1"}, "Set either 'valueSchema' or 'valueSchemaVersion', not both"),
    ({**AVRO, "valueSchemaVersion": "0"}, "'valueSchemaVersion' must be latest or a version of the subject from"),
    ({**AVRO, "valueSubject": "s", "valueSubjectNameStrategy": "topic"}, "'valueSubject' or 'valueSubjectNameStra"),
    ({**URL, **INT, "valueSubject": "s"}, "Set either 'valueSchema' or 'valueSubject', not both"),
    ({**AVRO, "valueSubjectNameStrategy": "record"}, "'valueSubjectNameStrategy' record needs 'valueRecordName'"),
    ({**AVRO, "valueRecordName": "a.B"}, "'valueRecordName' needs 'valueSubjectNameStrategy' record or topic-rec"),
    ({**AVRO, "valueRecordName": ", "}, "'valueRecordName' must be the full name of a record, as shop.Order;"),
    ({**AVRO, "valueRecordName": "a\nb"}, "'valueRecordName' must be the full name of a record, as shop.Order;"),
    ({**AVRO, f"{REGISTRY}url": "localhost:8081"}, "'schema.registry.url' must be http://host:port or"),
    ({**AVRO, f"{REGISTRY}url": "http://a:99999"}, "'schema.registry.url' must be http://host:port or"),
    ({**AVRO, f"{REGISTRY}url": "mock://a"}, "'schema.registry.url' must be http://host:port or https:"),
    ({**AVRO, **ISSUER, f"{BEARER}token": SECRET}, f"either '{BEARER}token' or '{BEARER}issuer.endpoint.url', not"),
    ({**AVRO, **ISSUER, f"{BEARER}issuer.endpoint.url": f"https://{SECRET}@a"}, "url' must be https://host/path"),
    ({**AVRO, f"{BEARER}issuer.endpoint.url": "https://a"}, f"endpoint.url' needs '{BEARER}client.id' and"),
    ({**AVRO, f"{BEARER}credentials.source": "OAUTHBEARER"}, f"source' needs '{BEARER}issuer.endpoint.url'"),
    ({**AVRO, f"{BEARER}client.secret": SECRET}, f"client.secret' has no effect without '{BEARER}issuer."),
    ({f"{BEARER}token": SECRET}, f"'{BEARER}token' has no effect without 'schema.registry.url'"),
    (
        {**AVRO, f"{BEARER}token": SECRET, f"{REGISTRY}basic.auth.user.info": f"a:{SECRET}"},
        f"Set either 'schema.registry.basic.auth.user.info' or '{BEARER}token', not both",
    ),
    ({**AVRO, f"{REGISTRY}basic.auth.user.info": SECRET}, "registry.basic.auth.user.info' must be user:password"),
    ({**AVRO, f"{BEARER}token": f"{SECRET}\nx: y"}, f"'{BEARER}token' must be one word of ASCII characters"),
    ({**AVRO, f"{REGISTRY}url": f"http://me:{SECRET}@a"}, "'schema.registry.url' must be http://host:port"),
    ({**AVRO, **ISSUER, f"{REGISTRY}ssl.keystore.location": "a.pem"}, "without TLS: begin 'schema.registry.url' with"),
    ({**AVRO, f"{REGISTRY}proxy.host": "p"}, "proxy.host' and 'schema.registry.proxy.port' must be set together"),
    (
        {**AVRO, f"{REGISTRY}proxy.host": f"http://me:{SECRET}@p", f"{REGISTRY}proxy.port": "1"},
        "'schema.registry.proxy.host' must be the name or address of a host, without port and scheme",
    ),
    (
        {**AVRO, f"{REGISTRY}url": "https://a", f"{REGISTRY}ssl.keystore.key": SECRET},
        "keystore.key' and 'schema.registry.ssl.keystore.certificate.chain' must be set",
    ),
]


@pytest.mark.parametrize(("options", "problem"), BAD)
def test_a_contradiction_is_one_sentence_without_a_secret(options: dict[str, str], problem: str) -> None:
    (line,) = problems(options)

    assert problem in line
    assert SECRET not in line


def test_a_pattern_of_topics_needs_a_schema_that_does_not_depend_on_them() -> None:
    pattern = {"kafka.bootstrap.servers": "a:1", "subscribePattern": "t.*", **AVRO}
    with pytest.raises(OptionError, match="With subscribePattern the subjects of schemas are unknown"):
        SourceOptions.parse(pattern)

    assert SourceOptions.parse({**pattern, "valueSchema": '"int"'}).typed.columns
    record = {"valueSubjectNameStrategy": "record", "valueRecordName": "a.B"}
    assert SourceOptions.parse({**pattern, **record}).typed.columns


def test_a_token_has_no_line_break_of_its_file() -> None:
    """Python's HTTP client would refuse the header, with its text in the error."""
    registry = SourceOptions.parse({**MINIMAL, **AVRO, f"{BEARER}token": f"{SECRET}\n"}).typed.registry

    assert registry is not None and registry.bearer_token is not None
    assert registry.bearer_token.reveal() == SECRET


def test_a_login_over_http_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        SourceOptions.parse({**MINIMAL, **AVRO, "schema.registry.basic.auth.user.info": f"me:{SECRET}"})

        endpoint = {**ISSUER, "schema.registry.bearer.auth.issuer.endpoint.url": "http://a/token"}
        SourceOptions.parse({**MINIMAL, **AVRO, **endpoint})

    assert "schema.registry.url is not https: the login is sent unencrypted" in caplog.text
    assert "issuer.endpoint.url is not https: the client's secret is sent unencrypted" in caplog.text
    assert SECRET not in caplog.text


def test_values_with_their_schemas_need_no_other_option() -> None:
    options = {**MINIMAL, **URL, "keyFormat": "avro", "valueFormat": "connect-json"}
    key, value = SourceOptions.parse(options).typed.columns

    assert (key.framing, value.framing, value.schema) == (Framing.CONFLUENT, Framing.NONE, None)
    assert SourceOptions.parse({**MINIMAL, "valueFormat": "connect-json"}).typed.columns[0].is_latest
    given = {"kafka.bootstrap.servers": "a:1", "subscribePattern": "t.*", **URL, "valueFormat": "connect-json"}
    assert SourceOptions.parse(given).topic_pattern == "t.*"


OF_A_REGISTRY = {
    "valueFraming": "confluent", "valueSubject": "s", "valueSchemaVersion": "1", "valueSubjectNameStrategy": "topic",
    "valueRecordName": "a",
}  # fmt: skip


@pytest.mark.parametrize(("option", "text"), OF_A_REGISTRY.items())
def test_values_with_their_schemas_take_none_from_a_registry(option: str, text: str) -> None:
    assert problems({**URL, "valueFormat": "connect-json", option: text}) == [
        f"Option '{option}' has no effect on connect-json, whose values have their schemas with them"
    ]


def test_values_with_their_schemas_are_not_written() -> None:
    with pytest.raises(OptionError, match="'valueFormat' connect-json is for reads alone: write json, or avro with"):
        SinkOptions.parse({"kafka.bootstrap.servers": "a:1", "topic": "t", "valueFormat": "connect-json"})


def test_a_pattern_does_not_match_the_letter_topic() -> None:
    pattern = {"kafka.bootstrap.servers": "a:1", "subscribePattern": "my-.*", **AVRO, "valueSubject": "s"}
    matches = SourceOptions.parse({**pattern, **LETTERS}).topic_filter

    assert matches is not None
    assert (matches("my-orders"), matches("my-letters"), matches("my-letters-2")) == (True, False, True)
