"""What `testing` offers to tests of others: fixtures, and a schema registry that behaves as Confluent's
(`tests/wire/test_registries.py`)."""

from __future__ import annotations

import json
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from pyspark_kafka_meta.testing import MockRegistry, mock_registry

pytest_plugins = ["pytester"]


def test_each_test_has_mock_brokers_of_its_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from pyspark_kafka_meta.testing import ClusterError

        @pytest.mark.parametrize("number", [1, 2])
        def test_one(mock_kafka, number):
            mock_kafka.create_topic("t")
            with pytest.raises(ClusterError):
                mock_kafka.create_topic("t")
        """
    )
    pytester.runpytest_subprocess(timeout=200).assert_outcomes(passed=2)


def test_each_test_has_a_topic_of_its_own_on_one_cluster(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from pyspark_kafka_meta import testing

        topics, clusters = [], []

        class Cluster:
            def __enter__(self):
                clusters.append(self)
                return self

            def __exit__(self, *_):
                clusters.remove(self)

            def create_topic(self, partitions):
                topics.append(f"{partitions} partitions")
                return len(topics)

        testing.LocalKafka = Cluster

        @pytest.mark.parametrize("number", [1, 2])
        def test_one(kafka_topic, local_kafka, number):
            assert (kafka_topic, topics[-1], clusters) == (number, "3 partitions", [local_kafka])
        """
    )
    pytester.runpytest_subprocess(timeout=200).assert_outcomes(passed=2)


def test_no_registry_has_the_url_of_an_earlier_one_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its schemas would be taken for those of the earlier one."""
    free = range(16)
    monkeypatch.setattr(mock_registry, "_ports", {port for port in range(1 << 16) if port % 256 not in free})
    with MockRegistry() as registry:
        url = registry.url
        assert (urlsplit(url).port or 0) % 256 in free
        registry.stop()
        registry.start()
        assert registry.url == url


def test_references_that_a_serializer_posts_are_kept() -> None:
    with MockRegistry() as registry:
        registry.register("a", '"a"')
        references = [{"name": "a", "subject": "a", "version": 1}]
        posted = {"schema": '"b"', "references": references}

        def post(path: str, content: object) -> Any:
            request = Request(f"{registry.url}{path}", json.dumps(content).encode())
            with urlopen(request) as response:
                return json.load(response)

        schema_id = post("/subjects/b/versions", posted)["id"]
        assert post("/subjects/b", posted)["references"] == references
        with pytest.raises(HTTPError, match="404") as refused:
            post("/subjects/b", {"schema": '"b"'})
        refused.value.close()
        with urlopen(f"{registry.url}/schemas/ids/{schema_id}") as response:
            assert json.load(response)["references"] == references
