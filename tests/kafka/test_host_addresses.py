"""Brokers whose names have two addresses, of which the first accepts connections and stays silent."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import pytest

from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.kafka.metadata.refresh_events import Origin, Role
from pyspark_kafka_meta.kafka.protocol.list_offsets import LATEST_TIMESTAMP
from pyspark_kafka_meta.model import OffsetRange
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from tests.kafka.cluster_tools import Cluster
from tests.wire.scripted_broker import scripted_broker

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8 as loopback"),
]

SILENT = "127.0.0.2"


def test_each_name_costs_one_connection_to_its_silent_address(
    kafka: Cluster, topic: str, produce: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, silent = socket.getaddrinfo, list[tuple[str, int]]()
    written = produce(topic, map(str, range(30)))

    def resolve(host: str, port: int, *arguments: Any, **settings: Any) -> Any:
        first = (socket.AF_INET, socket.SOCK_STREAM, 6, "", (SILENT, port))
        return [first, *real(host, port, *arguments, **settings)]

    options = SourceOptions.parse(
        {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "kafka.socket.connection.setup.timeout.ms": "2000",
            "subscribe": topic,
        }
    )
    with ExitStack() as stack:
        client = stack.enter_context(closing(client_without_events(options.client, Origin(role=Role.CLI))))
        for server in kafka.bootstrap_servers.split(","):
            port = int(server.rsplit(":", 1)[1])
            stack.enter_context(scripted_broker(lambda peer: silent.append(peer.getsockname()), SILENT, port))
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        for _ in range(2):
            partitions = client.partitions([topic], client.api_deadline())
            ends = client.list_offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP), client.api_deadline())
            ranges = [OffsetRange(each, client.cache.snapshot.topic_id(topic), 0, ends[each].offset) for each in ends]
            rows = [row for batch in TaskReader(client, options, ["value"]).read(ranges) for row in batch.to_pylist()]
            assert len(rows) == len(written)
            client.network.close()  # the next round opens connections
    assert silent
    assert len(silent) == len(set(silent))
