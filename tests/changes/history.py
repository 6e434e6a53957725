"""Random changes go from PostgreSQL through Debezium and Kafka to a copy of the table, while these are killed.

The database is far ahead of Debezium, and Debezium of the query, so that kills come while both have much to do.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random

from connect import Connect, postgres_connector
from postgres import Postgres

from benchmarks.processes import kill_session
from pyspark_kafka_meta.testing import LocalKafka
from tests.changes import copy_table
from tests.changes.random_changes import ADDED, COLUMNS, CREATE, KEYS, TABLE, Changes, rows, select
from tests.kafka.cluster_tools import poll_until

SHOP, SESSIONS = "shop", 3
TOPIC = f"{SHOP}.{TABLE}"
TIMEOUT_S = 600.0
ROOT = Path(__file__).parent.parent.parent
COMPACTED = {"cleanup.policy": "compact", "segment.ms": "2000", "min.cleanable.dirty.ratio": "0.01"}
"""Kafka refuses the record of a TRUNCATE in such a topic, as it has no key. Each change has all values there, because
compaction removes the change before, which had those that are large."""
SNAPSHOT = f"""'execute-snapshot', '{{"data-collections": ["{TABLE}"], "type": "incremental"}}'"""


class Copy:
    """The process of the query, in a session of its own, so that all its processes can be killed."""

    def __init__(self, servers: str, folder: Path) -> None:
        self.folder = folder
        self._command = [sys.executable, "-m", "tests.changes.copy_table", servers, TOPIC, str(folder)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        self._committed_before = self._committed()
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, *arguments],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_for_batch(self) -> None:
        """Until the process has committed one."""
        poll_until(lambda: self._has_ended() or self._committed() - self._committed_before, TIMEOUT_S)
        assert not self._has_ended(), (self.folder / "log").read_text()[-5000:]

    def _has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def _committed(self) -> set[Path]:
        return set((self.folder / "checkpoint" / "commits").glob("[0-9]*"))

    def kill(self) -> None:
        if self._process is not None:
            pid = self._process.pid
            poll_until(lambda: not kill_session(pid))
            self._process.communicate()

    def finish(self) -> None:
        """Read the rest of the topic."""
        self.kill()
        self.start("available-now")
        assert self._process is not None
        assert self._process.wait(TIMEOUT_S) == 0, (self.folder / "log").read_text()[-5000:]


class History:
    """`changes` statements in interleaved transactions, and what happens meanwhile, by step."""

    def __init__(self, seed: int, changes: int) -> None:
        self.random = Random(seed)
        self.changes = changes
        self.is_compacted = bool(seed % 2)
        self.columns = dict(COLUMNS)
        self.open = set[int]()
        """Sessions with a transaction."""

    def run(self) -> None:
        """Raises AssertionError: the copy is not the table."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="changes-")))
            self.postgres = stack.enter_context(Postgres())
            self.kafka = stack.enter_context(LocalKafka())
            self.sessions = [stack.enter_context(self.postgres.session()) for _ in range(SESSIONS)]
            self.admin = stack.enter_context(self.postgres.session())
            self.connect = stack.enter_context(Connect(self.kafka.bootstrap_servers))
            self.copy = Copy(self.kafka.bootstrap_servers, folder)
            stack.callback(self.copy.kill)
            self._begin()
            self._change()
            self._settle()
            self._compare()

    def _begin(self) -> None:
        self.admin.execute(CREATE)
        if self.is_compacted:
            self.admin.execute(f"ALTER TABLE {TABLE} REPLICA IDENTITY FULL")
        for number in range(KEYS):
            self.admin.execute(self._of(number % SESSIONS).insert())
        self.kafka.create_topic(TOPIC, config=COMPACTED if self.is_compacted else None)
        settings = {"signal.data.collection": "public.signals", "skipped.operations": "none"}
        self.connect.put(SHOP, postgres_connector(self.postgres.port, SHOP, TABLE) | settings)
        self.admin.wait_until_sent()
        self.copy.start()

    def _of(self, session: int) -> Changes:
        return Changes(self.random, session, SESSIONS, self.columns)

    def _change(self) -> None:
        planned = self._planned()
        for step in range(self.changes):
            if step in planned:
                self._end_all()
                planned[step]()
            session = self.random.randrange(SESSIONS)
            if session not in self.open:
                self.sessions[session].send("BEGIN;")
                self.open.add(session)
            self.sessions[session].send(f"{self._of(session).statement()};")
            if self.random.random() < 0.2:
                self._end(session)
        self._end_all()

    def _end(self, session: int) -> None:
        self.sessions[session].send("ROLLBACK;" if self.random.random() < 0.2 else "COMMIT;")
        self.open.remove(session)

    def _end_all(self) -> None:
        """And wait until the database has executed everything."""
        for session in sorted(self.open):
            self._end(session)
        for each in self.sessions:
            each.execute("SELECT")

    def _planned(self) -> dict[int, Callable[[], None]]:
        """Disturbances at even distances: where a query restarts after a new column, and a snapshot sends it."""
        actions = [
            *([] if self.is_compacted else [self._truncate]),
            self._restart_connect,
            self._restart_broker,
            self._restart_copy,
            self._add_column,
            self._restart_copy,
            self._snapshot,
            self._restart_connect,
            self._drop_column,
            self._restart_broker,
            self._restart_copy,
        ]
        return {(number + 1) * self.changes // (len(actions) + 1): action for number, action in enumerate(actions)}

    def _truncate(self) -> None:
        self.admin.execute(f"TRUNCATE {TABLE}")

    def _restart_connect(self) -> None:
        self.connect.kill()
        self.connect.start()

    def _restart_broker(self) -> None:
        broker = self.random.choice(self.kafka.broker_ids)
        self.kafka.kill(broker)
        self.kafka.start(broker)

    def _restart_copy(self) -> None:
        self.copy.wait_for_batch()
        self.copy.kill()
        self.admin.wait_until_sent()  # the query finds a new column in the newest change
        self.copy.start()

    def _add_column(self) -> None:
        (name,) = ADDED
        self.admin.execute(f"ALTER TABLE {TABLE} ADD COLUMN {name} {ADDED[name].type}")
        self.columns |= ADDED

    def _drop_column(self) -> None:
        """Debezium fails if the column goes during a snapshot, or if it reads older rows with it after a restart."""
        poll_until(lambda: f"incremental snapshotting of table '{TABLE}' finished" in self.connect.log, TIMEOUT_S)
        self.admin.wait_until_sent()
        self.admin.execute(f"ALTER TABLE {TABLE} DROP COLUMN mood")
        del self.columns["mood"]

    def _snapshot(self) -> None:
        self.admin.execute(f"INSERT INTO public.signals VALUES ('snapshot', {SNAPSHOT})")

    def _settle(self) -> None:
        """Debezium has sent all changes, and the query has read them."""
        self.admin.wait_until_sent()
        self.kafka.restore()
        self.copy.finish()

    def _compare(self) -> None:
        expected = rows(self.admin.execute(select(self.columns)), self.columns)
        found = rows(copy_table.lines(self.copy.folder, self.columns), self.columns)
        assert found.keys() == expected.keys(), sorted(found.keys() ^ expected.keys())
        cells = ((key, name, found[key][name], value) for key, row in expected.items() for name, value in row.items())
        different = [each for each in cells if each[2] != each[3]]
        assert not different, (len(different), {name for _, name, *_ in different}, different[:20])
