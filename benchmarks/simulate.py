"""Simulates the requests of thousands of metadata caches to a Kafka cluster, at rest and during a rolling restart.

    python -m benchmarks.simulate [--executors 1000] [--brokers 100] [--seed 0]

A discrete-event simulation of caches with the package's refresh policy, and of variants that lack one feature each.
All brokers restart, one every 30 s, or five get kill -9. Broker load and other clients are not modelled. Prints a
table, writes a plot and the figures as JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.simulation.clients import (
    FIRST_BROKER,
    FIXED_BACKOFF,
    KAFKAMETA,
    LOCKSTEP,
    NO_HINTS,
    PLAIN,
    TASK_TOPICS,
    Variant,
)
from benchmarks.simulation.cluster import Scenario
from benchmarks.simulation.figures import Figures, figures, requests_by_time
from benchmarks.simulation.run import Simulation

IMAGES = Path(__file__).parent.parent / "docs" / "images"
PLOT_STEP_S = 10
COLUMNS = {
    "mean": "req/s\nmean",
    "peak_10_s": "worst\n10 s",
    "peak_1_s": "worst\n1 s",
    "broker_peak_1_s": "worst 1 s\none broker",
    "mean_mb": "MB/s\nmean",
    "peak_mb": "worst\n1 s",
    "stalls": "stalls",
    "heal_mean_ms": "heal ms\nmean",
    "heal_p99_ms": "p99",
    "heal_worst_ms": "worst",
}


@dataclass(frozen=True, slots=True)
class Play:
    """A scenario, who plays in it, and the second from which it counts."""

    title: str
    scenario: Scenario
    variants: Sequence[Variant]
    from_s: float


def plays(scenario: Scenario) -> list[Play]:
    """The first micro-batch never counts: a cache that knows nothing has to ask, whoever it is."""
    quiet = replace(scenario, restarts=0, calm_s=620.0)
    killed = replace(scenario, restarts=min(5, scenario.restarts), abrupt=True)
    at_rest = (KAFKAMETA, TASK_TOPICS, LOCKSTEP, FIRST_BROKER, PLAIN)
    restarted = (KAFKAMETA, NO_HINTS, FIXED_BACKOFF, PLAIN)
    return [
        Play("a new query, no restart", quiet, at_rest, scenario.batch_s),
        Play(f"controlled restart of {scenario.restarts} brokers", scenario, restarted, scenario.calm_s),
        Play(f"kill -9 of {killed.restarts} brokers", killed, restarted, killed.calm_s),
    ]


def print_table(results: dict[str, dict[str, Figures]]) -> None:
    table = Table("client", title="Metadata requests at the brokers, and stalls at the readers")
    for heading in COLUMNS.values():
        table.add_column(heading, justify="right")
    for title, by_variant in results.items():
        table.add_section()
        table.add_row(f"[bold]{title}")
        for name, row in by_variant.items():
            table.add_row(name, *(f"{getattr(row, column):,}" for column in COLUMNS))
    Console(width=140).print(table)


def plot(starts_s: Sequence[float], curves: dict[str, dict[str, NDArray[np.float64]]], path: Path) -> None:
    """One panel for each play, from the second from which it counts."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.2 * len(curves)), layout="constrained")
    panels = figure.subplots(len(curves), squeeze=False).flat
    for axes, start_s, (title, by_variant) in zip(panels, starts_s, curves.items(), strict=True):
        for name, curve in by_variant.items():
            axes.plot(start_s + np.arange(len(curve)) * PLOT_STEP_S, curve, label=name, linewidth=1.2, alpha=0.8)
        axes.set(title=title, ylim=(0, None), ylabel=f"requests/s, mean of {PLOT_STEP_S} s")
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
        axes.grid(alpha=0.3)
    axes.set_xlabel("seconds since the query started")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executors", type=int, default=1_000, help="of four Python workers each")
    parser.add_argument("--brokers", type=int, default=100, help="all of them restart")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=IMAGES, help="folder of simulation.png and simulation.json")
    arguments = parser.parse_args()

    started = time.perf_counter()
    gc.disable()  # millions of small tuples and no cycle among them
    scenario = Scenario(executors=arguments.executors, brokers=arguments.brokers, restarts=arguments.brokers)
    results: dict[str, dict[str, Figures]] = {}
    curves: dict[str, dict[str, NDArray[np.float64]]] = {}
    programme = plays(scenario)
    for play in programme:
        end_s = play.scenario.end_s
        logs = {one.name: Simulation(play.scenario, one, arguments.seed).run() for one in play.variants}
        results[play.title] = {name: figures(log, play.from_s, end_s) for name, log in logs.items()}
        curves[play.title] = {
            name: requests_by_time(log, play.from_s, end_s, PLOT_STEP_S) for name, log in logs.items()
        }
    print_table(results)
    plot([play.from_s for play in programme], curves, arguments.output / "simulation.png")
    rows = {title: {name: asdict(row) for name, row in rows.items()} for title, rows in results.items()}
    (arguments.output / "simulation.json").write_text(json.dumps(rows, indent=2) + "\n")
    print(f"{time.perf_counter() - started:.0f} s; plot and JSON are in {arguments.output}")


if __name__ == "__main__":
    main()
