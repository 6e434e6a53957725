"""`MockRegistry` and a real registry, Apicurio, give the client the same results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pyspark_kafka_meta.errors import SchemaRegistryError, UnknownSchemaError
from pyspark_kafka_meta.options import RegistryOptions
from pyspark_kafka_meta.options.option_table import default_options
from pyspark_kafka_meta.schema_registry.client import RegistryClient
from pyspark_kafka_meta.testing import LocalRegistry, MockRegistry

INT = '{"type":"record","name":"A","fields":[{"name":"x","type":"int"}]}'
LONG = '{"type":"record","name":"A","fields":[{"name":"x","type":"long"}]}'


@pytest.fixture(scope="module", params=["mock", pytest.param("real", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with MockRegistry() if request.param == "mock" else LocalRegistry() as registry:
        yield registry.url


@pytest.fixture
def client(url: str) -> RegistryClient:
    return RegistryClient(replace(default_options(RegistryOptions), urls=(url,), timeout_ms=20_000))


def test_a_schema_is_registered_once_and_found_by_id_and_version(client: RegistryClient) -> None:
    first = client.register("a-value", "AVRO", INT)
    second = client.register("a-value", "AVRO", LONG)

    assert client.register("a-value", "AVRO", INT) == first != second
    assert client.schema(first).schema.text == INT
    assert client.schema(first).kind == "AVRO"
    assert client.versions("a-value") == [1, 2]
    assert client.version("a-value", "latest").registered == client.schema(second)
    assert client.version("a-value", 1).version == 1
    assert client.registered_id("a-value", "AVRO", LONG) == second
    assert "a-value" in client.subjects()


def test_subjects_with_the_same_schema_share_its_id(client: RegistryClient) -> None:
    assert client.register("b-value", "AVRO", INT) == client.register("c-value", "AVRO", INT)


def test_a_subject_may_have_any_name(client: RegistryClient) -> None:
    client.register("shop/é %-value", "AVRO", INT)

    assert client.versions("shop/é %-value") == [1]


@pytest.mark.parametrize(
    ("code", "ask"),
    [
        (40401, lambda client: client.versions("none-value")),
        (40402, lambda client: client.version("d-value", 7)),
        (40403, lambda client: client.schema(999_999)),
        (40403, lambda client: client.registered_id("d-value", "AVRO", LONG)),
    ],
)
def test_what_is_unknown_has_confluents_codes(client: RegistryClient, code: int, ask: object) -> None:
    client.register("d-value", "AVRO", INT)

    with pytest.raises(UnknownSchemaError) as caught:
        assert callable(ask) and ask(client)

    assert caught.value.code == code


def test_another_path_is_no_registry(url: str) -> None:
    client = RegistryClient(replace(default_options(RegistryOptions), urls=(f"{url}/other",), timeout_ms=20_000))

    with pytest.raises(SchemaRegistryError, match="is not the URL of a schema registry"):
        client.subjects()
