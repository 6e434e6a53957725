"""A secured broker for tests: its users, their ACLs and their logins."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

from pyspark_kafka_meta.testing import LocalKafka
from tests.kafka.cluster_tools import all_brokers_know, create_acls, poll_until
from tests.kafka.harness import Stream
from tests.wire.token_endpoint import token_endpoint

TOPIC = "orders"
GROUP = "watchers"
RECORDS = 20
SESSION_MS = 4_000
"""A request that is sent in its last twentieth must get to the broker before its end, or the connection is closed."""
USERS = {name: f"canary-{name}" for name in ("alice", "carol", "dora", "erin", "frank", "grace", "mallory")}
TOPIC_ITSELF = (ResourceType.TOPIC, TOPIC, ResourcePatternType.LITERAL)
RIGHTS = [
    ("alice", AclOperation.READ, *TOPIC_ITSELF),
    ("alice", AclOperation.WRITE, *TOPIC_ITSELF),
    ("alice", AclOperation.ALL, ResourceType.TOPIC, "events-", ResourcePatternType.PREFIXED),
    ("alice", AclOperation.READ, ResourceType.GROUP, GROUP, ResourcePatternType.LITERAL),
    ("carol", AclOperation.READ, *TOPIC_ITSELF),
    ("dora", AclOperation.DESCRIBE, *TOPIC_ITSELF),
]
"""Mallory has no ACLs, and Erin, Frank and Grace those of one test each. One test changes Carol's login."""
MECHANISMS = {
    "SSL": (),
    "SASL_PLAINTEXT": ("SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"),
    "SASL_SSL": ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER"),
}
SASL = [protocol for protocol in MECHANISMS if protocol.startswith("SASL_")]
TLS = [protocol for protocol in MECHANISMS if protocol.endswith("SSL")]


def unsecured_token(user: str) -> str:
    """A token that Kafka's OAuthBearerUnsecuredValidatorCallbackHandler accepts."""
    issued = int(time.time()) - 1  # rounding must not put it into the future
    parts = ({"alg": "none"}, {"sub": user, "iat": issued, "exp": issued + 3600})
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return ".".join(encoded) + "."


class AliceTokens:
    def token(self) -> str:
        return unsecured_token("alice")


@dataclass(frozen=True, slots=True)
class SecuredKafka:
    """One broker with `RECORDS` records in `TOPIC`.

    Attributes:
        token_url: an endpoint that issues tokens for Alice.
    """

    kafka: LocalKafka
    protocol: str
    token_url: str

    @property
    def servers(self) -> str:
        return self.kafka.bootstrap_servers

    def options(self, user: str = "alice", **more: str) -> dict[str, str]:
        return {**self.kafka.client_options(user), **more}

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
            **{name: self.kafka.client_options("alice", name) for name in by_password},
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
def secured_kafka(protocol: Any) -> Iterator[SecuredKafka]:
    token = {"access_token": unsecured_token("alice"), "token_type": "Bearer", "expires_in": 3600}
    config = {"connections.max.reauth.ms": str(SESSION_MS)}
    mechanisms = MECHANISMS[protocol]
    with (
        token_endpoint(200, token) as (url, _),
        LocalKafka(1, config=config, security=protocol, mechanisms=mechanisms, users=USERS, acls=True) as kafka,
    ):
        secured = SecuredKafka(kafka, protocol, url)
        secured.create_topic(TOPIC)
        create_acls(kafka, [acl(*right) for right in RIGHTS])
        produce({"bootstrap.servers": kafka.admin_servers})
        yield secured
