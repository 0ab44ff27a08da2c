"""StreamFlow's path at a site, for which any name will do.

The stock one puts names into shell lines as they are, splits what comes back at blanks, and never goes down into a folder. Its
errors hold whole command lines, and with them the names of files.
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
    """A path at a site; what is asked of it is asked of the innermost place that sees the file, as in the stock one.

    Each of its questions and changes raises a WorkflowExecutionException, which names no file, where the site refuses it.
    """

    # ---- questions

    async def glob(self, pattern: str, *, case_sensitive: bool | None = None) -> AsyncIterator[Any]:
        """The paths below it that fit a pattern, as on this machine."""
        if not pattern or pattern.startswith("/") or await self._other() is not None:
            async for path in super().glob(pattern, case_sensitive=case_sensitive):
                yield path
            return
        for each in remote_scan.split_names(await self._asked(remote_scan.glob(str(self), pattern))):
            yield self.with_segments(each)

    async def resolve(self, strict: bool = False) -> Any:
        """The path without links, or that of the copy that the engine knows to be there; None where there is nothing."""
        known = self.context.data_manager.get_data_locations(
            path=str(self), deployment=self.connector.deployment_name, location_name=self.location.name
        )
        for place in known:
            await place.available.wait()
            if place.data_type == DataType.PRIMARY:
                return self.with_segments(place.path)
        told = await self._asked(remote_scan.resolve(str(self)))
        return self.with_segments(os.fsdecode(told.removesuffix(b"\n"))) if told else None

    async def read_text(self, n: int = -1, encoding: str | None = None, errors: str | None = None) -> str:
        """The first `n` bytes of a file, all of it for -1. What is no text in it is replaced, unless `errors` says more."""
        if (other := await self._other()) is not None:
            return str(await other.read_text(n=n, encoding=encoding, errors=errors))
        told = await self._asked(remote_scan.read_file(str(self), n))
        return told.decode(encoding or "utf-8", errors or "replace")

    async def checksum(self) -> str | None:
        """The SHA-1 by which the engine knows a file, hexadecimal; None for what is no file."""
        if (other := await self._other()) is not None:
            found: str | None = await other.checksum()
            return found
        told = await self._asked(remote_scan.sha1(str(self)))
        return told.split()[0].decode() if told else None

    async def size(self) -> int:
        """Bytes of the file, or of all files below the folder."""
        if (other := await self._other()) is not None:
            return int(await other.size())
        return int(await self._asked(remote_scan.size(str(self))) or 0)

    async def walk(
        self,
        top_down: bool = True,
        on_error: Callable[[OSError], object] | None = None,
        follow_symlinks: bool = False,
    ) -> AsyncIterator[Walked]:
        """Every folder below it with the names of its folders and files, as `os.walk` has them.

        A folder that cannot be listed is an error, unless `on_error` takes it: what is left out in silence would be lost.
        """
        if await self._other() is not None:
            async for each in super().walk(top_down, on_error, follow_symlinks):
                yield each
            return
        try:
            folders, names = [
                remote_scan.folder_names(
                    await self._asked(remote_scan.list_folder(str(self), kind=kind, follow=follow_symlinks))
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
            async for each in (self / folder).walk(top_down, on_error, follow_symlinks):
                yield each
        if not top_down:
            yield self, folders, names

    # ---- changes

    async def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Makes the folder."""
        if (other := await self._other()) is not None:
            await other.mkdir(mode=mode, parents=parents, exist_ok=exist_ok)
        else:
            await self._change("mkdir", "-m", f"{mode:o}", *(["-p"] if parents or exist_ok else []))

    async def chmod(self, mode: int, *, follow_symlinks: bool = True) -> None:
        """Sets its permission bits."""
        if (other := await self._other()) is not None:
            await other.chmod(mode, follow_symlinks=follow_symlinks)
        else:
            await self._change("chmod", *([] if follow_symlinks else ["-h"]), f"{mode:o}")

    async def rmtree(self) -> None:
        """Removes it, with all that lies below."""
        if (other := await self._other()) is not None:
            await other.rmtree()
        else:
            await self._change("rm", "-rf")

    async def symlink_to(self, target: str | os.PathLike[str], target_is_directory: bool = False) -> None:
        """Makes it a link, in the place of another one."""
        if (other := await self._other()) is not None:
            await other.symlink_to(target, target_is_directory=target_is_directory)
        else:
            await self._change("ln", "-snf", str(target))

    async def hardlink_to(self, target: str | os.PathLike[str]) -> None:
        """Makes it another name of a file, in the place of another one."""
        if (other := await self._other()) is not None:
            await other.hardlink_to(target)
        else:
            await self._change("ln", "-nf", str(target))

    # ---- inside

    async def _other(self) -> Any:
        """The place within which it lies, None where that is its own."""
        inner = await self._get_inner_path()
        return None if inner == self else inner

    async def _test(self, command: list[str]) -> bool:
        told, code = await self._ran(["test", *command])
        if code > 1:
            raise self._error("test", told, code)
        return not code

    async def _asked(self, words: list[str]) -> bytes:
        told, _ = await self._ran(words)
        try:
            return remote_scan.parse_answer(told)
        except remote_scan.RemoteScanFailed as error:
            raise WorkflowExecutionException(f"{self.connector.deployment_name}: a file or folder: {error}") from None

    async def _change(self, *words: str) -> None:
        """Runs words with this path behind them."""
        told, code = await self._ran([*map(shlex.quote, words), shlex.quote(str(self))])
        if code:
            raise self._error(words[0], told, code)

    async def _ran(self, words: list[str]) -> tuple[str, int]:
        told = await self.connector.run(location=self.location, command=words, capture_output=True)
        assert told is not None, "the output was requested"
        return told

    def _error(self, program: str, told: str, code: int) -> WorkflowExecutionException:
        why = reason_in(told) or f"it ended with {code}"
        return WorkflowExecutionException(f"{self.connector.deployment_name}: `{program}` of a file or folder: {why}")
