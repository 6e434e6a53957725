"""`kafkameta doctor`: says what would go wrong before a query does, and how to fix it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from rich.console import Console
from rich.table import Table

from pyspark_kafka_meta.cli.parameters import answer_within
from pyspark_kafka_meta.doctor.findings import Finding, Verdict
from pyspark_kafka_meta.doctor.machine_checks import machine_findings
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.monitor.console import plain, print_json

Section = tuple[str, Iterable[Finding]]
LOOK = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}


def examine(
    cluster: Mapping[str, str], topics: Sequence[str], looks_at_executors: bool, timeout_ms: int
) -> Iterator[Section]:
    """What there is to look at, each part when it is asked for. If packages are missing here, there is no more.

    Args:
        cluster: the `kafka.*` options; empty to look at this machine and the executors alone.
        timeout_ms: for each broker.

    Raises:
        OptionError: the options cannot be used.
    """
    here = list(machine_findings())
    yield "This machine", here
    if any(one.verdict is Verdict.FAIL and one.check.startswith("package") for one in here):
        return
    from pyspark_kafka_meta.doctor.broker_checks import answered, bootstrap_findings, broker_findings, reach_all
    from pyspark_kafka_meta.doctor.executor_checks import executor_findings
    from pyspark_kafka_meta.doctor.topic_checks import topic_findings
    from pyspark_kafka_meta.options import ClientOptions

    addresses: Sequence[Address] = ()
    if cluster:
        cluster = {**cluster, **answer_within(timeout_ms)}
        options = ClientOptions.parse(cluster)
        addresses = options.bootstrap_servers
        reaches = reach_all(addresses, options)
        yield "Bootstrap addresses", bootstrap_findings(reaches)
        if good := answered(reaches):
            brokers = max((one.answer.brokers for one in good.values()), key=len)
            addresses = sorted({broker.address for broker in brokers})
            reaches = {**reaches, **reach_all([one for one in addresses if one not in reaches], options)}
            yield "Brokers", broker_findings(brokers, reaches, options.client_rack)
            if topics:
                yield "Topics", topic_findings(topics, brokers, replace(options, bootstrap_servers=tuple(good)))
    if looks_at_executors:
        yield "Executors", executor_findings(cluster, addresses)


def show_findings(sections: Iterable[Section], console: Console | None) -> bool:
    """Each part as soon as it is known: a table, or without a console a JSON line for each finding.

    Returns:
        Whether nothing failed.
    """
    findings: list[Finding] = []
    for title, parts in sections:
        found = list(parts)
        findings += found
        if console is not None:
            console.print(plain(title, "bold"))
            console.print(_table(found))
        else:
            for one in found:
                print_json({"section": title, **asdict(one)})
    counts = Counter(one.verdict for one in findings)
    if console is not None:
        told = f"{len(findings)} checks: {counts[Verdict.FAIL]} failed, {counts[Verdict.WARN]} with a warning"
        console.print(plain(told, "bold"))
    return counts[Verdict.FAIL] == 0


def _table(findings: Iterable[Finding]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 1))
    for one in findings:
        table.add_row(plain(one.verdict, LOOK[one.verdict]), plain(one.check), plain(one.what))
        if one.fix:
            table.add_row("", "", plain(f"-> {one.fix}", "bold"))
    return table
