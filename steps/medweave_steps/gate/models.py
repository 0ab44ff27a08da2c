"""The models that `gate` compares: the exported model and its candidates, each with the runtimes that can run it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from medweave_core.contracts.model import RUNTIME_TITLES, ModelCard, Runtime
from medweave_core.errors import UserInputError
from medweave_steps.inference.runtimes.choice import can_run
from medweave_steps.inference.runtimes.devices import EXTRAS, can_use_cuda, installed_runtimes
from medweave_steps.io.hashing import sha256_of_file
from medweave_steps.io.model.folder import (
    CARD_FILE,
    card_sha256,
    check_float32,
    listed_file,
    network_files,
    read_card,
)
from medweave_steps.runtime.imports import require

_EQUAL_IN_CANDIDATES = ("task_name", "input", "output", "postprocessing", "labels", "classes")
_CHOSEN_IN_TRAINING = "postprocessing"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateModel:
    """A model folder that is compared.

    Attributes:
        name: `float32` (the exported model), `pruned`, `int8` or `pruned-int8`, with a number for a second one of a kind.
        source: the float32 model whose files it shares: the exported or the pruned one, itself for a float32 model.
    """

    name: str
    folder: Path
    card: ModelCard
    source: GateModel | None = None

    @property
    def float32(self) -> GateModel:
        """Return the float32 model that it is, or was quantized from."""
        return self.source or self

    @property
    def runtimes(self) -> tuple[Runtime, ...]:
        """Return the installed runtimes that can run it; torch only on a GPU, where it can be the faster one."""
        return tuple(
            name for name in installed_runtimes() if can_run(self.card, name) and _is_compared(name, self.card)
        )


def read_models(exported: Path, folders: Sequence[Path], *, notice: Callable[[str], None]) -> list[GateModel]:
    """Read the exported model and its candidates; the exported model is the first.

    A model that `prune` left unchanged is the exported model once more: it and its int8 models are left out, with a notice.

    Raises:
        UserInputError: a candidate belongs to another model, or its contracts or files are not those of a candidate.
    """
    card = read_card(exported)
    check_float32(card, "be the reference of the candidates", do="set --exported-model to the output folder of export")
    _check_files(exported, card)
    base = GateModel(name="float32", folder=exported, card=card)
    cards = [(folder, read_card(folder)) for folder in folders]
    if any(_is_unchanged(own, card) for _, own in cards):
        notice("prune removed nothing within its tolerance; its model is the exported one, and no candidate.")
        cards = [(folder, own) for folder, own in cards if not _is_unchanged(own, card)]
    pruned = [_pruned(folder, own, base) for folder, own in cards if own.precision == "float32"]
    quantized = [_quantized(folder, own, [base, *pruned]) for folder, own in cards if own.precision != "float32"]
    return _numbered([base, *pruned, *quantized])


def reference_runtime(model: GateModel) -> Runtime:
    """Return the runtime of the reference: that of the card where it is installed, else the first that can run the model.

    Raises:
        BackendMissingError: no runtime is installed that can run it.
    """
    usable = [name for name in installed_runtimes() if can_run(model.card, name)]
    if model.card.runtime in usable or not usable:
        require(model.card.runtime, extra="gate")
        return model.card.runtime
    return usable[0]


def fixed_candidate(choice: str, models: Sequence[GateModel]) -> tuple[GateModel, Runtime]:
    """Return the candidate and the runtime that `--fixed-choice` names.

    Raises:
        UserInputError: there is no such candidate, or the runtime cannot run it.
        BackendMissingError: the runtime is not installed.
    """
    name, _, wanted = choice.partition(":")
    model = next((model for model in models if model.name == name), None)
    runtime = next((runtime for runtime in EXTRAS if runtime == wanted), None)
    if model is None or runtime is None:
        raise UserInputError(
            f"there is no candidate '{choice}' for --fixed-choice.",
            seen=f"candidates {', '.join(model.name for model in models)}; runtimes {', '.join(EXTRAS)}",
            expected="CANDIDATE:RUNTIME, such as float32:openvino",
            do="correct --fixed-choice (in a workflow, gate_candidates), or add the candidate to --candidates",
        )
    require(runtime, extra=EXTRAS[runtime])
    if not can_run(model.card, runtime):
        networks = "precision float32, a network that is not code of a user, and " if runtime == "torch" else ""
        raise UserInputError(
            f"the candidate '{name}' cannot run with {RUNTIME_TITLES[runtime]}.",
            seen=f"precision {model.card.precision}, a model folder with {', '.join(sorted(model.card.files))}",
            expected=f"{networks}{', '.join(network_files(model.card, runtime))}, listed in its model card",
            do="choose another runtime in --fixed-choice (in a workflow, gate_candidates)",
        )
    return model, runtime


def _is_compared(runtime: Runtime, card: ModelCard) -> bool:
    return runtime != "torch" or card.runtime == "torch" or can_use_cuda("torch")


def _is_unchanged(card: ModelCard, base: ModelCard) -> bool:
    """Return True for a model, or an int8 model of one, that comes from a pruning of the base that removed nothing."""
    pruning = card.notes.get("pruning")
    return (
        isinstance(pruning, dict)
        and pruning.get("is_pruned") is False
        and pruning.get("source_sha256") == base.parent_sha256
    )


def _pruned(folder: Path, card: ModelCard, base: GateModel) -> GateModel:
    pruning = card.notes.get("pruning")
    source = pruning.get("source_sha256") if isinstance(pruning, dict) else None
    if source is None:
        raise _cannot_replace(
            card, base.card, seen="precision float32 without a note about pruning", do="run `medweave-step prune`"
        )
    if source != base.card.parent_sha256:
        raise _of_another_model(
            card,
            source,
            f"{str(base.card.parent_sha256)[:16]}…, the digest of the card of the trained model",
            do="run `medweave-step prune` on the trained model, and `medweave-step export` on both; an earlier version of medweave "
            "wrote another digest into an exported model",
        )
    _check_contracts(card, base.card, but=(_CHOSEN_IN_TRAINING,))
    _check_files(folder, card)
    return GateModel(name="pruned", folder=folder, card=card)


def _quantized(folder: Path, card: ModelCard, sources: Sequence[GateModel]) -> GateModel:
    # A card of an older version has another digest once it is read; its children name the digest of the file.
    digests = {card_sha256(model.card): model for model in sources}
    digests |= {sha256_of_file(model.folder / CARD_FILE): model for model in sources}
    source = digests.get(str(card.parent_sha256))
    if source is None:
        raise _of_another_model(
            card,
            card.parent_sha256,
            f"{card_sha256(sources[0].card)[:16]}…, the digest of the card of the exported model, or of the card of a pruned model "
            "among the candidates",
            do="run `medweave-step quantize` on this exported model",
        )
    _check_contracts(card, source.card)
    _check_files(folder, card)
    name = "int8" if source is sources[0] else f"{source.name}-int8"
    return GateModel(name=name, folder=folder, card=card, source=source)


def _numbered(models: Sequence[GateModel]) -> list[GateModel]:
    seen: dict[str, int] = {}
    named = []
    for model in models:
        number = seen[model.name] = seen.get(model.name, 0) + 1
        named.append(model if number == 1 else dataclasses.replace(model, name=f"{model.name}-{number}"))
    return named


def _check_contracts(card: ModelCard, base: ModelCard, *, but: Sequence[str] = ()) -> None:
    names = [name for name in _EQUAL_IN_CANDIDATES if name not in but]
    same = all(getattr(card, name) == getattr(base, name) for name in names)
    if not same or card.precision not in ("float32", "int8"):
        kind = "the same" if same else "different"
        classes = "classes" if base.classes else "labels"
        raise _cannot_replace(
            card, base, seen=f"precision {card.precision}, {kind} task, input, output, postprocessing or {classes}"
        )


def _cannot_replace(card: ModelCard, base: ModelCard, *, seen: str, do: str = "") -> UserInputError:
    return UserInputError(
        f"the candidate '{card.name}' cannot replace the exported model.",
        seen=seen,
        expected="precision int8 or a pruned model, and the task, input, output, postprocessing and "
        f"{'classes' if base.classes else 'labels'} of the exported model",
        do=do or "run `medweave-step quantize` on this exported model",
    )


def _of_another_model(card: ModelCard, seen: object, expected: str, *, do: str) -> UserInputError:
    return UserInputError(
        f"the candidate '{card.name}' was not derived from this exported model.",
        seen=f"parent {str(seen)[:16]}… (model_card.json of the candidate)",
        expected=f"parent {expected}",
        do=do,
    )


def _check_files(folder: Path, card: ModelCard) -> None:
    """Refuse a model folder without the files of OpenVINO or of ONNX Runtime."""
    if all(name in card.files for name in network_files(card, "onnxruntime")):
        return
    for name in network_files(card, "openvino"):
        listed_file(folder, card, name, made_by="export" if card.precision == "float32" else "quantize")
