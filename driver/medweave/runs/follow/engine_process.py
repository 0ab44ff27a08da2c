"""`streamflow run` as a child process, with a run id that is chosen before it starts."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from medweave_core.documents.line_numbers import shown
from medweave_core.documents.yaml_documents import read_mapping
from medweave_core.errors import BackendMissingError, UsageError
from medweave_core.runlog.history import LOG_FILE
from medweave_core.runlog.run_folder import WORK
from medweave_core.runlog.run_ownership import TOKEN_VARIABLE, VARIABLE, owner_of

ENGINE_LOG = "driver.log"  # in the run's scratch: its paths may identify patients
OURS = "medweave."
END_S = 10.0
ERROR = re.compile(r"[\w.]*(Error|Exception)\b")  # how the last part of a traceback begins


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProcess:
    """A running engine.

    Attributes:
        folder: folder of the run.
        stdout: unnamed file with its standard output, which is the CWL output object.
    """

    folder: Path
    process: subprocess.Popen[bytes]
    stdout: IO[bytes]

    @property
    def log(self) -> Path:
        """Return the path of the run's event log, which exists once the run has begun."""
        return self.folder / LOG_FILE

    @property
    def exit_code(self) -> int | None:
        """Exit code as in a shell: 128 + signal number after a signal; None while the engine runs."""
        code = self.process.poll()
        return 128 - code if code is not None and code < 0 else code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the engine, unless it has exited."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def end_at_once(self) -> None:
        """Make the engine kill its local jobs, log the run's end and exit; kill it after a timeout."""
        self.signal(signal.SIGINT)  # the second signal kills the jobs; a second INT would be merged with this one
        self.signal(signal.SIGTERM)
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def last_messages(self, num_lines: int) -> list[str]:
        """Return the last lines of the engine's log, from its last error on, without the traceback."""
        try:
            text = (self.folder / WORK / ENGINE_LOG).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        lines = text.splitlines()
        begins = [number for number, line in enumerate(lines) if ERROR.match(line)]
        return lines[begins[-1] :][:num_lines] if begins else lines[-num_lines:]

    def printed(self) -> str:
        """Return its standard output."""
        self.stdout.seek(0)
        return self.stdout.read().decode(errors="replace")

    def remove_empty_folder(self) -> None:
        """Remove the folder of a run that never began."""
        if not self.log.exists():
            shutil.rmtree(self.folder, ignore_errors=True)


def workflow_of(file: Path) -> str:
    """Return the name of the workflow of a StreamFlow file that writes an event log.

    Raises:
        UserInputError: there is no such file, or it cannot be read.
        UsageError: it uses no medweave scheduler or database, which write the log.
    """
    document = read_mapping(file, "StreamFlow file")
    components = [(document.get("scheduling") or {}).get("scheduler") or {}, document.get("database") or {}]
    if not any(str(component.get("type", "")).startswith(OURS) for component in components):
        raise UsageError(
            f"{shown(file)}: its runs write no event log, so `medweave run` cannot show them.",
            seen="neither medweave.scheduler nor medweave.database",
            expected="scheduling: {scheduler: {type: medweave.scheduler, config: {}}}, as `medweave bind` writes it",
            do=f"add this line, or start it with `streamflow run {shown(file)}`",
        )
    return next(iter(document.get("workflows") or {}), "run")


def start(file: Path, folder: Path, outdir: Path) -> EngineProcess:
    """Start the engine of this environment in a separate session, so that Ctrl-C reaches it only through this process.

    Args:
        folder: folder of the run, created by `claim_folder`; its name is the run's id.

    Raises:
        BackendMissingError: the engine is not installed.
    """
    program = Path(sys.executable).parent / "streamflow"
    if not program.exists():
        shutil.rmtree(folder, ignore_errors=True)
        raise BackendMissingError(
            "StreamFlow is not installed.",
            seen=f"no {program}",
            expected="medweave with the extra 'driver'",
            do="install it: pip install 'medweave[driver]'",
        )
    work = folder / WORK
    work.mkdir(mode=0o700, exist_ok=True)
    stdout = tempfile.TemporaryFile()  # noqa: SIM115 - it is read when the process has ended
    with (work / ENGINE_LOG).open("wb") as engine_log:
        process = subprocess.Popen(
            [str(program), "run", "--quiet", "--outdir", str(outdir), str(file)],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=engine_log,
            env={
                **os.environ,
                VARIABLE: folder.name,
                TOKEN_VARIABLE: owner_of(folder, folder.name).token,
                "MEDWEAVE_RUNS_DIR": str(folder.parent),
            },
            start_new_session=True,
        )
    return EngineProcess(folder=folder, process=process, stdout=stdout)
