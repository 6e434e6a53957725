"""promtool: each alert fires in its scene, and none in a calm one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.monitoring.shipped_files import RULES, RULES_FILE

EXECUTOR = '{application_id="app-1", executor="1", job="kafkameta", instance="a"}'
AT_EXPORTER = 'job="kafkameta", instance="a"'
LAG = 'kafkameta_lag_seconds{query_id="q", topic="t"}'
NO_END = 'kafkameta_lag_unknown_partitions{query_id="q", topic="t"}'
NO_AGE = 'kafkameta_lag_seconds_unknown_partitions{query_id="q", topic="t"}'
LOSSES = 'kafkameta_data_losses_total{topic="t"}'
MALFORMED = 'kafkameta_malformed_records_total{topic="t", column="value"}'
LOOKUPS = f'kafkameta_schema_lookups_total{{role="planner", reason="new_versions", outcome="failed", {AT_EXPORTER}}}'
UNKNOWN_IDS = (
    f'kafkameta_schema_lookups_total{{role="reader", reason="unknown_schema", outcome="failed", {AT_EXPORTER}}}'
)
OPEN = 'kafkameta_open_transaction_seconds{sink="s"}'
STALE = f"kafkameta_stale_partitions{EXECUTOR}"
NOT_LEADER = f'kafkameta_refreshes_total{{role="reader", reason="not_leader", outcome="changed", {AT_EXPORTER}}}'
BOOTSTRAP = f'kafkameta_refreshes_total{{role="reader", reason="bootstrap", outcome="changed", {AT_EXPORTER}}}'
UP = f"up{{{AT_EXPORTER}}}"
SOURCE_UP = f'kafkameta_exporter_up{{source="cluster", {AT_EXPORTER}}}'

CALM = {
    f"kafkameta_caches{EXECUTOR}": "10x120",
    STALE: "0x15 3 0x44 2 0x59",  # a leader moves, and caches learn of it in less than a minute
    NOT_LEADER: "0+2x60 120+40x3 240x57",  # with three minutes of a rolling restart
    BOOTSTRAP: "0+400x120",  # short batches
    LOSSES: "2x120",  # an exporter that has run for long
    MALFORMED: "2x120",
    LOOKUPS: "1x60 2x60",  # a registry that restarts
    UNKNOWN_IDS: "0+1x120",
    LAG: "0x45 1+20x8 161-20x8 0x60",  # a peak, from which the query recovers
    'kafkameta_lag_seconds{query_id="q", topic="old"}': "1800-15x115 60x4",  # a query that catches up
    NO_END: "0x50 2x12 0x57",  # an election, or an unreachable leader, for three minutes
    NO_AGE: "0x80 1x20 0x19",
    OPEN: "0x50 0+15x15 0+15x15 0x37",  # transactions of two long batches
    UP: "1x60 0 1x59",
    SOURCE_UP: "1x50 0x2 1x67",
}
"""Series -> its values, one a quarter of a minute, in Prometheus's notation: a+bxn are n further values."""
SCENES: dict[str, dict[str, str]] = {
    "KafkametaCacheStale": {STALE: "0x20 3x99"},
    "KafkametaRefreshStorm": {NOT_LEADER: "0+20x120"},
    "KafkametaDataLoss": {LOSSES: "2x100 3x19"},
    "KafkametaMalformedRecords": {MALFORMED: "2x100 3x19"},
    "KafkametaRegistryFailing": {LOOKUPS: "1x60 2+1x59"},
    "KafkametaLagRising": {LAG: "0+15x120"},
    "KafkametaLagUnknown": {NO_END: "0x50 1x69"},
    "KafkametaTransactionOpenTooLong": {OPEN: "0+15x120"},
    "KafkametaExporterFailing": {UP: "1x60 0x59"},
}
OTHER_SCENES = {
    "the first loss of a topic": ("KafkametaDataLoss", {LOSSES: "_x100 1x19"}),
    "the first malformed values of a topic": ("KafkametaMalformedRecords", {MALFORMED: "_x100 1x19"}),
    "unread records of unknown age": ("KafkametaLagUnknown", {NO_AGE: "0x50 1x69"}),
    "a source that cannot be polled": ("KafkametaExporterFailing", {SOURCE_UP: "1x60 0x59"}),
    "a transaction of another producer": (
        "KafkametaTransactionOpenTooLong",
        {"kafkameta_open_transaction_seconds": "0+15x120"},
    ),
}
SETTLED_MIN, END_MIN = 10, 30
"""Before the first, the losses of an exporter are new."""


def firing_at(minute: float, *alerts: str) -> dict[str, Any]:
    return {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": f"{int(minute * 60)}s",
        "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts],
    }


def scene(name: str, series: dict[str, str], *expected: dict[str, Any]) -> dict[str, Any]:
    """A calm scene but for these series."""
    values = [{"series": name, "values": values} for name, values in {**CALM, **series}.items()]
    return {"name": name, "interval": "15s", "input_series": values, "promql_expr_test": list(expected)}


def check(promtool: str, folder: Path, *scenes: dict[str, Any]) -> None:
    file = folder / "scenes.yml"  # JSON is YAML
    file.write_text(json.dumps({"rule_files": [str(RULES_FILE)], "evaluation_interval": "15s", "tests": scenes}))
    run(promtool, "test", "rules", str(file))


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_are_valid(promtool: str) -> None:
    run(promtool, "check", "rules", str(RULES_FILE))


def test_no_alert_fires_in_a_calm_scene(promtool: str, tmp_path: Path) -> None:
    quarters = range(SETTLED_MIN * 4 + 1, END_MIN * 4)
    check(promtool, tmp_path, scene("calm", {}, *(firing_at(quarter / 4) for quarter in quarters)))


def test_each_alert_has_a_scene() -> None:
    assert list(SCENES) == [rule["alert"] for rule in RULES]


def test_an_alert_fires_in_its_scenes_alone(promtool: str, tmp_path: Path) -> None:
    of_alerts = {alert: (alert, series) for alert, series in SCENES.items()}
    at_end = END_MIN - 0.5
    check(
        promtool,
        tmp_path,
        *(
            scene(name, series, firing_at(at_end, alert))
            for name, (alert, series) in {**of_alerts, **OTHER_SCENES}.items()
        ),
    )


def test_a_stale_cache_waits_a_minute(promtool: str, tmp_path: Path) -> None:
    times = firing_at(15), firing_at(15.75), firing_at(16.5, "KafkametaCacheStale")
    check(promtool, tmp_path, scene("stale", {STALE: "0x60 3x59"}, *times))
