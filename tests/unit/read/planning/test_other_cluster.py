"""A checkpoint that belongs to another cluster: its topic ids tell."""

from __future__ import annotations

import pytest

from pyspark_kafka_meta.errors import DataLossError
from tests.unit.read.planning.queries import Query
from tests.unit.scene import Scene


def test_a_query_that_goes_on_in_another_cluster_says_what_to_correct(scene: Scene) -> None:
    query = Query.started(scene)
    scene.cluster.create_topic("t", 3)  # as the other cluster has it

    with pytest.raises(DataLossError, match=r"a topic of another cluster, correct kafka\.bootstrap\.servers"):
        query.restarted().step()
