"""Strategies, networks and tasks of other packages: found by entry points, trained without a change of medweave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from medweave_core.errors import UsageError
from medweave_steps.cli import main
from medweave_steps.tasks import Task, task_named, task_names
from support.third_party import install, install_third_party
from support.training_set import training_set


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for sys.path with a package that registers strategies, a network and a task."""
    yield install_third_party(tmp_path_factory.mktemp("site"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "thirdparty"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_set(tmp_path_factory.mktemp("data"))


@dataclass(frozen=True)
class Ended:
    """A verb that was run, with the standard error of the verb and its ranks."""

    exit_code: int
    stderr: str


class Steps:
    """Runs verbs in this process, which has imported torch already, with the packages of a folder."""

    def __init__(self, site: Path, data: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self._site, self._data, self._capfd = site, data, capfd

    def run(self, folder: Path, *words: object, with_site: bool = True) -> Ended:
        """Run a verb in a folder."""
        self._capfd.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            if with_site:
                patch.syspath_prepend(str(self._site))
            code = main([*map(str, words)])
        return Ended(code, self._capfd.readouterr().err)

    def train(self, folder: Path, *words: object) -> Ended:
        """Run a training of ten steps on tiny patches."""
        return self.run(
            folder, "train", "--training-set", self._data, "--output", "model", "--steps", 10, "--epoch-steps", 5,
            "--validation-interval", 2, "--batch-size", 4, "--patch-shape", 8, 8, 8, "--channels", 4, 8, "--strides", 2,
            "--window-shape", 24, 20, 16, "--precision", "float32", "--num-threads", 1, *words,
        )  # fmt: skip

    def further(self, folder: Path, *, with_site: bool = True) -> Ended:
        """Run a distributed training that continues the folder's model."""
        return self.run(
            folder, "train-distributed", "--training-set", self._data, "--trained-model", "model", "--output", "further",
            "--rounds", 1, "--steps-per-round", 2, "--batch-size", 4, "--patch-shape", 8, 8, 8, "--precision", "float32",
            "--num-threads", 1, "--training-log", "log", with_site=with_site,
        )  # fmt: skip


@pytest.fixture
def steps(site: Path, data: Path, capfd: pytest.CaptureFixture[str]) -> Steps:
    return Steps(site, data, capfd)


def help_of_train(site: Path, *words: str) -> str:
    """Return the help of `medweave-step train`, run as a program with the packages of a folder."""
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    run = [sys.executable, "-m", "medweave_steps", "train", *words, "--help"]
    return subprocess.run(
        run, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300
    ).stdout


@pytest.mark.slow
def test_a_strategy_of_another_package_trains_with_its_own_option(steps: Steps, tmp_path: Path) -> None:
    saving = ("--checkpoint-folder", "saved", "--checkpoint-interval", 5)
    ended = steps.train(tmp_path, "--strategy", "gossip", "--ranks", 2, "--gossip-interval", 4, *saving)
    assert ended.exit_code == 0, ended.stderr
    report = json.loads((tmp_path / "run_report.json").read_text())
    assert (report["config"]["strategy"], report["config"]["gossip_interval"]) == ("gossip", 4)
    training = json.loads((tmp_path / "model" / "model_card.json").read_text())["training"]
    assert (training["strategy"], training["gossip_interval"], training["gossiped"]) == ("gossip", 4, True)
    assert (training["steps_done"], training["world_size"]) == (10, 2)
    # Averages after the steps 4, 5, 8 and 10: every step has a loss in the curve of the two epochs.
    curve = json.loads((tmp_path / "training_log" / "curves.json").read_text())
    assert [point["step"] for point in curve if "loss" in point] == [5, 10]
    # Options of the strategy may change when a training is resumed, under another strategy too.
    for words in (("--strategy", "gossip", "--ranks", 2), ("--strategy", "single")):
        again = tmp_path / words[1]
        again.mkdir()
        resumed = steps.train(again, *words, "--resume-from", tmp_path / "saved")
        assert resumed.exit_code == 0, resumed.stderr
        assert "written by 2 ranks under --strategy gossip" in resumed.stderr or words[1] == "gossip"


@pytest.mark.slow
def test_help_names_installed_strategies_and_the_options_of_the_selected_one(site: Path) -> None:
    shown = help_of_train(site)
    assert "{ddp,forgetful,gone,gossip,hybrid,local-sgd,number,parameter-server,single}" in shown
    assert "layer-stack,mlp,tiny}" in shown
    assert "--gossip-interval" not in shown
    selected = help_of_train(site, "--strategy=gossip").replace("\n" + " " * 24, " ")
    assert "steps between two averages (default: 3)" in selected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seen"),
    [("gone", "ModuleNotFoundError: No module named 'thirdparty.removed'"), ("number", "thirdparty.strategy:not_a_strategy is 3")],
)  # fmt: skip
def test_a_broken_entry_point_is_named_with_its_package(steps: Steps, tmp_path: Path, name: str, seen: str) -> None:
    ended = steps.train(tmp_path, "--strategy", name)
    assert ended.exit_code == 69
    assert (
        f"'{name}' of the package thirdparty 1.0 cannot be loaded (entry point in medweave.strategies" in ended.stderr
    )
    assert seen in ended.stderr
    assert "a class derived from medweave_steps.training.strategies.Strategy" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_two_packages_with_one_name_are_refused(steps: Steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "second", "other", "[medweave.strategies]\ngossip = other.strategy:Gossip\n")
    monkeypatch.syspath_prepend(str(tmp_path / "second"))
    ended = steps.train(tmp_path, "--strategy", "gossip")
    assert ended.exit_code == 69
    assert "several packages define 'gossip'" in ended.stderr
    assert "other 1.0, thirdparty 1.0" in ended.stderr


@pytest.mark.slow
def test_a_strategy_that_does_not_synchronize_at_the_end_of_an_epoch_is_named(steps: Steps, tmp_path: Path) -> None:
    ended = steps.train(tmp_path, "--strategy", "forgetful")
    assert ended.exit_code == 70
    assert "the strategy 'forgetful' did not synchronize the ranks at the end of an epoch" in ended.stderr
    assert "no synchronization point after step 5" in ended.stderr


@pytest.mark.slow
def test_a_network_of_another_package_trains_and_is_continued(steps: Steps, tmp_path: Path) -> None:
    ended = steps.train(tmp_path, "--network", "tiny", "--width", 3)
    assert ended.exit_code == 0, ended.stderr
    card = json.loads((tmp_path / "model" / "model_card.json").read_text())
    assert card["architecture"] == {"class": "thirdparty.layers.Tiny", "arguments": {"channels": 1, "width": 3}}
    assert card["training"]["width"] == 3
    without = steps.further(tmp_path, with_site=False)
    assert without.exit_code == 65
    assert "the network of the model card cannot be built" in without.stderr
    further = steps.further(tmp_path)
    assert further.exit_code == 0, further.stderr


def test_an_option_of_another_strategy_is_refused(steps: Steps, tmp_path: Path) -> None:
    ended = steps.train(tmp_path, "--strategy", "gossip", "--sync-interval", 2)
    assert ended.exit_code == 2
    assert "with --strategy local-sgd only" in ended.stderr


@pytest.mark.slow
def test_a_task_of_another_package_trains_and_is_continued(steps: Steps, tmp_path: Path) -> None:
    for folder, ranks in (("one", ()), ("two", ("--strategy", "ddp", "--ranks", 2))):
        (tmp_path / folder).mkdir()
        ended = steps.train(tmp_path / folder, "--task", "regression", "--gain", 0.5, *ranks)
        assert ended.exit_code == 0, ended.stderr
        assert "validation error" in ended.stderr
        card = json.loads((tmp_path / folder / "model" / "model_card.json").read_text())
        assert (card["name"], card["task_name"], card["training"]["gain"]) == ("denoiser", "regression", 0.5)
        assert list(card["metrics"]) == ["validation_error"]
    curve = json.loads((tmp_path / "one" / "training_log" / "curves.json").read_text())
    losses = [point["loss"] for point in curve if "loss" in point]
    assert losses[-1] < losses[0]
    further = steps.further(tmp_path / "one")
    assert further.exit_code == 0, further.stderr


def test_tasks_of_other_packages_are_found_and_unknown_ones_refused(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(site))
    assert task_names() == ("segmentation", "classification", "regression")
    assert task_named("regression").name == "regression"
    with pytest.raises(UsageError, match="unknown task 'segmentaton'") as caught:
        task_named("segmentaton")
    assert "segmentation" in caught.value.do


def test_a_task_that_only_trains_refuses_the_other_steps(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(site))
    task, nothing = task_named("regression"), cast(Any, None)
    calls: tuple[Callable[[], object], ...] = (
        lambda: task.num_channels(nothing),
        lambda: task.decisions(nothing, nothing),
        lambda: task.check_truth(nothing, nothing),
        lambda: task.predict(nothing, nothing, nothing),
        lambda: task.judge_case(nothing, nothing, nothing),
        lambda: task.judge(),
        lambda: task.calibration_windows([], nothing, num_windows=1, seed=0),
    )
    for call in calls:
        with pytest.raises(UsageError, match="the task 'regression' does not support this step"):
            call()


def test_a_task_must_train() -> None:
    class Nothing(Task):
        name = "nothing"

    with pytest.raises(TypeError, match=r"training_of_card.*training_of_cohort"):
        Nothing()
