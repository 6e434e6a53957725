"""The commit protocol in a model of Kafka and Spark, with every combination of a few crashes, pauses and time-outs."""

from __future__ import annotations

import pytest

from pyspark_kafka_meta.model import TransactionVersion
from pyspark_kafka_meta.write.exactly_once.decision import Decision
from tests.budget import cases
from tests.unit.write.exactly_once.actors import Disturbance, Scenario
from tests.unit.write.exactly_once.explorer import explore, walk
from tests.unit.write.exactly_once.model import DriverModel, KafkaModel, Outcome, Requests, Row
from tests.unit.write.exactly_once.mutants import LATE, MUTANTS, Mutant

V1, V2 = TransactionVersion
ID = "T/0/0"


# --- every row exactly once -------------------------------------------------------------------------------------------


@pytest.mark.budget
@pytest.mark.parametrize(
    ("scenario", "disturbances"),
    [(Scenario(V1, batches=cases(1, 2, 2)), 2), (Scenario(V2, tasks=2), cases(1, 2, 2))],
    ids=["v1", "v2, two tasks"],
)
def test_every_row_is_visible_exactly_once_after_any_disturbances(scenario: Scenario, disturbances: int) -> None:
    found = explore(scenario, disturbances)

    assert found.trace is None, found.trace
    assert found.runs > (5_000 if disturbances == 2 else 200), found


@pytest.mark.budget
@pytest.mark.parametrize("version", TransactionVersion)
def test_overlapping_batch_writes_are_visible_once_each_or_not_at_all(version: TransactionVersion) -> None:
    found = explore(Scenario(version, overlapping=True), disturbances=cases(1, 2, 2))

    assert found.trace is None, found.trace
    assert found.runs > cases(150, 1_000, 1_000), found


@pytest.mark.budget
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("version", TransactionVersion)
def test_every_row_is_visible_exactly_once_after_many_random_disturbances(version: TransactionVersion) -> None:
    found = walk(
        Scenario(version, batches=3, tasks=2, rows=2),
        seed=1,
        runs=cases(200, 1_000, 10_000),
        disturbances=10,
        likelihood=0.1,
    )

    assert found.trace is None, found.trace


@pytest.mark.budget
@pytest.mark.parametrize("version", TransactionVersion)
def test_records_that_are_copied_in_several_transactions_are_visible_exactly_once(
    version: TransactionVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, write = list[Decision](), DriverModel._write

    def counted(self: DriverModel, values: tuple[Row | Decision, ...]) -> Requests[bool]:
        *rows, decision = values
        parts.extend([decision] if rows and isinstance(decision, Decision) and not decision.is_settled else [])
        return (yield from write(self, values))

    monkeypatch.setattr(DriverModel, "copied_at_once", 1)
    monkeypatch.setattr(DriverModel, "_write", counted)
    disturbances = frozenset({Disturbance.TIME_OUT, Disturbance.CRASH, Disturbance.PAUSE, Disturbance.SWITCH})
    found = walk(
        Scenario(version, tasks=3, disturbances=disturbances),
        seed=1,
        runs=cases(100, 500, 500),
        disturbances=12,
        likelihood=0.2,
    )

    assert found.trace is None, found.trace
    assert len(parts) > cases(4, 20, 20)


def test_a_late_end_of_a_transaction_ends_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    late, end_again = list[str](), KafkaModel.end_again

    def counted(self: KafkaModel, name: str) -> None:
        late.append(name)
        end_again(self, name)

    monkeypatch.setattr(KafkaModel, "end_again", counted)
    monkeypatch.setattr(DriverModel, "produced_at_once", 1)
    monkeypatch.setattr(DriverModel, "writes_notes", False)  # two transactions in one epoch: decision, settled
    disturbances = frozenset({Disturbance.LATE, Disturbance.TIME_OUT, Disturbance.CRASH})
    found = explore(Scenario(V1, batches=1, rows=2, disturbances=disturbances), disturbances=3)

    assert found.trace is None, found.trace
    assert late


@pytest.mark.budget
def test_no_record_is_copied_if_drivers_crash_and_no_broker_aborts_its_transaction() -> None:
    crashes = frozenset({Disturbance.CRASH, Disturbance.ERROR, Disturbance.REPEAT})
    found = explore(Scenario(tasks=cases(1, 2, 2), disturbances=crashes, may_copy=False), disturbances=2)

    assert found.trace is None, found.trace


# --- the explorer finds what is wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(each, marks=pytest.mark.slow if each in LATE else (), id=each.__name__) for each in MUTANTS],
)
def test_explorer_finds_a_wrong_protocol(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    found = explore(mutant(monkeypatch), disturbances=3)

    assert found.trace is not None, f"nothing found in {found}"
    assert f"violation: {MUTANTS[mutant]}" in found.trace, found.trace


def test_random_disturbances_find_a_wrong_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.__name__ == "copy_in_a_transaction_of_its_own")
    found = walk(mutant(monkeypatch), seed=1, runs=1_000, disturbances=10, likelihood=0.1)

    assert found.trace is not None
    assert MUTANTS[mutant] in found.trace, found.trace


# --- the model ends transactions as Kafka does ------------------------------------------------------------------------


class UncheckedModel(KafkaModel):
    """Needs no decisions. Begins with an open transaction that has a row."""

    def __init__(self, version: TransactionVersion) -> None:
        super().__init__(version)
        self.producer = self.init_producer(ID)
        assert self.produce(ID, self.producer, (Row(0, 0, 0),))

    def ends(self, outcome: Outcome) -> bool:
        """Whether EndTxn succeeds."""
        return self.end(ID, self.producer, outcome) is not None

    @property
    def outcomes(self) -> list[Outcome]:
        return [record.outcome for record in self.log]

    def _require_exact(self) -> None:
        pass


@pytest.fixture(params=TransactionVersion)
def kafka(request: pytest.FixtureRequest) -> UncheckedModel:
    return UncheckedModel(request.param)


def test_repeated_commit_succeeds_and_an_abort_after_it_does_not(kafka: UncheckedModel) -> None:
    assert [kafka.ends(Outcome.COMMITTED), kafka.ends(Outcome.COMMITTED)] == [True, True]
    assert not kafka.ends(Outcome.ABORTED)
    assert kafka.outcomes == [Outcome.COMMITTED]


def test_commit_after_the_time_out_fails(kafka: UncheckedModel) -> None:
    kafka.time_out(ID)

    assert not kafka.ends(Outcome.COMMITTED)
    assert not kafka.produce(ID, kafka.producer, (Row(0, 0, 1),))
    assert kafka.outcomes == [Outcome.ABORTED]


@pytest.mark.parametrize("outcome", [Outcome.COMMITTED, Outcome.ABORTED])
def test_commit_fails_once_the_id_was_initialised_again_even_after_a_successful_commit(
    kafka: UncheckedModel, outcome: Outcome
) -> None:
    if outcome == Outcome.COMMITTED:
        assert kafka.ends(outcome)
    kafka.init_producer(ID)

    assert not kafka.ends(Outcome.COMMITTED)
    assert not kafka.produce(ID, kafka.producer, (Row(0, 0, 1),))
    assert kafka.outcomes == [outcome]


def test_commit_of_a_transaction_without_records_fails(kafka: UncheckedModel) -> None:
    producer = kafka.init_producer("T/0/1")

    assert kafka.end("T/0/1", producer, Outcome.COMMITTED) is None


def test_epoch_grows_with_the_end_of_a_v2_transaction_alone() -> None:
    ends = []
    for version in (V1, V2):
        kafka = UncheckedModel(version)
        ends.append(kafka.end(ID, kafka.producer, Outcome.COMMITTED))

    assert [end and end.epoch for end in ends] == [0, 1]
