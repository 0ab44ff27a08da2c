"""Slurm pushes jobs out, puts them back or stops them for a while: the outputs of a step are those of one start, a whole one.

Each case is tried with both of the controller's defaults for jobs without the option (JobRequeue): medweave's jobs
always set the option.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.engine import Run
from support.slurm_control import configured
from support.slurm_runs import begin, resources, write
from support.testbed import Sites, unique, wait_for

WORK_S = 20
SOON = {"AuthInfo": "cred_expire=20"}  # a job that was put back starts after so long, s; 120 otherwise
READY = 'echo \'medweave-progress {"unit":"case","done":1,"total":2}\' >&2'


class Watched:
    """A run of one step, which records its starts next to its output folder."""

    def __init__(self, folder: Path, testbed: Sites, node: str, *, requeue: bool) -> None:
        folder.mkdir()
        self.folder, self.testbed = folder, testbed
        self.starts = f"{testbed.layout.hpc}/scratch/{unique('starts')}"
        script = f"""
mine=$(cat /proc/sys/kernel/random/uuid)
ls -A | sed "s/^/$mine found /" >> {self.starts}; echo "$mine started" >> {self.starts}
echo half > half-$mine; echo "$mine" > result.txt; {READY}
i=0; while [ $i -lt {WORK_S} ]; do sleep 1; i=$((i+1)); echo $i > at-$mine; done
echo "$mine" >> result.txt; echo "$mine ended" >> {self.starts}
"""
        outputs = {
            "result": {"type": "File", "outputBinding": {"glob": "result.txt"}},
            "all": {"type": "File[]", "outputBinding": {"glob": ["half-*", "at-*"]}},
        }
        service = {"requeue": requeue, "time": "00:10:00", "options": [f"--nodelist={node}"]}
        write(folder, {"first": (script, resources() | {"outputs": outputs})}, service=service)
        document = (folder / "tiny.cwl").read_text().replace(
            '"outputs": {"first_result"', '"outputs": {"all": {"type": "File[]", "outputSource": "first/all"}, "first_result"'
        )  # fmt: skip
        (folder / "tiny.cwl").write_text(document.replace('"out": ["result"]', '"out": ["result", "all"]'))
        self.run: Run = begin(folder, testbed)

    def wait_for_job(self) -> str:
        """Wait until its job works; return the job's id."""
        self.run.wait_for_line("case 1/2", 120)
        match = re.search(r"note: Slurm job (\d+)", self.run.stderr)
        assert match, self.run.stderr
        return match[1]

    def lines(self, word: str) -> list[str]:
        """Return the starts that wrote this word, in order."""
        rows = [line.split() for line in self.testbed.hpc("cat", self.starts).stdout.splitlines()]
        return [row[0] for row in rows if row[1] == word]

    def assert_whole(self, starts: int) -> None:
        """Assert success: its outputs are from the last start alone, which began in an empty folder and completed."""
        assert self.run.exit_code == 0, self.run.stderr
        begun = self.lines("started")
        assert (len(begun), self.lines("ended"), self.lines("found")) == (starts, begun[-1:], [])
        results = self.folder / "results"
        assert (results / "result.txt").read_text().split() == [begun[-1]] * 2
        assert sorted(path.name for path in results.iterdir()) == sorted(
            [f"at-{begun[-1]}", f"half-{begun[-1]}", "result.txt"]
        )
        assert (results / f"at-{begun[-1]}").read_text() == f"{WORK_S}\n"
        (job,) = self.run.of_type("job.ended")
        assert (job["data"]["state"], job["data"]["attempt"]) == ("completed", 1)

    def assert_pushed_out(self) -> None:
        """Assert that it failed with the right cause, and no output was collected."""
        assert self.run.exit_code == 1, self.run.stderr
        assert (len(self.lines("started")), self.lines("ended")) == (1, [])
        assert "was preempted" in self.run.stderr
        (job,) = self.run.of_type("job.ended")
        assert (job["data"]["state"], job["data"]["site"]["failure"]) == ("failed", "Preempted")
        (reaction,) = self.run.of_type("job.reaction")
        assert (reaction["data"]["failure"], reaction["data"]["again"]) == ("Preempted", False)
        assert not (self.folder / "results" / "result.txt").exists()


@pytest.fixture(autouse=True)
def clean(testbed: Sites) -> Iterator[None]:
    """Empty the folder of the tests before each test."""
    scratch = f"{testbed.layout.hpc}/scratch"
    testbed.hpc("sh", "-c", f"rm -rf {scratch}/tests {scratch}/starts-*")
    yield
    testbed.hpc("sh", "-c", f"rm -rf {scratch}/starts-*")


@pytest.fixture
def pair(tmp_path: Path, testbed: Sites) -> Any:
    """Begin two runs and wait until the jobs of both work: one whose service wants second starts by Slurm, and one as usual."""

    def both() -> tuple[Watched, Watched, list[str]]:
        usual = Watched(tmp_path / "usual", testbed, "n1", requeue=False)
        again = Watched(tmp_path / "again", testbed, "n2", requeue=True)
        return usual, again, [usual.wait_for_job(), again.wait_for_job()]

    return both


def push_out(testbed: Sites, seconds: int) -> str:
    """Submit a job of higher priority that needs all cores of both nodes; return its id."""
    words = ("--partition=urgent", "--nodes=2", "--ntasks-per-node=2", "--mem=1000M", "--output=/dev/null")
    return testbed.submitted(*words, script=f"sleep {seconds}")


def job_field(testbed: Sites, job_id: str, key: str) -> str:
    """Return a field of a job from the controller."""
    description = testbed.hpc("scontrol", "show", "job", "--oneliner", job_id).stdout
    match = re.search(rf"(?:^|\s){key}=(\S*)", description)
    return match[1] if match else description


def accounted(testbed: Sites, job_id: str, field: str = "State") -> list[str]:
    """Return a field of each start of a job in the accounting."""
    words = ("-X", "--noheader", "--parsable2", "--duplicates", f"--jobs={job_id}", f"--format={field}")
    return testbed.hpc("sacct", *words).stdout.split()


def ended_all(*runs: Watched) -> None:
    for watched in runs:
        watched.run.wait(300)


@pytest.mark.parametrize("by_default", ["0", "1"])
def test_cancel_is_a_typed_failure_also_of_a_job_that_may_start_again(
    testbed: Sites, pair: Any, by_default: str
) -> None:
    with configured(testbed, "CANCEL", JobRequeue=by_default):
        usual, again, ids = pair()
        push_out(testbed, 3)
        ended_all(usual, again)
        for watched, job_id in zip((usual, again), ids, strict=True):
            assert accounted(testbed, job_id) == ["PREEMPTED"]
            watched.assert_pushed_out()


@pytest.mark.long
@pytest.mark.parametrize("by_default", ["0", "1"])
def test_requeue_starts_only_what_its_service_lets_start_again(testbed: Sites, pair: Any, by_default: str) -> None:
    with configured(testbed, "REQUEUE", JobRequeue=by_default, **SOON):
        usual, again, (first, second) = pair()
        push_out(testbed, 3)
        ended_all(usual, again)
        assert accounted(testbed, first) == ["PREEMPTED"]
        assert job_field(testbed, second, "Restarts") == "1"
        assert accounted(testbed, second) == ["PREEMPTED", "COMPLETED"]
    usual.assert_pushed_out()
    again.assert_whole(starts=2)
    assert again.run.stderr.count("Slurm requeued the job; it will restart") == 1


@pytest.mark.long
@pytest.mark.parametrize("by_default", ["0", "1"])
def test_suspended_job_is_waited_for(testbed: Sites, pair: Any, by_default: str) -> None:
    with configured(testbed, "SUSPEND", JobRequeue=by_default):
        usual, again, ids = pair()
        push_out(testbed, 20)
        for job_id in ids:
            wait_for(lambda job_id=job_id: job_field(testbed, job_id, "JobState") == "SUSPENDED" or None, "SUSPENDED")
        assert usual.run.process.exitcode is None
        ended_all(usual, again)
        for watched, job_id in zip((usual, again), ids, strict=True):
            assert job_field(testbed, job_id, "Restarts") == "0"
            assert accounted(testbed, job_id) == ["COMPLETED"]
            assert accounted(testbed, job_id, "Suspended") != ["00:00:00"]
            watched.assert_whole(starts=1)
            assert watched.run.stderr.count("Slurm suspended the job (SUSPENDED)") == 1


@pytest.mark.long
@pytest.mark.parametrize("by_default", ["0", "1"])
def test_scontrol_requeue_starts_only_what_its_service_lets_start_again(
    testbed: Sites, pair: Any, by_default: str
) -> None:
    with configured(testbed, "CANCEL", JobRequeue=by_default, **SOON):
        usual, again, (first, second) = pair()
        refused = testbed.hpc("scontrol", "requeue", first)
        assert refused.returncode != 0, "Slurm itself takes --no-requeue as a word against this"
        assert testbed.hpc("scontrol", "requeue", second).returncode == 0
        ended_all(usual, again)
        assert [job_field(testbed, job_id, "Restarts") for job_id in (first, second)] == ["0", "1"]
        assert accounted(testbed, first) == ["COMPLETED"]
        assert accounted(testbed, second)[-1:] == ["COMPLETED"]
    usual.assert_whole(starts=1)
    again.assert_whole(starts=2)
