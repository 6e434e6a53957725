"""The examples print what their docstrings show. Most run by Python in one process, some by spark-submit.

The indented lines after "You will see" in a docstring are its promise, in which a number stands for any number.
"""

from __future__ import annotations

import ast
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from pyspark.sql import SparkSession

from pyspark_kafka_meta.testing import LocalKafka, MockCluster
from tests.spark.shell import EXAMPLES, TIMEOUT_S, User

STEP = 'TOPIC, PARTITIONS, STEP_S = "clicks", 6, 3'
"""A line of the notebook: a broker is down for STEP_S seconds, then up for the same time."""

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.thorough]


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    shell = User(tmp_path_factory.mktemp("home"))
    yield shell
    shell.close()


@pytest.fixture(scope="module")
def views(make_topic: Callable[..., str], produce: Callable[..., list[int]]) -> str:
    """A topic of two partitions with a hundred records like those of producer.py."""
    topic = make_topic(partitions=2)
    produce(topic, [{"key": f"user-{number % 10}", "value": view(number)} for number in range(100)])
    return topic


@pytest.fixture
def at(kafka: Any, views: str) -> list[str]:
    return ["--bootstrap-servers", kafka.bootstrap_servers, "--topic", views]


def view(number: int) -> str:
    return f"user-{number % 10} opened page-{number % 7}"


def assert_keeps_its_promise(name: str, out: str, topic: str = "topic-0", but_for: str | None = None) -> None:
    """Lines with `but_for` may differ."""
    seen = set(map(shape, out.replace(topic, "topic-0").splitlines()))
    promised = [line for line in promise(name) if shape(line).strip("+-") and not (but_for and but_for in line)]
    assert promised, f"{name} promises nothing"
    assert [line for line in promised if shape(line) not in seen] == [], out


def promise(name: str) -> Iterator[str]:
    doc = ast.get_docstring(ast.parse((EXAMPLES / name).read_text())) or ""
    return (line for line in re.split("[Yy]ou will see", doc)[1].splitlines() if line.startswith("    "))


def shape(line: str) -> str:
    """The line without spaces, every number the same."""
    return re.sub(r"\s", "", re.sub(r"\d+", "0", line))


def test_every_example_is_tried_and_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    tests = "".join(path.read_text() for path in Path(__file__).parent.parent.glob("*/test_*.py"))
    for example in EXAMPLES.iterdir():
        if example.suffix in (".py", ".ipynb"):
            assert f'"{example.name}"' in tests
            assert f"]({example.name})" in listed


def test_the_first_pipeline_reads_a_batch_and_a_stream(user: User, at: list[str]) -> None:
    out = user.run("first_pipeline.py", *at, "--once")
    assert_keeps_its_promise("first_pipeline.py", out)
    assert re.search(r"\|opened\|\s*100\|", out)


def test_the_local_kafka_has_topics_and_brokers_to_kill(user: User) -> None:
    cluster = user.start(sys.executable, EXAMPLES / "local_kafka.py", "--any-ports", stdin=subprocess.PIPE)
    try:
        out, errors = cluster.communicate("kill 3\nkill 3\nrestore\nhelp\nend\nrestore\n", timeout=TIMEOUT_S)
    finally:
        cluster.kill()
    assert cluster.returncode == 0, errors
    assert_keeps_its_promise("local_kafka.py", out)
    servers = re.findall(r"at (127\S+)\n", out)
    assert (
        re.findall(r"--bootstrap-servers (\S+)", out)
        == re.findall(r'"kafka.bootstrap.servers": "(\S+)"', out)
        == servers
    )
    assert out.count("all brokers are alive") == 1, "the second command comes after `end`"


def test_words_are_counted_in_windows_that_are_complete(
    user: User, kafka: Any, make_topic: Callable[..., str], produce: Callable[..., list[int]]
) -> None:
    """By spark-submit. The third window waits, because no later record closes it."""
    topic, start_ms = make_topic(partitions=1), int(time.time() // 10 - 10) * 10_000
    times_ms = [*range(0, 20_000, 500), 31_000]
    produce(topic, [{"value": view(ms // 500), "timestamp": start_ms + ms} for ms in times_ms])
    options = ["--bootstrap-servers", kafka.bootstrap_servers, "--topic", topic, "--folder", user.home / "counts"]
    out = user.run_alone("spark-submit", EXAMPLES / "word_count.py", *options)
    assert_keeps_its_promise("word_count.py", out)
    assert re.findall(r"\|opened\|\s*(\d+)\|", out) == ["20", "20"]


def test_counts_of_words_are_in_a_compacted_topic(user: User, kafka: Any, at: list[str]) -> None:
    counts = f"{at[-1]}-counts"
    out = user.run("word_count_to_kafka.py", *at, "--counts", counts)
    assert_keeps_its_promise("word_count_to_kafka.py", out)
    assert re.search(r"\|opened\|\s*100\|", out)
    resource = ConfigResource(ResourceType.TOPIC, counts)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    assert admin.describe_configs([resource])[resource].result(30)["cleanup.policy"].value == "compact"


def test_enriched_records_have_the_country_of_their_user(user: User, at: list[str]) -> None:
    out = user.run("enrich_with_headers.py", *at, "--enriched", f"{at[-1]}-enriched")
    assert_keeps_its_promise("enrich_with_headers.py", out)
    assert re.findall(r"\|user-(\d)\|\[country=(..?)\]\s*\|10 ", out)[:3] == [("0", "PT"), ("1", "KE"), ("2", "?")]


def test_cloud_events_of_both_modes_are_rows(user: User, at: list[str]) -> None:
    servers, topic = at[1], f"{at[-1]}-cloud-events"
    out = user.run("cloud_events.py", "--bootstrap-servers", servers, "--topic", topic)
    assert_keeps_its_promise("cloud_events.py", out)
    assert out.count("|/orders|") == 3


def test_values_that_are_not_avro_are_dead_letters(user: User, kafka: Any, make_topic: Callable[..., str]) -> None:
    topic = make_topic(partitions=1)
    out = user.run("typed_dead_letters.py", "--bootstrap-servers", kafka.bootstrap_servers, "--topic", topic)

    assert_keeps_its_promise("typed_dead_letters.py", out.replace(topic, "page-opened"))


def test_records_without_a_view_are_dead_letters(
    user: User, kafka: Any, make_topic: Callable[..., str], produce: Callable[..., list[int]]
) -> None:
    topic = make_topic(partitions=2)
    produce(topic, [*map(view, range(100)), None])
    options = ["--bootstrap-servers", kafka.bootstrap_servers, "--topic", topic]
    out = user.run("dead_letter_topic.py", *options, "--views", f"{topic}-views", "--dead-letters", f"{topic}-dead")
    out = out.replace(f"{topic}-views", "page-views").replace(f"{topic}-dead", "dead-letters")
    assert_keeps_its_promise("dead_letter_topic.py", out, topic)
    assert "page-views has 100 records" in out
    assert "dead-letters has 3 records" in out
    assert len(re.findall(rf"no page view at {topic}-\d, offset \d", out)) == 3


def test_the_side_stream_shows_the_refreshes_of_the_main_one(user: User, kafka: Any, topic: str) -> None:
    at = ["--bootstrap-servers", kafka.bootstrap_servers, "--topic", topic]
    feed = user.start(sys.executable, EXAMPLES / "producer.py", *at, "--records", "20", "--seconds", str(TIMEOUT_S))
    try:
        out = user.run("side_stream.py", *at, "--seconds", "12")
    finally:
        feed.kill()
        feed.communicate()
    assert_keeps_its_promise("side_stream.py", out, but_for="refreshes by reason")
    [reasons] = re.findall(r"^\d+ records read; refreshes by reason: (\{.*\})$", out, re.MULTILINE)
    assert ast.literal_eval(reasons).keys() >= {"bootstrap", "max_age"}, "a slow broker causes further reasons"


def test_a_reader_is_stale_after_a_leader_moved(user: User, mock_cluster: MockCluster) -> None:
    mock_cluster.create_topic("topic-0", partitions=2)
    mock_cluster.move_leader("topic-0", 1, broker_id=1)
    producer = Producer({"bootstrap.servers": mock_cluster.bootstrap_servers})
    for number in range(10):
        producer.produce("topic-0", view(number), partition=number % 2)
    assert producer.flush(30) == 0
    options = ["--bootstrap-servers", mock_cluster.bootstrap_servers, "--once", "--seconds", str(TIMEOUT_S)]
    lines = user.lines("who_is_stale.py", *options)
    out = next(lines)  # the caches have events
    mock_cluster.move_leader("topic-0", 1, broker_id=3)
    out += "".join(lines)
    assert_keeps_its_promise("who_is_stale.py", out)
    assert re.search(r"reader .* topic-0 partition 1 is led by 3, .* says 1\n", out)


def test_the_listener_logs_lag_time_and_refreshes(user: User, at: list[str]) -> None:
    lines = user.lines("query_listener.py", *at, "--max-offsets", "40", "--port", "0", "--seconds", "20")
    url = next(lines).strip()
    out = next(lines)
    with urlopen(url, timeout=30) as response:
        scraped = response.read().decode()
    out += "".join(lines)
    assert_keeps_its_promise("query_listener.py", out, but_for="bootstrap")
    behind = [int(count) for count in re.findall(r"s; (\d+) records behind", out)]
    assert behind == sorted(behind, reverse=True)
    assert behind[-1] == 0
    assert "bootstrap 1" in out
    assert "kafkameta_exporter_up" in scraped


@pytest.mark.parametrize("name", ["who_is_stale.py", "side_stream.py"])
def test_ctrl_c_ends_a_watching_program_and_leaves_no_events(name: str, user: User, at: list[str]) -> None:
    program = user.start(sys.executable, EXAMPLES / name, *at, "--seconds", str(TIMEOUT_S))
    try:
        assert program.stdout is not None
        assert program.stdout.readline()
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=60)
    finally:
        program.kill()
    assert (program.returncode, "KeyboardInterrupt" in errors) == (0, False), errors[-4000:]
    assert not list(user.home.glob("kafkameta-events-of-*"))


def test_a_restart_loses_and_repeats_nothing(user: User, at: list[str]) -> None:
    out = user.run("restart_and_rate_limit.py", *at, "--max-offsets", "40")
    assert_keeps_its_promise("restart_and_rate_limit.py", out)
    assert "the folder holds 100 records, 100 different ones" in out
    runs = [(int(count), int(most)) for count, most in re.findall(r"run: (\d+) records, at most (\d+) in", out)]
    assert runs[0][0] >= 80
    assert runs[0][0] + runs[1][0] == 100
    assert max(most for _, most in runs) <= 40


def test_the_secured_cluster_is_read_with_a_file_of_properties(user: User) -> None:
    with LocalKafka(1, security="SASL_SSL", users={"alice": "canary-alice"}) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.admin_servers})
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(60)
        producer = Producer({"bootstrap.servers": kafka.admin_servers})
        for number in range(20):
            producer.produce("orders", str(number))
        assert producer.flush(30) == 0
        login = kafka.client_options("alice")
        authority = user.home / "authority.pem"
        authority.write_text(login.pop("kafka.ssl.truststore.certificates"))
        login["kafka.ssl.truststore.location"] = str(authority)
        user_and_password = [login.pop(f"kafka.sasl.{name}") for name in ("username", "password")]
        login["kafka.sasl.jaas.config"] = (
            'org.apache.kafka.common.security.scram.ScramLoginModule required \\\n username="{}" password="{}";'.format(
                *user_and_password
            )
        )
        lines = [f"{name.removeprefix('kafka.')}={value}\n" for name, value in login.items()]
        file = user.home / "client.properties"
        file.write_text("".join(["# for alice alone\n", *lines]))
        options = ["--bootstrap-servers", kafka.bootstrap_servers, "--topic", "orders"]
        out = user.run("secured_cluster.py", *options, "--config", file)
    assert_keeps_its_promise("secured_cluster.py", out)
    assert "20 records read over SASL_SSL" in out
    assert "canary" not in out


def test_a_query_of_the_old_source_goes_on_with_this_one(user: User, at: list[str], jvm_jars: list[Path]) -> None:
    topic = at[-1]
    jars = ["--jars", ",".join(map(str, jvm_jars))]
    out = user.run_alone("spark-submit", *jars, EXAMPLES / "migrate_from_spark_kafka.py", *at)
    assert_keeps_its_promise("migrate_from_spark_kafka.py", out, topic)


@pytest.mark.parametrize("name", ["test_my_pipeline.py", "test_my_sink.py"])
def test_the_tests_of_a_pipeline_pass(name: str, user: User) -> None:
    options = ["-q", "-p", "no:cacheprovider", "--capture=sys"]  # the JVM writes to the real stdout
    # Alone: pytest warns, as an error here, if an example has imported the package of a plugin before.
    assert_keeps_its_promise(name, re.sub(r" in .*", "", user.run_alone("pytest", *options, EXAMPLES / name)))


def test_the_producer_waits_for_a_topic_that_the_cluster_makes_when_asked(
    user: User, mock_cluster: MockCluster, wait_for: Callable[..., Any]
) -> None:
    mock_cluster.create_topic("fresh")
    mock_cluster.set_topic_error("fresh", 3)  # UNKNOWN_TOPIC_OR_PARTITION
    mock_cluster.start_request_tracking()
    options = ["--bootstrap-servers", mock_cluster.bootstrap_servers, "--topic", "fresh", "--records", "20"]
    program = user.start(sys.executable, EXAMPLES / "producer.py", *options)
    wait_for(lambda: [request.api_key for request in mock_cluster.requests()].count(3) > 1)  # it retries
    mock_cluster.set_topic_error("fresh", 0)
    out, _ = program.communicate(timeout=TIMEOUT_S)
    assert out.startswith("delivered 20 of 20 records")


def test_the_source_reads_what_every_choice_of_the_producer_wrote(
    user: User, spark: SparkSession, kafka: Any, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=2)
    options = ["--bootstrap-servers", kafka.bootstrap_servers, "--topic", topic, "--records", "200"]
    choices = [
        "--by key-hash --compression lz4 --acks all",
        "--by key-hash --compression none --acks all --no-idempotence",
        "--by sticky --compression gzip --acks 1",
        "--by sticky --compression zstd --acks all",
        "--by 1 --compression snappy --acks 0",
    ]
    outs = [user.run("producer.py", *options, *choice.split()) for choice in choices]
    assert_keeps_its_promise("producer.py", outs[0])
    assert [out.split(":")[0] for out in outs] == ["delivered 200 of 200 records"] * len(choices)
    assert outs[4].splitlines()[1:] == ["partition 1: 200 records"]
    source = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic}
    rows = spark.read.format("kafkameta").options(**source).load().selectExpr("key", "CAST(value AS STRING) value")
    found = rows.collect()
    assert sorted(row.value for row in found) == sorted([view(number) for number in range(200)] * len(choices))
    assert sum(row.key is None for row in found) == 400


def test_the_notebook_plots_the_refreshes_of_a_rolling_restart(user: User) -> None:
    notebook = json.loads((EXAMPLES / "refreshes_during_a_rolling_restart.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    code = "\n".join("".join(cell["source"]) for cell in cells)
    assert STEP in code
    code = code.replace(STEP, STEP.replace("3", "1"))
    user.home.joinpath("notebook.py").write_text(code + "\nfigure.savefig('refreshes.png')\n")
    out = user.run(user.home / "notebook.py")
    assert re.search(r"\|\s*bootstrap\|\s*reader\|", out)
    assert re.search(r"\|\s*(leader_hint|not_leader|fenced_epoch|connection_lost)\|", out)
    assert user.home.joinpath("refreshes.png").stat().st_size > 0
