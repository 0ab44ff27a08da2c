"""`medweave run`: start `streamflow run` and show its progress from the event log until it ends."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medweave.placement.bind import add_place_options, bind
from medweave.project.console import put
from medweave.project.files import write_atomically
from medweave.project.run_files import file_of_run
from medweave.project.sites import find_site, read_site
from medweave.project.workflows import read_pipeline
from medweave.runs.follow.displays import JsonDisplay, RunDisplay, terminal_display
from medweave.runs.follow.engine_process import EngineProcess, start, workflow_of
from medweave.runs.follow.formatting import size
from medweave.runs.follow.summary import RunInvocation, summary, unfinished_summary
from medweave.runs.follow.watcher import PAUSE_S, RunWatcher
from medweave.runs.listing import planned_steps
from medweave.runs.run_file import check_documents, check_file, check_variables
from medweave_connectors.policy.pseudonym_home import Home
from medweave_core.contracts import codec
from medweave_core.contracts.events import Event, step_label
from medweave_core.documents.line_numbers import shown
from medweave_core.documents.yaml_documents import parse_mapping
from medweave_core.errors import StepError, StorageError, UsageError, UserInputError
from medweave_core.runlog.history import LOG_FILE, Run, read_run
from medweave_core.runlog.log_reader import FollowedLog
from medweave_core.runlog.log_state import driver_lives
from medweave_core.runlog.run_ownership import claim_folder, new_run_id
from medweave_core.runlog.run_state import RunState

DEFAULT_FILE = Path("streamflow.yml")
ENGINE_FAILED = 1  # the engine's exit code for every error
INTERRUPTED = 128 + signal.SIGINT
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NUM_ENGINE_LINES = 15
DESCRIPTION = """\
Run a workflow at a site with StreamFlow and show its progress: the state and place of each step, the number of
finished jobs, and transfers. The progress goes to standard error: a live display on a terminal, one line per
change elsewhere (also with NO_COLOR or TERM=dumb). The CWL output object goes to standard output, unless that is
a terminal. The run's folder is runs/<run-id>.

--resume RUN continues a run that failed, was canceled or lost its driver. Finished steps are cache hits while
their outputs are stored. Jobs that a killed driver left in Slurm or Kubernetes (`mode: job`) are re-attached, so
nothing is submitted twice.

Ctrl-C, TERM or HUP cancels the run and cleans up. A second Ctrl-C exits at once and lists the unfinished jobs."""
EPILOG = """\
examples:
  medweave run workflows/lung-nodule-segmentation/train.cwl --site laptop --job my-job.yml --outdir results
  medweave run --file streamflow.yml --outdir results
  medweave run --resume runs/lung-20260827-101500-3f2a

exit codes:
  0         completed
  1         failed
  2         wrong usage
  3         partial results delivered
  65        nothing ran: invalid or missing file, or the site differs from its site file
  69        StreamFlow or a library is missing
  74        reading or writing failed
  129, 143  canceled by HUP or TERM
  130       canceled by Ctrl-C"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `medweave run`."""
    add_place_options(parser, required=False)
    parser.add_argument(
        "--file", type=Path, default=None, metavar="FILE",
        help="StreamFlow file to run, instead of WORKFLOW and --site (default: streamflow.yml)",
    )  # fmt: skip
    parser.add_argument(
        "--resume", type=Path, default=None, metavar="RUN",
        help="run folder (runs/<run-id>) of an earlier run to resume; add --file if its StreamFlow file is not "
            "streamflow.yml",
    )  # fmt: skip
    parser.add_argument(
        "--outdir",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="folder for the outputs (default: the current folder)",
    )
    parser.add_argument(
        "--json", action="store_true",
        help="print the events, one JSON object per line (schema: `medweave schema event`); the last event has "
            "the final state",
    )  # fmt: skip


def run(namespace: argparse.Namespace, *, to_a_log: bool = False) -> int:
    """Start the engine, show the run and its summary, and return the engine's exit code.

    Args:
        to_a_log: the output is stored in a log, so text that may identify patients is omitted.
    """
    if namespace.outdir.exists() and not namespace.outdir.is_dir():
        raise UsageError(
            f"--outdir {shown(namespace.outdir)}: not a folder.", seen="a file", expected="a folder for the outputs",
            do="choose another path",
        )  # fmt: skip
    file, folder, planned = _prepare(namespace, hides=to_a_log)
    display: RunDisplay = JsonDisplay() if namespace.json else terminal_display()
    if namespace.resume is not None:
        display.say(f"medweave: resuming run {namespace.resume.name}")
    engine = start(file, folder, namespace.outdir)
    invocation = RunInvocation(engine.folder, namespace.file, namespace.outdir)
    shown_run = ShownRun(engine=engine, display=display, state=RunState(planned=planned), invocation=invocation)
    try:
        with _signals(shown_run.signals.append):
            shown_run.until_end()
    finally:
        display.close()
        if engine.exit_code is None:  # an error in this process: the engine still runs
            engine.signal(signal.SIGTERM)
    return _finish(shown_run, as_json=namespace.json, to_a_log=to_a_log)


@dataclass(slots=True, kw_only=True)
class ShownRun:
    """A run of this process's engine, and its display.

    Attributes:
        invocation: what a command that resumes the run must name.
        signals: signals that this process has received, in order.
        num_passed: how many of them were forwarded to the engine.
        unfinished_lines: lines about jobs that may still run; None unless the user exited before the end.
    """

    engine: EngineProcess
    display: RunDisplay
    state: RunState
    invocation: RunInvocation
    signals: list[signal.Signals] = field(default_factory=list)
    num_passed: int = 0
    unfinished_lines: list[str] | None = None

    def until_end(self) -> None:
        """Show the run until the engine exits or the user does. An error of the display does not end the run."""
        watcher: RunWatcher | None = RunWatcher(
            log=FollowedLog(self.engine.log), display=self.display, state=self.state
        )
        while True:
            over = self.engine.exit_code is not None  # checked first, so that its last lines are read below
            try:
                if watcher is not None:
                    watcher.update()
            except Exception as error:
                watcher = None
                self.display.say(
                    "medweave: the display stopped after an error; the run continues.\n  seen:     "
                    f"{error if isinstance(error, StepError) else type(error).__name__}\n  do:       medweave "
                    f"attach {shown(self.engine.folder)}"
                )
            if over or self.unfinished_lines is not None:
                return
            self._pass_signals()
            time.sleep(PAUSE_S)

    def _pass_signals(self) -> None:
        for number in self.signals[self.num_passed :]:
            self.num_passed += 1
            if self.num_passed == 1:
                self.display.say(
                    f"medweave: {number.name} received: canceling the run and cleaning up (send it again to "
                    "exit at once)"
                )
                self.engine.signal(number)
            elif self.unfinished_lines is None:
                self.unfinished_lines = list(unfinished_summary(self.state, self.invocation))
                self.engine.end_at_once()


def _prepare(namespace: argparse.Namespace, *, hides: bool) -> tuple[Path, Path, tuple[str, ...]]:
    """Return the file to run, the folder of the run, and the labels of the workflow's steps."""
    named = os.environ.get("MEDWEAVE_RUNS_DIR")
    if namespace.resume is not None:
        return _prepare_resumed(namespace, hides=hides)
    if namespace.workflow is None:
        if namespace.site is not None or namespace.job is not None or namespace.role:
            raise UsageError(
                "--site, --job and --role require WORKFLOW.", expected="medweave run WORKFLOW --site SITE, or --file FILE",
                do="add the path of the workflow",
            )  # fmt: skip
        file = (namespace.file or DEFAULT_FILE).absolute()
        folder = Path(named or file.parent / "runs").absolute() / new_run_id(workflow_of(file))
        check_file(file, hides=hides)
        planned = planned_steps(file)
        claim_folder(folder)
        return file, folder, planned
    if namespace.file is not None or namespace.site is None:
        raise UsageError(
            "give either WORKFLOW with --site, or --file.",
            expected="medweave run WORKFLOW --site SITE, or medweave run --file FILE", do="choose one of the two forms",
        )  # fmt: skip
    pipeline = read_pipeline(Path(os.path.realpath(namespace.workflow)))
    folder = Path(named or "runs").absolute() / new_run_id(pipeline.name)
    file = folder / DEFAULT_FILE.name
    job, link = namespace.job, None
    home = Home(folder.parent)
    if job is not None:
        link = home.link_of(str(job.resolve()), "job", what="--job")
    text = bind(namespace.workflow, namespace.site, file, job, namespace.role, job_link=link)
    site = read_site(find_site(namespace.site, pipeline.path.parent))
    bound = parse_mapping(text, file, "bound file")
    check_variables(site.path, {name: site.deployments[name] for name in bound["deployments"]})
    check_documents(bound, file, job=job, hides=hides)
    home.make()
    claim_folder(folder)
    write_atomically(file, text)
    return file, folder, tuple(step_label(step.path) for step in pipeline.steps)


def _prepare_resumed(namespace: argparse.Namespace, *, hides: bool) -> tuple[Path, Path, tuple[str, ...]]:
    """Return the file, folder and step labels of a run that resumes an earlier one.

    Raises:
        UserInputError: there is no such run, it is running or completed, or the file is of another workflow.
    """
    if namespace.workflow is not None or namespace.site is not None or namespace.job is not None or namespace.role:
        raise UsageError(
            "--resume cannot be combined with WORKFLOW, --site, --job or --role.",
            expected="medweave run --resume runs/<run-id>", do="remove them: the resumed run uses those of the earlier run",
        )  # fmt: skip
    earlier = namespace.resume.absolute()
    record = read_run(earlier)
    file = file_of_run(record, namespace.file).absolute()
    check_resumable(record, workflow_of(file), shown(file))
    check_file(file, hides=hides)
    folder = earlier.parent / new_run_id(workflow_of(file))
    claim_folder(folder)
    if file.parent == earlier:  # bound for that run: its relative paths hold from a neighbor folder, too
        write_atomically(folder / file.name, file.read_text(encoding="utf-8"))
        file = folder / file.name
    return file, folder, planned_steps(file)


def check_resumable(record: Run, workflow: str, file: str) -> None:
    """Refuse a run that cannot be resumed.

    Args:
        workflow, file: name of the workflow in the file that is to be started, and the file.

    Raises:
        UserInputError: the run is running or completed, or it is of another workflow.
    """
    seen, do = f"state {record.state}", ""
    if driver_lives(record.folder / LOG_FILE):
        seen = f"the driver (process {record.facts.get('pid')}) is running"
        do = f"wait until the run ends, or cancel it: medweave cancel {record.run_id}"
    elif record.state == "completed":
        do = f"to repeat a completed run, start its file: medweave run --file {file}"
    elif record.workflow != workflow:
        seen, do = (
            f"workflow '{record.workflow}', and '{workflow}' in {file}",
            "name the StreamFlow file of this run with --file",
        )
    if do:
        raise UserInputError(
            f"run {record.run_id} cannot be resumed.",
            seen=seen, expected="a run of the same workflow that ended without completing", do=do,
        )  # fmt: skip


@contextmanager
def _signals(take: Callable[[signal.Signals], None]) -> Iterator[None]:
    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()  # nohup
    before = {
        number: signal.signal(number, lambda received, _: take(signal.Signals(received)))
        for number in SIGNALS
        if number not in ignored
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _finish(shown_run: ShownRun, *, as_json: bool, to_a_log: bool) -> int:
    """Print the summary of the run and return the exit code."""
    engine, state, say = shown_run.engine, shown_run.state, shown_run.display.say
    code = INTERRUPTED if shown_run.unfinished_lines is not None else engine.exit_code or 0
    if code == ENGINE_FAILED and (state.began is None or state.refused) and not shown_run.signals:
        code = UserInputError.exit_code
    if as_json and state.end is None:
        put(json.dumps(codec.to_json(_end_event(state, engine.folder.name, code)), separators=(",", ":")), sys.stdout)
    if shown_run.unfinished_lines is not None:
        lines = shown_run.unfinished_lines
    elif state.began is None:
        messages = [] if shown_run.signals or to_a_log else engine.last_messages(NUM_ENGINE_LINES)
        messages = messages or list(_disk_lines(engine, code))
        lines = [*messages, f"medweave: StreamFlow exited with code {engine.exit_code} before the run started"]
    else:
        printed = engine.printed()
        lines = list(summary(state, shown_run.invocation, _outputs(printed), to_a_log=to_a_log))
        if code and not state.failures() and not state.message and state.end != "cancelled" and not to_a_log:
            lines[1:1] = [f"    {line}" for line in engine.last_messages(NUM_ENGINE_LINES) or _disk_lines(engine, code)]
        if not as_json and printed and not to_a_log and not sys.stdout.isatty():
            put(printed.rstrip("\n"), sys.stdout)
    for line in lines:
        say(line)
    engine.remove_empty_folder()
    return code


def _disk_lines(engine: EngineProcess, code: int) -> Iterator[str]:
    """Yield the lines for an engine that could not write to disk, since its messages may be lost."""
    if code == StorageError.exit_code:
        free = shutil.disk_usage(engine.folder if engine.folder.exists() else engine.folder.parent).free
        yield "medweave: cannot write a file of the run on this machine."
        yield f"  seen:     exit code {code} of StreamFlow; {size(free)} free on the disk of the run folder"
        yield "  do:       free disk space, then run the same command; finished steps are cache hits"


def _end_event(state: RunState, run_id: str, code: int) -> Event:
    """Return the last event of a run whose engine was killed before it wrote one."""
    failed = sorted(job.name for job in state.failures())
    now = datetime.datetime.now(datetime.UTC)
    data = {"state": "unknown", "seconds": round(state.at(now), 3), "failed": failed, "exit_code": code}
    return Event(
        sequence=state.sequence + 1, time=now.isoformat(timespec="milliseconds"), run_id=run_id, type="run.ended", data=data
    )  # fmt: skip


def _outputs(printed: str) -> Mapping[str, Any]:
    try:
        value = json.loads(printed)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
