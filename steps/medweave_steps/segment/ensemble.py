"""One or several model folders as one model: an ensemble averages the probabilities of its members."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.labels import shown
from medweave_core.contracts.model import ComponentFilter, ModelCard, Postprocessing, Runtime
from medweave_core.contracts.segmentations import EnsembleMember
from medweave_core.errors import UserInputError
from medweave_steps.inference.engine import Engine, open_engine
from medweave_steps.inference.head import FloatArray, OutputHead
from medweave_steps.inference.runtimes.choice import Backend
from medweave_steps.inference.runtimes.devices import UsedDevice
from medweave_steps.inference.windows import predict_probability
from medweave_steps.io.model.folder import card_sha256, read_card


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentationModel:
    """What `segment` applies.

    Attributes:
        folders, cards: of each model.
        card: name, contracts and postprocessing that apply; the card itself for one model.
        sha256: digest of the card; of an ensemble that of the lines with its members' digests.
        ensemble: the members; empty for one model.
    """

    folders: tuple[Path, ...]
    cards: tuple[ModelCard, ...]
    card: ModelCard
    sha256: str
    ensemble: tuple[EnsembleMember, ...] = ()

    def open(self, *, runtime: Runtime, device: UsedDevice, num_threads: int) -> list[Engine]:
        """Open every network with one runtime."""
        return [
            open_engine(folder, card, runtime=runtime, device=device, num_threads=num_threads)
            for folder, card in zip(self.folders, self.cards, strict=True)
        ]


def read_models(folders: Sequence[Path], backend: Backend = "auto") -> SegmentationModel:
    """Read the cards of one model or of an ensemble.

    Args:
        folders: model folders.
        backend: runtime of all members, whatever their cards say; `auto`: the cards must have one.
    Raises:
        UserInputError: a card or file is invalid, a model is listed twice, or the contracts of two models differ; the message
            names what differs.
    """
    cards = tuple(read_card(folder) for folder in folders)
    first, *others = cards
    if not others:
        return SegmentationModel(folders=tuple(folders), cards=cards, card=first, sha256=card_sha256(first))
    members = tuple(EnsembleMember(model_name=card.name, model_sha256=card_sha256(card)) for card in cards)
    digests = [member.model_sha256 for member in members]
    for number, card in enumerate(others, start=2):
        if digests[number - 1] in digests[: number - 1]:
            raise UserInputError(
                "the ensemble contains one model twice.",
                seen=f"model {number}, '{card.name}', is the same as an earlier one",
                expected="models of different trainings, such as those of the folds of a cross-validation",
                do="list each model folder once",
            )
        _check_same_contracts(first, card, number, backend)
    combined = dataclasses.replace(
        first,
        name=f"ensemble of {len(cards)}, {first.name}",
        postprocessing=_median_postprocessing(cards),
        synthetic_data=any(card.synthetic_data for card in cards),
    )
    sha256 = hashlib.sha256("".join(f"{digest}\n" for digest in digests).encode()).hexdigest()
    return SegmentationModel(folders=tuple(folders), cards=cards, card=combined, sha256=sha256, ensemble=members)


def predict_mean(
    engines: Sequence[Engine], volume_CIJK: npt.NDArray[np.floating], cards: Sequence[ModelCard]
) -> FloatArray:
    """Return the mean of the probabilities of all models, float32 [C, I, J, K]; see `predict_probability`."""
    total = predict_probability(engines[0], volume_CIJK, cards[0])
    for engine, card in zip(engines[1:], cards[1:], strict=True):
        total += predict_probability(engine, volume_CIJK, card)
    if len(engines) > 1:
        total /= np.float32(len(engines))
    return total


def _median_postprocessing(cards: Sequence[ModelCard]) -> Postprocessing:
    """Return the medians of thresholds and filters: each was chosen on the validation split of its member alone."""
    by_model = [OutputHead.of(card).filters_of(card.postprocessing) for card in cards]
    medians = tuple(
        ComponentFilter(
            threshold=median(one.threshold for one in same_output),
            min_peak=median(one.min_peak for one in same_output),
            min_volume_mm3=median(one.min_volume_mm3 for one in same_output),
        )
        for same_output in zip(*by_model, strict=True)
    )
    only = dataclasses.asdict(medians[0])
    overlap = cards[0].postprocessing.overlap
    if OutputHead.of(cards[0]).is_binary:
        return Postprocessing(**only, overlap=overlap)
    return Postprocessing(**only, overlap=overlap, by_output=medians)


def _check_same_contracts(first: ModelCard, other: ModelCard, number: int, backend: Backend) -> None:
    differing = [
        (name, seen, expected)
        for (name, seen), (_, expected) in zip(_contracts(other, backend), _contracts(first, backend), strict=True)
        if seen != expected
    ]
    if not differing:
        return
    raise UserInputError(
        "the models of the ensemble do not match: their probabilities cannot be averaged.",
        seen=f"model {number}, '{other.name}': {'; '.join(f'{name} {seen}' for name, seen, _ in differing)}",
        expected=f"as in model 1, '{first.name}': {'; '.join(f'{name} {value}' for name, _, value in differing)}",
        do="use models that were trained with the same labels, input and overlap, and have one precision; if only their runtimes "
        "differ, set --backend to one that can run all of them",
    )


def _contracts(card: ModelCard, backend: Backend) -> Iterator[tuple[str, str]]:
    """Yield everything that the members of an ensemble have in common, as name and text."""
    codes = [dataclasses.astuple(label) for label in card.foreground_labels]
    yield "labels", shown(card.foreground_labels)
    yield "codes of the labels", hashlib.sha256(repr(codes).encode()).hexdigest()[:8]
    yield "activation", card.output.activation
    yield "regions", ", ".join(region.text for region in card.output.regions) or "none"
    for field in dataclasses.fields(card.input):
        yield f"input {field.name}", str(getattr(card.input, field.name))
    yield "precision", card.precision
    yield "runtime", card.runtime if backend == "auto" else backend
    yield "overlap", f"{card.postprocessing.overlap:g}"
