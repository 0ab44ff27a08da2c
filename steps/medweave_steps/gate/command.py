"""`medweave-step gate`: accept or refuse the candidates of a model, measured on this machine."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_core.contracts import codec
from medweave_core.contracts.gate import GateDecision
from medweave_core.contracts.model import ModelCard, Runtime
from medweave_core.errors import UsageError, UserInputError
from medweave_steps.gate.judge import Measured, Rule, Verdict, decide, is_open, is_within, speed_of
from medweave_steps.gate.measure import Contender, measure, not_measured, open_contender
from medweave_steps.gate.models import GateModel, fixed_candidate, read_models, reference_runtime
from medweave_steps.io.cohort.prepared import CaseFolder, PreparedFolder, open_prepared
from medweave_steps.io.model.folder import card_sha256, check_cohort_fits, copy_files, write_card
from medweave_steps.runtime.environment import cpu_model, library_versions
from medweave_steps.runtime.options import check_option, option
from medweave_steps.runtime.progress import Progress
from medweave_steps.runtime.verb import StepContext, Verb
from medweave_steps.runtime.write import atomic_directory, atomic_file
from medweave_steps.tasks import task_named

_MOST_TIMES = 5
"""Most rounds, as a multiple of --pairs; more only where there are more validation cases."""
_TOLERANCES = (
    "dice_tolerance", "sensitivity_tolerance", "false_positive_tolerance", "accuracy_tolerance", "macro_f1_tolerance",
    "macro_auc_tolerance",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig:
    """Options of `gate`."""

    exported_model: Path = option(
        "float32 model folder of export; the reference, and the fallback if no candidate is accepted"
    )
    candidates: tuple[Path, ...] = option(
        "candidate model folders: quantized models, exported pruned models, and quantized pruned models",
        default=(),
        metavar="PATH",
    )
    training_set: Path = option("preprocessed cases with labels; the validation split decides")
    test_batches: tuple[Path, ...] = option("preprocessed test cases; reported only", default=(), metavar="PATH")
    output: Path = option(
        "model folder to write: the accepted model; its card fixes precision and runtime for segment or classify"
    )
    decision: Path = option(
        "JSON file to write: measurements, decision and reasons", default=Path("gate_decision.json")
    )
    dice_tolerance: float = option(
        "maximum loss of Dice: the 95 % interval of the paired difference must lie above minus this value", default=0.01
    )
    sensitivity_tolerance: float = option("maximum loss of lesion sensitivity (0 to 1)", default=0.02)
    false_positive_tolerance: float = option("maximum increase of false positives per scan", default=0.1)
    accuracy_tolerance: float = option(
        "classification: maximum loss of accuracy, judged by the interval like Dice", default=0.02
    )
    macro_f1_tolerance: float = option(
        "classification: maximum loss of macro-F1, judged by the interval like Dice", default=0.05
    )
    macro_auc_tolerance: float = option(
        "classification: maximum loss of macro-AUC, judged by the interval like Dice", default=0.02
    )
    min_speedup: float = option(
        "speedup over float32 from which a candidate counts as faster: the whole 95 % interval of the paired ratio must reach it",
        default=1.1,
    )
    max_slowdown: float = option(
        "maximum time relative to float32 for a candidate that is only smaller; the whole interval must be within it",
        default=1.1,
    )
    pairs: int = option(
        "number of timed rounds, at least one per validation case; up to five times as many while an interval contains a limit",
        default=7,
    )
    fixed_choice: str | None = option(
        "candidate and runtime to accept if its metrics stay within the tolerances, whatever its speed, such as int8:openvino or "
        "float32:onnxruntime; candidates are float32, pruned, int8 and pruned-int8",
        default=None,
        metavar="CANDIDATE:RUNTIME",
    )
    seed: int = option("random seed of the bootstrap", default=0)

    def __post_init__(self) -> None:
        for name in _TOLERANCES:
            if not getattr(self, name) >= 0:
                raise UsageError(f"--{name.replace('_', '-')} must not be negative.", seen=str(getattr(self, name)))
        for name in ("min_speedup", "max_slowdown", "pairs"):
            if not getattr(self, name) >= 1:
                raise UsageError(f"--{name.replace('_', '-')} must be at least 1.", seen=str(getattr(self, name)))
        if self.seed < 0:
            raise UsageError("--seed must not be negative.", seen=str(self.seed))


def run(config: GateConfig, context: StepContext) -> Mapping[str, Any]:
    """Measure all models on the validation split, decide, then measure them on the test split."""
    models = read_models(config.exported_model, config.candidates, notice=context.notice)
    card = models[0].card
    compared = _compared(config, models)
    tolerances = _tolerances(config, card)
    training_set = open_prepared(config.training_set)
    validation = _labelled(training_set, card, context, split="validation")
    test = [case for path in config.test_batches for case in _labelled(open_prepared(path), card, context)]
    rule = Rule(
        judge=task_named(card.task_name).judge(),
        tolerances=tolerances,
        seed=config.seed,
        fixed_choice=config.fixed_choice,
    )
    contenders = [_opened(model, runtime, context) for model, runtime in compared]
    first = range(max(config.pairs, len(validation)))
    progress = context.progress(unit="volume", total=(len(first) + len(test)) * len(contenders))
    measure(contenders, validation, rounds=first, on_volume=progress.step)
    _measure_more(contenders, validation, rule, first, config.pairs, context)
    verdict = decide(_measured(contenders[0]), [_measured(one) for one in contenders[1:]], rule)
    winner = contenders[0 if verdict.accepted is None else 1 + verdict.accepted]
    decision = _decision(contenders[0], winner, verdict, rule, context, is_synthetic=training_set.cohort.synthetic)
    if test:
        decision = _with_test(decision, contenders, test, rule, progress, context)
    _write(config, decision, winner)
    context.notice(decision.reason)
    for case in decision.float32_validation.cases:
        context.add_case(case.case_id, float32=_shown(case), **_others(decision, case.case_id))
    return dict(codec.to_json(decision))


def _compared(config: GateConfig, models: Sequence[GateModel]) -> list[tuple[GateModel, Runtime | None]]:
    """Return every model with each runtime that is compared, the reference first; None where no runtime can run a model."""
    reference = (models[0], reference_runtime(models[0]))
    if config.fixed_choice:
        fixed = fixed_candidate(config.fixed_choice, models)
        return [reference] if fixed == reference else [reference, fixed]
    pairs = [(model, runtime) for model in models for runtime in (model.runtimes or (None,))]
    return [reference, *(pair for pair in pairs if pair != reference)]


def _opened(model: GateModel, runtime: Runtime | None, context: StepContext) -> Contender:
    if runtime is None:
        return not_measured(model, model.card.runtime)
    return open_contender(model, runtime, num_threads=context.num_threads)


def _measure_more(
    contenders: Sequence[Contender],
    cases: Sequence[CaseFolder],
    rule: Rule,
    first: range,
    step: int,
    context: StepContext,
) -> None:
    """Add rounds while the speed of a candidate that may be accepted is open, so that a second run decides alike.

    Args:
        first: the rounds that were measured.
        step: rounds that are added at a time.
    """
    done, most, base = len(first), _MOST_TIMES * step, contenders[0]
    if rule.fixed_choice or done >= most:
        return
    open_ones = [one for one in contenders[1:] if _is_open(one, base, rule)]
    # The cases of a model do not change with more rounds, nor do its metrics.
    open_ones = [one for one in open_ones if is_within(_measured(base), _measured(one), rule)]
    while open_ones and done < most:
        further = range(done, min(done + step, most))
        progress = context.progress(unit="volume", total=len(further) * (1 + len(open_ones)))
        measure([base, *open_ones], cases, rounds=further, on_volume=progress.step)
        done = further.stop
        open_ones = [one for one in open_ones if _is_open(one, base, rule)]


def _is_open(contender: Contender, base: Contender, rule: Rule) -> bool:
    if contender.failure:
        return False
    speed = speed_of(contender.seconds, base.seconds, size=contender.num_bytes, base_size=base.num_bytes)
    return is_open(speed, rule.tolerances, is_same_model=contender.card_sha256 == base.card_sha256)


def _measured(contender: Contender) -> Measured:
    return Measured(
        name=contender.model.name,
        precision=contender.card.precision,
        runtime=contender.runtime,
        device=contender.device,
        card_sha256=contender.card_sha256,
        num_bytes=0 if contender.failure else contender.num_bytes,
        seconds=tuple(contender.seconds),
        cases=tuple(contender.cases),
        failure=contender.failure,
    )


def _decision(
    base: Contender, winner: Contender, verdict: Verdict, rule: Rule, context: StepContext, *, is_synthetic: bool
) -> GateDecision:
    return GateDecision(
        model=base.card.name,
        task_name=base.card.task_name,
        exported_sha256=base.card_sha256,
        precision=winner.card.precision,
        chosen=winner.model.name,
        runtime=winner.runtime,
        fixed_choice=rule.fixed_choice,
        reason=verdict.reason,
        synthetic=is_synthetic,
        host_cpu=cpu_model(),
        num_threads=context.num_threads,
        tolerances=rule.tolerances,
        float32_runtime=base.runtime,
        float32_device=base.device,
        float32_speed=verdict.float32_speed,
        float32_validation=verdict.float32_validation,
        candidates=verdict.candidates,
        versions=library_versions(),
        bootstrap_seed=rule.seed,
    )


def _with_test(
    decision: GateDecision,
    contenders: Sequence[Contender],
    cases: Sequence[CaseFolder],
    rule: Rule,
    progress: Progress,
    context: StepContext,
) -> GateDecision:
    fresh = [dataclasses.replace(contender, seconds=[], cases=[]) for contender in contenders]
    measure(fresh, cases, rounds=range(len(cases)), on_volume=progress.step)
    for one, earlier in zip(fresh, contenders, strict=True):
        if one.failure and not earlier.failure:
            context.notice(f"{one.title}: {one.failure}")
    base = fresh[0].cases
    candidates = tuple(
        candidate
        if contender.failure
        else dataclasses.replace(candidate, test=rule.judge.compare(base, contender.cases, seed=rule.seed))
        for candidate, contender in zip(decision.candidates, fresh[1:], strict=True)
    )
    return dataclasses.replace(decision, float32_test=rule.judge.figures(base), candidates=candidates)


def _tolerances(config: GateConfig, card: ModelCard) -> Any:
    """Return the limits of the task.

    Raises:
        UsageError: a limit of another task was set.
    """
    judge = task_named(card.task_name).judge()
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    for name in _TOLERANCES:
        value = getattr(config, name)
        expected = f"no value: models of the task {card.task_name} are not judged by it"
        check_option(name in judge.options or value == defaults[name], name, value, expected)
    limits = {name: getattr(config, name) for name in judge.options}
    return judge.tolerances(limits, min_speedup=config.min_speedup, max_slowdown=config.max_slowdown)


def _labelled(
    prepared: PreparedFolder, card: ModelCard, context: StepContext, *, split: str = "test"
) -> list[CaseFolder]:
    check_cohort_fits(card, prepared.cohort)
    task = task_named(card.task_name)
    task.check_truth(prepared.cohort, card)
    cases = [folder for folder in prepared.cases() if folder.case.split == split]
    labelled = [folder for folder in cases if task.has_truth(folder.case)]
    if len(labelled) < len(cases):
        context.notice(f"{len(cases) - len(labelled)} of {len(cases)} {split} cases have no label and are excluded.")
    if split == "validation" and not labelled:
        raise UserInputError(
            "there is no validation case for the decision.",
            seen="no validation case with a label in the training set",
            expected=f"at least one case of split 'validation' with {task.truth} (two patients, for an interval)",
            do="run preprocess with more patients, or with a larger validation fraction in --fractions",
        )
    return labelled


def _write(config: GateConfig, decision: GateDecision, winner: Contender) -> None:
    """Write the accepted model (the files of its float32 model and those of its precision) and the decision."""
    source, card = winner.model.float32, winner.card
    accepted = [one for one in decision.candidates if (one.name, one.runtime) == (decision.chosen, decision.runtime)]
    gate_notes: dict[str, Any] = {"precision": card.precision, "candidates": len(decision.candidates)}
    changes: dict[str, Any] = {"precision": card.precision, "runtime": winner.runtime}
    with atomic_directory(config.output) as folder, atomic_file(config.decision) as decision_file:
        copy_files(source.folder, source.card, folder)
        for name in card.files if winner.model.source else ():
            if name.startswith(f"models/{card.precision}."):
                shutil.copyfile(winner.model.folder / name, folder / name)
        if accepted:
            assert accepted[0].validation is not None
            changes["metrics"] = task_named(card.task_name).judge().metrics(accepted[0].validation.figures)
            gate_notes |= {"candidate_sha256": winner.card_sha256}
        changes |= {"notes": {**card.notes, "gate": gate_notes}, "parent_sha256": card_sha256(source.card)}
        write_card(folder, dataclasses.replace(source.card, **changes))
        decision_file.write_text(codec.dumps(decision), encoding="utf-8")


def _shown(case: Any) -> dict[str, Any]:
    hidden = ("case_id", "patient_key")
    return {key: value for key, value in codec.to_json(case).items() if key not in hidden}


def _others(decision: GateDecision, case_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for number, candidate in enumerate(decision.candidates, start=1):
        cases = candidate.validation.figures.cases if candidate.validation else ()
        shown |= {f"candidate_{number}": _shown(case) for case in cases if case.case_id == case_id}
    return shown


DESCRIPTION = """\
Selects the model and the runtime that segment or classify uses. Run it on the machine type that runs this step.
Candidates are the float32 model and its quantized and pruned models, with every installed runtime (OpenVINO, ONNX Runtime; torch on
a GPU). In each round, all of them predict the same validation case. More rounds follow while the 95 % interval of a candidate's
speed ratio (seconds of float32 / seconds of the candidate) contains a limit.
A candidate must stay within the tolerances: Dice, lesion sensitivity and false positives per scan of each label or region;
accuracy, macro-F1 and macro-AUC of a classification. Of the candidates whose whole interval is at least
--min-speedup, the smallest one whose interval overlaps with that of the fastest is accepted. If none is faster, the smallest one
within --max-slowdown is accepted, else the float32 model.
Test cases are reported but do not affect the decision.
Writes a model folder whose card fixes precision and runtime, and gate_decision.json with all measurements and reasons."""
EXAMPLE = """\
medweave-step gate --exported-model exported_model --candidates int8_candidate \\
      --training-set prepared/training_set --output accepted_model"""

VERB = Verb(name="gate", description=DESCRIPTION, example=EXAMPLE, config=GateConfig, run=run)
