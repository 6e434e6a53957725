"""Coordinators that are never available."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import ConnectError
from tests.unit.scene import Scene

ID = "orders/1/0"
TIMEOUT_MS = 60_000
CAUSE = (
    "COORDINATOR_NOT_AVAILABLE (error 15): brokers in the cluster: {}, and transaction.state.log.replication.factor, "
    "by default 3, is probably larger: set it to at most {} on the brokers"
)
NOT_AVAILABLE, LOADING = ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress


def failure(scene: Scene, brokers: int, codes: Sequence[int]) -> str:
    """The error of a transactional id whose coordinator is looked up in vain."""
    scene.cluster.brokers = {node_id: scene.cluster.brokers[node_id] for node_id in range(1, brokers + 1)}
    scene.wire.transaction_errors["FindCoordinator"].extend(codes)
    with pytest.raises(ConnectError, match=r"COORDINATOR_\w+ \(error 1[45]\)") as caught:
        scene.warm_client().coordinators.fence([ID], TIMEOUT_MS, scene.clock() + 60)
    return str(caught.value)


@pytest.mark.parametrize("brokers", [1, 2])
def test_coordinator_that_few_brokers_never_have_names_the_replication_factor(scene: Scene, brokers: int) -> None:
    assert failure(scene, brokers, [NOT_AVAILABLE] * 1000).endswith(CAUSE.format(brokers, brokers))


@pytest.mark.parametrize(
    ("brokers", "codes"),
    [
        (3, [NOT_AVAILABLE] * 1000),
        (2, [LOADING, *[NOT_AVAILABLE] * 1000]),  # it was there before
    ],
)
def test_coordinator_that_may_be_away_does_not(scene: Scene, brokers: int, codes: Sequence[int]) -> None:
    assert "replication.factor" not in failure(scene, brokers, codes)
