"""Templates to HTML. Whatever a broker or an event says is escaped, and shown without what steers a display."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from pyspark_kafka_meta.monitor.console import printable

_FOLDER = Path(__file__).parent / "templates"
CSS = (_FOLDER / "page.css").read_text()


def _shown(value: object) -> object:
    return value if isinstance(value, Markup) else printable(str(value))


_TEMPLATES = Environment(loader=FileSystemLoader(_FOLDER), autoescape=True, trim_blocks=True, finalize=_shown)


def render(name: str, **values: object) -> str:
    """The HTML of one part of the page."""
    return _TEMPLATES.get_template(f"{name}.html").render(values)
