"""`DataLossPolicy`: fail or continue when records are lost, a topic was recreated or a record batch is corrupt.

The options failOnDataLoss, onTopicRecreated and onCorruptBatch decide, as `reportDataLoss` does in Spark's
`KafkaMicroBatchStream`. Planning and fetching detect the losses.
"""

from __future__ import annotations

import logging

from pyspark_kafka_meta.errors import CorruptBatchError, DataLossError
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.options import ReadOptions

logger = logging.getLogger(__name__)

HOW_TO_FOLLOW = (
    "If it is a topic of another cluster, correct kafka.bootstrap.servers. To go on with the new topic, set the option "
    "onTopicRecreated to earliest or latest"
)
HOW_TO_GO_ON = "To go on without the lost records, set the option failOnDataLoss to false"
IF_RECREATED = ", and onTopicRecreated, which is fail, to earliest or latest: the topic may be recreated"


class DataLossPolicy:
    """Each method raises DataLossError or CorruptBatchError, or logs a warning: then the caller skips the records."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def report_loss(self, text: str, may_be_recreated: bool = False) -> None:
        """By failOnDataLoss. `may_be_recreated`: the loss may be the first sign of a recreated topic."""
        if self._options.fail_on_data_loss:
            is_refused = may_be_recreated and self._options.on_topic_recreated == "fail"
            raise DataLossError(f"{text}. {HOW_TO_GO_ON}{IF_RECREATED if is_refused else ''}")
        logger.warning("%s; continuing because failOnDataLoss is false", text)

    def report_recreated(self, text: str) -> None:
        """By onTopicRecreated, or failOnDataLoss if onTopicRecreated is not set."""
        policy = self._options.on_topic_recreated
        if policy == "fail" or (policy is None and self._options.fail_on_data_loss):
            raise DataLossError(f"{text}. {HOW_TO_FOLLOW}")
        option = "failOnDataLoss is false" if policy is None else f"onTopicRecreated is {policy}"
        logger.warning("%s; continuing because %s", text, option)

    def report_recreated_while_read(self, text: str) -> None:
        """For the rest of a task's range: only a later plan can follow the new topic, so that without onTopicRecreated,
        which batch queries do not have, it is a loss."""
        if self._options.on_topic_recreated is None:
            self.report_loss(text)
        else:
            self.report_recreated(text)

    def report_corrupt(
        self, partition: TopicPartition, offset: int, error: CorruptBatchError, loss: str | None
    ) -> None:
        """By onCorruptBatch. `loss` describes the offsets to skip; None if the end of the batch is unknown."""
        if self._options.skip_corrupt_batches and loss is not None:
            logger.warning("%s; continuing because onCorruptBatch is skip", loss)
            return
        remedy = "start behind it: its end is not known" if loss is None else "set the option onCorruptBatch to skip"
        raise CorruptBatchError(
            f"{partition} at offset {offset}: {error}, though fetched twice. To go on without it, {remedy}",
            partition.topic,
            partition.partition,
            offset,
            error.until_offset,
        )
