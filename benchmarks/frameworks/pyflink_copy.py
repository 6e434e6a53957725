"""PyFlink: a statement in SQL, which runs in the JVM without Python. KAFKA_JAR is the path of Flink's connector."""

import os
import sys
from pathlib import Path

from pyflink.table import EnvironmentSettings, TableEnvironment

TABLE = """
CREATE TABLE {name} (k BYTES, v BYTES) WITH (
    'connector' = 'kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{servers}',
    'key.format' = 'raw', 'key.fields' = 'k', 'value.format' = 'raw', 'value.fields-include' = 'EXCEPT_KEY', {more}
)
"""
FROM_START = "'properties.group.id' = '{target}', 'scan.startup.mode' = 'earliest-offset'"
EXACTLY_ONCE = (
    "'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = '{target}', "
    "'properties.transaction.timeout.ms' = '600000'"
)

servers, source, target, commit_ms = sys.argv[1:]
environment = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
config = environment.get_config()
config.set("pipeline.jars", f"file://{os.environ['KAFKA_JAR']}")
config.set("parallelism.default", "2")
config.set("execution.checkpointing.interval", f"{commit_ms} ms")
config.set("execution.checkpointing.dir", f"file://{Path.cwd()}/checkpoint-{target}")
for name, topic, more in (("source", source, FROM_START), ("target", target, EXACTLY_ONCE)):
    environment.execute_sql(TABLE.format(name=name, topic=topic, servers=servers, more=more.format(target=target)))
environment.execute_sql("INSERT INTO target SELECT k, v FROM source").wait()
