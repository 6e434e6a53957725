"""The shared options: Kafka's properties from the command line and from a file, whose secrets no error repeats."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.tools.cli.main import app
from pyspark_kafka_meta.tools.cli.parameters import OF_QUERIES, cluster_options, since_ms

FILE = """
# Kafka's tools leave out the kafka. in front \\
security.protocol = SASL_SSL
  ! so may the line of another kind of comment, in C:\\
sasl.jaas.config=org.apache.kafka.Module required \\
    username="u" \\
    password="a=b\\\\c";
kafka.client.id=from-file
oauthTokenProvider=module:Class
ssl.keystore.key=one\\ntwo\\u0021
"""


def test_a_file_of_kafkas_tools_is_read_and_the_command_line_goes_before_it(tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text(FILE)

    assert cluster_options("b:9092", ["Client.Id=given"], config) == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.jaas.config": 'org.apache.kafka.Module required username="u" password="a=b\\c";',
        "oauthTokenProvider": "module:Class",
        "kafka.ssl.keystore.key": "one\ntwo!",
        "kafka.client.id": "given",
        "kafka.bootstrap.servers": "b:9092",
    }


def test_options_of_the_registry_are_read_from_a_file_by_a_command_that_uses_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    login = {"schema.registry.url": "http://r:8081", "schema.registry.basic.auth.user.info": "a:b"}
    given = {**login, "valueFormat": "avro"}
    config = tmp_path / "client.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in given.items()))

    assert cluster_options(None, None, config, OF_QUERIES) == given
    assert capsys.readouterr().err == ""
    assert cluster_options(None, None, config) == {}
    assert "ignored unknown options" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"=hunter2", r"client\.properties"),
        (b"\xffhunter2", r"client\.properties"),
        (
            b"# one\n\nclient.id=a \\\n  b\nsasl.password: hunter2\n",
            r"line 5 of .*client\.properties is not NAME=VALUE",
        ),
        (b"hunter2+/Q=\n", "name of an option is invalid"),
    ],
)
def test_a_line_that_cannot_be_read_is_refused_and_not_repeated(text: bytes, problem: str, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_bytes(text)

    with pytest.raises(OptionError, match=problem) as refused:
        ClientOptions.parse(cluster_options("b:9092", None, config))
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(("name", "reason"), [("missing", "No such file or directory"), ("", "Is a directory")])
def test_a_file_that_cannot_be_opened_is_refused_with_the_reason(name: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError) as refused:
        cluster_options(None, None, tmp_path / name)
    assert str(refused.value) == f"{tmp_path / name} cannot be read ({reason}): correct --config"


@pytest.mark.parametrize("text", ["10", " 0 ", "soon", "m"])
def test_a_time_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="like 10m"):
        since_ms(text, 0)


@pytest.mark.parametrize("arguments", [["--timeout-ms", str(2**31)], ["--watch", "inf"]])
def test_a_time_that_no_clock_can_wait_is_refused(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["metadata", "--bootstrap-servers", "127.0.0.1:1", *arguments])
    assert (result.exit_code, f"Invalid value for '{arguments[0]}'" in result.stderr) == (2, True)


@pytest.mark.parametrize("other", ["group.id", "auto.offset.reset", "kafka.key.deserializer", "acks", "Sasl.Pasword"])
def test_what_a_file_of_kafkas_tools_has_for_other_clients_is_passed_over_and_named(
    other: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "client.properties"
    config.write_text(f"{other}=hunter2\nlinger.ms=5\nclient.id=c\\\n")

    assert ClientOptions.parse(cluster_options("b:9092", None, config)).client_id == "c"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kafkameta: ignored unknown options in ")
    assert set(line.rpartition(": ")[2].split(", ")) == {other, "linger.ms"}


@pytest.mark.parametrize(("given", "named"), [("group.id", "kafka.group.id"), ("kafka.Sesame", "kafka.Sesame")])
def test_an_option_on_the_command_line_must_be_known_and_is_repeated_as_it_was_given(given: str, named: str) -> None:
    with pytest.raises(OptionError, match=f"Unknown option '{named}'"):
        ClientOptions.parse(cluster_options("b:9092", [f"{given}=g"], None))


@pytest.mark.parametrize("command", sorted(typer.main.get_command(app).commands))  # type: ignore[attr-defined]
def test_help_shows_what_to_give_and_no_types_of_python(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).stdout
    lines = [line for line in shown.splitlines() if not re.search(r"--help|^│ \*", line)]

    assert not [line for line in lines if re.search(r"<\w|range|x[<>]=|\bTEXT\b|INTEGER", line)]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["events", "--reason", "bogus"], "bogus is none of bootstrap, new_topic"),
        (["events", "--role", "bogus"], "bogus is none of reader, writer"),
        (["events", "--last", "0"], "0 is not between 1 and 2,147,483,647"),
        (["demo", "--cluster", "bogus"], "bogus is none of embedded, kafka"),
        (["page", "--port", "65536"], "65536 is not between 0 and 65,535"),
        (["lag", "c", "--watch", "0"], "0.0 is not between 0.1 and 86,400"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_those_that_can(arguments: list[str], told: str) -> None:
    refused = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})

    assert refused.exit_code == 2
    assert told in refused.stderr
    assert "Value error" not in refused.stderr


NO_BROKERS = "give --bootstrap-servers, or a --config that names them"
MISTAKES = [
    ("events --path p --events-topic t", "--path and --events-topic exclude each other"),
    ("events --path p --since soon", "--since must be a time like 10m"),
    ("events --path p --option client.id", "--option must be NAME=VALUE"),
    ("events --path p --bootstrap-servers b:9", "--option and --config need --events-topic"),
    ("events --events-topic t", NO_BROKERS),
    ("events --path gs://key:secret@b/p", "no events can be read: ArrowInvalid from the gs folder of --path"),
    ("events --path nonsense://key:secret@b/p", "--path must be a folder or the URI of one"),
    ("caches --path p --stale", NO_BROKERS),
    ("caches --path p --bootstrap-servers b:9", "--option and --config need --events-topic or --stale"),
    ("exporter --checkpoint c", "--checkpoint needs --bootstrap-servers"),
    ("exporter --path p --events-topic t", "--path and --events-topic exclude each other"),
    ("exporter --path p --bootstrap-servers b:9 --option kafka.misspelt=1", "misspelt"),
    ("page --bootstrap-servers b:9", "--bootstrap-servers, --option and --config need --path or --events-topic"),
    ("page --path p --events-topic t", "--path and --events-topic"),
    ("page --path p --cluster kafka", "--cluster excludes --path"),
    ("page --path p --checkpoint c", "--checkpoint needs --bootstrap-servers"),
    ("page --since 10h", "--since and --until need --path or --events-topic"),
    ("page --path p --since 10h --checkpoint c --bootstrap-servers b:9", "--checkpoint and --decisions-topic show"),
    ("page --path p --since 10h --decisions-topic d --bootstrap-servers b:9", "--checkpoint and --decisions-topic"),
    ("page --path p --since 10h --bootstrap-servers b:9", "--option and --config need --events-topic"),
    ("page --path p --since 9h --until 10h", "--since must be before --until"),
    ("incidents --path p --until three", "--until must be a time like 10m"),
    ("page --path p --host 192.0.2.1", "cannot listen on 192.0.2.1, port 8080: Cannot assign requested address."),
    ("page --events-topic t", NO_BROKERS),
    ("transactions", NO_BROKERS),
    ("lag c --bootstrap-servers b:9 --count 2", "--count needs --watch"),
    ("metadata --bootstrap-servers b:9 --count 2", "--count needs --watch"),
    ("metadata --bootstrap-servers b:9 --option kafka.misspelt=1", "misspelt"),
    ("metadata --bootstrap-servers localhost", "must be host:port"),
    ("metadata --bootstrap-servers 127.0.0.1:1", "(cannot connect to 127.0.0.1:1: Connection refused)"),
    ("doctor --topic t", "--bootstrap-servers"),
    ("doctor --bootstrap-servers b:9 --write", "--write needs --topic"),
    ("doctor --path p", "--path needs --executors"),
    ("doctor --bootstrap-servers b:9 --topic t --option acks=1", "kafka.acks"),
    ("doctor --bootstrap-servers b:9 --topic t --write --option linger.ms=5", "linger"),
    ("doctor --bootstrap-servers localhost", "must be host:port"),
    ("doctor --bootstrap-servers b:9 --option sasl.password=secret", "kafka.security.protocol"),
    ("demo --bootstrap-servers b:9", "--topic"),
    ("demo --topic t", "--bootstrap-servers"),
    ("demo --feed", "--feed"),
    ("demo --cluster kafka --bootstrap-servers b:9 --topic t", "--cluster"),
    ("demo --option security.protocol=SSL", "--option"),
    ("demo --bootstrap-servers b:9 --topic t --option security.protocol=NONE", "kafka.security.protocol"),
    ("demo --bootstrap-servers b:9 --topic t --option startingOffsets=latest", "Unknown option 'startingOffsets'"),
    ("demo --bootstrap-servers b:9 --topic ' '", "subscribe"),
    ("demo --bootstrap-servers 127.0.0.1:1 --topic t", "no broker responded"),
    (
        "demo --bootstrap-servers b:9 --topic t --feed --option security.protocol=SSL "
        "--option ssl.truststore.location=/no/such.pem",
        "ssl.truststore.location' names a file that cannot be read",
    ),
]


@pytest.mark.parametrize(("command", "problem"), MISTAKES)
def test_a_mistake_is_one_line_without_a_secret(command: str, problem: str) -> None:
    nothing_starts = {"PYSPARK_PYTHON": "false", "JAVA_HOME": "/nowhere"}  # by the doctor or the demo
    result = CliRunner().invoke(app, shlex.split(command), env=nothing_starts)

    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert not result.stdout or command.startswith("doctor ")
    assert problem in result.stderr
    assert "secret" not in result.output
