"""Runs the checks of `kafkameta doctor`, a section at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.tools.doctor.findings import Section, Verdict
from pyspark_kafka_meta.tools.doctor.machine_checks import machine_findings


def run_checks(
    cluster: Mapping[str, str],
    topics: Sequence[str],
    checks_writes: bool,
    checks_executors: bool,
    events_path: str | None,
) -> Iterator[Section]:
    """Yields each section; only the first if packages are missing on this machine.

    Args:
        cluster: the `kafka.*` options; empty to check only this machine and the executors.
        checks_writes: whether to check that `topics` can be written. Then `cluster` may have options of writing too.
        events_path: the metricsPath of the queries, which executors must share.

    Raises:
        OptionError: the options are invalid.
    """
    machine = list(machine_findings())
    yield "This machine", machine
    if any(finding.verdict is Verdict.FAIL and finding.check.startswith("package") for finding in machine):
        return
    from pyspark_kafka_meta.options import ClientOptions, FetchOptions
    from pyspark_kafka_meta.tools.doctor.broker_checks import bootstrap_findings, broker_findings, reach_all, responding
    from pyspark_kafka_meta.tools.doctor.executor_checks import executor_findings
    from pyspark_kafka_meta.tools.doctor.topic_checks import topic_findings
    from pyspark_kafka_meta.tools.doctor.write_checks import split_options, write_findings

    addresses: Sequence[Address] = ()
    cluster, writing = split_options(cluster) if checks_writes else (cluster, None)
    if cluster:
        options, fetch = ClientOptions.parse(cluster), FetchOptions.parse(cluster)
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
                yield "Topics", topic_findings(topics, brokers, options, fetch, must_read=writing is None)
                if writing is not None:
                    yield "Writes", write_findings(topics, options, writing)
    if checks_executors:
        yield "Executors", executor_findings(cluster, addresses, events_path)
