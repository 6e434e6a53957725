"""Kafka Connect as a process of its own, with Debezium's connector for PostgreSQL.

Needs Java 17, and a connection to Maven Central at the first start (50 MB).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Self
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from pyspark_kafka_meta.java_launcher import find_java
from pyspark_kafka_meta.testing import ClusterError
from pyspark_kafka_meta.testing.kafka_config import HOST
from pyspark_kafka_meta.testing.kafka_node import JavaRuntime, KafkaNode, free_ports, write_files
from pyspark_kafka_meta.testing.local_kafka import JVM_OPTIONS
from pyspark_kafka_meta.testing.maven_jars import resolve_jars
from pyspark_kafka_meta.testing.process_guard import ProcessGuard

KAFKA, DEBEZIUM = "4.3.0", "3.6.1.Final"
JARS = (
    *(f"org.apache.kafka:connect-{part}:{KAFKA}" for part in ("runtime", "json", "transforms")),
    f"io.debezium:debezium-connector-postgres:{DEBEZIUM}",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",
)
MAIN_CLASS = "org.apache.kafka.connect.cli.ConnectStandalone"
JSON = "org.apache.kafka.connect.json.JsonConverter"
TIMEOUT_S = 120.0
POLL_S = 0.2


def postgres_connector(port: int, prefix: str, table: str) -> dict[str, str]:
    """Settings of Debezium's connector: changes of the table go to the topic `<prefix>.<table>`."""
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": HOST,
        "database.port": str(port),
        "database.user": "postgres",
        "database.dbname": "postgres",
        "plugin.name": "pgoutput",
        "publication.autocreate.mode": "filtered",
        "table.include.list": table,
        "topic.prefix": prefix,
        "heartbeat.interval.ms": "1000",
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "-1",
    }


class Connect:
    """A worker inside `with`. It leaves no process and no file behind, even if this process is killed."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        self._port = free_ports(1)[0]
        self._connectors: dict[str, Mapping[str, str]] = {}

    def __enter__(self) -> Self:
        runtime = JavaRuntime(find_java(), resolve_jars(JARS), JVM_OPTIONS)
        self._guard = ProcessGuard()
        folder = self._guard.folder / "connect"
        settings = {
            "bootstrap.servers": self._servers,
            "listeners": f"http://{HOST}:{self._port}",
            "key.converter": JSON,
            "value.converter": JSON,
            # Without this a null in a column with a default is sent as the default.
            "key.converter.replace.null.with.default": "false",
            "value.converter.replace.null.with.default": "false",
            "offset.storage.file.filename": str(folder / "offsets"),
            "offset.flush.interval.ms": "1000",
            "plugin.discovery": "service_load",
        }
        try:
            write_files(folder, settings, None)
            self._worker = KafkaNode(0, folder, runtime, self._guard.group, MAIN_CLASS)
            self.start()
        except BaseException:
            self._guard.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker.is_started:
            self._worker.kill()
        self._guard.close()

    def start(self) -> None:
        """Start the worker, with the connectors that it had, which continue where they stopped."""
        self._worker.start()
        for name, settings in self._connectors.items():
            self.put(name, settings)

    def kill(self) -> None:
        """Crash the worker (SIGKILL): after a start it sends the last changes again."""
        self._worker.kill()

    def put(self, name: str, settings: Mapping[str, str]) -> None:
        """Create a connector, or change its settings, and wait until it runs."""
        self._connectors[name] = settings
        deadline = time.monotonic() + TIMEOUT_S
        while not (self._request("PUT", f"{name}/config", settings) and self._runs(name)):
            self._worker.check()
            if time.monotonic() > deadline:
                raise ClusterError(f"Connector {name} does not run. {self._worker.log_tail()}")
            time.sleep(POLL_S)

    @property
    def log(self) -> str:
        return (self._worker.folder / "node.log").read_text(errors="replace")

    def _runs(self, name: str) -> bool:
        """Whether the connector has a task that runs. Raises ClusterError: the task failed."""
        tasks = (self._request("GET", f"{name}/status") or {"tasks": []})["tasks"]
        failed = [task["trace"] for task in tasks if task["state"] == "FAILED"]
        if failed:
            raise ClusterError(f"Connector {name} failed: {failed[0]}")
        return any(task["state"] == "RUNNING" for task in tasks)

    def _request(self, method: str, path: str, body: Mapping[str, str] | None = None) -> Any:
        """The response; None if the worker is not ready."""
        url = f"http://{HOST}:{self._port}/connectors/{path}"
        headers = {"Content-Type": "application/json"}
        request = Request(url, json.dumps(body).encode() if body else None, headers, method=method)
        try:
            with urlopen(request, timeout=TIMEOUT_S) as response:
                return json.load(response)
        except HTTPError as error:
            if error.code == HTTPStatus.BAD_REQUEST:
                raise ClusterError(f"Connect refused the settings: {error.read().decode()}") from None
            return None
        except URLError:
            return None
