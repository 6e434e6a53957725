"""Draws the picture of docs/benchmarks.md from the figures in docs/benchmarks/.

python -m benchmarks.plots
"""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.peers import JVM, OURS, TUNED_JVM
from docs.generate import DOCS, results

COLOURS = {OURS.name: "#0b6e4f", JVM.name: "#b0413e", TUNED_JVM.name: "#d98e04"}
BAR = 0.27


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


def main() -> None:
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
