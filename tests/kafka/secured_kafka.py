"""A secured broker for tests: its users, their ACLs and their logins."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.testing import LocalKafka
from pyspark_kafka_meta.testing.kafka_config import FIRST_BROKER_ID, HOST
from pyspark_kafka_meta.testing.kafka_node import free_ports
from pyspark_kafka_meta.testing.listener_security import ListenerSecurity, Protocol
from tests.kafka.cluster_tools import all_brokers_know, create_acls, poll_until
from tests.kafka.harness import Stream
from tests.wire.token_endpoint import token_endpoint

TOPIC = "orders"
GROUP = "watchers"
RECORDS = 20
SESSION_MS = 4_000
"""A request that is sent in its last twentieth must get to the broker before its end, or the connection is closed."""
USERS = {name: f"canary-{name}" for name in ("alice", "dora", "erin", "frank", "mallory")}
TOPIC_ITSELF = (ResourceType.TOPIC, TOPIC, ResourcePatternType.LITERAL)
RIGHTS = [
    ("alice", AclOperation.READ, *TOPIC_ITSELF),
    ("alice", AclOperation.WRITE, *TOPIC_ITSELF),
    ("alice", AclOperation.READ, ResourceType.GROUP, GROUP, ResourcePatternType.LITERAL),
    ("dora", AclOperation.DESCRIBE, *TOPIC_ITSELF),
]
"""Mallory has no ACLs, and Erin and Frank those of one test."""
MECHANISMS: dict[Protocol, tuple[str, ...]] = {
    "SSL": (),
    "SASL_PLAINTEXT": ("SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"),
    "SASL_SSL": ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER"),
}
SASL = [protocol for protocol in MECHANISMS if protocol.startswith("SASL_")]
TLS = [protocol for protocol in MECHANISMS if protocol.endswith("SSL")]
OTHER_PROTOCOLS: tuple[Protocol, ...] = ("SSL", "SASL_PLAINTEXT")
"""Beside that of `LocalKafka`."""


def unsecured_token(user: str) -> str:
    """A token that Kafka's OAuthBearerUnsecuredValidatorCallbackHandler accepts."""
    issued = int(time.time()) - 1  # rounding must not put it into the future
    parts = ({"alg": "none"}, {"sub": user, "iat": issued, "exp": issued + 3600})
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return ".".join(encoded) + "."


class Listener(NamedTuple):
    port: int
    security: ListenerSecurity


class ListenersOfAllProtocols(LocalKafka):
    """One broker with a listener for each protocol of `MECHANISMS`, and the same users behind all of them.

    Attributes:
        listeners: by protocol.
    """

    def __init__(self) -> None:
        config = {"connections.max.reauth.ms": str(SESSION_MS)}
        super().__init__(
            1, config=config, security="SASL_SSL", mechanisms=MECHANISMS["SASL_SSL"], users=USERS, acls=True
        )
        self.listeners = {"SASL_SSL": Listener(self.address(FIRST_BROKER_ID).port, self._security)}
        for protocol, port in zip(OTHER_PROTOCOLS, free_ports(len(OTHER_PROTOCOLS)), strict=True):
            security = ListenerSecurity(protocol, MECHANISMS[protocol], USERS, True, self._release)
            security.authority = self._security.authority
            self.listeners[protocol] = Listener(port, security)

    def _broker_properties(self, broker_id: int, folder: Path) -> dict[str, str]:
        """What the other listeners need has their names before it."""
        properties = dict(super()._broker_properties(broker_id, folder))
        for protocol in OTHER_PROTOCOLS:
            port, security = self.listeners[protocol]
            prefix = f"listener.name.{protocol.lower()}."
            for name, text in security.broker_properties(port, port, port, folder).items():
                if name.startswith(("ssl.", "sasl.", prefix)):
                    properties[prefix + name.removeprefix(prefix)] = text
            for name in ("listeners", "advertised.listeners"):
                properties[name] += f",{protocol}://{HOST}:{port}"
            properties["listener.security.protocol.map"] += f",{protocol}:{protocol}"
        return properties


@dataclass(frozen=True, slots=True)
class SecuredKafka:
    """One broker with `RECORDS` records in `TOPIC`, at one of its listeners.

    Attributes:
        token_url: an endpoint that issues tokens for Alice.
    """

    kafka: ListenersOfAllProtocols
    protocol: Protocol
    token_url: str

    @property
    def address(self) -> Address:
        return Address(HOST, self.kafka.listeners[self.protocol].port)

    @property
    def servers(self) -> str:
        return str(self.address)

    def options(self, user: str = "alice", mechanism: str | None = None, **more: str) -> dict[str, str]:
        """With the first mechanism by default."""
        return {**self.kafka.listeners[self.protocol].security.client_options(user, mechanism), **more}

    def logins(self) -> dict[str, dict[str, str]]:
        """The options of each login of Alice."""
        if self.protocol == "SSL":
            return {"certificate": self.options()}
        by_password = [name for name in MECHANISMS[self.protocol] if name != "OAUTHBEARER"]
        bare = {name: text for name, text in self.options().items() if not name.startswith("kafka.sasl.")}
        jaas = f'org.x.PlainLoginModule required username="alice" password="{USERS["alice"]}";'
        client = "kafka.sasl.oauthbearer.client.credentials.client"
        endpoint = {"kafka.sasl.oauthbearer.token.endpoint.url": self.token_url}
        return {
            **{name: self.options(mechanism=name) for name in by_password},
            "PLAIN by JAAS": {**bare, "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": jaas},
            "OAUTHBEARER": {
                **bare,
                "kafka.sasl.mechanism": "OAUTHBEARER",
                **endpoint,
                f"{client}.id": "me",
                f"{client}.secret": "canary-client",
            },
        }

    def read(self, folder: Path, options: dict[str, str], servers: str | None = None) -> int:
        """The number of records that a planner and a reader read from the topic."""
        stream = Stream(servers or self.servers, [TOPIC], folder, **options)
        try:
            stream.run_batch()
            return len(stream.rows)
        finally:
            stream.close()

    def admin(self) -> AdminClient:
        """A client without ACLs. Keep it in a variable: its requests are cancelled when it is collected."""
        return AdminClient({"bootstrap.servers": self.kafka.admin_servers, "log_level": 0})

    def create_topic(self, topic: str) -> None:
        admin = self.admin()
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
        poll_until(lambda: all_brokers_know(self.kafka.admin_servers, topic, 1))

    def allow(self, user: str, operation: AclOperation, topic: str) -> None:
        create_acls(self.kafka, [acl(user, operation, ResourceType.TOPIC, topic, ResourcePatternType.LITERAL)])

    def forbid(self, user: str) -> None:
        """Remove all ACLs of a user."""
        anything: Any = None
        all_acls = (f"User:{user}", anything, AclOperation.ANY, AclPermissionType.ANY)
        all_of_user = AclBindingFilter(ResourceType.ANY, anything, ResourcePatternType.ANY, *all_acls)
        admin = self.admin()
        assert admin.delete_acls([all_of_user])[all_of_user].result(60)


def acl(user: str, operation: AclOperation, kind: ResourceType, name: str, pattern: ResourcePatternType) -> AclBinding:
    return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)


def produce(settings: dict[str, Any], topic: str = TOPIC) -> None:
    """Write `RECORDS` records."""
    producer = Producer({**settings, "log_level": 0})
    delivered: list[Any] = []
    for number in range(RECORDS):
        producer.produce(topic, str(number), on_delivery=lambda error, _: delivered.append(error))
    assert producer.flush(30) == 0
    assert delivered == [None] * RECORDS


@contextmanager
def secured_kafka() -> Iterator[SecuredKafka]:
    token = {"access_token": unsecured_token("alice"), "token_type": "Bearer", "expires_in": 3600}
    with token_endpoint(200, token) as (url, _), ListenersOfAllProtocols() as kafka:
        secured = SecuredKafka(kafka, "SASL_SSL", url)
        secured.create_topic(TOPIC)
        create_acls(kafka, [acl(*right) for right in RIGHTS])
        produce({"bootstrap.servers": kafka.admin_servers})
        yield secured
