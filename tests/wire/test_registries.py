"""`MockRegistry` and a real registry, Apicurio, give the client the same results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pyspark_kafka_meta.errors import SchemaRegistryError, UnknownSchemaError
from pyspark_kafka_meta.options import RegistryOptions
from pyspark_kafka_meta.options.option_table import default_options
from pyspark_kafka_meta.testing import LocalRegistry, MockRegistry
from pyspark_kafka_meta.typed.registry.client import RegistryClient

INT = '{"type":"record","name":"A","fields":[{"name":"x","type":"int"}]}'
LONG = '{"type":"record","name":"A","fields":[{"name":"x","type":"long"}]}'


@pytest.fixture(scope="module", params=["mock", pytest.param("real", marks=pytest.mark.thorough)])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with MockRegistry() if request.param == "mock" else LocalRegistry() as registry:
        yield registry.url


@pytest.fixture
def client(url: str) -> RegistryClient:
    return RegistryClient(replace(default_options(RegistryOptions), urls=(url,), timeout_ms=20_000))


def test_a_schema_is_registered_once_and_found_by_id_and_version(client: RegistryClient) -> None:
    first = client.register("a-value", "AVRO", INT)
    second = client.register("a-value", "AVRO", LONG)
    assert first.schema_id is not None and second.schema_id is not None

    assert client.register("a-value", "AVRO", INT) == first != second
    assert client.schema(first.schema_id) == first
    assert (first.kind, first.schema.text) == ("AVRO", INT)
    assert client.versions("a-value") == [1, 2]
    assert client.version("a-value", "latest").registered == client.schema(second.schema_id)
    assert client.version("a-value", 1).version == 1
    assert client.registered("a-value", "AVRO", LONG) == second
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
        (40403, lambda client: client.registered("d-value", "AVRO", LONG)),
    ],
)
def test_what_is_unknown_has_confluents_codes(client: RegistryClient, code: int, ask: object) -> None:
    client.register("d-value", "AVRO", INT)

    with pytest.raises(UnknownSchemaError) as caught:
        assert callable(ask) and ask(client)

    assert caught.value.code == code


def test_a_guid_leads_to_the_same_schema_if_the_registry_has_guids(client: RegistryClient) -> None:
    """Apicurio has none."""
    registered = client.register("e-value", "AVRO", INT)
    guid = registered.guid or "00000000-0000-4000-8000-000000000007"

    if registered.guid is not None:
        assert client.schema(guid) == replace(registered, schema_id=None)
    else:
        with pytest.raises(UnknownSchemaError, match=r"has no GUIDs \(404\)"):
            client.schema(guid)


def test_another_path_is_no_registry(url: str) -> None:
    client = RegistryClient(replace(default_options(RegistryOptions), urls=(f"{url}/other",), timeout_ms=20_000))

    with pytest.raises(SchemaRegistryError, match="is not the URL of a schema registry"):
        client.subjects()
