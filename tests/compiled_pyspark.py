"""Adds bytecode to the zip from which Spark's Python processes import pyspark: for `make test`.

Spark ships sources alone there, and Python keeps no bytecode beside a zip: each process compiles what it imports, which
takes half a second of CPU time.
"""

from __future__ import annotations

import marshal
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path
from zipfile import ZipFile

import pyspark

ARCHIVE = Path(pyspark.__path__[0]) / "python" / "lib" / "pyspark.zip"
UNCHECKED_HASH = (1).to_bytes(4, "little")
"""Flags of bytecode that Python takes without a look at its source (PEP 552)."""


def main() -> None:
    with ZipFile(ARCHIVE, "a") as archive:
        names = set(archive.namelist())
        for name in sorted(names):
            if name.endswith(".py") and f"{name}c" not in names:
                source = archive.read(name)
                code = compile(source, str(ARCHIVE / name), "exec", dont_inherit=True)
                header = MAGIC_NUMBER + UNCHECKED_HASH + source_hash(source)
                archive.writestr(f"{name}c", header + marshal.dumps(code))


if __name__ == "__main__":
    main()
