"""Runs the checks of `kafkameta doctor`, a section at a time, and prints their findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.tools.console import print_json
from pyspark_kafka_meta.tools.doctor import Finding, Section, Verdict
from pyspark_kafka_meta.tools.doctor.machine_checks import machine_findings
from pyspark_kafka_meta.tools.formatting import plain

if TYPE_CHECKING:
    from pyspark_kafka_meta.options import SourceOptions, TypedValuesOptions

REGISTRY_TIMEOUT_MS = 10_000
VERDICT_STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}


def run_checks(
    cluster: Mapping[str, str],
    topics: Sequence[str],
    checks_writes: bool,
    checks_executors: bool,
    events_path: str | None,
) -> Iterator[Section]:
    """Yields each section; only the first if packages are missing on this machine. Raises OptionError: the options are
    invalid.

    Args:
        cluster: the `kafka.*` options, and those of typed values; empty to check only this machine and the executors.
        checks_writes: whether to check that `topics` can be written. Then `cluster` may have options of writing too.
        events_path: the eventsPath of the queries, which executors must share.
    """
    machine = list(machine_findings())
    yield "This machine", machine
    if any(finding.verdict is Verdict.FAIL and finding.check.startswith("package") for finding in machine):
        return
    from pyspark_kafka_meta.options import FetchOptions, SinkOptions
    from pyspark_kafka_meta.tools.doctor.connection_checks import (
        bootstrap_findings,
        broker_findings,
        executor_findings,
        reach_all,
        responding,
    )
    from pyspark_kafka_meta.tools.doctor.topic_checks import (
        reading_query,
        topic_findings,
        write_findings,
        writing_query,
    )

    addresses: Sequence[Address] = ()
    source = None
    cluster, query = writing_query(cluster, topics[0]) if checks_writes else reading_query(cluster, topics)
    if cluster:
        options, fetch = query.client, FetchOptions.parse(cluster)
        addresses = options.bootstrap_servers
        results = reach_all(addresses, options)
        yield "Bootstrap addresses", bootstrap_findings(results)
        if reached := responding(results):
            brokers = max((found.response.brokers for found in reached.values()), key=len)
            addresses = sorted({broker.address for broker in brokers})
            results = {**results, **reach_all([address for address in addresses if address not in results], options)}
            yield "Brokers", broker_findings(brokers, results, fetch.client_rack)
            if topics:
                options = replace(options, bootstrap_servers=tuple(reached))
                yield "Topics", topic_findings(topics, brokers, options, fetch, must_read=not checks_writes)
                if isinstance(query, SinkOptions):
                    yield "Writes", write_findings(topics, options, query)
                else:
                    source = replace(query, client=options)
                    if (letters := query.typed.dead_letter_topic) is not None:
                        yield "Dead letters", topic_findings([letters], brokers, options, fetch, must_read=False)
                        yield "Dead letters", write_findings([letters], options, writing_query(cluster, letters)[1])
    yield from _sections_of_values(query.typed, topics, source, checks_writes)
    if checks_executors:
        yield "Executors", executor_findings(cluster, addresses, events_path)


def _sections_of_values(
    typed: TypedValuesOptions, topics: Sequence[str], source: SourceOptions | None, checks_writes: bool
) -> Iterator[Section]:
    """`source` reads the topics; None if they are not read."""
    from pyspark_kafka_meta.tools.doctor.changes_checks import changes_findings
    from pyspark_kafka_meta.tools.doctor.registry_checks import newest_findings, registry_findings

    if typed.registry is not None or typed.columns:
        found = list(registry_findings(typed, topics, REGISTRY_TIMEOUT_MS, writes=checks_writes))
        yield "Schemas", found
        if any(finding.verdict is Verdict.FAIL for finding in found):
            source = None
        if typed.columns and source is not None:
            yield "Newest records", newest_findings(source)
    if source is not None and (found := list(changes_findings(source))):
        yield "Changes of a database", found


def show_findings(sections: Iterable[Section], console: Console | None) -> bool:
    """Print each section after its checks: a table, or without a console a JSON line for each finding. Returns whether
    nothing failed."""
    counts: Counter[Verdict] = Counter()
    for title, section in sections:
        findings = list(section)
        counts.update(finding.verdict for finding in findings)
        if console is None:
            for finding in findings:
                print_json({"section": title, **asdict(finding)})
        else:
            console.print(plain(title, "bold"))
            console.print(_table(findings))
    if console is not None:
        summary = f"{counts.total()} checks: {counts[Verdict.FAIL]} failed, {counts[Verdict.WARN]} with a warning"
        console.print(plain(summary, "bold"))
    return counts[Verdict.FAIL] == 0


def _table(findings: Iterable[Finding]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 1))
    for finding in findings:
        table.add_row(
            plain(finding.verdict, VERDICT_STYLES[finding.verdict]), plain(finding.check), plain(finding.what)
        )
        if finding.fix:
            table.add_row("", "", plain(f"-> {finding.fix}", "bold"))
    return table
