"""A tiny package of a third party: strategies, a network and a task, found by their entry points."""

from __future__ import annotations

from pathlib import Path

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
    has_lean_imports=True,
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


def install_third_party(folder: Path) -> Path:
    """Write an installed package that registers strategies, a network and a task; return the folder for PYTHONPATH."""
    install(folder, "thirdparty", ENTRY_POINTS)
    package = folder / "thirdparty"
    package.mkdir()
    for module, text in (
        ("__init__", ""), ("strategy", STRATEGY), ("network", NETWORK), ("layers", LAYERS), ("task", TASK),
    ):  # fmt: skip
        (package / f"{module}.py").write_text(text)
    return folder
