"""`medweave-step train`: prepared cases in, a model folder and training curves out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from medweave_core.contracts.volume import is_table
from medweave_steps.io.cohort.prepared import CaseFolder, PreparedFolder, open_prepared
from medweave_steps.runtime.options import check_option
from medweave_steps.runtime.verb import StepContext, Verb
from medweave_steps.tasks.training import TrainingTask
from medweave_steps.train.config import TrainConfig
from medweave_steps.train.cross_validation import Fold, with_fold
from medweave_steps.train.inputs import (
    count_samples,
    describe_demo_recipe,
    scaled,
    task_of,
)
from medweave_steps.train.preset import planned
from medweave_steps.train.rank import TrainJob, train_on_rank


def run(config: TrainConfig, context: StepContext) -> Mapping[str, Any]:
    """Check the cases, train, choose the postprocessing on the validation split, and write the model."""
    from medweave_steps.runtime import environment
    from medweave_steps.runtime.imports import require
    from medweave_steps.train.network import plan_network, sized
    from medweave_steps.training.distributed.group import Alone
    from medweave_steps.training.distributed.launch import ranks_here, run_ranks
    from medweave_steps.training.loop.checkpoint import checkpoint_of_earlier_attempt
    from medweave_steps.training.loop.outputs import open_outputs
    from medweave_steps.training.strategies import strategy_class

    if config.folds is not None:
        return _cross_validate(config, context)
    if config.resume_from is None:
        config = dataclasses.replace(config, resume_from=checkpoint_of_earlier_attempt(context))
    node_group = environment.node_group()
    prepared = open_prepared(config.training_set)
    if config.has_demo_recipe and not prepared.cohort.synthetic and node_group.node_rank == 0:
        context.notice(describe_demo_recipe(config))
    task = task_of(config, prepared)
    training, _ = task.usable_cases(prepared)  # before any process is started
    config, preset_facts = _with_preset(config, context, prepared, training, task, num_nodes=node_group.num_nodes)
    config = sized(scaled(config, context), task.input_shape(prepared), options_set=context.options_set)
    num_channels = len(prepared.cohort.channels)
    network = plan_network(config, task, channels=num_channels)
    config = config.for_cases(count_samples(training), num_channels=num_channels)
    uses_ranks = strategy_class(config.strategy).uses_ranks
    if not uses_ranks and node_group.num_nodes > 1:
        context.notice(
            f"{node_group.num_nodes} nodes were started, but --strategy {config.strategy} uses only the first node."
        )
        if node_group.node_rank > 0:
            return {}
    num_here = ranks_here(config.ranks, node_group, option="ranks") if uses_ranks else 1
    threads = config.threads_per_rank or max(1, context.num_threads // num_here)
    with open_outputs(config, node_group, log_stays=True) as (folder, log_folder):
        job = TrainJob(
            config=config, network=network, num_threads=threads, folder=folder, log_folder=log_folder,
            preset_facts=preset_facts,
        )  # fmt: skip
        if not uses_ranks:
            require("torch", extra="train").set_num_threads(threads)
            outcome = train_on_rank(job, Alone())
        else:
            outcome = run_ranks(
                train_on_rank, job, num_here=num_here, num_threads=threads, device=config.device, node_group=node_group,
                lost_after_s=config.strategy_options.lost_after_s,
            )  # fmt: skip
    if outcome is None:
        return {}
    context.take(outcome[1])
    results: Mapping[str, Any] = outcome[0]
    return results


def _cross_validate(config: TrainConfig, context: StepContext) -> Mapping[str, Any]:
    """Train one model for each fold, in this process."""
    from medweave_steps.runtime import environment
    from medweave_steps.runtime.imports import require
    from medweave_steps.train.cross_validation import folds_of, train_folds
    from medweave_steps.train.network import plan_network, sized
    from medweave_steps.training.distributed.group import Alone
    from medweave_steps.training.loop.outputs import open_outputs

    resumes = config.resume_from is not None
    check_option(
        not resumes, "resume_from", config.resume_from, "no value: with --folds, set MEDWEAVE_RESUME_FROM instead"
    )
    node_group = environment.node_group()
    if node_group.node_rank > 0:
        return {}
    if node_group.num_nodes > 1:
        context.notice(f"{node_group.num_nodes} nodes were started, but --folds uses only the first node.")
    prepared = open_prepared(config.training_set)
    expected = "no value, for a table: its rows are split by encode-table"
    check_option(not is_table(prepared.cohort.channels), "folds", config.folds, expected)
    if config.has_demo_recipe and not prepared.cohort.synthetic:
        context.notice(describe_demo_recipe(config))
    task = task_of(config, prepared)
    assert config.folds is not None
    folds = folds_of(prepared, config.folds, seed=config.seed)
    # Before the first training, and before the preset reads the cases.
    training = {fold: task.usable_cases(with_fold(prepared, fold))[0] for fold in folds}
    # Once for all folds, so that their models can form an ensemble; a split may be empty, because the folds replace both.
    cases = [*prepared.cases("train"), *prepared.cases("validation")]
    config, preset_facts = _with_preset(config, context, prepared, cases, task)
    config = sized(config, task.input_shape(prepared), options_set=context.options_set)
    num_channels = len(prepared.cohort.channels)
    network = plan_network(config, task, channels=num_channels)
    configs = {fold: config.for_cases(count_samples(own), num_channels=num_channels) for fold, own in training.items()}
    threads = config.threads_per_rank or context.num_threads
    require("torch", extra="train").set_num_threads(threads)
    with open_outputs(config, node_group) as (folder, log_folder):

        def train(fold: Fold) -> tuple[Mapping[str, Any], StepContext]:
            own = _of_fold(configs[fold], fold)
            model, log = folder / fold.name, log_folder / fold.name
            for path in (model, log):
                path.mkdir()
            job = TrainJob(
                config=own, network=network, num_threads=threads, folder=model, log_folder=log, fold=fold,
                preset_facts=preset_facts,
            )  # fmt: skip
            outcome = train_on_rank(job, Alone())
            assert outcome is not None, "the first rank returns it"
            return outcome

        return train_folds(folds, context, folder, train)


def _with_preset(
    config: TrainConfig, context: StepContext, prepared: PreparedFolder, cases: Sequence[CaseFolder],
    task: TrainingTask, *, num_nodes: int = 1,
) -> tuple[TrainConfig, Mapping[str, Any]]:  # fmt: skip
    """Return the configuration with the options that --preset auto chooses for the cases, and its facts for the model card."""
    if config.preset != "auto":
        return config, {}
    preset = planned(config, context, prepared, cases, task=task, num_nodes=num_nodes)
    return preset.config, preset.facts


def _of_fold(config: TrainConfig, fold: Fold) -> TrainConfig:
    """Return the training of one fold: it has its own checkpoints, and resumes from those of an earlier attempt."""
    from medweave_steps.runtime import environment
    from medweave_steps.training.loop.checkpoint import newest_complete

    earlier, folder = environment.resume_from(), config.checkpoint_folder
    return dataclasses.replace(
        config,
        checkpoint_folder=folder / fold.name if folder else None,
        resume_from=newest_complete(earlier / fold.name) if earlier else None,
    )


DESCRIPTION = """\
Trains a network on preprocessed cases (training and validation split). Writes a model folder, which is also a MONAI Bundle, and a
training log (TensorBoard events, curves.json).

--task segmentation (default) learns labels of voxels, with a 3-D U-Net. Patches are sampled on lesions with equal probability
per lesion. The loss is Dice + cross-entropy, the optimizer Adam with a one-cycle learning-rate schedule. The weights with the
best validation score (sliding-window inference) are kept. The probability threshold, and the minimum peak probability and
volume (mm³) of a lesion, are selected on the validation split.

Several labels exclude each other (softmax), or are predicted as regions that overlap (--regions, one sigmoid output each). Each
label or region has its own figures, filters and, with regions, threshold; the validation score is the mean Dice over them. Voxels
without annotation (check --ignore-label) count in no loss and no metric.

--task classification learns the classes of whole images or volumes: one class each (softmax), or any number of them (sigmoid). The
loss is cross-entropy. The weights with the best macro-F1 on the validation split are kept. Probabilities are calibrated there: the
network's outputs are divided by a temperature. Options about patches, Dice, lesions and --preset auto apply to segmentation only.
A training set of encode-table has rows in place of images: --epochs, --sampling natural, and a --network-file of dense layers.
Without validation rows the last weights are kept.

--folds K is a cross-validation by patient: K trainings, each validated on its part of the patients of train and validation.

Training on the CPU is deterministic: the same seed, options, data and number of threads give the same weights, also after
resuming from a checkpoint.
The default options are a recipe for the synthetic scans of the demo; none was chosen for your data. A segmentation of other
scans prints a notice until you set an option of the recipe (--steps, --patch-shape, --network, ...).
Errors: an empty split, cases without labels or classes, a label or class without a training case, a checkpoint of another
training."""
EXAMPLE = "medweave-step train --training-set prepared/training_set --output trained_model --steps 2000"

VERB = Verb(name="train", description=DESCRIPTION, example=EXAMPLE, config=TrainConfig, run=run)
