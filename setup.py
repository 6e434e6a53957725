"""Makes addresses of `url` in setup.cfg, which has the rest. On an index the README's links lead to the repository."""

from __future__ import annotations

import re
from configparser import RawConfigParser
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
LINK = re.compile(r"(!?)(\[[^]]*\]\()(?!https?:|#)")

setup_cfg = RawConfigParser()
setup_cfg.read(ROOT / "setup.cfg")
url, version = setup_cfg["metadata"]["url"], setup_cfg["metadata"]["version"]
owner, name = url.split("/")[-2:]


def absolute(link: re.Match[str]) -> str:
    """A link to a file of the repository, or a picture, at the tag of this version."""
    return f"{link[0]}{url}/{'raw' if link[1] else 'blob'}/v{version}/"


setup(
    long_description=LINK.sub(absolute, (ROOT / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
    project_urls={
        "Documentation": f"https://{owner}.github.io/{name}/",
        "Repository": url,
        "Changelog": f"{url}/blob/v{version}/CHANGELOG.md",
        "Issues": f"{url}/issues",
    },
)
