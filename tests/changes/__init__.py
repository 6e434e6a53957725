"""PostgreSQL, Debezium, Kafka and Spark together, by `make changes`."""

import sys
from pathlib import Path

# The programs of the example.
sys.path.insert(0, str(Path(__file__).parent.parent.parent / "examples" / "changes"))
