"""`medweave-step gate`: accept or refuse the candidates of a model, measured on this machine."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medweave_core.contracts import codec
from medweave_core.contracts.gate import GateCandidate, GateDecision
from medweave_core.contracts.model import ModelCard
from medweave_core.errors import UsageError, UserInputError
from medweave_steps.io.cohort.prepared import CaseFolder, PreparedFolder, open_prepared
from medweave_steps.io.hashing import sha256_of_file
from medweave_steps.io.model.folder import (
    CARD_FILE,
    card_sha256,
    check_cohort_fits,
    check_float32,
    copy_files,
    listed_file,
    model_bytes,
    openvino_file,
    openvino_weights_file,
    read_card,
    write_card,
)
from medweave_steps.runtime.environment import cpu_model, library_versions
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.options import check_option, option
from medweave_steps.runtime.progress import Progress
from medweave_steps.runtime.verb import StepContext, Verb
from medweave_steps.runtime.write import atomic_directory, atomic_file
from medweave_steps.tasks import task_named

if TYPE_CHECKING:
    from medweave_steps.gate.measure import Contender

_EQUAL_IN_CANDIDATES = ("task_name", "input", "output", "postprocessing", "labels", "classes")
_TOLERANCES = (
    "dice_tolerance", "sensitivity_tolerance", "false_positive_tolerance", "accuracy_tolerance", "macro_f1_tolerance",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig:
    """Options of `gate`."""

    exported_model: Path = option("float32 model folder of export; the fallback if no candidate is accepted")
    candidates: tuple[Path, ...] = option(
        "candidate model folders of quantize, derived from the exported model", default=(), metavar="PATH"
    )
    training_set: Path = option("preprocessed cases with labels; the validation split decides")
    test_batches: tuple[Path, ...] = option("preprocessed test cases; reported only", default=(), metavar="PATH")
    output: Path = option("model folder to write: the exported model, with the precision for segment fixed in its card")
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
    min_speedup: float = option("minimum speedup over float32 for a candidate to count as faster", default=1.1)
    max_slowdown: float = option("maximum time relative to float32 for a candidate that is only smaller", default=1.1)
    pairs: int = option("number of timed rounds; at least one per validation case", default=7)
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
    from medweave_steps.gate.measure import open_contender

    require("openvino", extra="gate")
    card, candidates = _read_models(config)
    tolerances = _tolerances(config, card)
    training_set = open_prepared(config.training_set)
    validation = _labelled(training_set, card, context, split="validation")
    test = [case for path in config.test_batches for case in _labelled(open_prepared(path), card, context)]
    num_rounds = max(config.pairs, len(validation))
    progress = context.progress(unit="volume", total=(num_rounds + len(test)) * (1 + len(candidates)))
    contenders = [
        open_contender(folder, own, num_threads=context.num_threads)
        for folder, own in [(config.exported_model, card), *zip(config.candidates, candidates, strict=True)]
    ]
    decision, chosen = _decide(config, context, contenders, validation, tolerances, num_rounds, progress)
    decision = dataclasses.replace(decision, synthetic=training_set.cohort.synthetic)
    if test:
        decision = _with_test(decision, contenders, test, config.seed, progress)
    _write(config, card, decision, contenders[chosen])
    context.notice(decision.reason)
    for case in decision.float32_validation.cases:
        context.add_case(case.case_id, float32=_shown(case), **_others(decision, case.case_id))
    return dict(codec.to_json(decision))


def _decide(
    config: GateConfig,
    context: StepContext,
    contenders: Sequence[Contender],
    cases: Sequence[CaseFolder],
    tolerances: Any,
    num_rounds: int,
    progress: Progress,
) -> tuple[GateDecision, int]:
    from medweave_steps.gate.judge import choose, decide, failed, speed_of
    from medweave_steps.gate.measure import measure

    base_cases = measure(contenders, cases, num_rounds=num_rounds, on_volume=progress.step)
    base = contenders[0]
    judge = task_named(base.card.task_name).judge()
    base_size = model_bytes(base.folder, base.card.precision)
    judged: list[GateCandidate] = []
    for contender in contenders[1:]:
        own = (contender.card.precision, card_sha256(contender.card))
        if contender.failure:
            judged.append(failed(*own, contender.failure))
            continue
        size = model_bytes(contender.folder, contender.card.precision)
        speed = speed_of(contender.seconds, base.seconds, size=size, base_size=base_size)
        validation = judge.compare(base_cases, contender.cases, seed=config.seed)
        judged.append(decide(judge, *own, speed, validation, tolerances))
    accepted = choose(judged)
    chosen = 0 if accepted is None else 1 + judged.index(accepted)
    decision = GateDecision(
        model=base.card.name,
        exported_sha256=card_sha256(base.card),
        precision=contenders[chosen].card.precision,
        reason=_in_one_line(judged, accepted),
        synthetic=base.card.synthetic_data,
        host_cpu=cpu_model(),
        num_threads=context.num_threads,
        tolerances=tolerances,
        float32_speed=speed_of(base.seconds, base.seconds, size=base_size, base_size=base_size),
        float32_validation=judge.figures(base_cases),
        candidates=tuple(judged),
        versions=library_versions(),
        bootstrap_seed=config.seed,
    )
    return decision, chosen


def _in_one_line(judged: Sequence[GateCandidate], accepted: GateCandidate | None) -> str:
    if accepted is not None:
        return f"{accepted.precision} accepted: {'; '.join(accepted.reasons)}."
    if not judged:
        return "float32 kept: there is no candidate."
    return "float32 kept. " + " ".join(
        f"{candidate.precision} {'; '.join(r for r in candidate.reasons if r.startswith('refused'))}."
        for candidate in judged
    )


def _with_test(
    decision: GateDecision,
    contenders: Sequence[Contender],
    cases: Sequence[CaseFolder],
    seed: int,
    progress: Progress,
) -> GateDecision:
    from medweave_steps.gate.measure import measure

    judge = task_named(contenders[0].card.task_name).judge()
    fresh = [dataclasses.replace(contender, seconds=[], cases=[]) for contender in contenders]
    base_cases = measure(fresh, cases, num_rounds=len(cases), on_volume=progress.step)
    candidates = tuple(
        candidate
        if contender.failure
        else dataclasses.replace(candidate, test=judge.compare(base_cases, contender.cases, seed=seed))
        for candidate, contender in zip(decision.candidates, fresh[1:], strict=True)
    )
    return dataclasses.replace(decision, float32_test=judge.figures(base_cases), candidates=candidates)


def _read_models(config: GateConfig) -> tuple[ModelCard, list[ModelCard]]:
    card = read_card(config.exported_model)
    do = "set --exported-model to the output folder of export"
    check_float32(card, "be the reference of the candidates", do=do)
    # A card of an older version has another digest once it is read; its children name the digest of the file.
    parents = (card_sha256(card), sha256_of_file(config.exported_model / CARD_FILE))
    candidates = []
    for folder in config.candidates:
        candidate = read_card(folder)
        if candidate.parent_sha256 not in parents:
            raise UserInputError(
                f"the candidate '{candidate.name}' was not derived from this exported model.",
                seen=f"parent {str(candidate.parent_sha256)[:16]}… (model_card.json of the candidate)",
                expected=f"parent {parents[0][:16]}…, the digest of the card of the exported model",
                do="run `medweave-step quantize` on this exported model",
            )
        same = all(getattr(candidate, name) == getattr(card, name) for name in _EQUAL_IN_CANDIDATES)
        if candidate.precision != "int8" or not same:
            raise UserInputError(
                f"the candidate '{candidate.name}' cannot replace the exported model.",
                seen=f"precision {candidate.precision}, {'the same' if same else 'different'} task, input, output, "
                f"postprocessing or {'classes' if card.classes else 'labels'}",
                expected="precision int8, and the task, input, output, postprocessing and "
                f"{'classes' if card.classes else 'labels'} of the exported model",
                do="run `medweave-step quantize` on this exported model",
            )
        candidates.append(candidate)
    for folder, own in [(config.exported_model, card), *zip(config.candidates, candidates, strict=True)]:
        for name in (openvino_file(own.precision), openvino_weights_file(own.precision)):
            listed_file(folder, own, name, made_by="export" if own.precision == "float32" else "quantize")
    return card, candidates


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


def _write(config: GateConfig, card: ModelCard, decision: GateDecision, winner: Contender) -> None:
    gate_notes: dict[str, Any] = {"precision": winner.card.precision, "candidates": len(decision.candidates)}
    changes: dict[str, Any] = {}
    with atomic_directory(config.output) as folder, atomic_file(config.decision) as decision_file:
        copy_files(config.exported_model, card, folder)
        if winner.card.precision != "float32":
            for name in (openvino_file(winner.card.precision), openvino_weights_file(winner.card.precision)):
                shutil.copyfile(winner.folder / name, folder / name)
            accepted = next(c for c in decision.candidates if c.card_sha256 == card_sha256(winner.card))
            assert accepted.validation is not None
            changes["metrics"] = task_named(card.task_name).judge().metrics(accepted.validation.figures)
            gate_notes |= {"candidate_sha256": card_sha256(winner.card)}
        changes["notes"] = {**winner.card.notes, "gate": gate_notes}
        changes |= {"precision": winner.card.precision, "parent_sha256": card_sha256(card)}
        write_card(folder, dataclasses.replace(card, **changes))
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
Selects the model that segment or classify uses: float32 or a quantized candidate. Run it on the machine type that runs this step.
The float32 model and each candidate predict the validation cases in alternating pairs. A candidate is accepted only if it is
faster (--min-speedup), or smaller on disk and within --max-slowdown, and if Dice, lesion sensitivity and false positives per
scan stay within the tolerances, for each label or region of the model. Of a classification, accuracy and macro-F1 must stay within
theirs. Test cases are reported but do not affect the decision.
Writes a model folder whose card fixes the precision, and gate_decision.json with all measurements and reasons."""
EXAMPLE = """\
medweave-step gate --exported-model exported_model --candidates int8_candidate \\
      --training-set prepared/training_set --output accepted_model"""

VERB = Verb(name="gate", description=DESCRIPTION, example=EXAMPLE, config=GateConfig, run=run)
