"""Jobs that a real cluster or its login node refuses, or would never run: the error names the setting, and the queue is empty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.slurm_runs import go, jobs_of, resources, write
from support.testbed import Sites

GOOD = "echo done > result.txt"


@pytest.mark.parametrize(
    ("service", "setting", "seen", "expected"),
    [
        ({"partition": "gpu"}, "partition", "gpu", "one of normal, urgent"),
        ({"account": "nouser"}, "account", "nouser: allocation failure: Invalid account", "one of research"),
        ({"qos": "gold"}, "qos", "gold", "one of normal"),
        ({"constraint": "a100"}, "constraint", "a100: allocation failure: Invalid feature", "Slurm lists none"),
        ({"reservation": "r"}, "reservation", "r: allocation failure: Requested reservation is invalid", "none"),
        ({"gpusPerNode": 4, "gres": "tpu"}, "gres", "tpu: sbatch: error: Invalid generic resource", "one of gpu"),
        ({"gpusPerNode": 4, "gres": "gpu:a100"}, "gres", "Requested node configuration is not available", "one of gpu"),
        ({"time": "2-00:00:00"}, "time", "2-00:00:00", "at most 1440 min"),
        ({"options": ["--nowhere=n1"]}, "options", "--nowhere=n1: sbatch: unrecognized option", "none"),
    ],
)
def test_missing_resource_is_reported_before_submission(
    tmp_path: Path, testbed: Sites, service: dict[str, Any], setting: str, seen: str, expected: str
) -> None:
    write(tmp_path, {"first": (GOOD, resources())}, service=service)
    ended = go(tmp_path, testbed)
    assert ended.exit_code == 1
    assert ended.of_type("run.ended")[0]["data"]["seconds"] < 10
    assert f"deployments.hpc.config.services.usual.{setting}: " in ended.stderr
    assert seen in ended.stderr
    assert expected in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not ended.of_type("job.started")
    assert jobs_of(testbed, ended.record.name) == []


@pytest.mark.parametrize("keys", [resources(cores=64), resources(memory_mib=10**6)])
def test_a_job_that_no_node_can_hold_is_refused_before_it_is_submitted(
    tmp_path: Path, testbed: Sites, keys: dict[str, Any]
) -> None:
    write(tmp_path, {"first": (GOOD, keys)})
    ended = go(tmp_path, testbed)
    assert ended.exit_code == 1
    assert (
        "deployments.hpc.config.services.usual.partition: no node has the resources that the step requests"
        in ended.stderr
    )
    assert "nodes with 2 cores and 8000 MiB" in ended.stderr
    assert jobs_of(testbed, ended.record.name) == []


def test_a_job_that_would_wait_for_ever_is_an_error(tmp_path: Path, testbed: Sites) -> None:
    write(tmp_path, {"first": (GOOD, resources(ToolTimeLimit={"timelimit": 172800}))})  # the partition grants a day
    ended = go(tmp_path, testbed)
    assert ended.exit_code == 1
    assert "deployments.hpc.config.services.usual.time: Slurm job" in ended.stderr
    assert "reason PartitionTimeLimit" in ended.stderr
    assert [state for _, state in jobs_of(testbed, ended.record.name)] == ["CANCELLED"]


def test_a_gang_without_its_hint_is_refused(tmp_path: Path, testbed: Sites) -> None:
    write(tmp_path, {"first": (GOOD, resources())}, target={"locations": 2})
    ended = go(tmp_path, testbed)
    assert ended.exit_code == 1
    assert "a step that is not a node group is bound to several nodes" in ended.stderr


def test_a_key_that_is_refused_ends_the_run_within_10_s(tmp_path: Path, testbed: Sites) -> None:
    import asyncssh

    asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(tmp_path / "strange"))
    write(tmp_path, {"first": (GOOD, resources())}, login={"sshKey": "strange"})
    ended = go(tmp_path, testbed)
    assert ended.exit_code == 1
    assert ended.of_type("run.ended")[0]["data"]["seconds"] < 10
    assert "deployments.login.config.sshKey: " in ended.stderr


def test_a_strange_host_key_is_refused(tmp_path: Path, testbed: Sites) -> None:
    write(tmp_path, {"first": (GOOD, resources())}, login={"knownHosts": "others"})
    (tmp_path / "others").touch()
    ended = go(tmp_path, testbed)
    assert ended.exit_code == 1
    assert "deployments.login.config.knownHosts: " in ended.stderr
    assert "ssh-keyscan" in ended.stderr
