"""The watcher of the demo and the page: what it does when the cluster does not answer."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from pyspark_kafka_meta.errors import AuthenticationError, ConnectError, KafkaMetaError
from pyspark_kafka_meta.tools.shared import watcher
from pyspark_kafka_meta.tools.shared.event_sources import FolderEvents
from pyspark_kafka_meta.tools.shared.watcher import Watcher


@pytest.mark.parametrize(("error", "times"), [(ConnectError("nobody there"), 3), (AuthenticationError("no"), 1)])
def test_the_cluster_is_requests_again_only_where_that_may_help(
    error: KafkaMetaError, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = []

    def fail(*_: object) -> NoReturn:
        requests.append(1)
        raise error

    monkeypatch.setattr(watcher, "describe_cluster", fail)
    options = {"kafka.bootstrap.servers": "b:9"}
    watched = Watcher(FolderEvents(str(tmp_path)), options, lambda _: (), lambda: ({}, {}, 0.0))

    assert [str(watched.state().trouble).startswith(str(error)) for _ in range(3)] == [True] * 3
    assert len(requests) == times
