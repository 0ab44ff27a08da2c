"""The cause that is known is the cause that is reported: of the engine, of a connector, of the driver's own disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from medweave.runs.follow.summary import RunInvocation, summary
from medweave.runs.ps import describe_run
from medweave_core.runlog.history import read_log
from medweave_core.runlog.run_state import RunState, fold
from support.engine import Run, run, write_workflow

Seen = Callable[[object], None]
GOOD = "echo done > result.txt"
GLOB = {"outputs": {"result": {"type": "File", "outputBinding": {"glob": ["*.nii.gz", "masks/*.mha"]}}}}
OUTSIDE = {
    "requirements": [
        {"class": "InitialWorkDirRequirement", "listing": [{"entryname": "../outside.txt", "entry": "text"}]}
    ]
}
TYPE = {"outputs": {"result": {"type": "File", "outputBinding": {"glob": "folder"}}}}


def shown(ended: Run) -> list[str]:
    """Return what `medweave run` shows at the end."""
    state = RunState()
    for event in read_log(ended.record / "events.jsonl"):
        fold(state, event)
    return list(summary(state, RunInvocation(ended.record), {}))


@pytest.mark.slow
@pytest.mark.case("cause-hidden", expected="the engine's error is the cause, with the output and its pattern")
@pytest.mark.parametrize(
    ("script", "keys", "words"),
    [
        pytest.param(GOOD, GLOB, ("output 'result' could not be collected", "'*.nii.gz', 'masks/*.mha'"), id="glob"),
        pytest.param("mkdir folder", TYPE, ("output 'result' could not be collected", "'folder'"), id="type"),
        pytest.param(GOOD, OUTSIDE, ("Entryname cannot be outside the job's output directory",), id="entryname"),
    ],
)
def test_the_engines_error_is_the_cause(
    tmp_path: Path, seen: Seen, script: str, keys: dict[str, Any], words: tuple[str, ...]
) -> None:
    write_workflow(tmp_path, {"a": (script, keys)})
    ended = run(tmp_path)
    (job,) = ended.of_type("job.ended")
    text = "\n".join(shown(ended))
    seen(job["data"].get("message", "").splitlines()[:2])
    assert ended.exit_code == 1
    assert job["data"]["state"] == "failed"
    for word in words:
        assert word in job["data"]["message"]
        assert word in text
        assert word in ended.stderr
    assert "its outputs are not complete" not in text or job["data"]["exit_code"] == 0
    assert words[0] in describe_run(ended.record)["cause"]


FULL_LOG = """
import errno, os
from medweave_connectors.runlog import whole_lines
class Full:
    fstat, ftruncate, fsync = os.fstat, os.ftruncate, os.fsync
    lines = 0
    @classmethod
    def write(cls, descriptor, line):
        cls.lines += 1
        if cls.lines > 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(descriptor, line)
whole_lines.os = Full
"""
FULL_DATABASE = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, resource.RLIM_INFINITY))
"""
SLOW = """
for number in 1 2 3 4 5 6 7 8 9; do echo "a: note: $number" >&2; sleep 0.1; done
sleep 100; echo done > result.txt
"""


@pytest.mark.slow
@pytest.mark.case(
    "progress-infinity",
    expected="a full disk of the driver ends the run with that cause and exit code 74; no job fails",
)
@pytest.mark.parametrize("preload", [FULL_LOG, FULL_DATABASE], ids=["event-log", "database"])
def test_a_full_disk_of_the_driver_ends_the_run(tmp_path: Path, seen: Seen, preload: str) -> None:
    (tmp_path / "preload.py").write_text(preload)
    write_workflow(tmp_path, {"a": SLOW, "b": SLOW})
    ended = run(tmp_path, preload=tmp_path / "preload.py")
    seen((ended.exit_code, next((line for line in ended.stderr.splitlines() if "the run ends" in line), "")))
    assert ended.exit_code == 74, ended.stderr
    assert "could not be written" in ended.stderr
    assert "FAILED after" not in ended.stderr
    assert not any(event["data"]["state"] == "failed" for event in ended.of_type("job.ended"))


@pytest.mark.slow
@pytest.mark.case(
    "also seen: successCodes", expected="an exit code that the tool calls a success is no failure and no reaction"
)
def test_an_exit_code_among_success_codes_is_a_success(tmp_path: Path, seen: Seen) -> None:
    write_workflow(tmp_path, {"a": (f"{GOOD}; exit 3", {"successCodes": [0, 3]})})
    ended = run(tmp_path)
    (job,) = ended.of_type("job.ended")
    seen((ended.exit_code, job["data"]["state"], [event["data"]["text"] for event in ended.of_type("job.reaction")]))
    assert ended.exit_code == 0, ended.stderr
    assert (job["data"]["state"], job["data"]["exit_code"]) == ("completed", 3)
    assert "message" not in job["data"]
    assert not ended.of_type("job.reaction")
    assert "not retried" not in ended.stderr
