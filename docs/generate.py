"""Writes the generated parts of the Markdown pages: options, events, side tables, and the results of the benchmarks.

    python -m docs.generate

A part lies between `<!-- generated: NAME ARGUMENTS -->` and `<!-- end -->`. `PARTS` maps names to functions.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer.main

from docs.series_bound import EXAMPLE, max_series
from pyspark_kafka_meta.client_facts import LookupReason
from pyspark_kafka_meta.events.event import ROW_PARTS, Event, EventKind, OtherReason, Outcome, Role
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.options import OPTIONS, Table
from pyspark_kafka_meta.options.option_table import Option, Section
from pyspark_kafka_meta.options.parsers import parse_choice, parse_number
from pyspark_kafka_meta.tables.rows import ROWS, struct_type
from pyspark_kafka_meta.tools.cli.main import app
from pyspark_kafka_meta.tools.exporter.metric_table import METRICS
from pyspark_kafka_meta.value_checks import INT32_MAX

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.glob("*.md")))
PART = re.compile(r"(<!-- generated: (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

ENUMS: dict[str, type[StrEnum]] = {
    enum.__name__: enum for enum in (EventKind, RefreshReason, LookupReason, OtherReason, Outcome, Role)
}
BENCHMARK_HEADERS = {"krec_s": "thousand records a second"}
GROUPS_NEED = {"schema.registry.url", "keyFormat", "valueFormat", "changes", "kafka.security.protocol"}
"""Options that all options of a group need: the page says it once."""
LOGINS = ("schema.registry.basic.auth.", "schema.registry.bearer.auth.")
"""Of the logins of a registry, which exclude each other: the page says it once."""
TYPES = {
    **dict.fromkeys(("parse_times", "parse_offsets", "parse_assigned"), "JSON"),
    **dict.fromkeys(("parse_topics", "parse_addresses", "_parse_urls", "_parse_record_names"), "list"),
    **dict.fromkeys(("parse_secret", "parse_jaas", "_parse_user_info", "_parse_token"), "password"),
    "parse_duration_ms": "duration",
}
"""By parser, of options that are neither choices, numbers nor strings."""
NO_DECIMALS_FROM = 100


def all_options() -> str:
    """Every option by section, as in Spark's guide."""
    return "\n".join(f"## {section}\n\n{''.join(option_lines(section))}" for section in Section)


def option_lines(section: Section) -> Iterator[str]:
    """A line for each option. Options with the same meaning share one, such as those of keys and values."""
    lines = defaultdict[str, list[Option]](list)
    for option in OPTIONS.values():
        if option.section is section:
            as_other = re.fullmatch(r"As (\w+), for keys\.", option.doc)
            lines[OPTIONS[as_other[1]].doc if as_other else option.doc].append(option)
    for doc, options in lines.items():
        names = ", ".join(f"`{option.name}`" for option in options)
        values = {values_of(option) for option in options}
        shown = f" ({next(iter(values))})" if len(values) == 1 and values != {""} else ""
        rules = rules_of(options[0]) if len({option.doc for option in options}) == len(options) else ()
        yield f"- {names}{shown}: {' '.join((doc, *rules))}\n"


def values_of(option: Option) -> str:
    """Type and default, as far as they say something; of a choice the values, with the default in bold."""
    types = type_of(option)
    if "," in types and option.default:
        return re.sub(rf"\b{re.escape(option.default)}(?=,|$)", r"**\g<0>**", types)
    if option.default and types in ("boolean", "int", "long", option.default):
        return option.default
    return ", ".join(filter(None, ("" if types == "string" else types, option.default)))


def rules_of(option: Option) -> Iterator[str]:
    needs = [name for name in option.needs if name not in GROUPS_NEED]
    excludes = () if option.name.startswith(LOGINS) else option.excludes
    for rule, others in (("Needs", needs), ("Not beside", excludes), ("Together with", (option.pair,))):
        if named := [f"`{other}`" for other in others if other is not None]:
            values = " or ".join(option.needs_values) if rule == "Needs" else ""
            yield f"{' '.join(filter(None, (rule, ' or '.join(named), values)))}."


def type_of(option: Option) -> str:
    """In the terms of Kafka's documentation; of a choice its values."""
    parse = option.parse.func if isinstance(option.parse, partial) else option.parse
    given = option.parse.keywords if isinstance(option.parse, partial) else {}
    if parse is parse_choice:
        return "boolean" if set(given["values"]) == {"true", "false"} else ", ".join(filter(None, given["values"]))
    if parse is parse_number:
        return "int" if given["high"] <= INT32_MAX else "long"
    return TYPES.get(parse.__name__, "string")


def enum_values(name: str) -> str:
    """The values of an enumeration, with the docstrings below its members."""
    values = ENUMS[name]
    docs = member_docs(values)
    return "".join(f"- `{value}`: {docs[value.name]}\n" for value in values)


def member_docs(values: type[StrEnum]) -> dict[str, str]:
    (definition,) = ast.parse(inspect.getsource(values)).body
    assert isinstance(definition, ast.ClassDef)
    docs = {}
    for member, doc in pairwise(definition.body):
        match member, doc:
            case ast.Assign([ast.Name(name)]), ast.Expr(ast.Constant(str(text))):
                docs[name] = " ".join(text.split())
    return docs


def event_fields() -> str:
    """The fields of an event, of arrays of structs the type in Spark; a line for those of the same meaning."""
    docs = {name: doc for part in reversed(ROW_PARTS) for name, doc in attribute_docs(part)}
    names = defaultdict[tuple[str, str], list[str]](list)
    for field in struct_type(Event):
        if field.name != "time":
            kind = field.dataType.simpleString()
            names[f" `{kind}`" if "struct" in kind else "", docs.get(field.name, "as named.")].append(f"`{field.name}`")
    return "".join(f"- {', '.join(named)}{kind}: {doc}\n" for (kind, doc), named in names.items())


def attribute_docs(described: type) -> Iterator[tuple[str, str]]:
    """Names and texts of the docstring's section Attributes, in the terms of JSON."""
    section = (inspect.getdoc(described) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    for name, text in re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE):
        yield name, " ".join(text.split()).replace("None", "null")


def side_tables() -> str:
    """The side tables with their columns."""
    lines = []
    for name, row in ROWS.items():
        meaning = re.split(r"[,.;:]", row.__doc__ or "")[0]
        columns = ", ".join(f"`{column}`" for column in struct_type(row).names)
        if name is Table.REFRESH_EVENTS:
            columns = "`time`, and [the fields of an event](#fields)"
        lines.append(f"- `{name}`: {meaning[:1].lower()}{meaning[1:]}. Columns: {columns}.\n")
    return "".join(lines)


def names(module_name: str) -> str:
    """The public names of a module, alone."""
    return ",\n".join(f"`{name}`" for name in public_members(module_name)) + "\n"


def reference(_: str) -> str:
    """Nothing: in its place the site describes the classes of the module."""
    return ""


def public_members(module_name: str) -> dict[str, Any]:
    """The members in `__all__`, else the classes that the module defines."""
    module = import_module(module_name)
    defined = [name for name, member in vars(module).items() if getattr(member, "__module__", None) == module_name]
    return {name: getattr(module, name) for name in getattr(module, "__all__", defined)}


def commands() -> str:
    """The commands of `kafkameta` with their arguments and the first line of their help."""
    lines = []
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        arguments = [one.name.upper() for one in command.params if one.param_type_name == "argument"]
        lines.append(f"- `{' '.join(('kafkameta', name, *arguments))}`: {command.help.splitlines()[0]}\n")
    return "".join(lines)


def metrics() -> str:
    """The metrics of the exporter with their labels; a line for those of the same meaning."""
    names = defaultdict[str, list[str]](list)
    for metric in METRICS:
        labels = f"{{{','.join(metric.labels)}}}" if metric.labels else ""
        names[metric.doc].append(f"`{metric.name}{labels}`{' histogram' * bool(metric.buckets)}")
    return "".join(f"- {', '.join(named)}: {doc}\n" for doc, named in names.items())


def series() -> str:
    """How many series an exporter of the size `EXAMPLE` has at most, in a sentence."""
    counts = {metric: max_series(metric, EXAMPLE) for metric in METRICS}
    by_label = {
        label: sum(count for metric, count in counts.items() if label in metric.labels)
        for label in ("executor", "broker", "partition")
    }
    return (
        f"{sum(counts.values()) - by_label['partition']:,} series, {by_label['executor']:,} of them by executor and "
        f"{by_label['broker']:,} by broker; with `--per-partition` {by_label['partition']:,} more.\n"
    )


def benchmark(name: str, *columns: str) -> str:
    """The rows of docs/benchmarks/NAME.json with all columns; the first argument may choose a case (`200B:`)."""
    if not results_file(name).exists():
        return "Not measured yet.\n"
    rows = results(name)
    if columns and columns[0].endswith(":"):
        case, columns = columns[0][:-1], columns[1:]
        rows = [row for row in rows if row["case"] == case]
    columns = columns or tuple(rows[0])
    headers = [BENCHMARK_HEADERS.get(column, column.replace("_", " ")) for column in columns]
    cells = [[row[column] for column in columns] for row in rows]
    return table(headers, [row for row in cells if "" not in row])


def pivot(name: str, row: str, column: str, value: str, *titles: str) -> str:
    """Values of docs/benchmarks/NAME.json: a row for each value of a key, a column for each of another or `titles`."""
    cells = {
        (result[row], result[column]): result[value]
        for result in results(name)
        if result[value] != "" and result[column] in (titles or (result[column],))
    }
    titles = tuple(dict.fromkeys(title for _, title in cells))
    firsts = dict.fromkeys(first for first, _ in cells)
    return table(
        [row, *map(str, titles)],
        [[str(first), *(cells.get((first, title), "") for title in titles)] for first in firsts],
    )


def speed() -> str:
    """The speed of a long read beside that of the JVM source, in a sentence."""
    rows = {row["reader"]: row for row in results("throughput") if row["case"] == "200B-long"}
    slower_by = {reader: f"{row['kafkameta_is_faster_by']:.1f}" for reader, row in rows.items()}
    return (
        f"A long read returns {rows['kafkameta']['krec_s'] / 1000:.1f} million records of 200 bytes a second, on two "
        f"cores shared with Kafka: {slower_by['JVM source, defaults']} times as many as Spark's source with its "
        f"defaults, {slower_by['JVM source, tuned']} times as many as with larger polls and fetches.\n"
    )


def results(benchmark_name: str) -> list[dict[str, Any]]:
    """What the last run of a benchmark wrote."""
    return list(json.loads(results_file(benchmark_name).read_text()))


def results_file(benchmark_name: str) -> Path:
    return DOCS / "benchmarks" / f"{benchmark_name}.json"


def table(headers: Sequence[str], rows: Sequence[Sequence[str | float]]) -> str:
    """In Markdown, with numbers to the right."""
    alignment = ["---" if isinstance(cell, str) else "---:" for cell in rows[0]]
    lines = [f"| {' | '.join(map(cell_text, row))} |\n" for row in (headers, *rows)]
    return "".join([lines[0], f"|{'|'.join(alignment)}|\n", *lines[1:]])


def cell_text(value: str | float) -> str:
    return f"{value:,.0f}" if not isinstance(value, str) and value >= NO_DECIMALS_FROM else str(value)


PARTS: dict[str, Callable[..., str]] = {
    "all-options": all_options,
    "enum": enum_values,
    "event-fields": event_fields,
    "side-tables": side_tables,
    "commands": commands,
    "names": names,
    "reference": reference,
    "benchmark": benchmark,
    "pivot": pivot,
    "speed": speed,
    "metrics": metrics,
    "series": series,
}


def rewritten(page: str) -> str:
    """The page with new text in its generated parts."""

    def part(found: re.Match[str]) -> str:
        begin, call, _, end = found.groups()
        name, *arguments = call.split()
        return f"{begin}\n{PARTS[name](*arguments)}\n{end}"

    return PART.sub(part, page)


def main() -> None:
    for page in PAGES:
        page.write_text(rewritten(page.read_text()))


if __name__ == "__main__":
    main()
