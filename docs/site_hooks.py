"""Hooks of mkdocs: pages outside docs/, and the programs of examples/, become pages of the site.

Links between these files are relative to the folder of each, as on GitHub. They become links between pages of the site.
Generated lists of public names become signatures and docstrings, by mkdocstrings.
"""

from __future__ import annotations

import os
import re
from os.path import normpath, relpath
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
PAGES = {
    ROOT / "README.md": "index.md",
    ROOT / "CHANGELOG.md": "changelog.md",
    ROOT / "CONTRIBUTING.md": "contributing.md",
    ROOT / "SECURITY.md": "security.md",
    ROOT / "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    EXAMPLES / "README.md": "examples/index.md",
    EXAMPLES / "monitoring" / "README.md": "examples/monitoring/index.md",
    **{
        program: f"examples/{program.relative_to(EXAMPLES).with_suffix('.md')}"
        for program in (*EXAMPLES.rglob("*.py"), *EXAMPLES.glob("*.sql"))
    },
    **{notebook: f"examples/{notebook.name}" for notebook in EXAMPLES.glob("*.ipynb")},
}
MODULE = re.compile(r"<!-- generated: reference (\S+) -->\n.*?<!-- end -->", re.DOTALL)
PUBLIC_NAMES = re.compile(r"<!-- generated: names (\S+) -->\n(.*?)<!-- end -->", re.DOTALL)
LINK = re.compile(r"(?<=\]\()[^)#\s]+")


def on_config(config: MkDocsConfig) -> None:
    """A published site, which mike builds, has a list of versions."""
    if "MIKE_DOCS_VERSION" in os.environ:
        config.extra["version"] = {"provider": "mike"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File  # the tests of the pages know `PAGES` without mkdocs

    for path, uri in PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    source = Path(page.file.abs_src_path)
    if language := {".py": "python", ".sql": "sql"}.get(source.suffix):
        page.meta["search"] = {"boost": 0.1}  # or programs would hide the pages that explain their options
        return f"# {source.name}\n\n~~~{language}\n{markdown}~~~\n"
    uris = {file.abs_src_path: file.src_uri for file in files}

    def link(found: re.Match[str]) -> str:
        uri = uris.get(normpath(source.parent / found[0]))
        return found[0] if uri is None else relpath(uri, Path(page.file.src_uri).parent)

    return LINK.sub(link, MODULE.sub(r"::: \1", PUBLIC_NAMES.sub(signatures, markdown)))


def signatures(found: re.Match[str]) -> str:
    """The directives of mkdocstrings for a list of names. Spark calls the methods of classes in the package itself."""
    module, names = found[1], re.findall(r"^`(\w+)`", found[2], re.MULTILINE)
    options = "    options:\n      members: false\n" if module == "pyspark_kafka_meta" else ""
    names = [name for name in names if name != "DefaultSource"]  # another name of KafkaMetaDataSource
    return "\n".join(f"::: {module}.{name}\n{options}" for name in names)
