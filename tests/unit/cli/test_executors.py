"""What `kafkameta doctor --executors` has an executor tell."""

from __future__ import annotations

import pytest

from pyspark_kafka_meta.cli.checks import executors
from pyspark_kafka_meta.metadata.events import Origin, Role


def test_an_option_that_is_no_good_there_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "task_origin", lambda: Origin(role=Role.READER, executor_id="1", host="worker"))
    options = {"kafka.bootstrap.servers": "b:9", "kafka.security.protocol": "NONE"}
    *_, (check, verdict, what, _) = executors.look_around(None, options, [("b", 9)])

    assert (check, verdict) == ("executor 1 on worker: options", "fail")
    assert "kafka.security.protocol" in what
