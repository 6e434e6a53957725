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
