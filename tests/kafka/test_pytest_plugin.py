"""The fixtures with Apache Kafka that pytest finds in the installed package."""

from __future__ import annotations

import pytest

from pyspark_kafka_meta.testing import maven_jars

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.kafka, pytest.mark.slow]

CACHE = maven_jars.cache_dir()
"""While a test runs, the home directory is an empty one."""


def test_each_test_has_a_topic_of_its_own_on_one_cluster(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKAMETA_CACHE_DIR", str(CACHE))
    pytester.makepyfile(
        """
        import pytest

        topics, clusters = set(), set()

        @pytest.mark.parametrize("number", [1, 2])
        def test_one(kafka_topic, local_kafka, number):
            topics.add(kafka_topic)
            clusters.add(local_kafka.pid(2))
            assert (len(topics), len(clusters)) == (number, 1)
        """
    )
    pytester.runpytest_subprocess(timeout=200).assert_outcomes(passed=2)
