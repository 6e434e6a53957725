"""No secret of a query is in any output or file of Spark, its workers or this package, also if the query fails."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v7 import request as offsets_asked
from kio.schema.list_offsets.v7 import response as offsets
from kio.serial import entity_reader

from pyspark_kafka_meta.kafka.protocol.apis import FETCH, LIST_OFFSETS, METADATA
from pyspark_kafka_meta.kafka.protocol.frame_codec import milliseconds
from pyspark_kafka_meta.testing import LocalKafka, MockRegistry
from pyspark_kafka_meta.testing.listener_security import CertificateAuthority
from tests.kafka.harness import Stream
from tests.spark.secret_queries import REDACTED
from tests.wire.scripted_broker import (
    Behaviour,
    agree_on_mechanism,
    authenticate,
    encrypted_key,
    fetch_frame,
    frame,
    leader_frame,
    over_tls,
    parrot,
    read_frame,
    scripted_broker,
    send_versions,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(700)]

ROOT = Path(__file__).parent.parent.parent
AUTHORITY = CertificateAuthority()
BROKER = AUTHORITY.issue("broker", ["127.0.0.1"])
ALICE = AUTHORITY.issue("alice")
DEBUG = "import logging\nlogging.basicConfig(level=logging.DEBUG)\n"
"""Runs at the start of each Python process, as `sitecustomize`."""
EVENTS = "events"
LOGIN = "me:canary-registry"
ENCODED = base64.b64encode(LOGIN.encode()).decode()
SHOWN = [
    "eventsPath",
    "kafka.ssl.keystore.key",
    "schema.registry.basic.auth.user.info",
    "schema.registry.ssl.keystore.key",
]
"""The options with secrets that the plan of a stream shows."""
CLIENT = "kafka.sasl.oauthbearer.client.credentials.client"


def kafka(peer: socket.socket) -> None:
    """A broker with one record in topic t that accepts any login."""
    send_versions(peer, metadata=12, list_offsets=7)
    agree_on_mechanism(peer)
    authenticate(peer, lambda _: b"")
    while True:
        request = read_frame(peer)
        key, correlation_id = int.from_bytes(request[:2], "big"), int.from_bytes(request[4:8], "big")
        if key == METADATA.key:
            peer.sendall(leader_frame(correlation_id, peer))
        elif key == FETCH.key:
            peer.sendall(fetch_frame(correlation_id, 0))
        elif key == LIST_OFFSETS.key:
            peer.sendall(offsets_frame(request, correlation_id))


def offsets_frame(request: bytes, correlation_id: int) -> bytes:
    """The log of t-0 starts at 0 and ends at 1."""
    kind = offsets_asked.ListOffsetsRequest
    _, size = entity_reader(kind.__header_schema__)(request, 0)
    parsed, _ = entity_reader(kind)(request, size)
    offset = 1 if parsed.topics[0].partitions[0].timestamp == -1 else 0
    partition = offsets.ListOffsetsPartitionResponse(
        partition_index=0, error_code=ErrorCode.none, timestamp=-1, offset=offset, leader_epoch=0
    )
    topic = offsets.ListOffsetsTopicResponse(name="t", partitions=(partition,))
    return frame(offsets.ListOffsetsResponse(throttle_time=milliseconds(0), topics=(topic,)), correlation_id)


@contextmanager
def token_parrot() -> Iterator[str]:
    """A token endpoint that refuses each request and repeats it, with the decoded client secret."""

    class Parrot(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])) + str(self.headers).encode()
            body += base64.b64decode(self.headers["Authorization"].removeprefix("Basic "))
            self.send_response(401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Parrot) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/token"
        server.shutdown()


def typed_values(stack: ExitStack) -> tuple[dict[str, str], dict[str, str]]:
    """Options of Avro values in topic t: with a registry, and with one that refuses requests and repeats the login."""
    registry, refusing = (stack.enter_context(MockRegistry()) for _ in range(2))
    registry.login = f"Basic {ENCODED}"
    registry.register("t-value", '"string"')
    refusing.respond(422, json.dumps({"message": f"{LOGIN} {ENCODED}"}), times=100)
    options = {
        "valueFormat": "avro",
        "schema.registry.basic.auth.user.info": LOGIN,
        "schema.registry.ssl.keystore.key": f"canary-registry-key\n{encrypted_key(ALICE, 'canary-registry-password')}",
        "schema.registry.ssl.keystore.certificate.chain": ALICE.certificate,
        "schema.registry.ssl.key.password": "canary-registry-password",
    }
    urls = [f"{each.url},https://127.0.0.1:1" for each in (registry, refusing)]
    return {**options, "schema.registry.url": urls[0]}, {**options, "schema.registry.url": urls[1]}


def start(stack: ExitStack, behave: Behaviour) -> str:
    return str(stack.enter_context(scripted_broker(behave)))


def real_kafka(stack: ExitStack) -> LocalKafka:
    """A broker with one record in topic t, whose value is Avro, and a topic for events."""
    users = {"alice": "canary-real"}
    kafka = stack.enter_context(LocalKafka(1, security="SASL_SSL", mechanisms=["PLAIN"], users=users))
    admin = AdminClient({"bootstrap.servers": kafka.admin_servers})
    for created in admin.create_topics([NewTopic(name, 1, 1) for name in ("t", EVENTS)]).values():
        created.result(60)
    producer = Producer({"bootstrap.servers": kafka.admin_servers})
    producer.produce("t", b"\0\0\0\0\1\2v")
    assert producer.flush(30) == 0
    return kafka


def queries(stack: ExitStack, folder: Path, real: LocalKafka) -> list[dict[str, str]]:
    """Options of the queries, each with a canary in one option. The first three queries succeed. The second one, to
    the real cluster, writes too, and has a registry. All write their events to a topic that only this cluster has."""
    login = {"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.username": "alice"}
    plain = {"kafka.security.protocol": "SASL_PLAINTEXT", **login}
    secured = {
        "kafka.security.protocol": "SASL_SSL",
        **login,
        "kafka.ssl.truststore.certificates": AUTHORITY.certificate,
        "kafka.ssl.keystore.key": f"canary-key\n{encrypted_key(ALICE, 'canary-key-password')}",
        "kafka.ssl.keystore.certificate.chain": ALICE.certificate,
        "kafka.ssl.key.password": "canary-key-password",
        "kafka.sasl.password": "canary-good",
    }
    store = folder / "store.p12"
    store.write_bytes(b"\x30\x03\x02\x01\x03")
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="canary-jaas";'
    over_encrypted = start(stack, over_tls(BROKER, kafka, AUTHORITY.certificate))
    silent = start(stack, lambda peer: None)
    oauth = {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.oauthbearer.token.endpoint.url": stack.enter_context(token_parrot()),
        f"{CLIENT}.id": "me",
        f"{CLIENT}.secret": "canary-client-secret",
    }
    stores = {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.location": str(store),
        "kafka.ssl.truststore.password": "canary-truststore",
        "kafka.ssl.keystore.location": str(store),
        "kafka.ssl.keystore.password": "canary-keystore",
    }
    trusting = real.client_options("alice")
    typed, refused = typed_values(stack)
    by_servers = [
        (over_encrypted, secured),
        (real.bootstrap_servers, {**trusting, **typed}),
        (start(stack, kafka), {**plain, "kafka.sasl.password": "canary-plaintext"}),
        (real.bootstrap_servers, {**trusting, "kafka.sasl.password": "canary-refused"}),
        (real.bootstrap_servers, {**trusting, **refused}),
        (start(stack, parrot("canary-plain")), {**plain, "kafka.sasl.password": "canary-plain"}),
        (start(stack, parrot("")), oauth),
        (
            silent,
            {
                "kafka.security.protocol": "SASL_PLAINTEXT",
                "kafka.sasl.mechanism": "PLAIN",
                "kafka.sasl.jaas.config": jaas,
            },
        ),
        (silent, stores),
        (silent, {**plain, "kafka.sasl.pasword": "canary-misspelt", "kafka.sasl.password": ""}),
        (silent, {**plain, "kafka.sasl.jaas.config": "canary-unreadable"}),
        (silent, {"eventsPath": "s3://me:canary-uri@bucket/events?endpoint_override=127.0.0.1:1&scheme=http"}),
    ]
    for_all = {
        "kafka.socket.connection.setup.timeout.ms": "2000",
        "kafkaConsumer.pollTimeoutMs": "10000",
        "eventsPath": str(folder / "events"),
        "eventsTopic": EVENTS,
        "subscribe": "t",
    }
    timeouts_ms = [5_000] * 3 + [2_000] * (len(by_servers) - 3)
    return [
        {"kafka.bootstrap.servers": servers, "kafka.default.api.timeout.ms": str(timeout_ms), **for_all, **options}
        for (servers, options), timeout_ms in zip(by_servers, timeouts_ms, strict=True)
    ]


def test_no_secret_is_in_anything_written_or_printed(tmp_path: Path) -> None:
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "sitecustomize.py").write_text(DEBUG)
    program = Path(__file__).parent / "secret_queries.py"
    path = os.pathsep.join(map(str, (tmp_path / "python", ROOT)))
    folder = tmp_path / "written"
    folder.mkdir()
    python = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)
    with ExitStack() as stack:
        real = real_kafka(stack)
        done = subprocess.run(
            [sys.executable, str(program), str(folder)],
            input=json.dumps(queries(stack, folder, real)),
            env={**os.environ, **python, "PYTHONPATH": path, "TMPDIR": str(folder), "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            text=True,
            timeout=600,
            start_new_session=True,
        )
        events = stack.enter_context(closing(Stream(real.admin_servers, [EVENTS], tmp_path / "read back")))
        events.run_batch()

    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("1 rows\n") == 3
    assert done.stdout.count("2 rows written") == 1
    assert done.stdout.count("3 rows copied") == 1
    assert done.stdout.count("write failed: ") == 11
    assert f"secrets in the plans of streams: {SHOWN}" in done.stdout
    security = (ROOT / "SECURITY.md").read_text()
    assert [named for named in (*SHOWN, REDACTED) if f"`{named}`" not in security] == []
    assert "refused the request when asked" in done.stdout
    assert "refused the PLAIN login" in done.stdout
    assert events.rows
    assert not any("canary" in row.value for row in events.rows)
    assert "DEBUG:pyspark_kafka_meta" in done.stderr or "INFO:pyspark_kafka_meta.events" in done.stderr
    assert {"checkpoint-1", "events", "local", "log"} <= {path.name for path in folder.iterdir()}
    assert "files with a secret: []" in done.stdout
    assert "files of the event log with the topic: 1" in done.stdout, "the event log is searched"
    assert "canary" not in done.stdout + done.stderr
    assert ENCODED not in done.stdout + done.stderr
    assert "\x1b[31m" not in done.stdout + done.stderr
    assert not any(line.startswith("FATAL") for line in (done.stdout + done.stderr).splitlines())
