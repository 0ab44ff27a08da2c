"""`medweave-step prune`: a trained model in, a smaller or sparser one out, within a tolerance of the validation loss."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medweave_core.contracts.model import ModelCard
from medweave_core.errors import UserInputError
from medweave_steps import __version__
from medweave_steps.io.cohort.prepared import CaseFolder, PreparedFolder, open_prepared
from medweave_steps.io.findings import first_of
from medweave_steps.io.model.folder import AS_TRAINED, card_sha256, check_cohort_fits, check_float32, read_card
from medweave_steps.networks import multiples_of, multiples_text
from medweave_steps.prune.config import PruneConfig
from medweave_steps.runtime.options import check_option
from medweave_steps.runtime.verb import StepContext, Verb
from medweave_steps.tasks import task_named
from medweave_steps.tasks.training import TrainingTask

VALIDATION_BATCHES = 8
"""Batches of validation cases whose mean loss decides."""


def run(config: PruneConfig, context: StepContext) -> Mapping[str, Any]:
    """Check model and cases, prune, choose the postprocessing on the validation split, and write the model."""
    from medweave_steps.io.model.network import network_code
    from medweave_steps.runtime import environment
    from medweave_steps.runtime.imports import require
    from medweave_steps.training.loop.checkpoint import checkpoint_of_earlier_attempt
    from medweave_steps.training.loop.outputs import open_outputs

    if config.resume_from is None:
        config = dataclasses.replace(config, resume_from=checkpoint_of_earlier_attempt(context))
    node_group = environment.node_group()
    if node_group.node_rank > 0:
        return {}
    if node_group.num_nodes > 1:
        context.notice(f"{node_group.num_nodes} nodes were started, but prune uses only the first node.")
    card = read_card(config.trained_model)
    check_float32(card, "be pruned", expected=AS_TRAINED, do="set --trained-model to that folder")
    prepared = open_prepared(config.training_set)
    check_cohort_fits(card, prepared.cohort)
    prepared = prepared.with_input(window_hu=card.input.window_hu, scaled_range=card.input.scaled_range)
    task = task_named(card.task_name).training_of_card(card, prepared.cohort)
    config = _sized(config, card, task.input_shape(prepared), options_set=context.options_set)
    code = network_code(config.trained_model, card, allow_code=config.allow_code)
    torch = require("torch", extra="train")
    torch.set_num_threads(context.num_threads)
    torch.manual_seed(config.seed)  # of dropout
    with open_outputs(config, node_group, log_stays=True) as (folder, log_folder):
        job = PruneJob(config=config, card=card, code=code, prepared=prepared, task=task)
        results = _prune(job, context, folder, log_folder)
    context.versions |= environment.library_versions()
    return results


def _sized(config: PruneConfig, card: ModelCard, shape: Any, *, options_set: frozenset[str]) -> PruneConfig:
    """Return the options with the patch shape of the training, unless the user set one.

    Raises:
        UsageError: the network cannot take patches of this shape.
    """
    if "patch_shape" not in options_set:
        of_training = card.training.get("patch_shape")
        config = dataclasses.replace(config, patch_shape=tuple(shape or of_training or card.input.patch_shape))
    multiples = multiples_of(card)
    fits = not any(side % multiple for side, multiple in zip(config.patch_shape, multiples, strict=True))
    fits = fits and (shape is None or tuple(config.patch_shape) == tuple(shape))
    expected = (
        f"{' '.join(map(str, shape))}, the size of the data"
        if shape
        else f"multiples of {multiples_text(multiples)}, as in the model card"
    )
    check_option(fits, "patch_shape", config.patch_shape, expected)
    return config


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PruneJob:
    """The inputs of a pruning.

    Attributes:
        card: of the trained model.
        code: code of the user that its network is in, a `networks.user_code.NetworkCode`.
    """

    config: PruneConfig
    card: ModelCard
    code: Any
    prepared: PreparedFolder
    task: TrainingTask


def _prune(job: PruneJob, context: StepContext, folder: Path, log_folder: Path) -> Mapping[str, Any]:
    from medweave_steps.io.model.network import load_plain, with_card_output
    from medweave_steps.prune.measure import facts_of
    from medweave_steps.runtime.signals import deferred
    from medweave_steps.training.device import choose_device
    from medweave_steps.training.loop import deliver

    started, config, card = time.monotonic(), job.config, job.card
    device = choose_device(config.device)
    plain = load_plain(config.trained_model, card, code=job.code)
    trained = with_card_output(plain, card).eval().to(device)
    name_of_plain = next(name for name, module in trained.named_modules() if module is plain)
    input_shape = (card.input.channels, *card.input.patch_shape)
    training, validation = job.task.usable_cases(job.prepared)
    sampler = job.task.open_sampler(config, job.prepared, training)
    with deferred() as signals:
        pruning = _opened(job, trained, input_shape, device, validation)
        _run(pruning, job, sampler, context, log_folder, signals)
        signals.raise_if_ending()
    pruned = pruning.best()
    before, after = facts_of([trained, trained if pruned is None else pruned], input_shape)
    scratch = StepContext(verb="prune", num_threads=context.num_threads, quiet=True)
    _, before["metrics"] = _validated(job, trained, context if pruned is None else scratch, validation, device)
    postprocessing, after["metrics"] = card.postprocessing, before["metrics"]
    if pruned is not None:
        postprocessing, after["metrics"] = _validated(job, pruned, context, validation, device)
    state = pruning.state
    facts = {
        "source_sha256": card_sha256(card), "method": config.method, "is_pruned": pruned is not None,
        "tolerance": config.tolerance, "epochs": state.epoch, "removals": state.rounds[: state.accepted.get("round", 0)],
        "validation_loss": {"before": round(state.first_loss, 6), "after": round(state.accepted.get("loss", state.first_loss), 6)},
        "before": before, "after": after,
    }  # fmt: skip
    if pruned is None:
        removal = "removal that saves time" if config.is_structured else "removal"
        context.notice(
            f"nothing was pruned: no {removal} stays within --tolerance {config.tolerance:g} of the validation loss, "
            f"{state.first_loss:.4f}, in {state.epoch} epochs. The model is the trained one, unchanged."
        )
    if pruning.permanent:
        facts["permanent_layers"] = dict(pruning.permanent)
    network = (trained if pruned is None else pruned).get_submodule(name_of_plain)
    result = _card(job, network, postprocessing, after["metrics"], facts, time.monotonic() - started)
    if job.code is not None:
        job.code.write_copy(folder)
    deliver.write_model(folder, network, result)
    return {**deliver.results_of(result), "pruning": facts}


def _opened(job: PruneJob, trained: Any, input_shape: Sequence[int], device: Any, validation: Any) -> Any:
    """Return the pruning of a trained network.

    Raises:
        UserInputError: no layer of the network can be pruned; names the layers and the reasons.
    """
    from medweave_steps.prune.loop import Pruning
    from medweave_steps.training.loop.stepper import uses_bfloat16

    config = job.config
    plain = dataclasses.replace(config, augment=False)
    sampler = job.task.open_sampler(plain, job.prepared, validation)
    in_bfloat16 = uses_bfloat16(config, device, trained)
    pruning = Pruning(
        config=config,
        trained=trained,
        input_shape=input_shape,
        loss=job.task.open_loss(config),
        validation=[sampler.batch(step) for step in range(VALIDATION_BATCHES)],
        device=device,
        uses_bfloat16=in_bfloat16,
        identity={
            **config.identity(),
            **job.task.identity(),
            "precision": "bfloat16" if in_bfloat16 else "float32",
            "device": device.type,
            "digest of the model to prune": card_sha256(job.card),
        },
        data_sha256=job.prepared.cohort.data_sha256,
    )
    if not pruning.has_layers():
        reasons = [f"{name} ({reason})" for name, reason in pruning.permanent.items()]
        raise UserInputError(
            f"no channel of the model '{job.card.name}' can be removed.",
            seen=first_of(reasons) if reasons else "no convolution or dense layer",
            expected="between convolutions and dense layers only batch or instance norms, activations, poolings, sums and "
            "concatenations",
            do="train another network, such as one with --norm batch, or use --method lobster, which removes no channels",
        )
    return pruning


def _run(pruning: Any, job: PruneJob, sampler: Any, context: StepContext, log_folder: Path, signals: Any) -> None:
    from medweave_steps.training.data.batches import Batches
    from medweave_steps.training.loop.checkpoint import read_checkpoint
    from medweave_steps.training.loop.history import History

    config = job.config
    points: list[dict[str, Any]] = []
    if config.resume_from:
        points = pruning.restore(read_checkpoint(config.resume_from))
        context.notice(f"resumed from a checkpoint after epoch {pruning.state.epoch} of {config.budget_epochs}.")
    workers = config.data_processes(pruning.device, num_threads=context.num_threads)
    batches = Batches(sampler, rank=0, world_size=1, num_workers=workers, device=pruning.device)
    history = History(log_folder, points)
    with contextlib.closing(batches):
        pruning.run(
            batches, history, lambda total, done: context.progress(unit="epoch", total=total, done=done), signals
        )
    history.close()


def _validated(
    job: PruneJob, network: Any, context: StepContext, validation: Sequence[CaseFolder], device: Any
) -> tuple[Any, dict[str, float | None]]:
    """Return the postprocessing chosen for a network on the validation cases, and its figures there, in float32."""
    validator = job.task.open_validator(
        job.config, job.prepared, validation, window_shape=job.card.input.patch_shape,
        overlap=job.card.postprocessing.overlap, device=device,
    )  # fmt: skip
    per_case = validator.tallies(lambda window: network(window).float(), validator.choices)
    return validator.choose(context, per_case)


def _card(
    job: PruneJob, network: Any, postprocessing: Any, figures: Mapping[str, float | None], facts: Mapping[str, Any],
    seconds: float,
) -> ModelCard:  # fmt: skip
    """Return the card of the trained model with the changes of the pruning."""
    from medweave_steps.io.model.network import build_network
    from medweave_steps.networks.channels import channels_of
    from medweave_steps.runtime.environment import cpu_model
    from medweave_steps.training.loop.deliver import metrics_of

    parent = job.card
    whole = {name: value for name, value in parent.architecture.items() if name != "channels"}
    channels = channels_of(network, build_network(whole, code=job.code))
    return dataclasses.replace(
        parent,
        architecture={**whole, **({"channels": channels} if channels else {})},
        postprocessing=postprocessing,
        files={},
        parent_sha256=card_sha256(parent),
        code_version=__version__,
        metrics=metrics_of(figures) if facts["is_pruned"] else parent.metrics,
        training={
            **parent.training,
            "pruning": {**job.config.identity(), "seconds": round(seconds, 1), "host_cpu": cpu_model()},
        },
        notes={**parent.notes, "pruning": facts},
    )


DESCRIPTION = """\
Prunes a trained model. It trains the network further on preprocessed cases with labels or classes (training and validation
split) and shrinks the weights with a low sensitivity. At the start, and whenever the validation loss has not fallen for
--plateau-epochs, it removes channels or weights: bisection finds how many, so that the loss is at most (1 + removal tolerance)
times the lowest loss before the removal. When nothing more can be removed, the training does not repair a removal, or three
quarters of --budget-epochs have passed, the remaining epochs train the network with a learning rate that falls to 0. The smallest
network is written whose loss is at most (1 + tolerance) times that of the trained model.

--method serene removes whole channels, first those with the least importance per second saved, measured on this machine. Layers
with 16 channels or more keep multiples of 8. The model card has the remaining numbers of channels.
--method lobster and generic set single weights to zero. They reach a higher sparsity, but the number of operations and the time of
a dense runtime such as OpenVINO do not change.

The model card and the run report have parameters, sparsity, operations, bytes, seconds and all validation metrics before and
after. The validation loss is the mean over batches of validation cases; run gate to judge the pruned model on all cases.
If no removal is within the tolerance, the trained model is written unchanged, and a notice says so.
Errors: a quantized model; cases of another kind; a network without removable channels (the error names the layers); a
checkpoint of another method or training."""
EXAMPLE = "medweave-step prune --trained-model trained_model --training-set prepared/training_set --output pruned_model"

VERB = Verb(name="prune", description=DESCRIPTION, example=EXAMPLE, config=PruneConfig, run=run)
