"""`streamflow run` for tests: real runs in real processes, forked from one that has imported the engine already (2.7 s each)."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema

from medweave_connectors.engine.replacements import REPLACEMENTS
from medweave_core.contracts.schema import schema_of
from support import intervals
from support.engine_file import LOCAL, engine_file

SHORT_INTERVALS = False  # in the runs that this process starts: tests over stand-ins set it
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "streamflow.main",
        "medweave_connectors.plugin",
        # What the plug-in imports when it registers.
        *(f"medweave_connectors.engine.{replacement.ours.partition(':')[0]}" for replacement in REPLACEMENTS),
        "medweave_connectors.engine.database.database",
        "medweave_connectors.engine.scheduling.policy",
        "medweave_connectors.cleanup",
        *(f"medweave_connectors.sites.{site}.connector" for site in ("local", "slurm", "ssh")),
    ]
)

FILE = engine_file({"here": LOCAL})


@dataclass
class Run:
    """A running or finished run.

    Attributes:
        exit_code: negative for a death by signal; None while it runs.
    """

    folder: Path
    process: Any
    exit_code: int | None = None

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr.txt").read_text(encoding="utf-8")

    @property
    def record(self) -> Path:
        """Return the folder of the (only) run."""
        (run,) = (self.folder / "runs").glob("[!.]*")  # hidden folders hold the cache
        return run

    @property
    def events(self) -> list[dict[str, Any]]:
        """Return all events, each checked against the published schema."""
        return valid_events(self.record / "events.jsonl")

    def of_type(self, event_type: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == event_type]

    def wait(self, timeout_s: float = 60) -> Run:
        self.process.join(timeout_s)
        assert self.process.exitcode is not None, f"still running after {timeout_s} s:\n{self.stderr}"
        self.exit_code = self.process.exitcode
        return self

    def wait_for_line(self, text: str, timeout_s: float = 60) -> None:
        """Wait until the driver has printed this."""
        wait_until(lambda: text in self.stderr or self.process.exitcode is not None, timeout_s)
        assert text in self.stderr, self.stderr

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)


def valid_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of an event log; fail on a line that is not an event, or on a gap in the numbers."""
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n"), "the last line is not whole"
    events = [json.loads(line) for line in text.splitlines()]
    validator = jsonschema.Draft202012Validator(schema_of("event"))
    for event in events:
        validator.validate(event)
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    return events


def wait_until(condition: Callable[[], bool], timeout_s: float = 10, *, pause_s: float = 0.02) -> None:
    """Wait until a condition holds, or until the time is over."""
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(pause_s)


def start(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None, preload: Path | None = None
) -> Run:
    """Start `streamflow run --quiet streamflow.yml --outdir results …` in a folder that has the files.

    Args:
        preload: a Python file that runs in the process first, to listen to the engine or to break it.
    """
    (folder / "stderr.txt").touch()
    arguments_of_main = (folder, arguments, dict(environment or {}), preload, SHORT_INTERVALS)
    process = _context.Process(target=_main, args=arguments_of_main)
    process.start()
    return Run(folder, process)


def run(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None, preload: Path | None = None
) -> Run:
    """Start the engine as `start` does, and wait for the end."""
    return start(folder, *arguments, environment=environment, preload=preload).wait()


def write_workflow(
    folder: Path, tools: Mapping[str, Any], *, job: Mapping[str, Any] | None = None, file: str = FILE
) -> None:
    """Write a workflow of independent steps, one per shell script; each promises `result.txt`, or what `outputs` says.

    Args:
        tools: step name to a script, or to (script, keys to add to the tool).
    """
    steps, outputs = {}, {}
    for name, tool in tools.items():
        script, keys = tool if isinstance(tool, tuple) else (tool, {})
        (folder / f"{name}.sh").write_text(script, encoding="utf-8")
        document = {
            "class": "CommandLineTool",
            "baseCommand": ["sh", str(folder / f"{name}.sh")],
            "inputs": {},
            "outputs": {"result": {"type": "File", "outputBinding": {"glob": "result.txt"}}},
        } | keys
        steps[name] = {"run": document, "in": {}, "out": ["result"]}
        outputs[f"{name}_result"] = {"type": "File", "outputSource": f"{name}/result"}
    document = {"cwlVersion": "v1.2", "class": "Workflow", "inputs": {}, "outputs": outputs, "steps": steps}
    (folder / "tiny.cwl").write_text(json.dumps(document), encoding="utf-8")
    (folder / "job.yml").write_text(json.dumps(job or {}), encoding="utf-8")
    (folder / "streamflow.yml").write_text(file, encoding="utf-8")


def _main(
    folder: Path, arguments: Sequence[str], environment: dict[str, str], preload: Path | None, short_intervals: bool
) -> None:
    for name in ("MEDWEAVE_RUN_ID", "MEDWEAVE_RUN_TOKEN", "MEDWEAVE_RUNS_DIR", "MEDWEAVE_KEEP_WORK"):
        os.environ.pop(name, None)
    os.environ |= {"MEDWEAVE_REUSE": "0"} | environment  # most tests look at commands that run
    # Who runs the tests may ignore it (nohup); a program of a terminal does not.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.chdir(folder)
    for name, number in (("stdout.txt", 1), ("stderr.txt", 2)):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    from streamflow.log_handler import defaultStreamHandler
    from streamflow.main import main

    defaultStreamHandler.setStream(sys.stderr)
    if short_intervals:
        intervals.shorten()
    if preload is not None:
        runpy.run_path(str(preload))
    code = 1
    with contextlib.suppress(KeyboardInterrupt):
        code = main(["run", "--quiet", *arguments, "--outdir", "results", "streamflow.yml"])
    sys.stdout.flush()
    sys.exit(code)
