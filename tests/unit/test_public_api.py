"""The public API of docs/api.md is the recorded one: Python names with signatures, columns, options, metrics, commands.

    python -m tests.unit.test_public_api

records it. CONTRIBUTING.md and the failure message say when.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from configparser import ConfigParser
from difflib import ndiff
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import pytest
import typer.main

import pyspark_kafka_meta
from docs.generate import ENUMS, public_members
from pyspark_kafka_meta.options import OPTIONS
from pyspark_kafka_meta.source import KafkaMetaDataSource
from pyspark_kafka_meta.spark.records_table import records_struct_type
from pyspark_kafka_meta.tables.rows import ROWS, LagRow, struct_type
from pyspark_kafka_meta.tools.cli.main import app
from pyspark_kafka_meta.tools.exporter.metric_table import METRICS
from pyspark_kafka_meta.write.input_columns import TYPES

ROOT = Path(__file__).parent.parent.parent
PLUGIN = "pyspark_kafka_meta.testing.pytest_plugin"
RECORD = Path(__file__).with_name("public_api.txt")
CHANGED = """The public API is not the recorded one ("-" is recorded, "+" is new):

{difference}

If this is not intended, undo it. If it is:
1. A line with "-" may break the code of users: docs/api.md#versions says which release may have it.
   A line with "+" alone is a new promise.
2. Describe it in CHANGELOG.md.
3. Record it, and commit the record with the change: python -m tests.unit.test_public_api
"""


def public_api() -> Iterator[str]:
    """A line for each thing that docs/api.md promises."""
    for module in ("pyspark_kafka_meta", "pyspark_kafka_meta.testing", "pyspark_kafka_meta.errors"):
        for name, member in public_members(module).items():
            yield from lines_of(f"{module}.{name}", member)
    tables = {"records": records_struct_type(include_headers=True), "lag": struct_type(LagRow)}
    tables |= {table: struct_type(row) for table, row in ROWS.items()}
    for table, columns in tables.items():
        yield from (f"column {table}.{column.name} {column.dataType.simpleString()}" for column in columns)
    yield from (f"column to write {name} {' or '.join(types)}" for name, types in TYPES.items())
    for enum, values in ENUMS.items():
        yield from (f"value {enum} {value}" for value in values)
    yield from (f"option {name} = {OPTIONS[name].default}" for name in sorted(OPTIONS))
    yield from (f"fixture {name}" for name in public_members(PLUGIN))
    for metric in METRICS:
        yield f"metric {metric.name} {metric.kind} {' '.join(metric.labels)}".rstrip()
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        yield from (f"kafkameta {name} {' '.join(parameter.opts)}" for parameter in command.params)


def lines_of(name: str, member: Any) -> Iterator[str]:
    """Lines of a function or a class."""
    if member is KafkaMetaDataSource:  # Spark calls its methods, not the user
        yield f"class {name} of format {member.name()}"
    elif not inspect.isclass(member):
        yield f"{name}{signature(member)}"
    elif issubclass(member, Exception):
        constructor = vars(member).get("__init__")
        attributes = list(inspect.signature(constructor).parameters)[2:] if constructor else []
        yield f"class {name}({', '.join(base.__name__ for base in member.__bases__)})"
        yield from (f"{name}.{attribute}" for attribute in attributes)
    else:
        yield f"class {name}{signature(member)}"
        for attribute, value in vars(member).items():
            if not attribute.startswith("_"):
                yield f"{name}.{attribute}{signature(value) if inspect.isfunction(value) else ''}"


def signature(function: Any) -> str:
    """With annotations as the code has them, without quotes."""
    text = re.sub(r"ForwardRef\((.*?)\)", r"\1", str(inspect.signature(function)))
    return re.sub(r"(: |-> )(['\"])(.*?)\2", r"\1\3", text)


def test_public_api_is_the_recorded_one() -> None:
    recorded, found = RECORD.read_text().splitlines(), list(public_api())
    difference = [line for line in ndiff(recorded, found) if line[0] in "-+"]

    assert not difference, CHANGED.format(difference="\n".join(difference))


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        ("def start(node: int) -> None: ...", ["start(node: int) -> None"]),
        ("def start(node: int, port: int = 0) -> None: ...", ["start(node: int, port: int = 0) -> None"]),
        (
            "class Nodes:\n def kill(self) -> None: ...\n def _stop(self): ...",
            ["class Nodes()", "Nodes.kill(self) -> None"],
        ),
        ("class Late(ValueError): ...", ["class Late(ValueError)"]),
        ("class Late(ValueError):\n def __init__(self, message, topic): ...", ["class Late(ValueError)", "Late.topic"]),
    ],
)
def test_a_signature_a_method_a_base_or_an_attribute_is_a_line(change: str, lines: list[str]) -> None:
    names: dict[str, Any] = {}
    exec(f"from __future__ import annotations\n{change}", names)
    name, member = list(names.items())[-1]

    assert list(lines_of(name, member)) == lines


def test_version_is_the_one_in_setup_cfg() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")

    assert pyspark_kafka_meta.__version__ == setup["metadata"]["version"]


def test_version_is_no_attribute_without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> NoReturn:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)

    with pytest.raises(AttributeError, match="not installed by pip"):
        _ = pyspark_kafka_meta.__version__
    assert not hasattr(pyspark_kafka_meta, "__version__")


if __name__ == "__main__":
    RECORD.write_text("".join(f"{line}\n" for line in public_api()))
