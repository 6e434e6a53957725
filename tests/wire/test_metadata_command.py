"""`kafkameta metadata`: its output for a cluster, from any broker, and its error without a broker."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from pyspark_kafka_meta.testing import MockCluster
from pyspark_kafka_meta.tools.cli.main import app

NOBODY = "127.0.0.1:1"
TABLES = {"FORCE_COLOR": "1", "TERM": "dumb"}


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["metadata", *arguments], env={"COLUMNS": "120", **TABLES})
    return result.exit_code, result.output


def test_one_address_tells_all_brokers_and_leaders(mock_cluster: MockCluster) -> None:
    mock_cluster.create_topic("clicks", partitions=2)
    mock_cluster.move_leader("clicks", 1, 3)
    server = mock_cluster.bootstrap_servers.split(",")[0]
    code, text = run("--bootstrap-servers", server, "--topic", "clicks")
    assert code == 0
    for address in mock_cluster.bootstrap_servers.split(","):
        assert address.rsplit(":")[1] in text
    assert f"{server} answered Metadata v13" in text
    assert "controller" not in text, "with KRaft that is any broker"
    leaders = [line.split("│")[3].strip() for line in text.splitlines() if "clicks" in line]
    assert len(leaders) == 2
    assert leaders[1] == "3"


def test_a_dead_first_address_is_passed_over(mock_cluster: MockCluster) -> None:
    code, text = run("--bootstrap-servers", f"{NOBODY},{mock_cluster.bootstrap_servers}")
    assert code == 0
    assert "Brokers in the cluster" in text


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_an_unknown_topic_is_named_with_its_error_and_is_a_failure(
    arguments: list[str], mock_cluster: MockCluster
) -> None:
    mock_cluster.create_topic("clicks")
    arguments += ["--bootstrap-servers", mock_cluster.bootstrap_servers, "--topic", "clicks", "--topic", "no-such"]
    result = CliRunner().invoke(app, ["metadata", *arguments], env={"COLUMNS": "120", **TABLES})
    assert result.exit_code == 1
    assert "clicks" in result.stdout
    assert "no-such" in result.stdout
    said = "topic no-such cannot be read (UNKNOWN_TOPIC_OR_PARTITION (error 3)): correct --topic"
    assert result.stderr == f"kafkameta: {said}\n"


def test_a_name_that_kafka_does_not_allow_is_shortened_in_the_error(mock_cluster: MockCluster) -> None:
    mock_cluster.create_topic("clicks")
    arguments = ["--bootstrap-servers", mock_cluster.bootstrap_servers, "--topic", "clicks", "--topic", "x" * 40_000]
    result = CliRunner().invoke(app, ["metadata", "--json", "--refresh", *arguments])
    assert result.exit_code == 1
    assert '"name": "clicks"' in result.stdout
    assert result.stderr == (
        f"kafkameta: topic {'x' * 260}... cannot be read (INVALID_TOPIC_EXCEPTION (error 17)): correct --topic\n"
    )


def test_a_name_that_is_too_long_for_its_column_is_shown_whole(mock_cluster: MockCluster) -> None:
    topic = "a-topic-with-a-name-that-is-far-too-long-for-a-column-of-a-table-in-a-pipe"
    arguments = ["metadata", "--bootstrap-servers", mock_cluster.bootstrap_servers, "--topic", topic]
    text = CliRunner().invoke(app, arguments, env={"COLUMNS": "80", **TABLES}).stdout
    cells = [line.split("│")[1:-1] for line in text.partition("Topics and leaders")[2].splitlines() if "│" in line]
    first, *_, last = ("".join(map(str.strip, column)) for column in zip(*cells, strict=True))

    assert (first, last.replace(" ", "")) == (topic, "UNKNOWN_TOPIC_OR_PARTITION(error3)")
