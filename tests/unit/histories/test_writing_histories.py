"""Writing tasks through random faults; `writing_history` has the model and the invariants."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.kafka.client.leader_requests import LeaderRequests, SentRequest
from pyspark_kafka_meta.kafka.client.next_request import RetryPause
from tests.budget import cases
from tests.unit.histories.blocks import blocks
from tests.unit.histories.writing_checks import violations
from tests.unit.histories.writing_history import WritingHistory


@pytest.mark.budget
@pytest.mark.parametrize("seeds", blocks(cases(40, 200, 5_000)))
def test_each_row_is_written_through_faults(seeds: Iterable[int]) -> None:
    """A failure has the seed and the end of its history: `WritingHistory(seed).run()` repeats it."""
    for seed in seeds:
        history = WritingHistory(seed).run()
        found = violations(history)
        assert not found, f"WritingHistory({seed}): {found}\n{history}"


def test_histories_find_a_wait_for_metadata_that_nobody_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader has another request for each failed Fetch: histories of readers do not find it."""

    def wait(_: object, waiting: RetryPause, sent: SentRequest[object], __: KafkaMetaError) -> None:
        waiting.wait_for_metadata_after(sent.generation)

    monkeypatch.setattr(LeaderRequests, "refresh_after_failure", wait)
    assert any(violations(WritingHistory(seed).run()) for seed in range(20))
