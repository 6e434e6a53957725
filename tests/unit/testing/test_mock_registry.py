"""Where `MockRegistry` listens. tests/wire/test_registries.py tests what it responds."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from pyspark_kafka_meta.testing import MockRegistry, mock_registry


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
