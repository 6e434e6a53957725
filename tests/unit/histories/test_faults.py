"""The faults of histories end, and a seed repeats them."""

from __future__ import annotations

import random

import pytest

from tests.partitions import T0
from tests.unit.fake_network import FakeNetwork
from tests.unit.histories.faults import Faults
from tests.unit.histories.reading_history import ReadingHistory
from tests.unit.histories.writing_history import CODES, WritingHistory


def test_all_faults_end_when_the_brokers_are_healthy() -> None:
    network = FakeNetwork(rng=random.Random(0))
    network.cluster.create_topic(T0.topic)
    faults = Faults(network, random.Random(0), CODES)
    faults.start(list(faults.kinds), 0.02, 20)
    network.clock.sleep(20)
    assert {text.split()[0] for _, text in faults.notes} > faults.kinds.keys()
    assert not network.down | network.hung | network.hung_metadata
    assert not network.error_codes | network.throttles
    assert network.cluster.partition(T0).leader_id in network.cluster.brokers
    network.clock.sleep(60)
    assert max(at for at, _ in faults.notes) <= faults.healed_at


@pytest.mark.parametrize("history", [ReadingHistory, WritingHistory])
def test_same_seed_gives_the_same_history(history: type[ReadingHistory] | type[WritingHistory]) -> None:
    first, again, other = (history(seed).run().faults.notes for seed in (3, 3, 4))
    assert first == again
    assert first != other
