"""Whose a release or a pod is, by the labels that it has and the processes of this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from medweave_connectors.sites.pods.owner import DRIVER, RUN, TOKEN, is_of, labels, owner
from medweave_core.runlog.run_ownership import RunOwner
from support.engine import wait_until

TELLS = """
import json, signal
from medweave_connectors.sites.pods.owner import labels
print(json.dumps(labels()), flush=True)
signal.pause()
"""


@pytest.fixture
def driver() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", TELLS], stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def told(driver: subprocess.Popen[str]) -> dict[str, str]:
    assert driver.stdout is not None
    return dict(json.loads(driver.stdout.readline()))


def test_what_this_driver_made_is_its_own() -> None:
    assert owner(labels()) == "me"


def test_a_driver_that_was_killed_has_ended_before_anyone_buries_it(driver: subprocess.Popen[str]) -> None:
    found = told(driver)
    assert owner(found) == "running"
    os.kill(driver.pid, signal.SIGKILL)
    # Nobody asks for its exit code: a container's first process may take seconds.
    wait_until(lambda: psutil.Process(driver.pid).status() == psutil.STATUS_ZOMBIE)
    assert owner(found) == "ended"
    driver.wait()
    assert owner(found) == "ended"


GENERATED = "lung-20260801-120000-ab12"
RUN_LABELS = {RUN: "nightly", DRIVER: "runner_7-100", TOKEN: "0123456789abcdef"}


@pytest.mark.parametrize(
    ("found", "run", "is_so"),
    [
        (RUN_LABELS, RunOwner("nightly", "0123456789abcdef"), True),
        # In containers, drivers on two machines have the same process id.
        (RUN_LABELS, RunOwner("nightly", "fedcba9876543210"), False),
        (RUN_LABELS, RunOwner("nightly", ""), False),
        ({RUN: "nightly", DRIVER: "runner_7-100"}, RunOwner("nightly", "0123456789abcdef"), False),
        ({RUN: "nightly", DRIVER: "runner_7-100"}, RunOwner("nightly", ""), True),
        ({RUN: "nightly", DRIVER: "runner_8-100"}, RunOwner("nightly", ""), False),
        ({}, RunOwner("nightly", ""), False),
        (RUN_LABELS | {RUN: GENERATED}, RunOwner(GENERATED, ""), True),
        (RUN_LABELS | {RUN: GENERATED, DRIVER: "runner_8-100"}, RunOwner(GENERATED, ""), False),
    ],
)
def test_a_run_is_recognized_by_its_token_and_an_older_one_by_its_driver(
    found: dict[str, str], run: RunOwner, is_so: bool
) -> None:
    assert is_of(found, run, pid=7) is is_so


@pytest.mark.parametrize("moved_s", [-1.0, 1.0, 3600.0])
def test_a_driver_that_runs_has_not_ended_because_the_clock_was_set(
    driver: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, moved_s: float
) -> None:
    found = told(driver)
    booted = psutil.boot_time()
    # Linux tells the moment of its start by the calendar, which moves with the clock.
    monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: booted + moved_s)
    assert owner(found) == "running"
