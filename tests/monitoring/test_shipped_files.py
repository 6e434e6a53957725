"""Rules, dashboard and compose file use metrics, labels, pages and files that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml

from pyspark_kafka_meta.tools.exporter.metric_table import METRICS
from tests.monitoring.shipped_files import DASHBOARD, MONITORING, ROOT, RULES, TARGETS
from tests.test_docs_pages import anchors

OF_PROMETHEUS = {"job", "instance"}
METRIC = re.compile(r"\b(?:kafkameta_\w+|up)\b")
LABELS_IN_EXPRESSIONS = (re.compile(r"[{,]\s*(\w+)\s*(?:=~|!~|!=|=)"), re.compile(r"\b(?:by|on|without)\s*\(([^)]*)\)"))
LABEL_IN_TEXT = re.compile(r"\$labels\.(\w+)|\{\{(\w+)\}\}")


def labels_of_series() -> dict[str, set[str]]:
    """Name of a series -> its labels."""
    known = {"up": set[str]()}
    for metric in METRICS:
        names = [metric.name]
        if metric.buckets:
            names = [f"{metric.name}_{part}" for part in ("sum", "count", "bucket")]
        known.update((name, {*metric.labels, *(["le"] if name.endswith("_bucket") else [])}) for name in names)
    return known


def uses() -> Iterator[tuple[str, str]]:
    """Each expression, with the texts that name labels of its result."""
    for rule in RULES:
        yield rule["expr"], " ".join(rule["annotations"].values())
    for target in TARGETS:
        yield target["expr"], target["legendFormat"]


def named_labels(expression: str, text: str) -> set[str]:
    found = {name for pattern in LABELS_IN_EXPRESSIONS for name in ",".join(pattern.findall(expression)).split(",")}
    found |= {first or second for first, second in LABEL_IN_TEXT.findall(text)}
    return {name.strip() for name in found} - {""}


@pytest.mark.parametrize(("expression", "text"), list(uses()))
def test_metrics_and_labels_exist(expression: str, text: str) -> None:
    known, metrics = labels_of_series(), set(METRIC.findall(expression))

    assert metrics
    assert metrics <= known.keys()
    assert named_labels(expression, text) <= OF_PROMETHEUS.union(*(known[name] for name in metrics))


def test_variables_of_the_dashboard_exist() -> None:
    source, query = DASHBOARD["templating"]["list"]
    (metric, label), *others = re.findall(r"label_values\((\w+), (\w+)\)", query["query"]["query"])
    variables = {name for target in TARGETS for name in re.findall(r"\$(\w+)", target["expr"])}

    assert (source["type"], source["query"], others) == ("datasource", "prometheus", [])
    assert label in labels_of_series()[metric]
    assert variables <= {query["name"], "__rate_interval"}
    used = [*DASHBOARD["panels"], *TARGETS, query]
    assert {part["datasource"]["uid"] for part in used} == {f"${{{source['name']}}}"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_to_do_and_where_to_read_on(rule: dict[str, dict[str, str]]) -> None:
    links = re.findall(r"See (docs/[\w-]+\.md)#([\w-]+)\.", rule["annotations"]["description"])

    assert rule["annotations"]["summary"]
    assert [anchor in anchors(ROOT / page) for page, anchor in links] == [True]


def test_the_readme_has_all_alerts() -> None:
    named = re.findall(r"^\| `(Kafkameta\w+)`", (MONITORING / "README.md").read_text(), re.MULTILINE)

    assert named == [rule["alert"] for rule in RULES]


def test_services_have_pinned_images_and_files_that_exist() -> None:
    services = yaml.safe_load((MONITORING / "docker-compose.yml").read_text())["services"]
    images = [service["image"] for name, service in services.items() if name != "exporter"]
    base, copied = re.findall(r"FROM (\S+)", services["exporter"]["build"]["dockerfile_inline"]), []
    for sources in re.findall(r"COPY (.*) \S+", services["exporter"]["build"]["dockerfile_inline"]):
        copied += sources.split()
    mounted = [volume.split(":")[0] for name in ("prometheus", "grafana") for volume in services[name]["volumes"]]

    assert [image for image in [*images, *base] if not re.fullmatch(r"[\w/-]+:v?\d+\.\d+\.\d+[\w-]*", image)] == []
    assert [path for path in mounted if not (MONITORING / path).exists()] == []
    assert [path for path in copied if not (ROOT / path).exists()] == []


def test_prometheus_scrapes_the_exporter_of_the_compose_file() -> None:
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    services = yaml.safe_load((MONITORING / "docker-compose.yml").read_text())["services"]
    (job,) = config["scrape_configs"]
    command = services["exporter"]["command"]

    assert job["static_configs"] == [{"targets": [f"exporter:{command[command.index('--port') + 1]}"]}]
    assert {f'job="{job["job_name"]}"'} == {name for rule in RULES for name in re.findall(r'job="\w+"', rule["expr"])}
    assert [MONITORING / file for file in config["rule_files"]] == [MONITORING / "alerts.yml"]
