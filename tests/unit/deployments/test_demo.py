"""The demo's own parts; the whole of it is run by CI."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from argparse import ArgumentTypeError
from pathlib import Path
from types import ModuleType

import pytest
from ruamel.yaml import YAML

from support.engine import wait_until
from support.scripts import module_of

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = module_of(ROOT / "deployments" / "demo" / "demo.py")
    monkeypatch.setattr(module, "DEMO", tmp_path)
    return module


def test_fewer_steps_change_nothing_else(demo: ModuleType) -> None:
    document = YAML(typ="safe").load(demo.with_options(steps=7, gate_candidates="float32:openvino"))
    usual = YAML(typ="safe").load(ROOT / "streamflow.yml")
    config, usual_config = (document["workflows"]["lung"].pop("config") for document in (document, usual))
    assert document == usual
    assert Path(config["file"]) == ROOT / usual_config["file"]
    job = YAML(typ="safe").load(Path(config["settings"]))
    usual_job = YAML(typ="safe").load(ROOT / usual_config["settings"])
    assert job.pop("training_steps") == 7
    assert job.pop("gate_candidates") == "float32:openvino"
    cohort = (ROOT / usual_config["settings"]).parent / usual_job.pop("cohort")["path"]
    assert Path(job.pop("cohort")["path"]) == cohort.resolve()
    assert job == usual_job


PROGRAM = """
import pathlib, signal, sys, time
received = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, _: received.append(number))
pathlib.Path("started").touch()
while not received:
    time.sleep(0.02)
time.sleep(0.6)  # the clean-up
pathlib.Path("part").write_text(str([int(number) for number in received]))
pathlib.Path("part").rename("cleaned-up")
"""
SCRIPT = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and so does a demo that it starts
sys.path.insert(0, sys.argv[1])
import demo
demo.ROOT = "."
demo.run(sys.argv[2:], environment={})
print("the next program")
"""


def started(folder: Path) -> subprocess.Popen[str]:
    """Start a demo whose program notes the signals that it receives."""
    words = [sys.executable, "-c", SCRIPT, str(ROOT / "deployments" / "demo"), sys.executable, "-c", PROGRAM]
    process = subprocess.Popen(words, cwd=folder, start_new_session=True, stdout=subprocess.PIPE, text=True)
    wait_until(lambda: (folder / "started").exists())
    return process


@pytest.mark.parametrize(
    ("number", "to_group"),
    [(signal.SIGINT, True), (signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGHUP, False)],
)
def test_a_signal_reaches_the_program_once_and_the_demo_waits_for_it(
    tmp_path: Path, number: signal.Signals, to_group: bool
) -> None:
    """A terminal sends INT to the whole process group; `kill`, and make, to one process."""
    process = started(tmp_path)
    (os.killpg if to_group else os.kill)(process.pid, number)
    assert process.wait(20) == 128 + number
    assert (tmp_path / "cleaned-up").read_text() == f"[{int(number)}]"
    assert process.stdout is not None
    assert process.stdout.read() == "", "the demo does not begin its next program"


def test_the_program_of_a_killed_demo_ends(tmp_path: Path) -> None:
    started(tmp_path).kill()
    wait_until(lambda: (tmp_path / "cleaned-up").exists())
    assert (tmp_path / "cleaned-up").read_text() == f"[{int(signal.SIGTERM)}]"


@pytest.mark.parametrize("text", ["0", "-3", "1e3", "many", ""])
def test_other_text_than_a_number_is_an_error(demo: ModuleType, text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="a whole number from 1"):
        demo.number(text, least=1, example=500)


def test_too_few_cases_to_split_are_an_error(demo: ModuleType) -> None:
    assert demo.number("12", least=demo.FEWEST_CASES, example=30) == 12
    with pytest.raises(ArgumentTypeError, match="a whole number from 12"):
        demo.number("11", least=demo.FEWEST_CASES, example=30)


def test_the_smallest_cohort_gives_the_hybrid_run_two_jobs_to_segment(demo: ModuleType) -> None:
    job = YAML(typ="safe").load(ROOT / "workflows" / "lung-nodule-segmentation" / "jobs" / "hybrid-train.yml")
    assert demo.held_out_of(demo.FEWEST_CASES) > job["cases_per_batch"]


def test_no_moments_speed_chooses_the_model_that_two_places_are_compared_by() -> None:
    job = YAML(typ="safe").load(ROOT / "workflows" / "lung-nodule-segmentation" / "jobs" / "hybrid-train.yml")
    assert job["gate_candidates"] == "int8:openvino", (
        "int8 is about as fast as float32 on some processors, and time chose float32 at one place"
    )
