"""The fixtures that pytest finds in the installed package."""

from __future__ import annotations

import pytest

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
