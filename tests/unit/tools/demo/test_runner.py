"""`kafkameta demo` refuses wrong options before anything starts."""

from __future__ import annotations

from typing import NoReturn

import pytest
from typer.testing import CliRunner

from pyspark_kafka_meta.tools.cli.main import app
from pyspark_kafka_meta.tools.demo import runner

NO_STORE = ["--option", "security.protocol=SSL", "--option", "ssl.truststore.location=/no/such.pem"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--topic", "t", "--option", "security.protocol=NONE"], "kafka.security.protocol"),
        (["--topic", "t", "--option", "startingOffsets=latest"], "Unknown option 'startingOffsets'"),
        (["--topic", " "], "subscribe"),
        (["--topic", "t", "--bootstrap-servers", "127.0.0.1:1"], "no broker responded"),
        (["--topic", "t", "--feed", *NO_STORE], "ssl.truststore.location' names a file that cannot be read"),
    ],
)
def test_a_mistake_is_told_before_anything_starts(
    arguments: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object) -> NoReturn:
        pytest.fail("something was started")

    monkeypatch.setattr(runner, "find_java", start)
    result = CliRunner().invoke(app, ["demo", "--bootstrap-servers", "b:9", *arguments])

    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (1, "", 1)
    assert complaint in result.stderr
