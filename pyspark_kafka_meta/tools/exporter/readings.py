"""`Readings`: the values of metrics at one moment; pure."""

from __future__ import annotations

from bisect import bisect_left

from pyspark_kafka_meta.tools.exporter.metric_table import Metric

Labels = tuple[str, ...]
"""The values of a metric's labels."""


class Distribution:
    """The observations of a histogram.

    Attributes:
        counts: observations in each bucket, the last one without an upper bound.
        total: sum of all observations.
    """

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self.counts = [0] * (len(buckets) + 1)
        self.total = 0.0
        self._buckets = buckets

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._buckets, value)] += 1
        self.total += value

    def copy(self) -> Distribution:
        copied = Distribution(self._buckets)
        copied.counts, copied.total = list(self.counts), self.total
        return copied


class Readings:
    """The values of metrics at one moment.

    Attributes:
        numbers: of counters and gauges.
        distributions: of histograms.
    """

    def __init__(self) -> None:
        self.numbers: dict[Metric, dict[Labels, float]] = {}
        self.distributions: dict[Metric, dict[Labels, Distribution]] = {}

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        self.numbers.setdefault(metric, {})[labels] = value

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        numbers = self.numbers.setdefault(metric, {})
        numbers[labels] = numbers.get(labels, 0) + value

    def raise_to(self, metric: Metric, value: float, *labels: str) -> None:
        """Keep the largest value."""
        numbers = self.numbers.setdefault(metric, {})
        numbers[labels] = max(numbers.get(labels, value), value)

    def lower_to(self, metric: Metric, value: float, *labels: str) -> None:
        """Keep the smallest value."""
        numbers = self.numbers.setdefault(metric, {})
        numbers[labels] = min(numbers.get(labels, value), value)

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        distributions = self.distributions.setdefault(metric, {})
        distributions.setdefault(labels, Distribution(metric.buckets)).observe(value)

    def remove(self, label: str, value: str) -> None:
        """Remove what has this value of a label, of all metrics."""
        for values in (self.numbers, self.distributions):
            for metric, by_labels in values.items():
                if label in metric.labels:
                    at = metric.labels.index(label)
                    for labels in [labels for labels in by_labels if labels[at] == value]:
                        del by_labels[labels]

    def update(self, others: Readings) -> None:
        """Take over a copy of the values of other metrics."""
        for metric, numbers in others.numbers.items():
            self.numbers[metric] = dict(numbers)
        for metric, distributions in others.distributions.items():
            self.distributions[metric] = {labels: each.copy() for labels, each in distributions.items()}
