"""`recover` and `commit`: the steps that follow each result, and the errors that a user sees."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from pyspark_kafka_meta.errors import ChangedBatchError, DataLossError, FencedError
from pyspark_kafka_meta.model import NO_ROWS, OpenTransaction, ProducerIdAndEpoch, RowDigest, TransactionSpan
from pyspark_kafka_meta.write.exactly_once.commit_protocol import (
    MAX_TAKEOVERS,
    AbortOpen,
    Commit,
    ConfirmDecisions,
    Fence,
    Protocol,
    ReadDecisions,
    ReadOutcomes,
    Step,
    WriteDecision,
    WriteSettled,
    commit,
    recover,
    require_owner,
)
from pyspark_kafka_meta.write.exactly_once.decision import (
    BATCH,
    MAX_EARLIER,
    STREAM,
    BatchId,
    Decision,
    Decisions,
    is_written,
)

NOW_MS = 1_764_000_000_000
QUERY, OTHER_QUERY = "5f1c", "a20e"
KNOWN = ("T/0/0", "T/0/1")


def transaction(task: int) -> OpenTransaction:
    return OpenTransaction(
        f"T/{task}/0", ProducerIdAndEpoch(task, 3), (TransactionSpan("t", 0, 10 * task, 10 * task + 5, 5),)
    )


A, B = transaction(0), transaction(1)


def micro_batch(version: int, owner: str = QUERY) -> BatchId:
    return BatchId(STREAM, owner, version)


def version_of_app(version: int) -> BatchId:
    """txnAppId and txnVersion."""
    return BatchId("app", "app", version)


def decision(batch: BatchId, *transactions: OpenTransaction) -> Decision:
    return Decision(batch, transactions, NOW_MS)


def by_series(*decisions: Decision) -> Decisions:
    return {decision.batch.series: decision for decision in decisions}


SETTLED = decision(micro_batch(6), A).settled()
"""The batch before."""


class Run:
    """A protocol that ran to its end with results for its steps: by default nothing was decided, nobody takes over,
    and all transactions are open."""

    def __init__(self, protocol: Protocol[Any], results: Iterable[tuple[type[Step], Any]] = ()) -> None:
        self.steps: list[Step] = []
        self.returned: Any = None
        expected = list(results)
        result: Any = None
        while True:
            try:
                step = protocol.send(result)
            except StopIteration as end:
                self.returned = end.value
                assert not expected, f"steps that were not taken: {expected}"
                return
            self.steps.append(step)
            is_expected = expected and isinstance(step, expected[0][0])
            result = expected.pop(0)[1] if is_expected else _DEFAULTS.get(type(step))


_DEFAULTS: dict[type[Step], Any] = {
    ReadDecisions: {},
    ConfirmDecisions: True,
    WriteDecision: True,
    WriteSettled: True,
    Commit: (),
}


def error_of(protocol: Protocol[Any], error: type[Exception], **results: Any) -> str:
    """The error's text, if every step has the same result each time, by the name of the step."""
    result: Any = None
    with pytest.raises(error) as raised:
        while True:
            step = protocol.send(result)
            result = results.get(type(step).__name__, _DEFAULTS.get(type(step)))
    return str(raised.value)


def recorded(protocol: Protocol[None], steps: list[Step]) -> Protocol[None]:
    """The protocol, whose steps are added to a list."""
    result: Any = None
    while True:
        steps.append(protocol.send(result))
        result = yield steps[-1]


# --- commit -----------------------------------------------------------------------------------------------------------


def test_commit_decides_before_it_commits_and_aborts_losing_attempts_last() -> None:
    decided = decision(micro_batch(7), A, B)
    run = Run(commit(micro_batch(7), [A, B], NOW_MS, KNOWN), [(ReadDecisions, by_series(SETTLED))])

    assert run.steps == [
        Fence(),
        ReadDecisions(),
        WriteDecision(decided),
        Commit((A, B)),
        WriteSettled(decided, ()),
        AbortOpen(KNOWN),
    ]


def test_transactions_that_coordinators_do_not_know_are_copied_if_the_log_says_that_they_were_aborted() -> None:
    decided = decision(micro_batch(7), A, B)
    results = [(ReadDecisions, {}), (Commit, (A, B)), (ReadOutcomes, (B,)), (ReadDecisions, by_series(decided))]
    run = Run(commit(micro_batch(7), [A, B], NOW_MS), results)

    assert run.steps[2:] == [
        WriteDecision(decided),
        Commit((A, B)),
        ReadOutcomes((A, B)),
        Fence(),
        ReadDecisions(),
        WriteSettled(decided, (B,)),
        AbortOpen(),
    ]


def test_records_are_not_copied_that_another_driver_has_copied_meanwhile() -> None:
    decided = decision(micro_batch(7), A)
    settled = by_series(decided.settled())
    results = [(ReadDecisions, {}), (Commit, (A,)), (ReadOutcomes, (A,)), (ReadDecisions, settled)]
    run = Run(commit(micro_batch(7), [A], NOW_MS), [*results, (ReadDecisions, settled)])

    ours = AbortOpen((A.transactional_id,))
    assert run.steps[5:] == [Fence(), ReadDecisions(), Fence(), ReadDecisions(), ConfirmDecisions(), ours]


def test_copies_that_need_several_transactions_are_each_in_an_epoch_of_their_own() -> None:
    decided = decision(micro_batch(7), A, B)
    left = decision(micro_batch(7), B)
    results = [(ReadDecisions, {}), (Commit, (A, B)), (ReadOutcomes, (A, B)), (ReadDecisions, by_series(decided))]
    run = Run(
        commit(micro_batch(7), [A, B], NOW_MS), [*results, (WriteSettled, left), (ReadDecisions, by_series(left))]
    )

    assert run.steps[5:] == [
        Fence(),
        ReadDecisions(),
        WriteSettled(decided, (A, B)),
        Fence(),
        ReadDecisions(),
        WriteSettled(left, (B,)),
        AbortOpen(),
    ]


def test_batch_that_an_earlier_run_has_decided_is_settled_with_the_transactions_of_that_run() -> None:
    decided = decision(micro_batch(7), A)
    reads = [(ReadDecisions, by_series(decided)), (ReadDecisions, by_series(decided.settled()))]
    run = Run(commit(micro_batch(7), [B], NOW_MS, KNOWN), reads)

    assert run.steps == [
        Fence(),
        ReadDecisions(),
        Commit((A,)),
        WriteSettled(decided, ()),
        Fence(),
        ReadDecisions(),
        ConfirmDecisions(),
        AbortOpen((*KNOWN, B.transactional_id)),
    ]


def test_driver_that_was_fenced_before_its_decision_reads_what_the_other_driver_has_decided() -> None:
    others = decision(micro_batch(7), B).settled()
    run = Run(
        commit(micro_batch(7), [A], NOW_MS),
        [(ReadDecisions, {}), (WriteDecision, False), (ReadDecisions, by_series(others))],
    )

    ours = AbortOpen((A.transactional_id,))
    read_again = [Fence(), ReadDecisions(), ConfirmDecisions(), ours]
    assert run.steps[2:] == [WriteDecision(decision(micro_batch(7), A)), *read_again]


def test_driver_that_was_fenced_after_its_decision_does_not_decide_again() -> None:
    decided = decision(micro_batch(7), A)
    run = Run(
        commit(micro_batch(7), [A], NOW_MS),
        [
            (ReadDecisions, {}),
            (WriteSettled, False),
            (ReadDecisions, by_series(decided)),
            (ReadDecisions, by_series(decided.settled())),
        ],
    )

    assert run.steps.count(WriteDecision(decided)) == 1
    assert run.steps[-6:-4] == [Commit((A,)), WriteSettled(decided, ())]


def test_batch_without_rows_is_decided_too() -> None:
    run = Run(commit(micro_batch(7), [], NOW_MS))

    assert WriteDecision(decision(micro_batch(7))) in run.steps


def test_drivers_that_keep_taking_over_end_with_advice() -> None:
    text = error_of(commit(micro_batch(7), [A], NOW_MS), FencedError, WriteDecision=False)

    assert text == (
        f"other drivers took over this kafka.transactional.id, or its own transaction timed out, {MAX_TAKEOVERS} times "
        "in a row: stop the other query, which needs an id of its own, or raise transaction.max.timeout.ms of the "
        "brokers. Then start this query again: it goes on from there"
    )


@pytest.mark.parametrize("protocol", [commit, recover])
def test_drivers_that_are_fenced_each_time_before_they_settle_end_with_the_same_advice(protocol: Any) -> None:
    arguments = (micro_batch(7), [A], NOW_MS) if protocol is commit else ()
    unsettled = by_series(decision(micro_batch(6), B))
    text = error_of(protocol(*arguments), FencedError, ReadDecisions=unsettled, WriteSettled=False)

    assert f"{MAX_TAKEOVERS} times in a row" in text


# --- a decided batch that is repeated -------------------------------------------------------------------------------


ROWS, OTHER_ROWS, MORE_ROWS = RowDigest(10, 1), RowDigest(10, 2), RowDigest(11, 1)


def versions_up_to(last: int) -> Decisions:
    """Of an app that has written all versions but 3, each with as many rows as its number, and one more."""
    decisions: Decisions = {}
    for version in (number for number in range(last + 1) if number != 3):
        written = A._replace(written=(TransactionSpan("t", 0, 0, version + 1, version + 1),))
        run = Run(
            commit(version_of_app(version), [written], NOW_MS, rows=rows_of(version)), [(ReadDecisions, decisions)]
        )
        (decided,) = [step for step in run.steps if isinstance(step, WriteDecision)]
        decisions = by_series(decided.decision.settled())
    return decisions


def rows_of(version: int) -> RowDigest:
    return RowDigest(version + 1, 1000 + version)


@pytest.mark.parametrize("rows", [OTHER_ROWS, MORE_ROWS])
@pytest.mark.parametrize("batch", [micro_batch(7), version_of_app(7)], ids=["micro-batch", "version of an app"])
def test_repeated_batch_with_other_rows_fails_after_its_transactions_are_aborted(
    batch: BatchId, rows: RowDigest
) -> None:
    decisions = by_series(replace(decision(batch, A, B), rows=ROWS).settled())
    steps: list[Step] = []
    text = error_of(recorded(commit(batch, [B], NOW_MS, rows=rows), steps), ChangedBatchError, ReadDecisions=decisions)
    assert f"{batch} was written before with other rows (10 then, {rows.rows} now): none of its rows is written" in text
    assert "set the option onChangedBatch to skip" in text
    assert steps[-1] == AbortOpen((B.transactional_id,))


@pytest.mark.parametrize(
    ("decided", "rows"),
    [
        (replace(decision(micro_batch(7), A, B), rows=ROWS).settled(), ROWS),
        (replace(decision(micro_batch(7), A, B), rows=ROWS).settled(), None),
        (replace(decision(micro_batch(7), A, B), rows=ROWS).settled(), NO_ROWS),
    ],
    ids=["same rows", "rows do not matter", "no rows that could be lost"],
)
def test_repeated_batch_succeeds(decided: Decision, rows: RowDigest | None) -> None:
    run = Run(commit(decided.batch, [], NOW_MS, rows=rows), [(ReadDecisions, by_series(decided))])

    assert run.steps[-1] == AbortOpen()


def test_each_of_the_last_versions_is_compared_with_its_own_rows() -> None:
    decisions = versions_up_to(9)

    for version in (0, 1, 2, 4, 9):
        same = Run(commit(version_of_app(version), [], NOW_MS, rows=rows_of(version)), [(ReadDecisions, decisions)])
        assert same.steps[-1] == AbortOpen()
        changed = commit(version_of_app(version), [], NOW_MS, rows=replace(rows_of(version), hash=0))
        text = error_of(changed, ChangedBatchError, ReadDecisions=decisions)
        assert f"version {version} was written before with other rows" in text


def test_version_that_was_left_out_is_not_taken_for_written() -> None:
    left_out = commit(version_of_app(3), [A], NOW_MS, rows=rows_of(3))

    assert error_of(left_out, ChangedBatchError, ReadDecisions=versions_up_to(4)) == (
        "version 3 counts as written, because version 4 is, and nobody knows any more which rows it had: none of its "
        "rows is written. Was an old checkpoint restored? Start with the newest checkpoint. Without it, use a new "
        "kafka.transactional.id, and the batch is written, also its rows that are visible. If no row is missing, "
        "because the query makes other rows of the same input (random values, the current time, a joined table that "
        "has changed), set the option onChangedBatch to skip"
    )


def test_rows_of_old_versions_are_forgotten_and_their_repetition_fails() -> None:
    last = MAX_EARLIER + 10
    decisions = versions_up_to(last)
    oldest = last - MAX_EARLIER

    known = commit(version_of_app(oldest), [], NOW_MS, rows=rows_of(oldest))
    assert Run(known, [(ReadDecisions, decisions)]).steps[-1] == AbortOpen()
    forgotten = commit(version_of_app(oldest - 1), [], NOW_MS, rows=rows_of(oldest - 1))
    assert "nobody knows any more" in error_of(forgotten, ChangedBatchError, ReadDecisions=decisions)


@pytest.mark.parametrize(("written", "skipped"), [([], 10), ([A], 5)])
def test_nothing_is_decided_if_tasks_have_skipped_rows_of_a_batch_whose_decision_is_gone(
    written: list[OpenTransaction], skipped: int
) -> None:
    steps: list[Step] = []
    assert error_of(recorded(commit(micro_batch(7), written, NOW_MS, rows=ROWS), steps), DataLossError) == (
        f"decisions are gone: micro-batch 7 of query {QUERY} was decided when its tasks began, which therefore have not"
        f" written {skipped} of its rows, and it is not decided any more. Start the query again: it writes the batch "
        "again, also its rows that are visible"
    )
    assert steps == [Fence(), ReadDecisions(), ConfirmDecisions()]


def test_decision_that_tasks_know_and_the_first_read_did_not_find_is_read_again() -> None:
    decided = replace(decision(micro_batch(7), A, B), rows=ROWS).settled()
    run = Run(
        commit(micro_batch(7), [], NOW_MS, rows=ROWS),
        [(ReadDecisions, {}), (ConfirmDecisions, False), (ReadDecisions, by_series(decided))],
    )

    assert run.steps == [Fence(), ReadDecisions(), ConfirmDecisions()] * 2 + [AbortOpen()]


def test_rows_are_kept_when_a_batch_is_settled() -> None:
    decided = replace(decision(version_of_app(7), A, B), rows=ROWS, earlier=((6, OTHER_ROWS),))

    assert decided.settled((B,)).versions == decided.settled().versions == ((6, OTHER_ROWS), (7, ROWS))


@pytest.mark.parametrize(
    ("before", "batch"),
    [(micro_batch(7), micro_batch(8)), (BatchId(BATCH, "random", 0), BatchId(BATCH, "another", 0))],
)
def test_series_that_repeats_only_its_last_batch_knows_no_other(before: BatchId, batch: BatchId) -> None:
    decisions = by_series(replace(decision(before, A), rows=ROWS).settled())
    run = Run(commit(batch, [A, B], NOW_MS, rows=ROWS), [(ReadDecisions, decisions)])

    (written,) = [step for step in run.steps if isinstance(step, WriteDecision)]
    assert written.decision.earlier == ()


# --- recover ----------------------------------------------------------------------------------------------------------


def test_recovery_settles_every_series_before_it_aborts_anything() -> None:
    stream, app = decision(micro_batch(7), A), decision(version_of_app(3), B)
    settled = by_series(stream.settled(), app.settled())
    run = Run(recover(KNOWN), [(ReadDecisions, by_series(stream, app)), (ReadDecisions, settled)])

    assert run.steps == [
        Fence(),
        ReadDecisions(),
        Commit((A,)),
        WriteSettled(stream, ()),
        Commit((B,)),
        WriteSettled(app, ()),
        Fence(),  # what a commit decides next is in an epoch of its own
        ReadDecisions(),
        ConfirmDecisions(),
        AbortOpen(KNOWN),
    ]
    assert run.returned == settled


def test_recovery_after_a_clean_end_changes_nothing() -> None:
    run = Run(recover(), [(ReadDecisions, by_series(SETTLED))])

    assert run.steps == [Fence(), ReadDecisions(), ConfirmDecisions(), AbortOpen()]
    assert run.returned == by_series(SETTLED)


def test_decisions_that_the_first_read_did_not_find_are_settled_before_anything_is_aborted() -> None:
    decided = decision(micro_batch(7), A)
    reads = [(ReadDecisions, by_series(decided)), (ReadDecisions, by_series(decided.settled()))]
    run = Run(recover(), [(ReadDecisions, by_series(SETTLED)), (ConfirmDecisions, False), *reads])

    assert run.steps[2:5] == [ConfirmDecisions(), Fence(), ReadDecisions()]
    assert run.steps[5:7] == [Commit((A,)), WriteSettled(decided, ())]
    assert [step for step in run.steps if isinstance(step, AbortOpen)] == run.steps[-1:]
    assert run.returned == by_series(decided.settled())


def test_repeated_batch_aborts_nothing_until_its_read_is_confirmed() -> None:
    settled = (ReadDecisions, by_series(decision(micro_batch(7), A).settled()))
    run = Run(commit(micro_batch(7), [], NOW_MS), [settled, (ConfirmDecisions, False), settled])

    assert run.steps == [Fence(), ReadDecisions(), ConfirmDecisions()] * 2 + [AbortOpen()]


def test_recovery_between_the_batches_of_a_query_writes_nothing() -> None:
    run = Run(recover(planned={}), [(ReadDecisions, by_series(SETTLED))])

    assert run.steps == [ReadDecisions(), AbortOpen()]


def test_recovery_after_a_batch_that_is_not_settled_confirms_the_decisions() -> None:
    """A query has failed, and Spark has kept the process that plans."""
    run = Run(recover(planned=by_series(SETTLED)), [(ReadDecisions, by_series(SETTLED))] * 2)

    assert run.steps == [ReadDecisions(), Fence(), ReadDecisions(), ConfirmDecisions(), AbortOpen()]


def test_recovery_between_the_batches_of_a_query_settles_what_is_not_settled() -> None:
    decided = decision(micro_batch(7), A)
    reads = [(ReadDecisions, by_series(decided))] * 2 + [(ReadDecisions, by_series(decided.settled()))]
    run = Run(recover(planned={}), reads)

    assert run.steps[:3] == [ReadDecisions(), Fence(), ReadDecisions()]
    assert run.steps[3:5] == [Commit((A,)), WriteSettled(decided, ())]
    assert run.steps[5:] == [Fence(), ReadDecisions(), ConfirmDecisions(), AbortOpen()]


def test_drivers_that_are_fenced_each_time_before_their_read_is_confirmed_end_with_advice() -> None:
    assert f"{MAX_TAKEOVERS} times in a row" in error_of(recover(), FencedError, ConfirmDecisions=False)


def test_fenced_recovery_reads_decisions_again() -> None:
    decided = decision(micro_batch(7), A)
    run = Run(
        recover(),
        [(ReadDecisions, by_series(decided)), (WriteSettled, False), (ReadDecisions, by_series(decided.settled()))],
    )

    assert run.steps[4:] == [Fence(), ReadDecisions(), ConfirmDecisions(), AbortOpen()]
    assert run.returned == by_series(decided.settled())


def test_lost_records_of_a_decided_batch_abort_nothing() -> None:
    protocol = recover()
    assert isinstance(next(protocol), Fence)
    protocol.send(None)
    assert isinstance(protocol.send(by_series(decision(micro_batch(7), A))), Commit)
    assert isinstance(protocol.send((A,)), ReadOutcomes)

    with pytest.raises(DataLossError, match="the log has no marker"):
        protocol.throw(DataLossError("the log has no marker"))


# --- whose batch, and which ones are written --------------------------------------------------------------------------


def test_micro_batch_is_written_if_it_is_the_last_of_its_query() -> None:
    decisions = by_series(decision(micro_batch(7)))

    assert [is_written(decisions, micro_batch(version)) for version in (6, 7, 8)] == [False, True, False]
    assert not is_written(decisions, micro_batch(7, OTHER_QUERY))
    assert not is_written({}, micro_batch(7))


def test_all_versions_of_an_app_up_to_the_last_are_written() -> None:
    decisions = by_series(decision(version_of_app(7)), SETTLED)

    assert [is_written(decisions, version_of_app(version)) for version in (0, 7, 8)] == [True, True, False]
    assert not is_written(decisions, BatchId("other", "other", 0))


def test_batch_write_recognises_its_decision_after_that_of_another() -> None:
    mine, other = BatchId(BATCH, "mine", 0), BatchId(BATCH, "other", 0)
    after = [(ReadDecisions, by_series(decision(mine, A).settled()))]
    written = next(step for step in Run(commit(other, [B], NOW_MS), after).steps if isinstance(step, WriteDecision))

    assert is_written(by_series(written.decision), mine)
    assert not is_written(by_series(decision(other, B)), mine)


def test_query_that_another_query_has_taken_over_is_fenced() -> None:
    others = by_series(decision(micro_batch(0, OTHER_QUERY)).settled())
    protocol = commit(micro_batch(7), [A], NOW_MS)

    assert error_of(protocol, FencedError, ReadDecisions=others) == (
        f"micro-batch 7 of query {QUERY} was fenced: micro-batch 0 of query {OTHER_QUERY} has written with the same "
        "kafka.transactional.id since: stop this query, or give it an id of its own; if its rows are visible already, "
        "it repeats them"
    )


def test_query_with_an_old_checkpoint_is_told_so() -> None:
    protocol = commit(micro_batch(5), [A], NOW_MS)

    assert error_of(protocol, FencedError, ReadDecisions=by_series(SETTLED)) == (
        f"micro-batch 5 of query {QUERY} comes after micro-batch 6 of query {QUERY}: was an old checkpoint restored? "
        "Start with the newest checkpoint, or with a new checkpoint and a new kafka.transactional.id, which "
        "writes all rows that it reads again"
    )


def test_query_that_another_has_replaced_does_not_begin_again() -> None:
    """Its first batch may be written already: it died before Spark noted so."""
    first = Run(commit(micro_batch(0), [A], NOW_MS)).steps[2]
    assert isinstance(first, WriteDecision)
    replaced = [(ReadDecisions, by_series(first.decision.settled()))]
    second = Run(commit(micro_batch(0, OTHER_QUERY), [B], NOW_MS), replaced).steps[2]
    assert isinstance(second, WriteDecision)
    with pytest.raises(FencedError, match=r"same kafka\.transactional\.id"):
        require_owner(by_series(second.decision.settled()), micro_batch(0))


@pytest.mark.parametrize(
    ("decisions", "batch"),
    [
        ({}, micro_batch(7)),
        (by_series(SETTLED), micro_batch(7)),
        (by_series(SETTLED), micro_batch(0, OTHER_QUERY)),
        (by_series(SETTLED), BatchId(BATCH, "random", 0)),
        (by_series(decision(version_of_app(7))), version_of_app(8)),
    ],
    ids=["first of all", "next", "new query", "batch write", "next version"],
)
def test_owner_may_write(decisions: Decisions, batch: BatchId) -> None:
    require_owner(decisions, batch)
