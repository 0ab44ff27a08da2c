"""`medweave-step train`: prepared cases in, a model folder and training curves out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medweave_steps import __version__
from medweave_steps.contracts.errors import UsageError, UserInputError
from medweave_steps.contracts.model import InputContract, ModelCard, Postprocessing
from medweave_steps.io.prepared import CaseFolder, PreparedFolder, open_prepared
from medweave_steps.runtime.verb import StepContext, Verb
from medweave_steps.train.config import TrainConfig


def run(config: TrainConfig, context: StepContext) -> Mapping[str, Any]:
    """Checks the cases, trains, chooses the postprocessing on the validation split and writes the model."""
    from medweave_steps.runtime.imports import require
    from medweave_steps.runtime.write import atomic_directory

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
        _write_model(folder, trainer.network, card)
    return {
        "postprocessing": {"threshold": postprocessing.threshold, "min_volume_mm3": postprocessing.min_volume_mm3},
        "metrics": card.metrics,
        "training": card.training,
        "synthetic_data": card.synthetic_data,
    }


def usable_cases(prepared: PreparedFolder) -> tuple[list[CaseFolder], list[CaseFolder]]:
    """Training and validation cases.

    Raises:
        UserInputError: a split is empty, a case has no label, or no training case has a lesion.
    """
    splits = {name: prepared.cases(name) for name in ("train", "validation")}
    for name, cases in splits.items():
        if not cases:
            raise UserInputError(
                f"the training set has no {'training' if name == 'train' else name} case.",
                seen=", ".join(f"{len(found)} {split}" for split, found in splits.items()),
                expected="at least one case in each of train and validation",
                do="give preprocess more cases, or larger --fractions for the split that is empty",
            )
    missing = [c.case.case_id for cases in splits.values() for c in cases if not c.case.has_label]
    if missing:
        shown = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        raise UserInputError(
            "training cases lack a ground truth.",
            seen=f"no label for {shown}",
            expected="a label for every training and validation case",
            do="add the masks and run check and preprocess again, or take these cases out of the cohort",
        )
    if not any(c.case.num_lesions for c in splits["train"]):
        raise UserInputError(
            "no training case has a lesion.",
            seen=f"{len(splits['train'])} training cases, 0 lesions",
            expected="at least one lesion to learn from",
            do="add cases with lesions, or check the labels that the cohort declares",
        )
    return splits["train"], splits["validation"]


def _train(
    config: TrainConfig, context: StepContext, prepared: PreparedFolder,
    training: Sequence[CaseFolder], validation: Sequence[CaseFolder], log_folder: Path,
) -> Any:  # fmt: skip
    from medweave_steps.runtime.signals import deferred
    from medweave_steps.train.checkpoint import read_checkpoint
    from medweave_steps.train.data import PatchSampler, open_training_case
    from medweave_steps.train.history import History
    from medweave_steps.train.loop import Trainer
    from medweave_steps.train.network import seeded_network
    from medweave_steps.train.strategies import open_strategy
    from medweave_steps.train.validate import Validator

    cohort = prepared.cohort
    content = read_checkpoint(config.resume_from) if config.resume_from else None
    strategy = open_strategy(config.strategy, device=config.device)
    opened = [
        open_training_case(case, spacing_mm=cohort.spacing_mm, seed=config.seed + place)
        for place, case in enumerate(training)
    ]
    sampler = PatchSampler(
        opened, patch_shape=config.patch_shape, batch_size=config.batch_size, window_hu=cohort.window_hu,
        lesion_share=config.lesion_share, bright_share=config.bright_share, thick_share=config.thick_share,
        augment=config.augment, seed=config.seed,
    )  # fmt: skip
    validator = Validator(
        cases=validation, spacing_mm=cohort.spacing_mm, window_hu=cohort.window_hu,
        window_shape=config.window_shape, overlap=config.overlap, device=strategy.device,
    )  # fmt: skip
    with deferred() as signals:
        trainer = Trainer(
            config=config, network=seeded_network(config), strategy=strategy, sampler=sampler, validator=validator,
            uses_bfloat16=_uses_bfloat16(config, strategy.device), data_sha256=cohort.data_sha256, signals=signals,
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


def _uses_bfloat16(config: TrainConfig, device: Any) -> bool:
    from medweave_steps.runtime.environment import computes_in_bfloat16
    from medweave_steps.runtime.imports import require

    if config.precision != "auto":
        return config.precision == "bfloat16"
    if device.type == "cuda":
        return bool(require("torch", extra="train").cuda.is_bf16_supported())
    return computes_in_bfloat16()


def _choose(
    config: TrainConfig, context: StepContext, trainer: Any, validation: Sequence[CaseFolder]
) -> tuple[Postprocessing, dict[str, float | None]]:
    from medweave_steps.train import validate

    trainer.network.eval()
    choices = validate.all_choices(config.overlap)
    per_case = trainer.validator.tallies(trainer.predict, choices)
    chosen, figures = validate.choose_postprocessing(choices, per_case, max_false_positives=config.max_false_positives)
    for case, tallied in zip(validation, per_case, strict=True):
        tally = tallied[choices.index(chosen)]
        context.add_case(
            case.case.case_id,
            split="validation",
            dice=None if tally.dice != tally.dice else round(tally.dice, 4),
            lesions=len(tally.hit),
            lesions_found=sum(tally.hit),
            false_positives=tally.num_false_positives,
        )
    found = figures["false_positives_per_scan"] or 0.0
    if found > config.max_false_positives:
        context.notice(
            f"no threshold and size filter keeps false positives at {config.max_false_positives:g} per validation scan: "
            f"{found:.2f} with the best one."
        )
    return chosen, figures


def _card(
    config: TrainConfig, context: StepContext, prepared: PreparedFolder, trainer: Any,
    postprocessing: Postprocessing, figures: Mapping[str, float | None], seconds: float,
) -> ModelCard:  # fmt: skip
    from medweave_steps.runtime.environment import cpu_model
    from medweave_steps.train.network import architecture

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
        metrics={f"validation_{name}": value for name, value in figures.items()},
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


def _write_model(folder: Path, network: Any, card: ModelCard) -> None:
    from medweave_steps.io.bundle_files import write_bundle_configs
    from medweave_steps.io.model_folder import write_card
    from medweave_steps.io.network import save_weights

    save_weights(folder, network.cpu())
    write_bundle_configs(folder, card)
    write_card(folder, card)


VERB = Verb(
    name="train",
    description=(
        "Trains a MONAI 3-D U-Net on prepared cases (training and validation split, labelled) and writes a model folder, which is\n"
        "also a MONAI Bundle, and a training log (TensorBoard events, curves.json).\n"
        "Patches are placed on lesions with equal chance per lesion; loss Dice + cross-entropy; Adam, one-cycle learning rate.\n"
        "The best weights by sliding-window validation are kept; probability threshold and smallest lesion volume (mm³) are\n"
        "chosen on the validation split. Deterministic on the CPU: same seed, options, data and threads give the same weights,\n"
        "also through a checkpoint. Refuses empty splits, unlabelled cases, and checkpoints of another training."
    ),
    config=TrainConfig,
    run=run,
)
