"""The Arrow schema of the records table."""

from __future__ import annotations

import subprocess
import sys

from pyspark_kafka_meta.kafka.records.schema import HEADERS_COLUMN, records_arrow_schema


def test_columns_are_chosen_and_ordered_by_name() -> None:
    assert records_arrow_schema([HEADERS_COLUMN, "offset", "value"]).names == [HEADERS_COLUMN, "offset", "value"]


def test_importing_the_schemas_imports_nothing_heavy() -> None:
    heavy = "{'pyarrow', 'numpy', 'pyspark.sql'} & set(sys.modules)"
    code = f"import sys; import pyspark_kafka_meta.kafka.records.schema; print({heavy} or 'light')"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True)

    assert done.stdout.strip() == "light"
