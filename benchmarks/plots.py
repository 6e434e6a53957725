"""Draws the pictures of docs/benchmarks.md from the figures in docs/benchmarks/.

python -m benchmarks.plots
"""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.peers import JVM, OURS, TUNED_JVM
from docs.generate import DOCS, results, results_file

COLOURS = {OURS.name: "#0b6e4f", JVM.name: "#b0413e", TUNED_JVM.name: "#d98e04"}
BAR = 0.27
PARTS = {
    "Spark: latestOffset": ("plan offsets", "#0b6e4f"),
    "Spark: walCommit": ("offset log", "#b0413e"),
    "Spark: queryPlanning": ("plan the query", "#9aa5b1"),
    "addBatch: before the job": ("ready to write", "#5b7db1"),
    "addBatch: job": ("tasks", "#d98e04"),
    "addBatch: after the job": ("commit", "#7a5195"),
    "Spark: commitOffsets": ("commit log", "#e07a5f"),
}
"""Of a micro-batch, one after the other: what they are called in the picture, and their colours."""


def bars(axes: Axes, title: str, rows: list[dict[str, Any]], by: str, height: str) -> None:
    """A group of bars for each value of `by`."""
    groups = list(dict.fromkeys(row[by] for row in rows))
    for number, (reader, colour) in enumerate(COLOURS.items()):
        heights = {row[by]: row[height] for row in rows if row["reader"] == reader}
        at = [groups.index(group) + (number - 1) * BAR for group in heights]
        axes.bar(at, list(heights.values()), BAR, color=colour, label=reader)
    axes.set_xticks(range(len(groups)), groups, rotation=30, ha="right")
    axes.set_title(title, loc="left")


def lines(axes: Axes, title: str, rows: list[dict[str, Any]], by: str, height: str) -> None:
    """A line for each reader, on logarithmic scales."""
    for reader, colour in COLOURS.items():
        points = [(row[by], row[height]) for row in rows if row["reader"] == reader]
        if points:
            axes.loglog(*zip(*points, strict=True), "o-", color=colour, label=reader)
    ticks = sorted({row[by] for row in rows})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_xlabel(by)
    axes.set_title(title, loc="left")


def timelines(axes: Axes, title: str, rows: list[dict[str, Any]]) -> None:
    """A bar for each pipeline, of the parts of its median micro-batch."""
    pipelines = list(dict.fromkeys(row["pipeline"] for row in rows))[::-1]
    for part, (name, colour) in PARTS.items():
        drawn = [row for row in rows if row["part"] == part]
        at = [pipelines.index(row["pipeline"]) for row in drawn]
        starts = [row["start_p50_ms"] for row in drawn]
        axes.barh(at, [row["p50_ms"] for row in drawn], left=starts, height=0.6, color=colour, label=name)
    axes.set_yticks(range(len(pipelines)), pipelines)
    axes.set_title(title, loc="left")


def draw_micro_batches() -> None:
    if not results_file("latency_parts").exists():
        return
    rows = [row for row in results("latency_parts") if row.get("part") in PARTS]
    figure = Figure(figsize=(11, 5), layout="constrained")
    axes = figure.subplots()
    timelines(axes, "A micro-batch, ms", rows)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=len(PARTS))
    figure.savefig(DOCS / "images" / "latency_parts.png", dpi=90)


def main() -> None:
    draw_micro_batches()
    figure = Figure(figsize=(11, 8), layout="constrained")
    throughput, micro_batches, planning, requests = figure.subplots(2, 2).flat
    bars(throughput, "Thousand records a second: more is better", results("throughput"), "case", "krec_s")
    throughput.set_yscale("log")
    lines(micro_batches, "Milliseconds a micro-batch, p50", results("micro_batches"), "partitions", "p50_ms")
    lines(planning, "Milliseconds to plan, p50", results("planning"), "partitions", "later_p50_ms")
    bars(requests, "Requests for a million records", results("requests"), "query", "requests")
    requests.set_yscale("log")
    figure.legend(*throughput.get_legend_handles_labels(), loc="outside upper center", ncols=len(COLOURS))
    figure.savefig(DOCS / "images" / "benchmarks.png", dpi=90)


if __name__ == "__main__":
    main()
