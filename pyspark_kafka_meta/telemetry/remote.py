"""Folders that pyarrow's file systems reach, as places for files."""

from __future__ import annotations


class RemoteFolder:
    """The folder at a URI that `pyarrow.fs.FileSystem.from_uri` takes. Object stores need no folder to be made."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def write(self, name: str, content: bytes) -> None:
        """Raises OSError."""
        import pyarrow as pa
        from pyarrow.fs import FileSystem

        try:
            files, folder = FileSystem.from_uri(self._uri)
            with files.open_output_stream(f"{folder}/.{name}.tmp") as file:
                file.write(content)
            files.move(f"{folder}/.{name}.tmp", f"{folder}/{name}")
        except (OSError, pa.ArrowException) as error:
            raise self._without_secrets(error) from None

    def delete(self, name: str) -> None:
        """Raises OSError."""
        import pyarrow as pa
        from pyarrow.fs import FileSystem

        try:
            files, folder = FileSystem.from_uri(self._uri)
            files.delete_file(f"{folder}/{name}")
        except (OSError, pa.ArrowException) as error:
            raise self._without_secrets(error) from None

    def _without_secrets(self, error: Exception) -> OSError:
        """Neither the URI, which may hold keys, nor a text that may repeat it."""
        scheme = self._uri.partition("://")[0]
        return OSError(
            f"{type(error).__name__} from the {scheme} folder of metricsPath: check its URI and access to it"
        )
