"""StreamFlow's path at a site, with support for any file name.

StreamFlow's own path puts names into shell lines unquoted, splits answers at blanks, and does not descend into folders. Its errors
contain whole command lines, and so file names.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import AsyncIterator, Callable, MutableSequence
from typing import Any

from streamflow.core.data import DataType
from streamflow.core.exception import WorkflowExecutionException
from streamflow.data.remotepath import RemoteStreamFlowPath

from medweave_connectors.host.transfer_reasons import reason_in
from medweave_connectors.transfer.manifest import remote_scan

Walked = tuple[RemoteStreamFlowPath, MutableSequence[str], MutableSequence[str]]


class MedweaveRemotePath(RemoteStreamFlowPath):
    """A path at a site; its commands run at the innermost location that sees the file, as in StreamFlow's own path.

    Each method raises a WorkflowExecutionException that names no file where the site refuses the command.
    """

    # ---- queries

    async def glob(self, pattern: str, *, case_sensitive: bool | None = None) -> AsyncIterator[Any]:
        """Yield the paths below it that match a pattern, as on this machine."""
        if not pattern or pattern.startswith("/") or await self._other() is not None:
            async for path in super().glob(pattern, case_sensitive=case_sensitive):
                yield path
            return
        for name in remote_scan.split_names(await self._query(remote_scan.glob(str(self), pattern))):
            yield self.with_segments(name)

    async def resolve(self, strict: bool = False) -> Any:
        """Return the path without links, or the path of the registered copy; None where nothing exists."""
        known = self.context.data_manager.get_data_locations(
            path=str(self), deployment=self.connector.deployment_name, location_name=self.location.name
        )
        for copy in known:
            await copy.available.wait()
            if copy.data_type == DataType.PRIMARY:
                return self.with_segments(copy.path)
        answer = await self._query(remote_scan.resolve(str(self)))
        return self.with_segments(os.fsdecode(answer.removesuffix(b"\n"))) if answer else None

    async def read_text(self, n: int = -1, encoding: str | None = None, errors: str | None = None) -> str:
        """Return the first `n` bytes of a file as text, all of it for -1; `errors`: by default, undecodable bytes are replaced."""
        if (other := await self._other()) is not None:
            return str(await other.read_text(n=n, encoding=encoding, errors=errors))
        answer = await self._query(remote_scan.read_file(str(self), n))
        return answer.decode(encoding or "utf-8", errors or "replace")

    async def checksum(self) -> str | None:
        """Return the hexadecimal SHA-1 by which StreamFlow identifies a file; None for other entries."""
        if (other := await self._other()) is not None:
            checksum: str | None = await other.checksum()
            return checksum
        answer = await self._query(remote_scan.sha1(str(self)))
        return answer.split()[0].decode() if answer else None

    async def size(self) -> int:
        """Return the bytes of the file, or of all files below the folder."""
        if (other := await self._other()) is not None:
            return int(await other.size())
        return int(await self._query(remote_scan.size(str(self))) or 0)

    async def walk(
        self,
        top_down: bool = True,
        on_error: Callable[[OSError], object] | None = None,
        follow_symlinks: bool = False,
    ) -> AsyncIterator[Walked]:
        """Yield every folder below it with the names of its folders and files, as `os.walk` does.

        A folder that cannot be listed is an error, unless `on_error` handles it: its files would be lost silently.
        """
        if await self._other() is not None:
            async for entry in super().walk(top_down, on_error, follow_symlinks):
                yield entry
            return
        try:
            folders, names = [
                remote_scan.folder_names(
                    await self._query(remote_scan.list_folder(str(self), kind=kind, follow=follow_symlinks))
                )
                for kind in ("d", "f")
            ]
        except WorkflowExecutionException as error:
            if on_error is None:
                raise
            on_error(OSError(str(error)))
            return
        if top_down:
            yield self, folders, names
        for folder in folders:
            async for entry in (self / folder).walk(top_down, on_error, follow_symlinks):
                yield entry
        if not top_down:
            yield self, folders, names

    # ---- changes

    async def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Make the folder."""
        if (other := await self._other()) is not None:
            await other.mkdir(mode=mode, parents=parents, exist_ok=exist_ok)
        else:
            await self._change("mkdir", "-m", f"{mode:o}", *(["-p"] if parents or exist_ok else []))

    async def chmod(self, mode: int, *, follow_symlinks: bool = True) -> None:
        """Set the permission bits of the path."""
        if (other := await self._other()) is not None:
            await other.chmod(mode, follow_symlinks=follow_symlinks)
        else:
            await self._change("chmod", *([] if follow_symlinks else ["-h"]), f"{mode:o}")

    async def rmtree(self) -> None:
        """Remove the path, with everything below it."""
        if (other := await self._other()) is not None:
            await other.rmtree()
        else:
            await self._change("rm", "-rf")

    async def symlink_to(self, target: str | os.PathLike[str], target_is_directory: bool = False) -> None:
        """Make the path a symbolic link; an existing link is replaced."""
        if (other := await self._other()) is not None:
            await other.symlink_to(target, target_is_directory=target_is_directory)
        else:
            await self._change("ln", "-snf", str(target))

    async def hardlink_to(self, target: str | os.PathLike[str]) -> None:
        """Make the path a hard link of a file; an existing file is replaced."""
        if (other := await self._other()) is not None:
            await other.hardlink_to(target)
        else:
            await self._change("ln", "-nf", str(target))

    # ---- internal

    async def _other(self) -> Any:
        """Return the path at the inner location that has the file; None where that is this path itself."""
        inner = await self._get_inner_path()
        return None if inner == self else inner

    async def _test(self, command: list[str]) -> bool:
        text, code = await self._run(["test", *command])
        if code > 1:
            raise self._error("test", text, code)
        return not code

    async def _query(self, words: list[str]) -> bytes:
        text, _ = await self._run(words)
        try:
            return remote_scan.parse_answer(text)
        except remote_scan.RemoteScanFailed as error:
            raise WorkflowExecutionException(f"{self.connector.deployment_name}: a file or folder: {error}") from None

    async def _change(self, *words: str) -> None:
        """Run a command on this path."""
        text, code = await self._run([*map(shlex.quote, words), shlex.quote(str(self))])
        if code:
            raise self._error(words[0], text, code)

    async def _run(self, words: list[str]) -> tuple[str, int]:
        result = await self.connector.run(location=self.location, command=words, capture_output=True)
        assert result is not None, "the output was requested"
        return result

    def _error(self, program: str, text: str, code: int) -> WorkflowExecutionException:
        why = reason_in(text) or f"it ended with {code}"
        return WorkflowExecutionException(f"{self.connector.deployment_name}: `{program}` of a file or folder: {why}")
