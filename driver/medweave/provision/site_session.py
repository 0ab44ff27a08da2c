"""The driver's side of the connectors' ssh session server (`sites.ssh.session_server`), which runs as a process."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from medweave_core.errors import BackendMissingError, InternalError, TryAgainError, UserInputError

MODULE = "medweave_connectors.sites.ssh.session_server"
CLOSE_S = 30


class SiteSession:
    """An open connection to a machine of `medweave.ssh`; as a context it is closed at the end."""

    def __init__(self, deployment: str, config: Mapping[str, Any]) -> None:
        """Connect to the machine.

        Args:
            config: as in the site file, with absolute paths and without variables.

        Raises:
            UserInputError: a setting is wrong (key, host key, name); the message names it.
            TryAgainError: the machine does not answer.
            BackendMissingError: the extra `driver` is not installed.
        """
        if importlib.util.find_spec("streamflow") is None:
            raise BackendMissingError(
                "the library 'streamflow' is missing.",
                expected="medweave with the extra 'driver'",
                do="install it: pip install 'medweave[driver]'",
            )
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # this process handles Ctrl-C, since it must clean up at the site
        )
        try:
            self._ask({"deployment": deployment, "config": dict(config)})
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    def __enter__(self) -> SiteSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._process.stdin.close()
            self._process.wait(CLOSE_S)
        self._process.kill()
        self._process.wait()

    def ask(self, script: str) -> tuple[int, str]:
        """Run a short script with `sh`; return its exit code and output."""
        answer = self._stoppable({"ask": script})
        return int(answer["code"]), str(answer["output"])

    def work(self, script: str, folder: str) -> tuple[int, str]:
        """Run a long script in a folder; return its exit code and last output. An interrupt ends its processes at the site."""
        answer = self._stoppable({"work": script, "in": folder})
        return int(answer["code"]), str(answer["output"])

    def send(self, path: Path, target: str, on_progress: Callable[[int], None]) -> None:
        """Copy a file atomically.

        Args:
            on_progress: called about once per second with the number of sent bytes.
        """
        self._stoppable({"send": str(path), "to": target}, on_progress)

    def _stoppable(
        self, request: Mapping[str, Any], on_progress: Callable[[int], None] = lambda sent: None
    ) -> Mapping[str, Any]:
        try:
            return self._ask(request, on_progress)
        except KeyboardInterrupt:
            self._say({"stop": True})
            while (line := self._line()) and '"stopped"' not in line:
                pass  # skip an answer that was already sent
            raise

    def _ask(
        self, request: Mapping[str, Any], on_progress: Callable[[int], None] = lambda sent: None
    ) -> Mapping[str, Any]:
        self._say(request)
        while line := self._line():
            answer: dict[str, Any] = json.loads(line)
            if "sent" in answer:
                on_progress(answer["sent"])
            elif "error" in answer:
                raise (TryAgainError if answer["again"] else UserInputError)(answer["error"])
            else:
                return answer
        raise InternalError(
            "the process that holds the connection to the site has exited.", seen=f"exit code {self._process.wait()}"
        )

    def _say(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # reported when the answer is read
            print(json.dumps(request), file=self._process.stdin, flush=True)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()
