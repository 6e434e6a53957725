"""`kafkameta doctor`: print the findings of the checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from pyspark_kafka_meta.tools.doctor.findings import Finding, Section, Verdict
from pyspark_kafka_meta.tools.shared.console import print_json
from pyspark_kafka_meta.tools.shared.formatting import plain

VERDICT_STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}


def show_findings(sections: Iterable[Section], console: Console | None) -> bool:
    """Print each section after its checks: a table, or without a console a JSON line for each finding.

    Returns:
        Whether nothing failed.
    """
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
