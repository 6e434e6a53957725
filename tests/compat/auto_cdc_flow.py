"""Auto CDC of the changes of a table, for `pipelines.py`."""

from __future__ import annotations

import json

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
row = {
    "type": "record",
    "name": "Row",
    "fields": [{"name": "id", "type": "int"}, {"name": "name", "type": ["null", "string"]}],
}
source = {"type": "record", "name": "Source", "fields": [{"name": "ts_ms", "type": "long"}]}
fields = {"before": ["null", row], "after": ["null", "Row"], "source": source, "op": "string", "ts_ms": "long"}
value = {
    "type": "record",
    "name": "Envelope",
    "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
}
key = {"type": "record", "name": "Key", "fields": row["fields"][:1]}
schemas = {"valueSchema": json.dumps(value), "keySchema": json.dumps(key)}


@dp.temporary_view
def changes() -> DataFrame:
    options = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "customers", "valueFormat": "avro", **schemas}
    return spark.readStream.format("kafkameta").options(changes="debezium", **options).load()


dp.create_streaming_table("customers")
dp.create_auto_cdc_flow(
    target="customers",
    source="changes",
    keys=["id"],
    sequence_by="_change.sequence",
    apply_as_deletes="_change.deleted",
    except_column_list=["_change"],
)
