"""Streaming queries through random faults, and readers with one thing wrong, which the histories must find;
`reading_history` has the model and the invariants."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import pytest

from pyspark_kafka_meta.kafka.client.leader_requests import LeaderRequests
from pyspark_kafka_meta.kafka.client.next_request import RetryPause
from pyspark_kafka_meta.kafka.metadata.cache import MetadataCache
from pyspark_kafka_meta.kafka.metadata.cache_state import CacheState, LeaderHinted
from pyspark_kafka_meta.kafka.metadata.refresh_policy import BrokerChoice
from pyspark_kafka_meta.kafka.metadata.snapshot import EpochRewind
from pyspark_kafka_meta.kafka.protocol.fetch import FetchedPartition, FetchPartition
from pyspark_kafka_meta.model import NO_EPOCH, OffsetRange, Position, TopicPartition
from pyspark_kafka_meta.read.fetching import lost_records
from pyspark_kafka_meta.read.fetching.partition_cursor import Instruction, PartitionCursor
from pyspark_kafka_meta.read.planning import checkpoint_offsets, offset_planner
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.read.planning.leader_epochs import LeaderEpochs
from pyspark_kafka_meta.read.planning.offset_planner import OffsetPlanner
from pyspark_kafka_meta.read.planning.offset_resolver import OffsetResolver
from pyspark_kafka_meta.read.planning.subscription import Subscription
from tests.budget import cases
from tests.unit.histories.blocks import blocks
from tests.unit.histories.reading_checks import violations
from tests.unit.histories.reading_history import ReadingHistory

Mutant: TypeAlias = Callable[[pytest.MonkeyPatch], None]


def _wrap(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, change: Callable[[Any], Any]) -> None:
    """Change what a method returns."""
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: change(original(*args, **kwargs)))


# --- epochs in requests and plans -------------------------------------------------------------------------------------


def fetch_without_last_fetched_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(request: FetchPartition) -> FetchPartition:
        return replace(request, last_fetched_epoch=NO_EPOCH)

    _wrap(monkeypatch, PartitionCursor, "request", without)


def compare_no_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaderEpochs, "truncations", lambda *_: {})


def plan_without_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(ends: Mapping[TopicPartition, Position]) -> dict[TopicPartition, Position]:
        return {partition: Position(end.offset) for partition, end in ends.items()}

    _wrap(monkeypatch, OffsetResolver, "latest", without)


def plan_offsets_of_a_recreated_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def same_topics(subscription: Subscription, partitions: Collection[TopicPartition]) -> Iterator[Any]:
        yield subscription._topic_ids(partitions)

    monkeypatch.setattr(Subscription, "same_topics", same_topics)


def compare_by_offsets_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Position, "kept_until", lambda _, epoch, end_offset: end_offset)


def take_replayed_begins_from_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    original = checkpoint_offsets.ranges

    def ranges(start: SourceOffset, end: SourceOffset) -> list[OffsetRange]:
        return original(start, replace(end, start={**end.start, **start.positions}))

    monkeypatch.setattr(offset_planner, "ranges", ranges)


# --- leaders that were replaced ---------------------------------------------------------------------------------------


def task_without_epoch_of_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(planned: list[OffsetRange]) -> list[OffsetRange]:
        return [replace(each, leader_epoch=NO_EPOCH) for each in planned]

    _wrap(monkeypatch, OffsetPlanner, "ranges", without)


def forget_epochs_of_unknown_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_epochs(state: CacheState, epochs: Any) -> None:
        state.snapshot = state.snapshot.with_epochs(epochs)

    monkeypatch.setattr(CacheState, "raise_epochs", raise_epochs)


def refresh_from_last_responder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BrokerChoice, "turn", lambda _: None)


def verify_with_last_responder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BrokerChoice, "avoid_last", lambda _: None)


def accept_lower_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EpochRewind, "is_confirmed", lambda *_: True)


# --- losses -----------------------------------------------------------------------------------------------------------


def lose_without_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_records, "LOSS_GRACE_MS", 0)


def take_held_back_for_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OffsetPlanner, "_held_back", lambda *_: {})


def show_aborted_records(monkeypatch: pytest.MonkeyPatch) -> None:
    original = PartitionCursor.on_fetched

    def on_fetched(cursor: PartitionCursor, fetched: FetchedPartition, *response: bool) -> Instruction:
        return original(cursor, replace(fetched, aborted_transactions=()), *response)

    monkeypatch.setattr(PartitionCursor, "on_fetched", on_fetched)


# --- waits ------------------------------------------------------------------------------------------------------------


def look_at_the_clock_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    original = LeaderRequests.wake_up_at

    def wake_up_at(requests: Any, waiting: Any, now: float) -> float:
        later = requests._client.clock()
        return original(requests, [each for each in waiting if each.not_before > later], now)

    monkeypatch.setattr(LeaderRequests, "wake_up_at", wake_up_at)


def wait_for_two_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_ready(waiting: RetryPause, generation: int, now: float) -> bool:
        return generation > waiting._stale_generation + 1 and now >= waiting.not_before

    monkeypatch.setattr(RetryPause, "is_ready", is_ready)


def stay_with_a_failed_follower(monkeypatch: pytest.MonkeyPatch) -> None:
    original = PartitionCursor.on_error

    def on_error(cursor: PartitionCursor, code: int) -> Instruction:
        asked, cursor.asked_follower = cursor.asked_follower, False
        instruction = original(cursor, code)
        cursor.asked_follower = asked
        return instruction

    monkeypatch.setattr(PartitionCursor, "on_error", on_error)


def hint_without_event(monkeypatch: pytest.MonkeyPatch) -> None:
    original = MetadataCache.__init__

    def create(cache: MetadataCache, *arguments: Any, **settings: Any) -> None:
        original(cache, *arguments, **settings)
        observe = cache._observe
        cache._observe = lambda fact: None if isinstance(fact, LeaderHinted) else observe(fact)

    monkeypatch.setattr(MetadataCache, "__init__", create)


class Finding(NamedTuple):
    """What a history finds.

    Attributes:
        pattern: of the violation.
        seed: the first of a search. Another change of the code may move the finding to a later seed.
        losses: of the history.
        kinds: of faults, where random ones hardly ever find a mutant.
    """

    pattern: str
    seed: int
    losses: bool = False
    kinds: Sequence[str] = ()


MUTANTS: dict[Mutant, Finding] = {
    fetch_without_last_fetched_epoch: Finding("mixed logs", 115, losses=True),
    compare_no_epochs: Finding("missing without a report", 11, losses=True),
    compare_by_offsets_alone: Finding("missing without a report", 110, losses=True),
    plan_offsets_of_a_recreated_topic: Finding("not lost", 689, losses=True, kinds=("recreate", "hang")),
    plan_without_epochs: Finding("missing without a report", 11, losses=True),
    take_replayed_begins_from_the_checkpoint: Finding("missing without a report", 26, losses=True),
    task_without_epoch_of_plan: Finding("not lost|nothing was lost", 10),
    forget_epochs_of_unknown_topics: Finding("not lost|nothing was lost", 10),
    lose_without_grace: Finding("not lost|nothing was lost", 1),
    accept_lower_epochs: Finding("not lost|nothing was lost", 10),
    take_held_back_for_truncated: Finding("not lost|nothing was lost", 14, losses=True),
    refresh_from_last_responder: Finding("sees no new records", 45, losses=True),
    verify_with_last_responder: Finding("sees no new records", 0, losses=True),
    show_aborted_records: Finding("aborted", 0),
    look_at_the_clock_twice: Finding("no progress|took", 18),
    wait_for_two_generations: Finding("no progress|took", 1),
    stay_with_a_failed_follower: Finding("no progress|took", 9),
    hint_without_event: Finding("its events", 1),
}


MUTANT_SEEDS = 800


@pytest.mark.budget
@pytest.mark.parametrize("seeds", blocks(cases(20, 40, 3_000)))
def test_each_record_is_read_once_through_faults(seeds: Iterable[int]) -> None:
    for seed in seeds:
        check(seed, losses=False)


@pytest.mark.budget
@pytest.mark.parametrize("seeds", blocks(cases(20, 40, 2_000)))
def test_each_lost_record_is_reported(seeds: Iterable[int]) -> None:
    for seed in seeds:
        check(seed, losses=True)


def check(seed: int, losses: bool) -> None:
    """Fail with the seed and the end of its history: `ReadingHistory(seed, losses).run()` repeats it."""
    history = ReadingHistory(seed, losses).run()
    found = violations(history)
    assert not found, f"ReadingHistory({seed}, {losses}): {found}\n{history}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_histories_find_a_wrong_reader(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    pattern, first, losses, kinds = MUTANTS[mutant]
    histories = (ReadingHistory(seed, losses, kinds) for seed in range(first, first + MUTANT_SEEDS))
    found = (text for history in histories for text in violations(history.run()))
    assert any(re.search(pattern, text) for text in found), f"nothing found in {MUTANT_SEEDS} histories"
