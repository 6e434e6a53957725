"""`LocalRegistry`: a real schema registry on this machine, Apicurio, without Docker.

Needs Linux or macOS, Java 21 or later, and a connection to Maven Central at the first start (160 MB).
"""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Self

from pyspark_kafka_meta.errors import ClusterError, SchemaRegistryError
from pyspark_kafka_meta.java_launcher import find_java_since
from pyspark_kafka_meta.options import RegistryOptions
from pyspark_kafka_meta.options.option_table import default_options
from pyspark_kafka_meta.testing import process_guard
from pyspark_kafka_meta.testing.kafka_config import HOST
from pyspark_kafka_meta.testing.kafka_node import free_ports, log_tail
from pyspark_kafka_meta.testing.local_kafka import JVM_OPTIONS
from pyspark_kafka_meta.testing.maven_jars import resolve_archive
from pyspark_kafka_meta.typed.reading import RegistryClient

VERSION = "3.3.3"
MIN_JAVA_VERSION = 21
UP_TIMEOUT_S = 120.0
POLL_S = 0.2


class LocalRegistry:
    """A schema registry with Confluent's API.

        with LocalRegistry() as registry:
            registry.register("clicks-value", '{"type": "record", "name": "Click", "fields": []}')
            rows = spark.read.format("kafkameta").option("schema.registry.url", registry.url)

    The registry runs inside `with`, in memory, and leaves no process and no file behind, even if this process is
    killed.
    """

    def __init__(self) -> None:
        """Starts no process."""
        self._port = free_ports(1)[0]
        self._guard: process_guard.ProcessGuard | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start the registry and wait until it responds: about 7 s, the first time 20 s more.

        Raises:
            ClusterError: it cannot start.
        """
        java = find_java_since(MIN_JAVA_VERSION)
        folder = resolve_archive(f"io.apicurio:apicurio-registry-app:tar.gz:all:{VERSION}")
        self._guard = process_guard.ProcessGuard()
        try:
            self._process = self._start(java, folder, self._guard)
            self._wait_until_up(self._process, _log(self._guard))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the registry and remove its data. A second call does nothing."""
        if self._guard is not None:
            self._guard.close()
        if self._process is not None:
            self._process.wait()
        self._guard = self._process = None

    @property
    def url(self) -> str:
        """Value of the option schema.registry.url."""
        return f"http://{HOST}:{self._port}/apis/ccompat/v7"

    def register(self, subject: str, schema: str, kind: str = "AVRO") -> int:
        """The id of the schema, as the subject's next version if it is new there.

        Args:
            kind: AVRO, PROTOBUF or JSON.

        Raises:
            SchemaRegistryError: the registry refuses the schema.
        """
        schema_id = self._client(60_000).register(subject, kind, schema).schema_id
        assert schema_id is not None, "a response without an id is an error"
        return schema_id

    def _start(self, java: Path, folder: Path, guard: process_guard.ProcessGuard) -> subprocess.Popen[bytes]:
        address = [f"-Dquarkus.http.host={HOST}", f"-Dquarkus.http.port={self._port}"]
        command = [str(java), *JVM_OPTIONS, *address, "-jar", str(folder / "quarkus-run.jar")]
        with _log(guard).open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=guard.folder, process_group=guard.group
            )

    def _wait_until_up(self, process: subprocess.Popen[bytes], log: Path) -> None:
        deadline = time.monotonic() + UP_TIMEOUT_S
        client = self._client(1_000)
        while True:
            try:
                client.subjects()
                return
            except SchemaRegistryError as error:
                if process.poll() is not None:
                    raise ClusterError(f"The registry died. {log_tail(log)}") from None
                if time.monotonic() > deadline:
                    raise ClusterError(f"{error} after {UP_TIMEOUT_S:.0f} s. {log_tail(log)}") from None
            time.sleep(POLL_S)

    def _client(self, timeout_ms: int) -> RegistryClient:
        return RegistryClient(replace(default_options(RegistryOptions), urls=(self.url,), timeout_ms=timeout_ms))


def _log(guard: process_guard.ProcessGuard) -> Path:
    return guard.folder / "registry.log"
