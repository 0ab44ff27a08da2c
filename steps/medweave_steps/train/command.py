"""`medweave-step train`: prepared cases in, a model folder and training curves out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medweave_steps import __version__
from medweave_steps.contracts.errors import UsageError
from medweave_steps.contracts.model import InputContract, ModelCard, Postprocessing
from medweave_steps.io.prepared import CaseFolder, PreparedFolder, open_prepared
from medweave_steps.runtime.verb import StepContext, Verb
from medweave_steps.train.config import TrainConfig
from medweave_steps.training.cases import open_sampler, open_validator, usable_cases


def run(config: TrainConfig, context: StepContext) -> Mapping[str, Any]:
    """Checks the cases, trains, chooses the postprocessing on the validation split and writes the model."""
    from medweave_steps.runtime.imports import require
    from medweave_steps.runtime.write import atomic_directory
    from medweave_steps.training import deliver

    started = time.monotonic()
    prepared = open_prepared(config.training_set)
    training, validation = usable_cases(prepared)
    torch = require("torch", extra="train")
    require("monai", extra="train")
    torch.set_num_threads(context.num_threads)
    if config.output.resolve() == config.training_log.resolve():
        raise UsageError("--output and --training-log name the same folder.", expected="two folders")
    with atomic_directory(config.output) as folder, atomic_directory(config.training_log) as log_folder:
        trainer = _train(config, context, prepared, training, validation, log_folder)
        trainer.strategy.close()
        postprocessing, figures = _choose(config, context, trainer, validation)
        card = _card(config, context, prepared, trainer, postprocessing, figures, time.monotonic() - started)
        deliver.write_model(folder, trainer.network, card)
    return deliver.results_of(card)


def _train(
    config: TrainConfig, context: StepContext, prepared: PreparedFolder,
    training: Sequence[CaseFolder], validation: Sequence[CaseFolder], log_folder: Path,
) -> Any:  # fmt: skip
    from medweave_steps.runtime.signals import deferred
    from medweave_steps.train.checkpoint import read_checkpoint
    from medweave_steps.train.loop import Trainer
    from medweave_steps.train.network import seeded_network
    from medweave_steps.train.strategies import open_strategy
    from medweave_steps.training.history import History
    from medweave_steps.training.stepper import uses_bfloat16

    content = read_checkpoint(config.resume_from) if config.resume_from else None
    strategy = open_strategy(config.strategy, device=config.device)
    sampler = open_sampler(config, prepared, training)
    validator = open_validator(
        prepared, validation, window_shape=config.window_shape, overlap=config.overlap, device=strategy.device
    )
    with deferred() as signals:
        trainer = Trainer(
            config=config, network=seeded_network(config), strategy=strategy, sampler=sampler, validator=validator,
            uses_bfloat16=uses_bfloat16(config, strategy.device), data_sha256=prepared.cohort.data_sha256, signals=signals,
        )  # fmt: skip
        points = trainer.restore(content) if content is not None else []
        if content is not None:
            context.notice(f"continued from a checkpoint at step {trainer.state.step} of {config.steps}.")
        history = History(log_folder, points)
        trainer.run(history, lambda total, done: context.progress(unit="epoch", total=total, done=done))
        history.close()
    if trainer.state.stopped_early:
        context.notice(
            f"stopped early at step {trainer.state.step} of {config.steps}: "
            f"{config.patience} validations were no better than that at step {trainer.state.best_step}."
        )
    trainer.network.load_state_dict(trainer.state.best_weights)
    return trainer


def _choose(
    config: TrainConfig, context: StepContext, trainer: Any, validation: Sequence[CaseFolder]
) -> tuple[Postprocessing, dict[str, float | None]]:
    from medweave_steps.training import deliver
    from medweave_steps.training.validate import all_choices

    choices = all_choices(config.overlap)
    per_case = trainer.tallies(choices)
    return deliver.choose(context, validation, choices, per_case, max_false_positives=config.max_false_positives)


def _card(
    config: TrainConfig, context: StepContext, prepared: PreparedFolder, trainer: Any,
    postprocessing: Postprocessing, figures: Mapping[str, float | None], seconds: float,
) -> ModelCard:  # fmt: skip
    from medweave_steps.runtime.environment import cpu_model
    from medweave_steps.train.network import architecture
    from medweave_steps.training.deliver import metrics_of

    cohort, state = prepared.cohort, trainer.state
    names = [name for key, name in cohort.labels.items() if key != "0"]
    return ModelCard(
        name=config.name,
        task=f"Segmentation of {' and '.join(names) or 'lesions'} in chest CT",
        architecture=architecture(config),
        labels=cohort.labels,
        input=InputContract(
            spacing_mm=cohort.spacing_mm,
            window_hu=cohort.window_hu,
            patch_shape=config.window_shape,
            patch_multiple=config.patch_multiple,
            crop=cohort.crop,
        ),
        postprocessing=postprocessing,
        precision="float32",
        files={},
        parent_sha256=None,
        data_sha256=cohort.data_sha256,
        synthetic_data=cohort.synthetic,
        code_version=__version__,
        metrics=metrics_of(figures),
        training={
            **trainer.identity(),
            "world_size": trainer.strategy.world_size,
            "steps_done": state.step,
            "best_step": state.best_step,
            "stopped_early": state.stopped_early,
            "seconds": round(seconds, 1),
            "step_seconds": round(state.train_seconds, 1),
            "num_threads": context.num_threads,
            "host_cpu": cpu_model(),
            "num_training_cases": len(trainer.sampler.cases),
            "num_training_lesions": len(trainer.sampler.lesions),
            "num_validation_cases": len(trainer.validator.cases),
        },
    )


VERB = Verb(
    name="train",
    description=(
        "Trains a MONAI 3-D U-Net on prepared cases (training and validation split, labelled) and writes a model folder, which is\n"
        "also a MONAI Bundle, and a training log (TensorBoard events, curves.json).\n"
        "Patches are placed on lesions with equal chance per lesion; loss Dice + cross-entropy; Adam, one-cycle learning rate.\n"
        "The best weights by sliding-window validation are kept. The probability at a lesion's outline, and the peak probability\n"
        "and volume (mm³) from which it counts, are chosen on the validation split.\n"
        "Deterministic on the CPU: same seed, options, data and threads give the same weights, also through a checkpoint.\n"
        "Refuses empty splits, unlabelled cases, and checkpoints of another training."
    ),
    config=TrainConfig,
    run=run,
)
