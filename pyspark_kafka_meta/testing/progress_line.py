"""Shows the progress of a long wait on stderr: one changing line on a terminal, a line every 10 s elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_INTERVAL_S = 10.0
"""Between two lines if stderr is not a terminal."""


def stderr_console() -> Console:
    """Prints lines unchanged: rich takes the colons of coordinates for emoji."""
    from rich.console import Console

    return Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)


@contextmanager
def progress_line(console: Console) -> Iterator[Callable[[str, float], None]]:
    """A function to call several times a second, with a line and the elapsed seconds. A terminal's line is erased at
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
