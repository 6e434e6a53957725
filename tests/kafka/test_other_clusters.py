"""Two clusters behind the addresses of one client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from pyspark_kafka_meta.errors import OtherClusterError
from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.kafka.metadata.refresh_events import Origin, Role
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.testing import LocalKafka

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]


@pytest.fixture
def clusters() -> Iterator[list[LocalKafka]]:
    with ExitStack() as stack:
        yield [stack.enter_context(LocalKafka(1)) for _ in range(2)]


def test_a_client_whose_cluster_is_away_refuses_the_metadata_of_another(clusters: list[LocalKafka]) -> None:
    servers = ",".join(cluster.bootstrap_servers for cluster in clusters)
    options = ClientOptions.parse({"kafka.bootstrap.servers": servers})
    with closing(client_without_events(options, Origin(role=Role.PLANNER))) as client:
        client.partitions([], client.api_deadline())
        own = client.cache.snapshot.cluster_id
        ids = {cluster._layout.cluster_id: cluster for cluster in clusters}
        (other,) = ids.keys() - {own}
        assert own is not None
        (broker,) = ids[own].broker_ids
        ids[own].kill(broker)

        with pytest.raises(OtherClusterError, match=f"belongs to cluster {other}, and this client uses cluster {own}"):
            client.cache.refresh(RefreshReason.ON_DEMAND, client.api_deadline())
        assert client.cache.snapshot.cluster_id == own
