"""Responses with damaged bytes end in a typed error or in rows that were written, in bounded time and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_kafka_meta.kafka.protocol.apis import FETCH
from tests.unit.kafka.protocol.responses import SENT

MUTATIONS = int(os.environ.get("KAFKAMETA_MUTATIONS", "1500"))
"""Per kind of response."""
HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and RLIMIT_AS")
@pytest.mark.timeout(60 + MUTATIONS // 10)
@pytest.mark.parametrize(
    ("api", "ends"),
    [
        (FETCH.name, {"rows", "no rows", "ProtocolError", "CorruptBatchError"}),
        *((api.name, {"read", "ProtocolError"}) for api in SENT if api is not FETCH),
    ],
)
def test_mutated_responses_end_in_typed_errors_or_in_what_was_written(api: str, ends: set[str]) -> None:
    path = [ROOT, HERE, ROOT / "tests" / "unit" / "kafka" / "records"]
    done = subprocess.run(
        [sys.executable, HERE / "mutated_responses.py", api, str(MUTATIONS), "1"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert sum(counts.values()) == MUTATIONS
    assert ends <= counts.keys()
