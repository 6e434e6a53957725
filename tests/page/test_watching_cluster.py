"""`kafkameta page` beside a cluster of one's own: lag, writers and transactions, and what is shown while they are
unknown."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from confluent_kafka import Producer
from playwright.sync_api import Browser, Locator, Page, expect

from pyspark_kafka_meta.events.event import BrokerProduces
from pyspark_kafka_meta.model import Position, TopicPartition, TransactionVersion
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.testing import MockCluster
from tests.checkpoints import write_checkpoint
from tests.kafka.test_commit_steps import Sink, decide_alone, micro_batch
from tests.page.test_page import PHONE, section
from tests.unit.tools.states import WRITER
from tests.unit.written_events import learning, made, write

CACHE = "a" * 32


def watched(folder: Path, servers: str, topic: str, partitions: int) -> list[str]:
    """Writes events of a writer's cache, and a checkpoint of a query that has read nothing. Returns the arguments."""
    counts = {"produces": (BrokerProduces(2, 1_204, 9), BrokerProduces(3, 998, 9)), "retries": 3}
    now_ms = int(time.time() * 1000)
    learned = made(CACHE, 1, now_ms, **learning(topic, *[1] * partitions), **WRITER)
    write(folder / "events", learned, made(CACHE, 2, now_ms, produce_throttle_ms=40, **counts, **WRITER))
    beginning = SourceOffset(
        {TopicPartition(topic, number): Position(0) for number in range(partitions)}, {topic: None}
    )
    checkpoint = write_checkpoint(folder / "checkpoint", {0: beginning}, 0)
    return ["--path", str(folder / "events"), "--bootstrap-servers", servers, "--checkpoint", checkpoint]


def figure(page: Page, name: str) -> Locator:
    return section(page, "Figures").locator("dl > div").filter(has_text=name).locator("dd")


def produce(servers: str, topic: str, count: int, age_s: int) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for _ in range(count):
        producer.produce(topic, b"v", partition=0, timestamp=int((time.time() - age_s) * 1000))
    assert producer.flush(30) == 0


def test_lag_and_writers_are_shown_and_a_silent_cluster_makes_the_lag_unknown_while_events_go_on(
    serve: Any, page: Page, mock_cluster: MockCluster, tmp_path: Path
) -> None:
    mock_cluster.create_topic("t", 2)
    produce(mock_cluster.bootstrap_servers, "t", 3, age_s=60)
    arguments = watched(tmp_path, mock_cluster.bootstrap_servers, "t", 2)
    with serve(*arguments) as url:
        page.goto(url)
        expect(figure(page, "Records behind")).to_have_text("3")
        expect(section(page, "Lag over time")).to_contain_text("checkpoint: 3 records, ")
        row = section(page, "Lag by partition").get_by_role("row", name="t-0")
        expect(row.get_by_role("cell")).to_have_count(4)
        assert float(row.get_by_role("cell").last.inner_text()) >= 60
        writer = section(page, "Writers").get_by_role("row", name="writer 1")
        expect(writer).to_contain_text("broker 2: 1,204")
        assert [cell.inner_text() for cell in writer.get_by_role("cell").all()[1:]] == ["3", "40"]
        expect(page.get_by_text("brokers before Kafka 3.0 cannot list transactions")).to_have_count(1)
        expect(figure(page, "Open transactions")).to_have_count(0)

        mock_cluster.broker_down(-1)

        expect(figure(page, "Records behind")).to_have_text("unknown")
        expect(section(page, "Lag by partition")).to_contain_text("Unknown: no broker responded")
        expect(section(page, "Lag over time")).to_contain_text("unknown behind now, 3 records at most")
        write(tmp_path / "events", made(CACHE, 3, int(time.time() * 1000), **learning("later", 1), **WRITER))
        expect(section(page, "Events")).to_contain_text("new topics: later")


@pytest.fixture
def sink(kafka: Any, make_topic: Callable[..., str]) -> Iterator[Sink]:
    with ExitStack() as stack:
        yield Sink(
            kafka.bootstrap_servers,
            make_topic(partitions=3, name=f"orders-{uuid.uuid4().hex[:6]}"),
            TransactionVersion.V2,
            stack,
        )


@pytest.fixture
def open_and_decided(sink: Sink) -> Sink:
    """One transaction of a decided batch, and one of a task that was lost."""
    committer = sink.committer()
    plan = committer.plan()
    decided, _ = sink.write(plan, 4), sink.write(plan, 4, task=1)
    decide_alone(committer, micro_batch(4), [decided])
    return sink


@pytest.mark.kafka
@pytest.mark.thorough
@pytest.mark.usefixtures("local_kafka")  # no other transactions
def test_open_and_decided_transactions_are_shown_beside_a_lagging_query_for_everybody(
    serve: Any, browser: Browser, open_and_decided: Sink, tmp_path: Path
) -> None:
    sink = open_and_decided
    produce(sink.servers, sink.topic, 1_500, age_s=75)
    looks: Iterator[tuple[Any, Any]] = product(({"width": 1280, "height": 900}, PHONE), ("light", "dark"))
    with serve(*watched(tmp_path, sink.servers, sink.topic, 3)) as url:
        for size, scheme in looks:
            with browser.new_context(viewport=size, color_scheme=scheme) as context:
                page = context.new_page()
                page.goto(url)
                decided, lost = (section(page, "Transactions").get_by_role("row", name=f"/{n}/0") for n in (0, 1))
                expect(decided).to_contain_text("micro-batch 4 of query query")
                expect(lost).to_contain_text("Ongoing")
                expect(figure(page, "Open transactions")).to_have_text("2")
                expect(figure(page, "Records behind")).to_have_text("1,506")
                found = Axe().run(page).response["violations"]
                width = page.evaluate("document.documentElement.scrollWidth")
            assert [violation["help"] for violation in found if violation["impact"] in ("serious", "critical")] == []
            assert width <= size["width"]
