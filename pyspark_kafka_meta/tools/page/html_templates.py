"""Templates to HTML. Text from brokers and events is escaped, and shown without control characters."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from pyspark_kafka_meta.tools.shared import formatting

_FOLDER = Path(__file__).parent / "templates"
CSS = (_FOLDER / "page.css").read_text()


def _local_time(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000).astimezone()


def _shown(value: object) -> object:
    return value if isinstance(value, Markup) else formatting.printable(str(value))


_TEMPLATES = Environment(loader=FileSystemLoader(_FOLDER), autoescape=True, trim_blocks=True, finalize=_shown)
_TEMPLATES.globals.update(text=formatting, local_time=_local_time)


def render(name: str, **values: object) -> str:
    """The HTML of one part of the page."""
    return _TEMPLATES.get_template(f"{name}.html").render(values)
