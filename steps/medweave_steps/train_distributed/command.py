"""`medweave-step train-distributed`: a trained model in, the same model trained further by averaged replicas out."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_core.contracts import codec
from medweave_core.contracts.energy import CountedEnergy
from medweave_core.contracts.hardware import HardwareFigures
from medweave_core.contracts.model import ModelCard, Postprocessing
from medweave_steps import __version__
from medweave_steps.io.cohort.prepared import PreparedFolder, open_prepared
from medweave_steps.io.hashing import sha256_of_file
from medweave_steps.io.model.folder import (
    AS_TRAINED,
    CARD_FILE,
    card_sha256,
    check_cohort_fits,
    check_float32,
    read_card,
)
from medweave_steps.networks import multiples_of, multiples_text
from medweave_steps.networks.user_code import NetworkCode
from medweave_steps.runtime.energy import POWERCAP
from medweave_steps.runtime.options import check_option
from medweave_steps.runtime.verb import StepContext, Verb
from medweave_steps.tasks import task_named
from medweave_steps.tasks.training import TrainingTask
from medweave_steps.train_distributed.config import DistributedConfig
from medweave_steps.training.distributed.group import Alone, Group

WORKERS = "the work runs on COMPSs workers, whose counters are not read"


def run(config: DistributedConfig, context: StepContext) -> Mapping[str, Any]:
    """Check model and cases, run the rounds, choose the postprocessing on the validation split, and write the model."""
    from medweave_steps.io.model.network import network_code
    from medweave_steps.runtime import environment
    from medweave_steps.train_distributed.engines import engine_named
    from medweave_steps.training.distributed.launch import ranks_here, run_ranks
    from medweave_steps.training.loop.checkpoint import checkpoint_of_earlier_attempt
    from medweave_steps.training.loop.history import read_points
    from medweave_steps.training.loop.outputs import open_outputs

    if config.resume_from is None:
        config = dataclasses.replace(config, resume_from=checkpoint_of_earlier_attempt(context))
    node_group = environment.node_group()
    engine = engine_named(config.engine, by_deployment=environment.node_group_engine())
    prepared = open_prepared(config.training_set)
    card = usable_model(config, prepared)
    code = network_code(config.trained_model, card, allow_code=config.allow_code)
    if (shape := task_of(card, prepared).input_shape(prepared)) is not None:
        fits = "patch_shape" not in context.options_set or config.patch_shape == shape
        check_option(fits, "patch_shape", config.patch_shape, f"{' '.join(map(str, shape))}, the size of the data")
        config = dataclasses.replace(config, patch_shape=shape)
    points = read_points(config.continues_log) if config.continues_log else []
    if engine == "compss":
        from medweave_steps.train_distributed.engines.compss import require_pycompss

        require_pycompss()
    if engine != "ddp" and node_group.num_nodes > 1:
        context.notice(f"{node_group.num_nodes} nodes were started, but --engine {engine} runs on the first node only.")
        if node_group.node_rank > 0:
            return {}
    num_here = ranks_here(config.replicas, node_group, option="replicas") if engine == "ddp" else 1
    threads = config.threads_per_replica or max(1, context.num_threads // num_here)
    with open_outputs(config, node_group) as (folder, log_folder):
        job = DistributedJob(
            config=config, card=card, engine=engine, num_threads=threads,
            folder=folder, log_folder=log_folder, points=tuple(points), network_code=code,
        )  # fmt: skip
        if engine == "ddp":
            outcome = run_ranks(
                continue_on_rank,
                job,
                num_here=num_here,
                num_threads=threads,
                device=config.device,
                node_group=node_group,
            )
        else:
            outcome = continue_on_rank(job, Alone())
    if outcome is None:
        return {}
    context.take(outcome[1])
    results: Mapping[str, Any] = outcome[0]
    return results


def usable_model(config: DistributedConfig, prepared: PreparedFolder) -> ModelCard:
    """Return the card of the model that is continued.

    Raises:
        UserInputError: the model is compressed, or was made for cases of another kind; or the cases cannot be trained on.
        UsageError: the network cannot take patches of this shape.
    """
    card = read_card(config.trained_model)
    check_float32(card, "be trained further", expected=AS_TRAINED, do="set --trained-model to that folder")
    check_cohort_fits(card, prepared.cohort)
    task_of(card, prepared).usable_cases(prepared)
    multiples = multiples_of(card)
    fits = not any(side % multiple for side, multiple in zip(config.patch_shape, multiples, strict=True))
    expected = f"multiples of {multiples_text(multiples)}, as in the model card"
    check_option(fits, "patch_shape", config.patch_shape, expected)
    return card


def task_of(card: ModelCard, prepared: PreparedFolder) -> TrainingTask:
    """Return what the model has learned and learns further."""
    return task_named(card.task_name).training_of_card(card, prepared.cohort)


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedJob:
    """The arguments of every rank.

    Attributes:
        card: of the model that is continued.
        engine: the one in use.
        num_threads: compute threads of each replica.
        folder, log_folder: outputs that the first rank writes.
        points: of the curves that are continued.
        network_code: code of the user that the network is in, which may be run.
        powercap: folder of the processors' counters of energy.
    """

    config: DistributedConfig
    card: ModelCard
    engine: str
    num_threads: int
    folder: Path
    log_folder: Path
    points: tuple[Mapping[str, Any], ...]
    network_code: NetworkCode | None = None
    powercap: Path = POWERCAP


def continue_on_rank(job: DistributedJob, group: Group) -> tuple[Mapping[str, Any], StepContext] | None:
    """Run all rounds on one rank; rank 0 writes the model and returns the results and its context."""
    from medweave_steps.io.model.network import load_plain
    from medweave_steps.runtime import environment
    from medweave_steps.train_distributed.rounds import facts_of, pace_of, run_rounds
    from medweave_steps.training.device import choose_device
    from medweave_steps.training.distributed.agreement import check_agreement, check_arrays
    from medweave_steps.training.distributed.average import packed
    from medweave_steps.training.loop import deliver
    from medweave_steps.training.loop.checkpoint import read_checkpoint
    from medweave_steps.training.loop.energy import RanksEnergy
    from medweave_steps.training.loop.hardware import RanksMonitor
    from medweave_steps.training.loop.history import History
    from medweave_steps.training.loop.validator import interleaved

    started, config = time.monotonic(), job.config
    context = StepContext(verb="train-distributed", num_threads=job.num_threads, quiet=group.rank != 0)
    prepared = open_prepared(config.training_set)
    content = read_checkpoint(config.resume_from) if config.resume_from else None
    check_agreement(group, facts_to_agree_on(job, prepared, content))
    task = task_of(job.card, prepared)
    training, validation = task.usable_cases(prepared)
    check_arrays(group, [*training, *validation])
    network = load_plain(config.trained_model, job.card, code=job.network_code)
    replicas = replica_job(job, task)
    validator = task.open_validator(
        config, prepared, validation, window_shape=replicas.window_shape, overlap=replicas.overlap, device=None
    )
    engine = open_engine(job.engine, replicas, group)
    course, checkpoints = course_of(job, group, engine, network, prepared, content)
    if content is not None:
        context.notice(f"resumed from a checkpoint after round {len(course.rounds)} of {config.rounds}.")
    points = job.points if content is None else content["points"]
    elsewhere = WORKERS if job.engine == "compss" else ""
    device = None if elsewhere else choose_device(config.device, local_rank=group.local_rank)
    energy = RanksEnergy(group, device, powercap=job.powercap, elsewhere=elsewhere)
    monitor = RanksMonitor(
        group, device, folder=job.log_folder, interval_s=config.monitor_interval, num_threads=job.num_threads,
        powercap=job.powercap,
    )  # fmt: skip
    history = History(
        job.log_folder if group.rank == 0 else None, [dict(point) for point in points], on_add=monitor.mark
    )
    with contextlib.closing(energy), contextlib.closing(monitor):
        first_round = len(course.rounds)
        monitor.start()
        run_rounds(
            replicas, engine, validator, course, checkpoints, history, energy,
            lambda total, done: context.progress(unit="round", total=total, done=done),
        )  # fmt: skip
        trained = course.shares[first_round:]
        hardware = monitor.finish(
            num_samples=sum(share.samples for shares in trained for share in shares), num_epochs=len(trained)
        )
        monitor.add_series(history)
    history.close()
    shares = engine.tallies(packed(course.best_weights), validator.choices, None, course.bfloat16)
    per_case = interleaved(shares)
    counted = energy.counted(course.each_wh, hardware)
    if group.rank != 0:
        return None
    chosen, figures = validator.choose(context, per_case)
    if course.best_round == 0:
        context.notice("no round improved the validation score of the input model: its weights are unchanged.")
    context.ranks += facts_of(replicas, course)
    network.load_state_dict(course.best_weights)
    seconds = time.monotonic() - started
    card = child_card(
        job, prepared, course, {**engine.card_facts(), **pace_of(replicas, course)}, chosen, figures, counted,
        hardware, seconds,
    )  # fmt: skip
    if job.network_code is not None:
        job.network_code.write_copy(job.folder)
    deliver.write_model(job.folder, network, card)
    context.versions |= environment.library_versions()
    return {**deliver.results_of(card), "engine": job.engine, **engine.card_facts(), "rounds": course.rounds}, context


def course_of(
    job: DistributedJob, group: Group, engine: Any, network: Any, prepared: PreparedFolder,
    content: Mapping[str, Any] | None,
) -> tuple[Any, Any]:  # fmt: skip
    """Return the state that the rounds start from, and their checkpoints; restores the replicas' optimizers in the engine.

    Raises:
        UserInputError: the checkpoint belongs to another training.
    """
    from medweave_steps.train_distributed.course import Course, RoundCheckpoints

    abilities = engine.abilities()
    course = Course(
        abilities=abilities,
        bfloat16=all(able.bfloat16 for able in abilities),
        weights={name: tensor.clone() for name, tensor in network.state_dict().items()},
    )
    checkpoints = RoundCheckpoints(
        folder=job.config.checkpoint_folder,
        writes=group.rank == 0,
        identity={
            **job.config.identity(),
            "precision": course.precision,
            "device": abilities[0].device,
            "digest of the model to continue": sha256_of_file(job.config.trained_model / CARD_FILE),
        },
        data_sha256=prepared.cohort.data_sha256,
        content=content,
    )
    if (memories := checkpoints.restored(course)) is not None:
        engine.restore(memories)
    return course, checkpoints


def facts_to_agree_on(
    job: DistributedJob, prepared: PreparedFolder, content: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the facts that must be equal on all ranks; a rank without the others' checkpoint would start at another round."""
    return {
        **{f"--{name.replace('_', '-')}": value for name, value in job.config.identity().items()},
        "--checkpoint-folder": job.config.checkpoint_folder is not None,
        "round of the checkpoint": len(content["state"].get("rounds", ())) if content else None,
        "digest of the model to continue": sha256_of_file(job.config.trained_model / CARD_FILE),
        "digest of the cohort": prepared.digest(),
        "medweave's version": __version__,
    }


def replica_job(job: DistributedJob, task: TrainingTask) -> Any:
    """Return the job of the replicas, from the options and the card of the model."""
    from medweave_steps.train_distributed.engines.replica import ReplicaJob

    return ReplicaJob(
        # Tasks may run in another working directory.
        config=dataclasses.replace(job.config, training_set=job.config.training_set.absolute()),
        **job.config.of_replicas(),
        task=task,
        architecture=json.dumps(job.card.architecture),
        network_code=job.network_code,
        window_shape=job.card.input.patch_shape,
        window_hu=job.card.input.window_hu,
        scaled_range=job.card.input.scaled_range,
        overlap=job.card.postprocessing.overlap,
        first_step=int(job.card.training.get("steps_done", 0)),
        num_threads=job.num_threads,
    )


def open_engine(name: str, replicas: Any, group: Group) -> Any:
    """Make the engine of this name."""
    if name == "ddp":
        from medweave_steps.train_distributed.engines.ddp import DdpEngine

        return DdpEngine(replicas, group)
    if name == "compss":
        from medweave_steps.train_distributed.engines.compss import CompssEngine

        return CompssEngine(replicas)
    from medweave_steps.train_distributed.engines.in_order import InOrderEngine

    return InOrderEngine(replicas)


def child_card(
    job: DistributedJob, prepared: PreparedFolder, course: Any, engine_facts: Mapping[str, Any],
    postprocessing: Postprocessing, figures: Mapping[str, float | None], energy: CountedEnergy,
    hardware: HardwareFigures | None, seconds: float,
) -> ModelCard:  # fmt: skip
    """Return the parent's card with the changes of this training."""
    from medweave_steps.runtime.environment import cpu_model
    from medweave_steps.training.loop.deliver import metrics_of

    config, parent, cohort = job.config, job.card, prepared.cohort
    first_step = int(parent.training.get("steps_done", 0))
    return dataclasses.replace(
        parent,
        postprocessing=postprocessing,
        files={},
        parent_sha256=card_sha256(parent),
        data_sha256=cohort.data_sha256,
        synthetic_data=parent.synthetic_data or cohort.synthetic,
        code_version=__version__,
        metrics=metrics_of(figures),
        training={
            **config.identity(),
            "strategy": "local-sgd",
            "engine": job.engine,
            **engine_facts,
            "precision": course.precision,
            "device": course.abilities[0].device,
            "steps_done": first_step + course.best_round * config.steps_per_round,
            "best_round": course.best_round,
            "seconds": round(seconds, 1),
            "energy": codec.to_json(energy),
            **({"hardware": codec.to_json(hardware.use)} if hardware else {}),
            "num_threads": job.num_threads,
            "host_cpu": cpu_model(),
            "parent_data_sha256": parent.data_sha256,
        },
        energy_wh=energy.whole_wh,
    )


DESCRIPTION = """\
Continues training a model on preprocessed cases with labels (training and validation split), in rounds of local SGD. In each
round, every replica takes K optimizer steps from the same weights, on its own share of the patches and with its own
optimizer. Then weights and running statistics are averaged in a fixed order, weighted by the number of samples. The step
writes a model folder that names its parent model, and a training log. The average with the best validation score
(sliding-window inference) is kept; if no round improves on the input model, its weights are kept.

The engine distributes the replicas over processes, nodes or COMPSs workers. It does not affect the weights: the same seed,
options, data, threads per replica and processor type give bit-identical weights, also after resuming from a checkpoint.
Errors: a compressed model, cases whose spacing or window differs from the model's, an empty split, cases without labels, a
checkpoint of another training."""
EXAMPLE = """\
medweave-step train-distributed --training-set prepared/training_set --trained-model trained_model \\
      --output continued_model --replicas 4"""

VERB = Verb(name="train-distributed", description=DESCRIPTION, example=EXAMPLE, config=DistributedConfig, run=run)
