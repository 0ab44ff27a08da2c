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

PRINT_LABELS = """
import json, signal
from medweave_connectors.sites.pods.owner import labels
print(json.dumps(labels()), flush=True)
signal.pause()
"""


@pytest.fixture
def driver() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", PRINT_LABELS], stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def read_labels(driver: subprocess.Popen[str]) -> dict[str, str]:
    assert driver.stdout is not None
    return dict(json.loads(driver.stdout.readline()))


def test_what_this_driver_made_is_its_own() -> None:
    assert owner(labels()) == "me"


def test_a_driver_that_was_killed_has_ended_before_anyone_buries_it(driver: subprocess.Popen[str]) -> None:
    object_labels = read_labels(driver)
    assert owner(object_labels) == "running"
    os.kill(driver.pid, signal.SIGKILL)
    # Its exit code is not read: the first process of a container may take seconds for that.
    wait_until(lambda: psutil.Process(driver.pid).status() == psutil.STATUS_ZOMBIE)
    assert owner(object_labels) == "ended"
    driver.wait()
    assert owner(object_labels) == "ended"


GENERATED = "lung-20260801-120000-ab12"
RUN_LABELS = {RUN: "nightly", DRIVER: "runner_7-100", TOKEN: "0123456789abcdef"}


@pytest.mark.parametrize(
    ("object_labels", "run", "is_so"),
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
    object_labels: dict[str, str], run: RunOwner, is_so: bool
) -> None:
    assert is_of(object_labels, run, pid=7) is is_so


@pytest.mark.parametrize("moved_s", [-1.0, 1.0, 3600.0])
def test_a_driver_that_runs_has_not_ended_because_the_clock_was_set(
    driver: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, moved_s: float
) -> None:
    object_labels = read_labels(driver)
    booted = psutil.boot_time()
    # psutil's start time is wall-clock time, which changes with the clock.
    monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: booted + moved_s)
    assert owner(object_labels) == "running"
