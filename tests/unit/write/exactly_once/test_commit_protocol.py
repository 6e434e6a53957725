"""`recover` and `commit`: the steps that follow each result, and the errors that a user sees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

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


# --- steps ------------------------------------------------------------------------------------------------------------

FENCE, READ, CONFIRM, ABORT = Fence(), ReadDecisions(), ConfirmDecisions(), AbortOpen()
ROWS, OTHER_ROWS, MORE_ROWS = RowDigest(10, 1), RowDigest(10, 2), RowDigest(11, 1)
OF_A, OF_B, OF_BOTH = (decision(micro_batch(7), *transactions) for transactions in ((A,), (B,), (A, B)))
APP = decision(version_of_app(3), B)


def read(*decisions: Decision) -> tuple[type[Step], Decisions]:
    return ReadDecisions, by_series(*decisions)


class Steps(NamedTuple):
    """A protocol, the results of its steps that are not the defaults of `Run`, and the steps that it takes."""

    protocol: Callable[[], Protocol[Any]]
    results: Sequence[tuple[type[Step], Any]]
    steps: Sequence[Step]


STEPS = {
    "commit decides before it commits, and aborts losing attempts last": Steps(
        lambda: commit(micro_batch(7), [A, B], NOW_MS, KNOWN),
        [read(SETTLED)],
        [FENCE, READ, WriteDecision(OF_BOTH), Commit((A, B)), WriteSettled(OF_BOTH, ()), AbortOpen(KNOWN)],
    ),
    "batch without rows is decided too": Steps(
        lambda: commit(micro_batch(8), [], NOW_MS),
        [],
        [
            *(FENCE, READ, WriteDecision(decision(micro_batch(8))), Commit(())),
            *(WriteSettled(decision(micro_batch(8)), ()), ABORT),
        ],
    ),
    "transactions that coordinators do not know are copied if the log says that they were aborted": Steps(
        lambda: commit(micro_batch(7), [A, B], NOW_MS),
        [read(), (Commit, (A, B)), (ReadOutcomes, (B,)), read(OF_BOTH)],
        [
            *(FENCE, READ, WriteDecision(OF_BOTH), Commit((A, B)), ReadOutcomes((A, B))),
            *(FENCE, READ, WriteSettled(OF_BOTH, (B,)), ABORT),
        ],
    ),
    "records that another driver has copied meanwhile are not copied": Steps(
        lambda: commit(micro_batch(7), [A], NOW_MS),
        [read(), (Commit, (A,)), (ReadOutcomes, (A,)), read(OF_A.settled()), read(OF_A.settled())],
        [
            *(FENCE, READ, WriteDecision(OF_A), Commit((A,)), ReadOutcomes((A,)), FENCE, READ),
            *(FENCE, READ, CONFIRM, AbortOpen((A.transactional_id,))),
        ],
    ),
    "copies that need several transactions are each in an epoch of their own": Steps(
        lambda: commit(micro_batch(7), [A, B], NOW_MS),
        [read(), (Commit, (A, B)), (ReadOutcomes, (A, B)), read(OF_BOTH), (WriteSettled, OF_B), read(OF_B)],
        [
            *(FENCE, READ, WriteDecision(OF_BOTH), Commit((A, B)), ReadOutcomes((A, B))),
            *(FENCE, READ, WriteSettled(OF_BOTH, (A, B)), FENCE, READ, WriteSettled(OF_B, (B,)), ABORT),
        ],
    ),
    "batch that an earlier run has decided is settled with the transactions of that run": Steps(
        lambda: commit(micro_batch(7), [B], NOW_MS, KNOWN),
        [read(OF_A), read(OF_A.settled())],
        [
            *(FENCE, READ, Commit((A,)), WriteSettled(OF_A, ())),
            *(FENCE, READ, CONFIRM, AbortOpen((*KNOWN, B.transactional_id))),
        ],
    ),
    "driver that was fenced before its decision reads what the other driver has decided": Steps(
        lambda: commit(micro_batch(7), [A], NOW_MS),
        [read(), (WriteDecision, False), read(OF_B.settled())],
        [FENCE, READ, WriteDecision(OF_A), FENCE, READ, CONFIRM, AbortOpen((A.transactional_id,))],
    ),
    "driver that was fenced after its decision does not decide again": Steps(
        lambda: commit(micro_batch(7), [A], NOW_MS),
        [read(), (WriteSettled, False), read(OF_A), read(OF_A.settled())],
        [
            *(FENCE, READ, WriteDecision(OF_A), Commit((A,)), WriteSettled(OF_A, ())),
            *(FENCE, READ, Commit((A,)), WriteSettled(OF_A, ())),
            *(FENCE, READ, CONFIRM, AbortOpen((A.transactional_id,))),
        ],
    ),
    "repeated batch aborts nothing until its read is confirmed": Steps(
        lambda: commit(micro_batch(7), [], NOW_MS),
        [read(OF_A.settled()), (ConfirmDecisions, False), read(OF_A.settled())],
        [FENCE, READ, CONFIRM, FENCE, READ, CONFIRM, ABORT],
    ),
    "decision that tasks know, and that the first read did not find, is read again": Steps(
        lambda: commit(micro_batch(7), [], NOW_MS, rows=ROWS),
        [read(), (ConfirmDecisions, False), read(replace(OF_BOTH, rows=ROWS).settled())],
        [FENCE, READ, CONFIRM, FENCE, READ, CONFIRM, ABORT],
    ),
    "recovery settles every series before it aborts anything, and fences again": Steps(
        lambda: recover(KNOWN),
        [read(OF_A, APP), read(OF_A.settled(), APP.settled())],
        [
            *(FENCE, READ, Commit((A,)), WriteSettled(OF_A, ()), Commit((B,)), WriteSettled(APP, ())),
            *(FENCE, READ, CONFIRM, AbortOpen(KNOWN)),
        ],
    ),
    "recovery after a clean end changes nothing": Steps(recover, [read(SETTLED)], [FENCE, READ, CONFIRM, ABORT]),
    "recovery settles decisions that the first read did not find before it aborts anything": Steps(
        recover,
        [read(SETTLED), (ConfirmDecisions, False), read(OF_A), read(OF_A.settled())],
        [*(FENCE, READ, CONFIRM, FENCE, READ, Commit((A,)), WriteSettled(OF_A, ())), *(FENCE, READ, CONFIRM, ABORT)],
    ),
    "recovery that was fenced reads again": Steps(
        recover,
        [read(OF_A), (WriteSettled, False), read(OF_A.settled())],
        [FENCE, READ, Commit((A,)), WriteSettled(OF_A, ()), FENCE, READ, CONFIRM, ABORT],
    ),
    "recovery between batches writes nothing": Steps(lambda: recover(planned={}), [read(SETTLED)], [READ, ABORT]),
    "recovery after a batch that is not settled confirms the decisions: a query has failed": Steps(
        lambda: recover(planned=by_series(SETTLED)), [read(SETTLED)] * 2, [READ, FENCE, READ, CONFIRM, ABORT]
    ),
    "recovery between the batches of a query settles what is not settled": Steps(
        lambda: recover(planned={}),
        [read(OF_A), read(OF_A), read(OF_A.settled())],
        [READ, FENCE, READ, Commit((A,)), WriteSettled(OF_A, ()), FENCE, READ, CONFIRM, ABORT],
    ),
}


@pytest.mark.parametrize("case", STEPS)
def test_steps_follow_from_the_results_before(case: str) -> None:
    protocol, results, steps = STEPS[case]
    run = Run(protocol(), results)

    assert run.steps == [*steps]
    if case.startswith("recovery"):
        assert run.returned == next(result for step, result in reversed(results) if step is ReadDecisions)


def test_drivers_that_keep_taking_over_end_with_advice() -> None:
    text = error_of(commit(micro_batch(7), [A], NOW_MS), FencedError, WriteDecision=False)

    assert f"{MAX_TAKEOVERS} times in a row: stop the other query" in text
    assert "raise transaction.max.timeout.ms of the brokers. Then start this query again" in text


@pytest.mark.parametrize("protocol", [commit, recover])
def test_drivers_that_are_fenced_each_time_before_they_settle_end_with_the_same_advice(protocol: Any) -> None:
    arguments = (micro_batch(7), [A], NOW_MS) if protocol is commit else ()
    unsettled = by_series(decision(micro_batch(6), B))
    text = error_of(protocol(*arguments), FencedError, ReadDecisions=unsettled, WriteSettled=False)

    assert f"{MAX_TAKEOVERS} times in a row" in text


# --- a decided batch that is repeated -------------------------------------------------------------------------------


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
def test_repeated_batch_with_other_rows_fails_after_its_abort(batch: BatchId, rows: RowDigest) -> None:
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

    text = error_of(left_out, ChangedBatchError, ReadDecisions=versions_up_to(4))
    assert text.startswith("version 3 counts as written, because version 4 is, and nobody knows any more which rows")
    for cure in (
        "Start with the newest checkpoint",
        "use a new kafka.transactional.id",
        "set the option onChangedBatch",
    ):
        assert cure in text


def test_rows_of_old_versions_are_forgotten_and_their_repetition_fails() -> None:
    last = MAX_EARLIER + 10
    decisions = versions_up_to(last)
    oldest = last - MAX_EARLIER

    known = commit(version_of_app(oldest), [], NOW_MS, rows=rows_of(oldest))
    assert Run(known, [(ReadDecisions, decisions)]).steps[-1] == AbortOpen()
    forgotten = commit(version_of_app(oldest - 1), [], NOW_MS, rows=rows_of(oldest - 1))
    assert "nobody knows any more" in error_of(forgotten, ChangedBatchError, ReadDecisions=decisions)


@pytest.mark.parametrize(("written", "skipped"), [([], 10), ([A], 5)])
def test_nothing_is_decided_if_tasks_have_skipped_rows_undecided(written: list[OpenTransaction], skipped: int) -> None:
    steps: list[Step] = []
    assert error_of(recorded(commit(micro_batch(7), written, NOW_MS, rows=ROWS), steps), DataLossError) == (
        f"decisions are gone: micro-batch 7 of query {QUERY} was decided when its tasks began, which therefore have not"
        f" written {skipped} of its rows, and it is not decided any more. Start the query again: it writes the batch "
        "again, also its rows that are visible"
    )
    assert steps == [Fence(), ReadDecisions(), ConfirmDecisions()]


def test_rows_are_kept_when_a_batch_is_settled() -> None:
    decided = replace(decision(version_of_app(7), A, B), rows=ROWS, earlier=((6, OTHER_ROWS),))

    assert decided.settled((B,)).versions == decided.settled().versions == ((6, OTHER_ROWS), (7, ROWS))


@pytest.mark.parametrize(
    ("before", "batch"), [(micro_batch(7), micro_batch(8)), (BatchId(BATCH, "random", 0), BatchId(BATCH, "another", 0))]
)
def test_series_that_repeats_only_its_last_batch_knows_no_other(before: BatchId, batch: BatchId) -> None:
    decisions = by_series(replace(decision(before, A), rows=ROWS).settled())
    run = Run(commit(batch, [A, B], NOW_MS, rows=ROWS), [(ReadDecisions, decisions)])

    (written,) = [step for step in run.steps if isinstance(step, WriteDecision)]
    assert written.decision.earlier == ()


# --- recover ----------------------------------------------------------------------------------------------------------


def test_drivers_that_are_fenced_each_time_before_their_read_is_confirmed_end_with_advice() -> None:
    assert f"{MAX_TAKEOVERS} times in a row" in error_of(recover(), FencedError, ConfirmDecisions=False)


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
