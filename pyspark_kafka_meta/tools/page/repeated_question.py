"""Asks a cluster the same question again and again in a thread of its own: a broker that does not answer delays nothing
else on the page."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from pyspark_kafka_meta.errors import AuthenticationError, KafkaMetaError, UnsupportedBrokerError
from pyspark_kafka_meta.tools.shared.console import error_text

logger = logging.getLogger(__name__)

ASK_S = 2.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """The last answer.

    Attributes:
        value: None while it is unknown: an old one would look like a good state.
        trouble: why it is unknown; None before the first answer.
        is_supported: whether brokers know the question.
    """

    value: T | None = None
    trouble: str | None = None
    is_supported: bool = True


class RepeatedQuestion(Generic[T]):
    """Asks inside `with`, until brokers turn out not to know the question, or refuse the login: repeated attempts may
    lock the account.

    Args:
        ask: returns the answer. May take long.
        get_trouble: why there is no use in asking now, else None.
    """

    def __init__(self, ask: Callable[[], T], get_trouble: Callable[[], str | None]) -> None:
        self._last: Answer[T] = Answer()
        self._ask = ask
        self._get_trouble = get_trouble
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafkameta-page-question", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Does not wait for an answer."""
        self._stopped.set()

    @property
    def answer(self) -> Answer[T]:
        """The last one; unknown at once when there is trouble, even while brokers are asked."""
        trouble = self._get_trouble()
        return self._last if trouble is None else Answer(trouble=trouble)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                if self._get_trouble() is None:
                    self._last = Answer(self._ask())
            except UnsupportedBrokerError as error:
                self._last = Answer(trouble=error_text(error), is_supported=False)
                return
            except AuthenticationError as error:
                self._last = Answer(trouble=f"{error_text(error)} (not asked again: restart the command)")
                return
            except Exception as error:
                self._last = Answer(trouble=page_error_text(error, self._last.trouble))
            self._stopped.wait(ASK_S)


def page_error_text(error: Exception, before: str | None) -> str:
    """For the page. An unexpected error must not end the thread, or the page would stand still; it is logged once until
    another text is shown."""
    if isinstance(error, KafkaMetaError):
        return error_text(error)
    text = f"{type(error).__name__}, see the log of kafkameta page"
    if text != before:
        logger.error("unexpected error of the page", exc_info=error)
    return text
