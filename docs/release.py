"""Whether a tag can be released. Prints the section of CHANGELOG.md for it, which becomes the release on GitHub.

python -m docs.release v0.2.0
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from configparser import RawConfigParser, SectionProxy
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLACEHOLDER = "_OWNER_"
"""Stands for the owner of the repository until there is one."""
WITH_PLACEHOLDER = ("setup.cfg", ".github/CODEOWNERS")


def metadata(root: Path) -> SectionProxy:
    setup_cfg = RawConfigParser()
    setup_cfg.read(root / "setup.cfg")
    return setup_cfg["metadata"]


def notes(root: Path, version: str) -> str:
    """The section of a version, an item a line, as GitHub keeps line breaks; empty if there is none with a date."""
    heading = rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)"
    found = re.search(heading, (root / "CHANGELOG.md").read_text(), re.DOTALL | re.MULTILINE)
    return re.sub(r"\n +(?![ -])", " ", found[1].strip()) if found else ""


def problems(root: Path, tag: str) -> Iterator[str]:
    version = metadata(root)["version"]
    if tag != f"v{version}":
        yield f"the tag is {tag}, but setup.cfg has version {version}"
    if not notes(root, version):
        yield f"CHANGELOG.md has no section '## {version} - <date>'"
    for name in WITH_PLACEHOLDER:
        if PLACEHOLDER in (root / name).read_text():
            yield f"{name} has the placeholder {PLACEHOLDER}: write the owner of the repository"


def main(tag: str, root: Path = ROOT) -> None:
    if found := list(problems(root, tag)):
        raise SystemExit("not released: " + "; ".join(found))
    files = f"{metadata(root)['url']}/blob/{tag}/"
    print(re.sub(r"\]\((?!https?:)", f"]({files}", notes(root, tag.removeprefix("v"))))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
