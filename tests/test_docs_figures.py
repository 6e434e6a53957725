"""The tables of README.md and of pages in docs/ show the figures in docs/benchmarks/; pages show or link each file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.tables import BLOCK, FIGURES, PAGES, rewritten

TEXTS = [page.read_text() for page in PAGES]
BLOCKS = [found.groups() for text in TEXTS for found in BLOCK.finditer(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_as_python_m_benchmarks_tables_writes_them(page: Path) -> None:
    assert rewritten(page.read_text()) == page.read_text()


def test_every_file_of_figures_is_shown_or_linked_and_every_comment_understood() -> None:
    shown = {file for _, file, *_ in BLOCKS}
    linked = {file for text in TEXTS for file in re.findall(r"\]\(benchmarks/(\w+\.json)\)", text)}

    assert {file.name for file in FIGURES.glob("*.json")} <= shown | linked
    assert sum(text.count("<!--") for text in TEXTS) == 2 * len(BLOCKS)


@pytest.mark.parametrize(("file", "columns"), [(file, columns) for _, file, _, columns, *_ in BLOCKS if columns])
def test_columns_that_are_chosen_exist(file: str, columns: str) -> None:
    assert set(columns.split()) <= json.loads((FIGURES / file).read_text())[0].keys()


def test_new_figures_replace_the_old_and_a_table_without_a_file_stays(tmp_path: Path) -> None:
    rows = [{"case": "20B", "reader": "ours", "krec_s": 2605.3}, {"case": "2kB", "reader": "ours", "krec_s": 12.34}]
    (tmp_path / "speed.json").write_text(json.dumps(rows))
    page = "<!-- {} -->\n| old |\n<!-- end -->\nprose\n"
    table = "| reader | thousand records a second |\n|---|---:|\n| ours | {} |\n"

    one = rewritten(page.format("speed.json 20B: reader krec_s"), tmp_path)
    assert one == f"<!-- speed.json 20B: reader krec_s -->\n\n{table.format('2,605')}\n<!-- end -->\nprose\n"
    assert rewritten(one, tmp_path) == one
    assert "| 2kB | ours | 12.34 |\n" in rewritten(page.format("speed.json"), tmp_path)
    assert rewritten(page.format("missing.json"), tmp_path) == page.format("missing.json")
