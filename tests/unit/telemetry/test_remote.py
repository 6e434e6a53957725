"""Folders beyond this machine: the same files, and no key in a message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from written_events import made

from pyspark_kafka_meta.metadata.events import Origin
from pyspark_kafka_meta.options import MetricsOptions
from pyspark_kafka_meta.telemetry.outlets import new_publisher
from pyspark_kafka_meta.telemetry.remote import RemoteFolder
from pyspark_kafka_meta.telemetry.sinks import FolderSink


def test_files_arrive_complete_and_old_ones_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_kafka_meta.telemetry.sinks.MAX_FILES", 2)
    sink = FolderSink(RemoteFolder(f"file://{tmp_path}"))
    for sequence in range(1, 4):
        sink.write([made("c0ffee", sequence)])

    assert sorted(path.name[-14:] for path in tmp_path.iterdir()) == ["00000001.jsonl", "00000002.jsonl"]


@pytest.mark.parametrize("uri", ["s3://key:hunter2@", "nonsense://key:hunter2@host/folder", "file:///no/such/hunter2"])
def test_trouble_is_told_without_the_uri_that_may_hold_keys(uri: str) -> None:
    for attempt in (lambda: RemoteFolder(uri).write("a", b""), lambda: RemoteFolder(uri).delete("a")):
        with pytest.raises(OSError, match=r"from the \w+ folder of metricsPath: check its URI") as raised:
            attempt()
        assert "hunter2" not in str(raised.value)
        assert raised.value.__suppress_context__


def test_uri_of_a_local_folder_is_that_folder(tmp_path: Path, wait_for: Callable[..., object]) -> None:
    publisher = new_publisher(MetricsOptions(f"file://{tmp_path}/my%20events", None, ()), Origin(role="reader"))
    publisher.publish(made("c0ffee", 1))
    publisher.flush()

    wait_for(lambda: list((tmp_path / "my events").glob("*.jsonl")))
