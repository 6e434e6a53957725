"""What examples/monitoring ships: alert rules, and expressions of the dashboard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent.parent
MONITORING = ROOT / "examples" / "monitoring"
RULES_FILE = MONITORING / "alerts.yml"
RULES: list[dict[str, Any]] = yaml.safe_load(RULES_FILE.read_text())["groups"][0]["rules"]
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "grafana" / "dashboards" / "kafkameta.json").read_text())
TARGETS: list[dict[str, Any]] = [target for panel in DASHBOARD["panels"] for target in panel["targets"]]
