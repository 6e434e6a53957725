"""The tables of README.md and of pages in docs/, out of the figures that the benchmarks left in docs/benchmarks/.

    python -m benchmarks.tables

Writes each table between two comments anew. The first names its file and may choose a case and columns, as in
<!-- throughput.json 200B: reader krec_s -->; the other is <!-- end -->. A table whose file is not there stays.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", DOCS / "benchmarks.md", DOCS / "recovery.md")
FIGURES = DOCS / "benchmarks"
BLOCK = re.compile(r"(<!-- (\w+\.json)(?: (\S+):)?((?: [^\s:]+)*) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
HEADERS = {"krec_s": "thousand records a second", "kafkameta_is_faster_by": "kafkameta beside it, times as fast"}
NO_DECIMALS_FROM = 100


def figures(file: str, folder: Path = FIGURES) -> list[dict[str, Any]]:
    """The rows that a benchmark's last run left; none if it was not run."""
    path = folder / file
    return list(json.loads(path.read_text())) if path.exists() else []


def rewritten(page: str, folder: Path = FIGURES) -> str:
    """The page with its tables as the figures in `folder` say."""

    def block(found: re.Match[str]) -> str:
        begin, file, case, columns, _, end = found.groups()
        rows = figures(file, folder)
        if not rows:
            return found[0]
        if case:
            rows = [row for row in rows if row["case"] == case]
        return f"{begin}\n{table(rows, columns.split() or list(rows[0]))}\n{end}"

    return BLOCK.sub(block, page)


def table(rows: list[dict[str, Any]], columns: list[str]) -> str:
    """In Markdown, numbers to the right."""
    sides = ["---" if isinstance(rows[0].get(column, ""), str) else "---:" for column in columns]
    names = [HEADERS.get(column, column.replace("_", " ")) for column in columns]
    cells = [[text(row.get(column, "")) for column in columns] for row in rows]
    lines = [f"| {' | '.join(line)} |\n" for line in (names, *cells)]
    return "".join([lines[0], f"|{'|'.join(sides)}|\n", *lines[1:]])


def text(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value >= NO_DECIMALS_FROM else str(value)


def main() -> None:
    for page in PAGES:
        page.write_text(rewritten(page.read_text()))


if __name__ == "__main__":
    main()
