"""A checkpoint beside the logs: lost positions, their explanations, and their reports."""

from __future__ import annotations

from uuid import UUID

import pytest

from pyspark_kafka_meta.errors import DataLossError
from pyspark_kafka_meta.model import Position, TopicPartition
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.read.planning.data_loss import Loss, LossKind, LossReporter, compare, describe
from tests.partitions import T0, T1, T2

OLD_ID, NEW_ID = UUID(int=1), UUID(int=2)
READS_T = {"kafka.bootstrap.servers": "broker-1:9092", "subscribe": "t"}


def offset(positions: dict[TopicPartition, tuple[int, int]], topic_id: UUID | None = OLD_ID) -> SourceOffset:
    """Of (offset, epoch) pairs."""
    by_partition = {partition: Position(*position) for partition, position in positions.items()}
    return SourceOffset(by_partition, {"t": topic_id})


def lost(
    start: SourceOffset, latest: SourceOffset, truncations: dict[TopicPartition, Position] | None = None
) -> list[Loss]:
    return [*compare(start, {}, latest, truncations or {}).lost_starts.values()]


@pytest.mark.parametrize(
    ("start_id", "end_id", "end", "kinds"),
    [
        (OLD_ID, OLD_ID, (5, 1), []),
        (OLD_ID, OLD_ID, (4, 1), [LossKind.TRUNCATED]),
        (OLD_ID, OLD_ID, (5, 0), []),
        (OLD_ID, NEW_ID, (50, 1), [LossKind.RECREATED]),
        (None, NEW_ID, (50, 1), []),
        (OLD_ID, None, (50, 1), []),
        (None, None, (50, 0), [LossKind.RECREATED]),
        (None, None, (4, 1), [LossKind.RECREATED]),
        (None, None, (4, 2), [LossKind.TRUNCATED]),
        (None, None, (4, -1), [LossKind.TRUNCATED]),
    ],
)
def test_a_start_is_lost_after_the_end_or_in_another_topic(
    start_id: UUID | None, end_id: UUID | None, end: tuple[int, int], kinds: list[LossKind]
) -> None:
    losses = lost(offset({T0: (5, 1)}, start_id), offset({T0: end, T1: (1, 1)}, end_id))

    assert [loss.kind for loss in losses] == kinds
    assert all(loss.continue_at == Position(*end) for loss in losses)


def test_a_log_that_diverges_is_lost_from_there_on_even_if_it_is_longer() -> None:
    (loss,) = lost(offset({T0: (5, 1)}), offset({T0: (50, 2)}), {T0: Position(3, 2)})

    assert (loss.from_offset, loss.until_offset, loss.continue_at) == (3, 5, Position(3, 2))


def test_a_target_is_lost_after_the_end_of_its_log() -> None:
    targets = {T0: Position(9), T1: Position(7), T2: Position(5)}
    logs = compare(offset({T0: (5, 1), T1: (7, 1)}), targets, offset({T0: (7, 1), T1: (6, 1)}), {})

    assert list(logs.lost_ends) == [T0, T1]
    assert [(loss.kind, loss.from_offset, loss.until_offset) for loss in logs.lost_targets()] == [
        (LossKind.ENDS_EARLY, 7, 9)
    ]


@pytest.mark.parametrize(
    ("latest", "truncations", "is_changed"),
    [
        (offset({T0: (5, 1)}), {}, False),
        (offset({T0: (4, 1)}), {}, False),
        (offset({T0: (50, 2)}), {T0: Position(3, 2)}, True),
        (offset({T0: (50, 1)}, NEW_ID), {}, True),
    ],
)
def test_only_an_epoch_or_a_topic_id_shows_that_a_log_is_another(
    latest: SourceOffset, truncations: dict[TopicPartition, Position], is_changed: bool
) -> None:
    assert compare(offset({T0: (5, 1)}), {}, latest, truncations).is_changed is is_changed


def test_a_verdict_names_offsets_ids_and_epochs() -> None:
    start = offset({T0: (5, 1), T1: (6, 1)})

    assert describe(lost(start, offset({T0: (50, 2), T1: (0, 0)}, NEW_ID))) == (
        f"topic t was deleted and recreated (topic id {OLD_ID}, now {NEW_ID}): t-0 was read up to offset 5, and its "
        "new log ends at 50; t-1 was read up to offset 6, and its new log ends at 0"
    )
    assert describe(lost(start, offset({T0: (3, 2)}))) == (
        "the log of t-0 was truncated to offset 3 (leader epoch 1, now 2): records planned or read at offsets 3 to 4 "
        "are gone, and reading can continue only at offset 3"
    )


# --- reports ----------------------------------------------------------------------------------------------------------


class Reports:
    """A reporter with the facts that it records."""

    def __init__(self, **options: str) -> None:
        self.facts: list[tuple[TopicPartition, int, int | None, str]] = []
        self.reporter = LossReporter(SourceOptions.parse({**READS_T, **options}), self.facts.append)


def aged_out(partition: TopicPartition) -> Loss:
    return Loss(LossKind.AGED_OUT, partition, 0, 5, f"{partition} aged out")


def recreated(partition: TopicPartition, from_offset: int | None = None) -> Loss:
    return Loss(LossKind.RECREATED, partition, from_offset, None, "topic t was recreated")


def test_a_loss_that_is_not_allowed_fails_each_time_and_records_nothing() -> None:
    reports = Reports()

    for _ in range(2):
        with pytest.raises(DataLossError, match=r"t-0 aged out; t-1 aged out\. .*failOnDataLoss to false"):
            reports.reporter.report([aged_out(T0), aged_out(T1)])
    assert reports.facts == []


def test_a_loss_that_is_not_allowed_records_no_other_loss_of_its_plan(caplog: pytest.LogCaptureFixture) -> None:
    reports = Reports(onTopicRecreated="earliest")

    with pytest.raises(DataLossError, match="t-1 aged out"):
        reports.reporter.report([recreated(T0, from_offset=5), aged_out(T1)])
    assert "t was recreated" in caplog.text
    assert reports.facts == []


def test_a_lost_start_is_reported_again_by_a_plan_from_another_start() -> None:
    reports = Reports(failOnDataLoss="false", onTopicRecreated="earliest")
    for start in (offset({T0: (5, 1)}), offset({T0: (5, 1)}), offset({T0: (0, 1)}), offset({T0: (5, 1)})):
        reports.reporter.begin_plan(start)
        reports.reporter.report([recreated(T0, from_offset=5), aged_out(T1)])

    assert [partition for partition, *_ in reports.facts] == [T0, T1, T0, T0]


def test_an_allowed_loss_is_reported_once_with_a_fact_for_each_partition(caplog: pytest.LogCaptureFixture) -> None:
    reports = Reports(failOnDataLoss="false")
    reports.reporter.report([aged_out(T0), aged_out(T1)])
    reports.reporter.report([aged_out(T0), aged_out(T2)])

    assert [record.message for record in caplog.records] == [
        "t-0 aged out; t-1 aged out; continuing because failOnDataLoss is false",
        "t-2 aged out; continuing because failOnDataLoss is false",
    ]
    assert reports.facts == [(part, 0, 5, f"{part} aged out") for part in (T0, T1, T2)]


@pytest.mark.parametrize(("losses", "more"), [(5, ""), (6, "; and 1 more"), (7, "; and 2 more")])
def test_a_report_names_five_and_counts_them_all(losses: int, more: str, caplog: pytest.LogCaptureFixture) -> None:
    reports = Reports(failOnDataLoss="false")
    reports.reporter.report([aged_out(TopicPartition(f"t{number}", 0)) for number in range(losses)])

    assert len(reports.facts) == losses
    named = "; ".join(f"t{number}-0 aged out" for number in range(5))
    assert caplog.messages == [f"{named}{more}; continuing because failOnDataLoss is false"]


def test_a_recreated_topic_follows_its_own_option(caplog: pytest.LogCaptureFixture) -> None:
    loss = recreated(T0)
    allowed = Reports(onTopicRecreated="earliest")
    allowed.reporter.report([loss])

    assert "continuing because onTopicRecreated is earliest" in caplog.text
    assert allowed.facts == []
    with pytest.raises(DataLossError, match="set the option onTopicRecreated"):
        Reports(failOnDataLoss="false", onTopicRecreated="fail").reporter.report([loss])


def test_missing_partitions_are_reported_again_once_they_change(caplog: pytest.LogCaptureFixture) -> None:
    reporter = Reports(failOnDataLoss="false").reporter
    for text in ("t-0 is gone", "t-0 is gone", "", "t-0 is gone"):
        reporter.report_missing(text, may_be_recreated=True)

    assert caplog.text.count("t-0 is gone") == 2


def test_a_partition_that_is_gone_has_a_fact_and_no_report_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    reports = Reports()
    reports.reporter.report([Loss(LossKind.GONE, T0, 3, None, "gone")])

    assert reports.facts == [(T0, 3, None, "gone")]
    assert caplog.records == []
