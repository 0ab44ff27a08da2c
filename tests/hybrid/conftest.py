"""Tests that need the testbed. Where it is not up they are skipped with one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from support.helm_release import Tenant, first_tenant
from support.testbed import Sites, call, down_parts, sites, unique

# They become outdated when the source is edited or an image is built; `up` updates them in seconds.
FOLLOWERS = {"environment", "images"}


# Files, or classes of files, that would disturb each other in parallel; every other file is a separate group.
# Those in alone/ break parts.
GROUPS = {
    name: group
    for group, names in {
        "slurm": (
            "test_slurm",
            "test_slurm_refusals",
            "test_slurm_modules",
            "test_testbed_slurm",
            "test_engine_faults_slurm",
            "test_sites",
            "test_faults_end",
            "test_same_masks",
            "test_bytes",
            "test_tutorial",
            "test_reactions",
        ),
        "slurm connectors": (
            "test_connector_contract::TestSlurmOverSSH",
            "test_connector_contract::TestSSH",
        ),  # their files and jobs are their own
        "images": ("test_doctor", "test_images", "test_charts", "test_schedule"),
        "pods": (
            "test_pods",
            "test_pods_jobs",
            "test_pods_start",
            "test_reactions_pods",
            "test_pods_cluster",
            "test_pods_compss",
            "test_clean_pods",
            "test_placement",
            "test_engine_faults_pods",
            "test_chart_sources",
            "test_testbed_cluster",
            "test_testbed_tenants",
            "test_testbed_walls",
            "test_connector_contract",
        ),
    }.items()
    for name in names
}


class _ByGroup(LoadScopeScheduling):  # pytest-xdist's own groups have no effect under pytest 9
    def _split_scope(self, nodeid: str) -> str:
        file, _, rest = nodeid.partition("::")
        stem = PurePosixPath(file).stem
        return GROUPS.get(f"{stem}::{rest.partition('::')[0]}") or GROUPS.get(stem, stem)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Return a scheduler that runs the files of a group on one worker (`-n`), one after the other."""
    return _ByGroup(config, log)


@pytest.fixture(scope="session")
def testbed_parts_down() -> dict[str, str]:
    """Return why each part that is down is down, as of the start of the tests."""
    down = down_parts()
    if down and FOLLOWERS.issuperset(down) and "not made yet" not in down.get("environment", ""):
        call("up", timeout_s=300)
        down = {name: reason for name, reason in down_parts().items() if name not in FOLLOWERS}
    return down


@pytest.fixture(scope="session")
def tenant() -> Tenant:
    """Return the first tenant of the cluster."""
    return first_tenant()


@pytest.fixture(scope="session")
def testbed(testbed_parts_down: dict[str, str]) -> Sites:
    """Return the sites of a testbed that is up."""
    if testbed_parts_down:
        name, reason = next(iter(testbed_parts_down.items()))
        line = f"the testbed is not up (`make testbed`): {name}: {reason}".replace("\n", " ")
        pytest.skip(line)
    return sites()


@pytest.fixture
def shared_folder(testbed: Sites) -> Iterator[Path]:
    """Yield a folder of the HPC user's that login node and nodes share."""
    made = testbed.layout.hpc / "scratch" / unique("shared")
    assert testbed.hpc("mkdir", str(made)).returncode == 0
    yield made
    testbed.hpc("rm", "-rf", str(made))
