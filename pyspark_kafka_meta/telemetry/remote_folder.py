"""Folders that pyarrow's file systems reach, as places for files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


class RemoteFolder:
    """The folder at a URI that `pyarrow.fs.FileSystem.from_uri` takes. Object stores need no folder to be made."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def write(self, name: str, content: bytes) -> None:
        """Raises OSError."""
        with file_system(self._uri) as (files, folder):
            with files.open_output_stream(f"{folder}/.{name}.tmp") as file:
                file.write(content)
            files.move(f"{folder}/.{name}.tmp", f"{folder}/{name}")

    def delete(self, name: str) -> None:
        """Raises OSError."""
        with file_system(self._uri) as (files, folder), suppress(FileNotFoundError):
            files.delete_file(f"{folder}/{name}")


@contextmanager
def file_system(uri: str) -> Iterator[tuple[FileSystem, str]]:
    """The file system at a URI, and the path in it. What fails there is an OSError with neither the URI, which may hold
    keys, nor a text that may repeat it."""
    try:
        from pyarrow.fs import FileSystem

        yield FileSystem.from_uri(uri)
    except Exception as error:  # a file system of fsspec's raises what it likes
        scheme, kind = uri.partition("://")[0], type(error).__name__
        raise OSError(f"{kind} from the {scheme} folder of metricsPath: check its URI and access to it") from None
