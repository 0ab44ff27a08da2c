"""Strategies, networks and tasks of other packages: found by entry points, trained without a change of medweave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from medweave_core.errors import UsageError
from medweave_steps.tasks import Task, task_named, task_names
from support.training_set import training_set

STRATEGY = """
import math
from dataclasses import dataclass
from medweave_steps.runtime.options import option
from medweave_steps.training.distributed.average import averaged, num_bytes_of
from medweave_steps.training.strategies import Strategy, StrategyOptions, SyncResult

@dataclass(frozen=True, slots=True, kw_only=True)
class Options(StrategyOptions):
    gossip_interval: int = option("steps between two averages", default=3)

class Gossip(Strategy):
    Options = Options
    is_alike = False

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.losses = []

    def take_step(self, stepper, batch, *, step, flags):
        stepper.begin()
        self.losses.append(stepper.backward(stepper.loss_of(batch), 1.0))
        stepper.apply()
        done = step + 1
        if done % self.options.gossip_interval and done % self.training.epoch_steps and done != self.training.steps:
            return None
        own = {name: tensor.cpu().clone() for name, tensor in stepper.network.state_dict().items()}
        shares = self.group.gather((own, self.losses, flags))
        stepper.network.load_state_dict(averaged([share[0] for share in shares], [1] * len(shares)))
        losses = [sum(values) / len(shares) for values in zip(*(share[1] for share in shares))]
        flags = [sum(values) / len(shares) for values in zip(*(share[2] for share in shares))]
        self.losses = []
        return SyncResult(losses=losses, flags=flags, num_bytes=num_bytes_of(own) * len(shares))

    def card_facts(self):
        return {"gossiped": True}

    def state(self, stepper):
        return {"of_ranks": self.group.gather(stepper.state())}

class Forgetful(Gossip):
    def take_step(self, stepper, batch, *, step, flags):
        super().take_step(stepper, batch, step=step, flags=flags)

not_a_strategy = 3
"""

NETWORK = """
from dataclasses import dataclass
import importlib
from medweave_steps.networks import NetworkOptions, NetworkType
from medweave_steps.runtime.options import option

@dataclass(frozen=True, slots=True, kw_only=True)
class Options(NetworkOptions):
    width: int = option("channels between the two layers", default=2)

NETWORK = NetworkType(
    class_name="thirdparty.layers.Tiny",
    arguments=lambda config, channels: {"channels": channels, "width": config.network_options.width},
    Options=Options,
)
"""

LAYERS = """
import torch

class Tiny(torch.nn.Sequential):
    def __init__(self, *, channels, width):
        super().__init__(torch.nn.Conv3d(channels, width, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv3d(width, 1, 1))
"""

TASK = """
from dataclasses import dataclass
import numpy as np
from medweave_core.contracts.model import OutputContract, Postprocessing
from medweave_steps.runtime.options import option
from medweave_steps.tasks import Task
from medweave_steps.tasks.training import TaskOptions, TrainingTask
from medweave_steps.inference.intensity import scaled
from medweave_steps.training.data.batch import joined
from medweave_steps.training.loop.validator import Validator

@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TaskOptions):
    gain: float = option("factor of the intensity to predict", default=1.0)

class Corners:
    # The lowest corner of every case, which is the whole training set.
    def __init__(self, recipe, cases, window, gain):
        self.recipe, self.cases, self.window, self.gain = recipe, cases, window, gain

    def batch(self, step, *, rank=0, world_size=1):
        i, j, k = self.recipe.patch_shape
        patches = []
        for place in range(rank, self.recipe.batch_size, world_size):
            case = self.cases[(step + place) % len(self.cases)]
            image = np.array(scaled(case.volume_CIJK()[:, :i, :j, :k], self.window))
            patches.append((image, image * np.float32(self.gain), case.case.case_id))
        return joined(patches, num_together=self.recipe.batch_size)

    def divide_memory(self, num_processes):
        pass

    def num_counted(self, steps, *, rank, world_size):
        return steps * len(range(rank, self.recipe.batch_size, world_size))

    def num_padding(self, steps, *, rank, world_size):
        return 0

    def digest(self):
        return "corners"

class Errors(Validator):
    plain, choices = "all", ("all",)

    def __init__(self, cases, window, gain):
        self.cases, self.window, self.gain = cases, window, gain

    def tallies(self, predictor, choices, *, num_cases=None, rank=0, world_size=1):
        import torch
        tallies = []
        for case in self.cases[:num_cases][rank::world_size]:
            image = torch.from_numpy(np.array(scaled(case.volume_CIJK(), self.window)))[None]
            with torch.inference_mode():
                tallies.append([float((predictor(image) - self.gain * image).square().mean())])
        return tallies

    def figures(self, tallies):
        return {"error": sum(tallies) / len(tallies)}

    def score(self, figures):
        return 1 / (1 + figures["error"])

    def progress(self, figures):
        return f"validation error {figures['error']:.3f}", {"error": figures["error"]}

    def choose(self, context, per_case):
        for case, (error,) in zip(self.cases, per_case):
            context.add_case(case.case.case_id, error=error)
        return Postprocessing(), self.figures([error for (error,) in per_case])

@dataclass(frozen=True)
class Training(TrainingTask):
    window: tuple
    gain: float
    num_channels = 1

    def usable_cases(self, prepared):
        return prepared.cases("train"), prepared.cases("validation")

    def open_sampler(self, recipe, prepared, training, *, whole_volumes=False, cache_mib=None):
        return Corners(recipe, training, self.window, self.gain)

    def open_loss(self, recipe):
        return lambda output, label: (output - label).square().mean()

    def open_validator(self, recipe, prepared, validation, *, window_shape, overlap, device):
        return Errors(validation, self.window, self.gain)

    def card_fields(self, cohort):
        return {"name": "denoiser", "task": "Regression of intensity", "labels": (), "output": OutputContract()}

class Regression(Task):
    name = "regression"
    Options = Options

    def training_of_cohort(self, cohort, options):
        return Training(cohort.window_hu, options.gain)

    def training_of_card(self, card, cohort):
        return Training(cohort.window_hu, card.training.get("gain", 1.0))

TASK = Regression()
"""

ENTRY_POINTS = """
[medweave.strategies]
gossip = thirdparty.strategy:Gossip
forgetful = thirdparty.strategy:Forgetful
number = thirdparty.strategy:not_a_strategy
gone = thirdparty.removed:Strategy

[medweave.networks]
tiny = thirdparty.network:NETWORK

[medweave.tasks]
regression = thirdparty.task:TASK
"""


def install(folder: Path, name: str, entry_points: str) -> None:
    """Write the metadata of an installed distribution."""
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(entry_points)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with a package that registers strategies, a network and a task."""
    folder = tmp_path_factory.mktemp("site")
    install(folder, "thirdparty", ENTRY_POINTS)
    package = folder / "thirdparty"
    package.mkdir()
    for module, text in (
        ("__init__", ""), ("strategy", STRATEGY), ("network", NETWORK), ("layers", LAYERS), ("task", TASK),
    ):  # fmt: skip
        (package / f"{module}.py").write_text(text)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_set(tmp_path_factory.mktemp("data"))


def step(folder: Path, site: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run `medweave-step` in a folder, with the packages of another one."""
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return subprocess.run(
        [sys.executable, "-m", "medweave_steps", *map(str, words)],
        cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def train(folder: Path, site: Path, data: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a training of ten steps on tiny patches."""
    return step(
        folder, site, "train", "--training-set", data, "--output", "model", "--steps", 10, "--epoch-steps", 5,
        "--validation-interval", 2, "--batch-size", 4, "--patch-shape", 8, 8, 8, "--channels", 4, 8, "--strides", 2,
        "--window-shape", 24, 20, 16, "--precision", "float32", "--num-threads", 1, *words,
    )  # fmt: skip


@pytest.mark.slow
def test_a_strategy_of_another_package_trains_with_its_own_option(site: Path, data: Path, tmp_path: Path) -> None:
    saving = ("--checkpoint-folder", "saved", "--checkpoint-interval", 5)
    ended = train(tmp_path, site, data, "--strategy", "gossip", "--ranks", 2, "--gossip-interval", 4, *saving)
    assert ended.returncode == 0, ended.stderr
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
        resumed = train(again, site, data, *words, "--resume-from", tmp_path / "saved")
        assert resumed.returncode == 0, resumed.stderr
        assert "written by 2 ranks under --strategy gossip" in resumed.stderr or words[1] == "gossip"


@pytest.mark.slow
def test_help_names_installed_strategies_and_the_options_of_the_selected_one(site: Path, tmp_path: Path) -> None:
    shown = step(tmp_path, site, "train", "--help").stdout
    assert "{ddp,forgetful,gone,gossip,local-sgd,number,single}" in shown
    assert "resenc-unet,mobilenet,vgg16,resnet18,resnet50,densenet121,layer-stack,tiny}" in shown
    assert "--gossip-interval" not in shown
    assert "steps between two averages (default: 3)" in step(
        tmp_path, site, "train", "--strategy=gossip", "--help"
    ).stdout.replace("\n" + " " * 24, " ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seen"),
    [("gone", "ModuleNotFoundError: No module named 'thirdparty.removed'"), ("number", "thirdparty.strategy:not_a_strategy is 3")],
)  # fmt: skip
def test_a_broken_entry_point_is_named_with_its_package(
    site: Path, data: Path, tmp_path: Path, name: str, seen: str
) -> None:
    ended = train(tmp_path, site, data, "--strategy", name)
    assert ended.returncode == 69
    assert (
        f"'{name}' of the package thirdparty 1.0 cannot be loaded (entry point in medweave.strategies" in ended.stderr
    )
    assert seen in ended.stderr
    assert "a class derived from medweave_steps.training.strategies.Strategy" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_two_packages_with_one_name_are_refused(site: Path, data: Path, tmp_path: Path) -> None:
    install(tmp_path / "second", "other", "[medweave.strategies]\ngossip = other.strategy:Gossip\n")
    ended = train(tmp_path, Path(f"{site}{os.pathsep}{tmp_path / 'second'}"), data, "--strategy", "gossip")
    assert ended.returncode == 69
    assert "several packages define 'gossip'" in ended.stderr
    assert "other 1.0, thirdparty 1.0" in ended.stderr


@pytest.mark.slow
def test_a_strategy_that_does_not_synchronize_at_the_end_of_an_epoch_is_named(
    site: Path, data: Path, tmp_path: Path
) -> None:
    ended = train(tmp_path, site, data, "--strategy", "forgetful")
    assert ended.returncode == 70
    assert "the strategy 'forgetful' did not synchronize the ranks at the end of an epoch" in ended.stderr
    assert "no synchronization point after step 5" in ended.stderr


@pytest.mark.slow
def test_a_network_of_another_package_trains_and_is_continued(site: Path, data: Path, tmp_path: Path) -> None:
    ended = train(tmp_path, site, data, "--network", "tiny", "--width", 3)
    assert ended.returncode == 0, ended.stderr
    card = json.loads((tmp_path / "model" / "model_card.json").read_text())
    assert card["architecture"] == {"class": "thirdparty.layers.Tiny", "arguments": {"channels": 1, "width": 3}}
    assert card["training"]["width"] == 3
    words = (
        "train-distributed", "--training-set", data, "--trained-model", "model", "--output", "further", "--rounds", 1,
        "--steps-per-round", 2, "--batch-size", 4, "--patch-shape", 8, 8, 8, "--precision", "float32", "--num-threads", 1,
        "--training-log", "log",
    )  # fmt: skip
    without = step(tmp_path, tmp_path / "none", *words)
    assert without.returncode == 65
    assert "the network of the model card cannot be built" in without.stderr
    further = step(tmp_path, site, *words)
    assert further.returncode == 0, further.stderr


def test_an_option_of_another_strategy_is_refused(site: Path, data: Path, tmp_path: Path) -> None:
    ended = train(tmp_path, site, data, "--strategy", "gossip", "--sync-interval", 2)
    assert ended.returncode == 2
    assert "with --strategy local-sgd only" in ended.stderr


@pytest.mark.slow
def test_a_task_of_another_package_trains_and_is_continued(site: Path, data: Path, tmp_path: Path) -> None:
    for folder, ranks in (("one", ()), ("two", ("--strategy", "ddp", "--ranks", 2))):
        (tmp_path / folder).mkdir()
        ended = train(tmp_path / folder, site, data, "--task", "regression", "--gain", 0.5, *ranks)
        assert ended.returncode == 0, ended.stderr
        assert "validation error" in ended.stderr
        card = json.loads((tmp_path / folder / "model" / "model_card.json").read_text())
        assert (card["name"], card["task_name"], card["training"]["gain"]) == ("denoiser", "regression", 0.5)
        assert list(card["metrics"]) == ["validation_error"]
    curve = json.loads((tmp_path / "one" / "training_log" / "curves.json").read_text())
    losses = [point["loss"] for point in curve if "loss" in point]
    assert losses[-1] < losses[0]
    further = step(
        tmp_path / "one", site, "train-distributed", "--training-set", data, "--trained-model", "model", "--output", "further",
        "--rounds", 1, "--steps-per-round", 2, "--batch-size", 4, "--patch-shape", 8, 8, 8, "--precision", "float32",
        "--num-threads", 1, "--training-log", "log",
    )  # fmt: skip
    assert further.returncode == 0, further.stderr


def test_tasks_of_other_packages_are_found_and_unknown_ones_refused(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(site))
    assert task_names() == ("segmentation", "regression")
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
