"""Many jobs of one scatter, and requests of a job, by the real engine over real ssh and a fake Slurm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.engine import start, write_workflow
from support.fake_cluster import NEVER_AGAIN, Cluster, fake_cluster

AT_ONCE, JOBS = 8, 48
# Without their pace, questions would come as quickly as they are answered.
OFTEN = "from medweave_connectors.sites.slurm import watch\nwatch.SHORTEST_S, watch.PER_SECOND = 0.1, 2 / 3\n"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with fake_cluster(tmp_path) as made:
        yield made


@pytest.mark.slow
def test_many_jobs_share_one_query_and_a_few_are_submitted_at_once(cluster: Cluster) -> None:
    cluster.config = {"reactions": NEVER_AGAIN, "maxConcurrentJobs": AT_ONCE}
    tool = {"class": "CommandLineTool", "baseCommand": "true", "inputs": {"n": {"type": "int"}}, "outputs": {}}
    document = {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "requirements": {"ScatterFeatureRequirement": {}},
        "inputs": {"n": "int[]"},
        "outputs": {},
        "steps": {"many": {"run": tool, "in": {"n": "n"}, "scatter": "n", "out": []}},
    }
    write_workflow(cluster.folder, {}, job={"n": list(range(JOBS))}, file=cluster.file)
    (cluster.folder / "tiny.cwl").write_text(json.dumps(document))
    (cluster.folder / "often.py").write_text(OFTEN)
    ended = start(cluster.folder, preload=cluster.folder / "often.py").wait(300)
    assert ended.exit_code == 0, ended.stderr
    assert (len(cluster.submitted), len(ended.of_type("job.ended"))) == (JOBS, JOBS)
    alive = [int(line) for line in (cluster.folder / "slurm" / "alive").read_text().split()]
    assert 1 < max(alive) <= AT_ONCE
    times = [
        float(line.split()[1])
        for line in (cluster.folder / "slurm" / "queries").read_text().splitlines()
        if "squeue" in line
    ]
    assert all(sum(start <= time <= start + 29 for time in times) <= 30 for start in times)
    # Final states are queried together, and the controller only about the few jobs that accounting does not call COMPLETED.
    words = (cluster.folder / "slurm" / "queries").read_text().split()
    assert words.count("sacct") < JOBS
    assert words.count("scontrol") < JOBS / 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("resources", "option"),
    [
        ({"coresMax": 2, "ramMax": 300}, "--cpus-per-task=2 --mem=300M"),
        ({"coresMin": 1, "coresMax": 2, "ramMin": 200, "ramMax": 300}, "--cpus-per-task=1 --mem=200M"),
    ],
)
def test_the_max_of_a_resource_counts_if_it_has_no_min(
    cluster: Cluster, resources: dict[str, int], option: str
) -> None:
    ended = cluster.go({"first": ("echo done > result.txt", {"requirements": {"ResourceRequirement": resources}})})
    assert ended.exit_code == 0, ended.stderr
    assert f" {option} " in cluster.submitted[0]
