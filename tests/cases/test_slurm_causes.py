"""Jobs of Slurm whose cause is known where they are submitted or started, and is reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from medweave.runs.follow.summary import RunInvocation, summary
from medweave_core.runlog.history import read_log
from medweave_core.runlog.run_state import RunState, fold
from support.engine import Run, start, write_workflow
from support.engine_file import engine_file, ssh_site
from support.fake_cluster import Cluster, fake_cluster

Seen = Callable[[object], None]
GOOD = "echo done > result.txt"
GANG = {"hints": {"urn:medweave:cwl#Gang": {}}}
SRUN_ERROR = "srun: fatal: SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU, and SLURM_MEM_PER_NODE are mutually exclusive."
pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with fake_cluster(tmp_path) as made:
        yield made


def shown(ended: Run) -> str:
    """Return what `medweave run` shows at the end."""
    state = RunState()
    for event in read_log(ended.record / "events.jsonl"):
        fold(state, event)
    return "\n".join(summary(state, RunInvocation(ended.record), {}))


@pytest.mark.case(
    "cause-hidden", expected="sbatch's refusal is the cause in `medweave run`, the log and the engine's words"
)
def test_a_refused_submission_is_the_cause(cluster: Cluster, seen: Seen) -> None:
    cluster.knob("sbatch-refuses", "always")
    ended = cluster.go({"a": GOOD})
    (job,) = ended.of_type("job.ended")
    text = shown(ended)
    seen(text.splitlines()[1:4])
    assert ended.exit_code == 1
    assert "Job violates accounting/QOS policy" in job["data"]["message"]
    assert "Slurm refuses the job of /a/0" in text
    assert "outputs are not complete" not in text + ended.stderr


@pytest.mark.case(
    "driver-inside-slurm-job", expected="the variables of the driver's job stay there; srun's message is the cause"
)
def test_node_group_that_srun_does_not_start_reports_the_reason(cluster: Cluster, seen: Seen) -> None:
    programs = cluster.folder / "bin"
    programs.mkdir()
    (programs / "srun").write_text(f'#!/bin/sh\nenv > {cluster.folder}/srun.env\necho "{SRUN_ERROR}" >&2\nexit 1\n')
    (programs / "srun").chmod(0o755)
    cluster.server.environment["PATH"] = f"{programs}:{cluster.server.environment['PATH']}"
    cluster.server.environment |= {"SLURM_MEM_PER_CPU": "700", "SBATCH_MEM_PER_CPU": "700", "SRUN_CPUS_PER_TASK": "2"}
    hpc = {"type": "medweave.slurm", "wraps": "login", "config": dict(cluster.config)}
    login = ssh_site(cluster.server.port, f"{cluster.folder}/site")
    file = engine_file({"login": login, "hpc": hpc}, {"/": {"deployment": "hpc", "locations": 2}})
    write_workflow(cluster.folder, {"a": (GOOD, GANG)}, file=file)
    ended = start(cluster.folder).wait(90)
    seen(next((line for line in ended.stderr.splitlines() if "srun" in line), "srun's message is lost"))
    assert ended.exit_code == 1
    assert SRUN_ERROR in ended.stderr
    assert SRUN_ERROR in shown(ended)
    variables = (cluster.folder / "srun.env").read_text()
    assert "SLURM_JOB_ID=100" in variables
    assert not any(name in variables for name in ("MEM_PER_CPU", "SRUN_CPUS_PER_TASK"))
