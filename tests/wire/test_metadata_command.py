"""`kafkameta metadata`: its output for a cluster, once and with --refresh, --watch, --json and --config."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

import pytest
from typer.testing import CliRunner

from pyspark_kafka_meta.errors import AuthenticationError
from pyspark_kafka_meta.testing import MockCluster
from pyspark_kafka_meta.tools.cli import cluster as cluster_module
from pyspark_kafka_meta.tools.cli.main import app

WIDE = {"COLUMNS": "200", "LINES": "50", "TERM": "dumb"}
TABLES = {"FORCE_COLOR": "1", "TERM": "dumb"}
TERMINALS = [{}, {"FORCE_COLOR": "1", "TERM": "xterm"}]


@pytest.fixture
def cluster(mock_cluster: MockCluster) -> MockCluster:
    """Topic t with one partition, whose leader is broker 1."""
    mock_cluster.create_topic("t")
    mock_cluster.move_leader("t", 0, 1)
    return mock_cluster


def run(cluster: MockCluster, *arguments: str, env: dict[str, str] | None = None) -> Any:
    command = ["metadata", "--bootstrap-servers", cluster.bootstrap_servers, "--topic", "t", *arguments]
    return CliRunner().invoke(app, command, env={**WIDE, **(env or {})})


def between_looks(monkeypatch: pytest.MonkeyPatch, *actions: Callable[[], object]) -> None:
    """Runs the next of `actions` in each pause of a watch, then Ctrl-C."""
    left: Iterator[Callable[[], object]] = iter(actions)

    def pause(_: float) -> None:
        action = next(left, None)
        if action is None:
            raise KeyboardInterrupt
        action()

    monkeypatch.setattr("pyspark_kafka_meta.tools.console.sleep", pause)


def leaders(text: str) -> list[int]:
    documents = [json.loads(line) for line in text.splitlines()]
    return [document["topics"][0]["partitions"][0]["leader_id"] for document in documents]


@pytest.mark.parametrize(("arguments", "env"), [((), {}), (("--json",), TABLES)], ids=["in a pipe", "in a terminal"])
def test_json_is_the_response_of_whom(arguments: tuple[str, ...], env: dict[str, str], cluster: MockCluster) -> None:
    document = json.loads(run(cluster, *arguments, env=env).stdout)

    assert document["answered_by"] == cluster.bootstrap_servers.split(",")[0]
    assert [broker["node_id"] for broker in document["brokers"]] == [1, 2, 3]
    assert (document["topics"][0]["name"], document["events"]) == ("t", [])


def test_a_refresh_on_demand_is_shown_with_its_reason_broker_and_size(cluster: MockCluster) -> None:
    text = run(cluster, "--refresh", env=TABLES).stdout
    on_demand = text.partition("on_demand")[2]
    events = json.loads(run(cluster, "--refresh").stdout)["events"]
    (event,) = [event for event in events if event["broker_id"]][1:]

    assert "cli" in on_demand
    assert "broker " in on_demand
    assert "unchanged" in on_demand
    assert (event["role"], event["reason"], event["generation_after"]) == ("cli", "on_demand", 2)
    assert str(event["response_bytes"]) in on_demand


def test_a_watch_prints_json_and_ends_well_with_ctrl_c(cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    between_looks(monkeypatch, lambda: None, lambda: cluster.move_leader("t", 0, 2), lambda: None)
    result = run(cluster, "--watch", "1", "--json")

    assert (result.exit_code, leaders(result.stdout)) == (0, [1, 1, 2, 2])


def test_a_watched_cache_tells_what_changed(cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    between_looks(monkeypatch, lambda: cluster.move_leader("t", 0, 2))
    looks = map(json.loads, run(cluster, "--watch", "1", "--refresh", "--count", "2").stdout.splitlines())
    first, second = ([event["leaders_changed"] for event in look["events"]] for look in looks)

    assert not any(first)
    assert [(change["old_leader_id"], change["new_leader_id"]) for changes in second for change in changes or ()] == [
        (1, 2)
    ]


def test_a_watch_goes_on_while_no_broker_responds(cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def move() -> None:
        cluster.broker_up(-1)
        cluster.move_leader("t", 0, 3)

    between_looks(monkeypatch, lambda: cluster.broker_down(-1), move)
    result = run(cluster, "--watch", "1", "--json", "--count", "3")

    assert (result.exit_code, leaders(result.stdout)) == (0, [1, 3])
    assert "no broker responded" in result.stderr


@pytest.mark.parametrize("terminal", TERMINALS)
def test_refused_login_ends_it(terminal: dict[str, str], cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise AuthenticationError("b:9 refused the login")

    between_looks(monkeypatch, lambda: monkeypatch.setattr(cluster_module, "describe_cluster", refuse), lambda: None)
    result = run(cluster, "--watch", "1", env=terminal)

    assert (result.exit_code, ("Brokers in the cluster" if terminal else "answered_by") in result.stdout) == (1, True)
    assert result.stderr.count("refused the login") == len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("terminal", TERMINALS)
@pytest.mark.parametrize(("looks", "code"), [("1", 1), ("2", 0), ("3", 1)])
def test_a_watch_ends_as_its_last_look(
    looks: str, code: int, terminal: dict[str, str], cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.broker_down(-1)
    between_looks(monkeypatch, lambda: cluster.broker_up(-1), lambda: cluster.broker_down(-1))
    assert run(cluster, "--watch", "1", "--count", looks, env=terminal).exit_code == code


def test_in_a_terminal_the_last_look_replaces_others(cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    between_looks(monkeypatch, lambda: cluster.broker_down(-1), lambda: cluster.broker_up(-1))
    text = run(cluster, "--watch", "1", "--count", "3", env={"FORCE_COLOR": "1", "TERM": "xterm"}).stdout
    drawn = re.split(r"\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)*", text)
    shown = ["error" if "no broker responded" in one else "tables" for one in drawn]

    assert [kind for kind, _ in groupby(shown)] == ["tables", "error", "tables"]


def test_the_brokers_may_be_named_in_the_file(cluster: MockCluster, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text(f"bootstrap.servers={cluster.bootstrap_servers}\n")
    named, nowhere = (CliRunner().invoke(app, ["metadata", *more]) for more in (["--config", str(config)], []))

    assert (named.exit_code, "answered_by" in named.stdout) == (0, True)
    assert (nowhere.exit_code, "kafkameta: give --bootstrap-servers, or a --config" in nowhere.stderr) == (1, True)


def test_one_address_tells_all_brokers_and_leaders(mock_cluster: MockCluster) -> None:
    mock_cluster.create_topic("clicks", partitions=2)
    mock_cluster.move_leader("clicks", 1, 3)
    server = mock_cluster.bootstrap_servers.split(",")[0]
    arguments = ["metadata", "--bootstrap-servers", server, "--topic", "clicks"]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "120", **TABLES})
    text = result.output
    assert result.exit_code == 0
    for address in mock_cluster.bootstrap_servers.split(","):
        assert address.rsplit(":")[1] in text
    assert f"{server} answered Metadata v13" in text
    assert "controller" not in text, "with KRaft that is any broker"
    assert [line.split()[:3] for line in text.splitlines() if "clicks" in line][1] == ["clicks", "1", "3"]


@pytest.mark.parametrize("arguments", [[], ["--json"], ["--json", "--refresh"]])
@pytest.mark.parametrize(
    ("topic", "named", "error"),
    [
        ("no-such", "no-such", "UNKNOWN_TOPIC_OR_PARTITION (error 3)"),
        ("x" * 40_000, f"{'x' * 260}...", "INVALID_TOPIC_EXCEPTION (error 17)"),
    ],
    ids=["unknown", "not allowed"],
)
def test_a_topic_that_cannot_be_read_is_named_briefly_with_its_error_and_is_a_failure(
    arguments: list[str], topic: str, named: str, error: str, cluster: MockCluster
) -> None:
    result = run(cluster, "--topic", topic, *arguments, env=TABLES)
    assert result.exit_code == 1
    assert '"name": "t"' in result.stdout or " t " in result.stdout
    assert topic[:7] in result.stdout
    assert result.stderr == f"kafkameta: topic {named} cannot be read ({error}): correct --topic\n"


def test_a_name_that_is_too_long_for_its_column_is_shown_whole(mock_cluster: MockCluster) -> None:
    topic = "a-topic-with-a-name-that-is-far-too-long-for-a-column-of-a-table-in-a-pipe"
    arguments = ["metadata", "--bootstrap-servers", mock_cluster.bootstrap_servers, "--topic", topic]
    text = CliRunner().invoke(app, arguments, env={"COLUMNS": "80", **TABLES}).stdout
    _, _, head, _, *rows = text.partition("Topics and leaders")[2].splitlines()
    cells = (slice(head.find("partition")), slice(head.find("error"), None))
    first, last = ("".join(row[cell].strip() for row in rows) for cell in cells)

    assert (first, last.replace(" ", "")) == (topic, "UNKNOWN_TOPIC_OR_PARTITION(error3)")
