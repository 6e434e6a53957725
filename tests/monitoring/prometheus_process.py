"""Prometheus as a process, and its HTTP API."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

import yaml

from pyspark_kafka_meta.testing import kafka_node
from tests.kafka.cluster_tools import poll_until
from tests.monitoring.shipped_files import MONITORING


@dataclass(frozen=True, slots=True)
class Api:
    """Prometheus's HTTP API, https://prometheus.io/docs/prometheus/latest/querying/api."""

    address: str

    def get(self, path: str, **parameters: str) -> Any:
        """Raises HTTPError, of an invalid query too."""
        with urlopen(f"{self.address}/api/v1/{path}?{urlencode(parameters)}", timeout=60) as response:
            return json.load(response)["data"]

    def is_ready(self) -> bool:
        with suppress(OSError), urlopen(f"{self.address}/-/ready", timeout=10):
            return True
        return False

    def values(self, expression: str, *labels: str) -> dict[tuple[str, ...], float]:
        found = self.get("query", query=expression)["result"]
        return {tuple(one["metric"].get(name, "") for name in labels): float(one["value"][1]) for one in found}


@contextmanager
def started(program: str, folder: Path, exporter_url: str, rules: Path, interval: str) -> Iterator[Api]:
    """A ready Prometheus with the shipped configuration, but another exporter, rules and interval. Its data is in
    `folder`."""
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    config["global"] = dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), interval)
    config["rule_files"] = [str(rules)]
    config["scrape_configs"][0]["static_configs"] = [{"targets": [urlsplit(exporter_url).netloc]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    (port,) = kafka_node.free_ports(1)
    address = f"127.0.0.1:{port}"
    command = [program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log) as process,
    ):
        try:
            api = Api(f"http://{address}")
            poll_until(api.is_ready)
            yield api
        finally:
            process.kill()
