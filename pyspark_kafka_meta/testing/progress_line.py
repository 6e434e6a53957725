"""Shows on stderr how far a long wait is: one line that changes on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_INTERVAL_S = 10.0
"""Between two lines where stderr is not a terminal."""


def stderr_console() -> Console:
    """Prints lines as they are: coordinates hold colons, which rich takes for emoji."""
    from rich.console import Console

    return Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)


@contextmanager
def progress_line(console: Console) -> Iterator[Callable[[str, float], None]]:
    """A function to call several times a second with the line and the seconds elapsed; a terminal's line is erased at
    the end."""
    from rich.text import Text

    if console.is_terminal and not console.is_dumb_terminal:
        with console.status("") as status:
            yield lambda line, _: status.update(Text(line))
        return
    due_s = 0.0

    def show(line: str, elapsed_s: float) -> None:
        nonlocal due_s
        if elapsed_s >= due_s:
            console.print(line)
            due_s = elapsed_s + PLAIN_INTERVAL_S

    yield show
