"""The training on one rank: sampler, network, strategy and trainer from a configuration, and the model folder on rank 0."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medweave_core.contracts import codec
from medweave_core.contracts.energy import CountedEnergy
from medweave_core.contracts.hardware import HardwareFigures
from medweave_core.contracts.model import InputContract, ModelCard, Postprocessing
from medweave_core.contracts.report import RankFacts
from medweave_core.contracts.volume import modality_of, unit_of
from medweave_steps import __version__
from medweave_steps.io.cohort.prepared import CaseFolder, PreparedFolder
from medweave_steps.runtime.energy import POWERCAP
from medweave_steps.runtime.verb import StepContext
from medweave_steps.train.config import TrainConfig
from medweave_steps.train.cross_validation import Fold, with_fold
from medweave_steps.train.inputs import copy_encoder, count_samples, prepared_for, task_of
from medweave_steps.training.distributed.group import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainJob:
    """The arguments of every rank.

    Attributes:
        network: a `train.network.NetworkPlan`, which needs torch.
        num_threads: compute threads of each rank.
        folder, log_folder: outputs that rank 0 writes.
        fold: of a cross-validation; None for the splits of the training set.
        powercap: folder of the processors' counters of energy.
        preset_facts: choices of --preset auto, for the model card.
    """

    config: TrainConfig
    network: Any
    num_threads: int
    folder: Path
    log_folder: Path
    fold: Fold | None = None
    powercap: Path = POWERCAP
    preset_facts: Mapping[str, Any] = field(default_factory=dict)


def train_on_rank(job: TrainJob, group: Group) -> tuple[Mapping[str, Any], StepContext] | None:
    """Train on one rank; rank 0 writes the model and returns the results and its context."""
    from medweave_steps.runtime import environment
    from medweave_steps.training.loop import deliver

    started, config = time.monotonic(), job.config
    context = StepContext(verb="train", num_threads=job.num_threads, quiet=group.rank != 0)
    prepared = with_fold(prepared_for(config), job.fold)
    training, validation = task_of(config, prepared).usable_cases(prepared)
    trainer, hardware = _train(job, group, context, prepared, training, validation)
    per_case = trainer.best_tallies()
    context.ranks += group.gather(_facts(job, group, trainer))
    energy = trainer.energy.counted(trainer.state.each_wh, hardware)
    if group.rank != 0:
        return None
    chosen, figures = trainer.validator.choose(context, per_case)
    card = _card(job, context, prepared, trainer, chosen, figures, energy, hardware, time.monotonic() - started)
    if job.network.code is not None:
        job.network.code.write_copy(job.folder)
    copy_encoder(prepared, job.folder)
    deliver.write_model(job.folder, trainer.network, card)
    context.versions |= environment.library_versions()
    parameters = sum(weight.numel() for weight in trainer.network.parameters())
    return {**deliver.results_of(card), "parameters": parameters}, context


def _train(
    job: TrainJob, group: Group, context: StepContext, prepared: PreparedFolder,
    training: Sequence[CaseFolder], validation: Sequence[CaseFolder],
) -> tuple[Any, HardwareFigures | None]:  # fmt: skip
    from medweave_steps.runtime.signals import deferred
    from medweave_steps.train.loop import Trainer
    from medweave_steps.train.network import load_initial_weights, seeded_network
    from medweave_steps.training.device import choose_device
    from medweave_steps.training.distributed.agreement import check_agreement, check_arrays
    from medweave_steps.training.loop.checkpoint import read_checkpoint, spread_before, strategy_of
    from medweave_steps.training.loop.energy import open_energy
    from medweave_steps.training.loop.hardware import RanksMonitor
    from medweave_steps.training.loop.history import History
    from medweave_steps.training.loop.stepper import uses_bfloat16
    from medweave_steps.training.strategies import resumable_options

    config = job.config
    content = read_checkpoint(config.resume_from) if config.resume_from else None
    check_agreement(group, _facts_to_agree_on(job, prepared, content))
    check_arrays(group, [*training, *validation])
    device = choose_device(config.device, local_rank=group.local_rank)
    task = task_of(config, prepared)
    sampler = task.open_sampler(config, prepared, training, **config.of_sampler())
    check_agreement(group, {"digest of the training cases": sampler.digest()})
    validator = task.open_validator(
        config, prepared, validation, window_shape=config.window_shape, overlap=config.overlap, device=device
    )
    network = seeded_network(config, task, channels=len(prepared.cohort.channels), plan=job.network)
    notice, weights_facts = load_initial_weights(config, job.network, network)
    if notice:
        context.notice(notice)
    is_together = config.strategy_options.lost_after_s is None
    ranks_energy = open_energy(group, device, is_together=is_together, powercap=job.powercap)
    ranks_monitor = RanksMonitor(
        group, device, folder=job.log_folder, interval_s=config.monitor_interval, num_threads=job.num_threads,
        powercap=job.powercap,
    )  # fmt: skip
    with (
        deferred() as signals,
        contextlib.closing(ranks_energy) as energy,
        contextlib.closing(ranks_monitor) as monitor,
    ):
        trainer = Trainer(
            config=config, network=network, network_identity=job.network.identity, network_facts=weights_facts, task=task,
            sampler=sampler, validator=validator,
            strategy=config.open_strategy(
                num_cases=count_samples(training), num_channels=len(prepared.cohort.channels),
                num_validation_cases=min(len(validation), config.validation_cases or len(validation)),
                group=group, device=device,
            ),
            uses_bfloat16=all(group.gather(uses_bfloat16(config, device, network))),
            data_sha256=prepared.cohort.data_sha256, signals=signals, num_threads=job.num_threads,
            energy=energy,
        )  # fmt: skip
        for notice in trainer.strategy.notices():
            context.notice(notice)
        points = trainer.restore(content) if content is not None else []
        if content is not None:
            names = resumable_options([config.strategy, strategy_of(content)])
            spread = spread_before(content, trainer.identity(), names=names)
            context.notice(f"resumed from a checkpoint at step {trainer.state.step} of {config.steps}{spread}.")
        history = History(job.log_folder if group.rank == 0 else None, points, on_add=monitor.mark)
        first_step = trainer.state.step
        monitor.start()
        trainer.run(history, lambda total, done: context.progress(unit="epoch", total=total, done=done))
        hardware = monitor.finish(
            num_samples=_count_trained(trainer, group, first_step=first_step),
            num_epochs=(trainer.state.step - first_step) / config.epoch_steps,
        )
        monitor.add_series(history)
        history.close()
    for notice in trainer.strategy.closing_notices():
        context.notice(notice)
    if trainer.state.stopped_early:
        context.notice(
            f"stopped early at step {trainer.state.step} of {config.steps}: "
            f"{config.patience} validations without a better validation score than at step {trainer.state.best_step}."
        )
    return trainer, hardware


def _count_trained(trainer: Any, group: Group, *, first_step: int) -> int:
    """Return the number of patches or images that all ranks have trained on since a step; every rank must call it."""
    strategy, sampler = trainer.strategy, trainer.sampler
    place = {"rank": strategy.replica, "world_size": strategy.num_replicas}
    own = sampler.num_counted(trainer.state.step, **place) - sampler.num_counted(first_step, **place)
    of_ranks = group.gather((strategy.replica, own) if strategy.trains else None)
    return sum(dict(part for part in of_ranks if part is not None).values())


def _facts_to_agree_on(job: TrainJob, prepared: PreparedFolder, content: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the facts that must be equal on all ranks; a rank without the others' checkpoint would start at another step."""
    return {
        **{f"--{name.replace('_', '-')}": value for name, value in job.config.identity().items()},
        **job.network.identity,
        "--checkpoint-folder": job.config.checkpoint_folder is not None,
        "step of the checkpoint": content["state"].get("step") if content else None,
        "digest of the cohort": prepared.digest(),
        "medweave's version": __version__,
    }


def _facts(job: TrainJob, group: Group, trainer: Any) -> RankFacts:
    from medweave_steps.runtime import environment

    strategy = trainer.strategy
    steps = trainer.state.step if strategy.trains else 0
    place = {"rank": strategy.replica, "world_size": strategy.num_replicas}
    return RankFacts(
        rank=strategy.rank,
        host=environment.host_name(),
        device=strategy.device.type,
        num_threads=job.num_threads,
        samples=trainer.sampler.num_counted(steps, **place),
        seconds=round(trainer.state.train_seconds, 3),
        padding=trainer.sampler.num_padding(steps, **place),
    )


def _card(
    job: TrainJob, context: StepContext, prepared: PreparedFolder, trainer: Any,
    postprocessing: Postprocessing, figures: Mapping[str, float | None], energy: CountedEnergy,
    hardware: HardwareFigures | None, seconds: float,
) -> ModelCard:  # fmt: skip
    from medweave_steps.runtime.environment import cpu_model
    from medweave_steps.training.loop.deliver import metrics_of

    config, cohort, state = job.config, prepared.cohort, trainer.state
    task, modality = trainer.task, modality_of(cohort.channels)
    fields = task.card_fields(cohort)
    return ModelCard(
        **fields | ({"name": config.name} if config.name else {}),
        task_name=config.task,
        architecture=job.network.architecture,
        input=InputContract(
            spacing_mm=cohort.spacing_mm,
            window_hu=cohort.window_hu,
            scaled_range=prepared.scaled_range,
            patch_shape=config.window_shape,
            patch_multiple=config.patch_multiple,
            crop=cohort.crop,
            modality=modality,
            unit=unit_of(cohort.channels),
            channels=len(cohort.channels),
            channel_names=cohort.channels,
            has_brain_mask=cohort.has_brain_masks,
            bias_correction=cohort.bias_correction,
        ),
        postprocessing=postprocessing,
        precision="float32",
        files={},
        parent_sha256=job.network.weights.parent_sha256 if job.network.weights else None,
        data_sha256=cohort.data_sha256,
        synthetic_data=cohort.synthetic,
        code_version=__version__,
        metrics=metrics_of(figures),
        training={
            **trainer.identity(),
            **({"fold": job.fold.number} if job.fold else {}),
            "world_size": trainer.strategy.group.world_size,
            "steps_done": state.step,
            "best_step": state.best_step,
            "best_seconds": None if state.best_seconds is None else round(state.best_seconds, 3),
            "stopped_early": state.stopped_early,
            "seconds": round(seconds, 3),
            "step_seconds": round(state.train_seconds, 3),
            "data_wait_seconds": round(state.data_wait_seconds, 2),
            "patches_per_second": round(config.batch_size * state.step / max(state.train_seconds, 1e-9), 2),
            "synchronised_bytes": state.synchronised_bytes,
            **trainer.strategy.card_facts(),
            "energy": codec.to_json(energy),
            **({"hardware": codec.to_json(hardware.use)} if hardware else {}),
            "num_threads": context.num_threads,
            "host_cpu": cpu_model(),
            "num_training_cases": len(trainer.sampler.cases),
            **task.training_facts(trainer.sampler),
            **trainer.network_facts,
            "num_validation_cases": count_samples(trainer.validator.cases),
            **({"preset": job.preset_facts} if job.preset_facts else {}),
        },
        energy_wh=energy.whole_wh,
    )
