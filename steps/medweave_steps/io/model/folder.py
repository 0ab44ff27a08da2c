"""Model folders: the card, the digests of the files it lists, and nothing that needs a deep-learning library."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from medweave_core.contracts import codec
from medweave_core.contracts.cohort import PreparedCohort
from medweave_core.contracts.model import ModelCard, Precision, Runtime
from medweave_core.contracts.volume import BiasCorrection
from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.prepared import read_contract
from medweave_steps.io.hashing import digests_below, sha256_of_file
from medweave_steps.runtime.write import write_text

CARD_FILE = "model_card.json"
METADATA_FILE = "configs/metadata.json"
INFERENCE_FILE = "configs/inference.json"
WEIGHTS_FILE = "models/model.safetensors"
BUNDLE_WEIGHTS_FILE = "models/model.pt"
ONNX_FILE = "models/model.onnx"
ONNX_ARCHITECTURE: Mapping[str, Any] = {"class": "onnx", "arguments": {}}
"""Architecture of a model that was imported from an ONNX file: there is no torch network."""
AS_TRAINED = "precision float32: a model folder of train or bundle"


def openvino_file(precision: Precision) -> str:
    """Return the path of the OpenVINO IR of one precision inside a model folder."""
    return f"models/{precision}.xml"


def openvino_weights_file(precision: Precision) -> str:
    """Return the path of the weights that belong to `openvino_file`."""
    return f"models/{precision}.bin"


def onnx_file(precision: Precision) -> str:
    """Return the path of the ONNX graph of one precision inside a model folder; int8 is a QDQ graph."""
    return ONNX_FILE if precision == "float32" else f"models/{precision}.onnx"


def network_files(card: ModelCard, runtime: Runtime) -> tuple[str, ...]:
    """Return the paths of the files that a runtime opens for a card, the network first; the card need not list them.

    OpenVINO reads its IR, or an ONNX graph where the card lists no IR; torch reads the weights.
    """
    if runtime == "torch":
        return (WEIGHTS_FILE,)
    onnx, ir = onnx_file(card.precision), openvino_file(card.precision)
    if runtime == "onnxruntime" or (ir not in card.files and onnx in card.files):
        return (onnx,)
    return ir, openvino_weights_file(card.precision)


def read_card(folder: Path, *, verify: bool = True) -> ModelCard:
    """Return the model card; with `verify`, check every file that it lists.

    Args:
        folder: a model folder.
        verify: compare the SHA-256 of each listed file with the card; costs one read of the files.
    Raises:
        UserInputError: there is no card, it does not fit the contract, or a listed file is missing or differs.
    """
    card = read_contract(ModelCard, folder / CARD_FILE, where="the model card (model_card.json of the model folder)")
    if verify:
        verify_files(folder, card)
    return card


def verify_files(folder: Path, card: ModelCard) -> None:
    """Check that every file the card lists is in the folder, unchanged.

    Raises:
        UserInputError: a file is missing, differs from its digest, or would lie outside the folder.
    """
    for name, expected in card.files.items():
        path = _inside(folder, name)
        if not path.is_file():
            raise UserInputError(
                f"the model '{card.name}' is incomplete.",
                seen=f"no file {name}",
                expected=f"{len(card.files)} files, as listed in its model card",
                do="copy the complete model folder again, or create it again",
            )
        seen = sha256_of_file(path)
        if seen != expected:
            raise UserInputError(
                f"a file of the model '{card.name}' was modified after its model card was written.",
                seen=f"{name} with SHA-256 {seen[:16]}…, {path.stat().st_size} bytes",
                expected=f"SHA-256 {expected[:16]}…, as in its model card",
                do="copy the complete model folder again, or create it again; do not edit files of a model folder",
            )


def listed_file(folder: Path, card: ModelCard, name: str, *, made_by: str) -> Path:
    """Return the path of a file that the card must list, so that nothing without a digest is ever opened.

    Args:
        name: path inside the model folder.
        made_by: the verb that makes it, for the error.
    Raises:
        UserInputError: the card does not list it.
    """
    if name not in card.files:
        raise UserInputError(
            f"the model '{card.name}' has no {name}.",
            seen=f"a model folder with {', '.join(sorted(card.files)) or 'no file'}",
            expected=f"{name}, listed in its model card",
            do=f"run `medweave-step {made_by}` first and use its output folder",
        )
    return _inside(folder, name)


def check_cohort_fits(card: ModelCard, cohort: PreparedCohort) -> None:
    """Refuse prepared cases that were made for another input contract.

    Raises:
        UserInputError: spacing, window or crop differ; the message gives both.
    """
    wanted = card.input
    same_channels = wanted.channel_names == cohort.channels and wanted.crop == cohort.crop
    same_channels &= wanted.has_brain_mask == cohort.has_brain_masks
    same_channels &= wanted.bias_correction == cohort.bias_correction
    same_spacing = all(abs(a - b) <= 1e-4 for a, b in zip(wanted.spacing_mm, cohort.spacing_mm, strict=True))
    if same_spacing and holds_window(cohort.window_hu, wanted.window_hu) and same_channels:
        return
    raise UserInputError(
        f"the preprocessed cases do not match the model '{card.name}'.",
        seen=f"{_shown(cohort.spacing_mm, cohort.window_hu, cohort.crop, cohort.channels)}"
        f"{_brain_steps(cohort.has_brain_masks, cohort.bias_correction)} (cohort.json)",
        expected=f"{_shown(wanted.spacing_mm, wanted.window_hu, wanted.crop, wanted.channel_names)}"
        f"{_brain_steps(wanted.has_brain_mask, wanted.bias_correction)} (model_card.json)",
        do="run preprocess on the cohort with the spacing, window, crop, brain masks and bias correction of this model card",
    )


def _brain_steps(has_brain_mask: bool, bias_correction: BiasCorrection) -> str:
    return f"{', brain masks' if has_brain_mask else ''}{'' if bias_correction == 'none' else f', {bias_correction}'}"


def holds_window(prepared: tuple[float, float] | None, wanted: tuple[float, float] | None) -> bool:
    """Return whether values clipped to one window can be clipped to another one without loss; None is MR, which is not clipped."""
    if prepared is None or wanted is None:
        return prepared == wanted
    return prepared[0] <= wanted[0] and wanted[1] <= prepared[1]


def _shown(spacing_mm: object, window_hu: object, crop: str, channels: tuple[str, ...]) -> str:
    values = f"window {window_hu} HU" if window_hu else f"contrasts {', '.join(channels)}"
    return f"spacing {spacing_mm} mm, {values}, crop '{crop}'"


def check_float32(card: ModelCard, cannot: str, *, expected: str = "precision float32", do: str) -> None:
    """Refuse a model that is quantized already.

    Args:
        cannot: the impossible operation, for the message: `be exported`.
    Raises:
        UserInputError: the model's precision is another.
    """
    if card.precision != "float32":
        raise UserInputError(
            f"the model '{card.name}' cannot {cannot}.",
            seen=f"precision {card.precision} (model_card.json)",
            expected=expected,
            do=do,
        )


def check_torch_network(card: ModelCard) -> None:
    """Refuse a model whose network exists as ONNX only.

    Raises:
        UserInputError: the model was imported from an ONNX file.
    """
    if card.architecture.get("class") == ONNX_ARCHITECTURE["class"]:
        raise UserInputError(
            f"the model '{card.name}' has no torch network.",
            seen="a model folder of `bundle --from-onnx` (architecture onnx, model_card.json)",
            expected="a model folder of train, or of bundle from a MONAI Bundle",
            do="use the model folder as it is with gate, quantize, segment or classify; it cannot be trained, pruned or exported",
        )


def write_card(folder: Path, card: ModelCard) -> ModelCard:
    """Write the card with the digests of all files that lie in the folder now; call it last.

    Args:
        folder: the folder being written.
        card: the card; its `files` are replaced.
    Returns:
        the card as written.
    """
    complete = dataclasses.replace(card, files=digests_below(folder, leave_out=(CARD_FILE,)))
    write_text(folder / CARD_FILE, codec.dumps(complete))
    return complete


def copy_files(source: Path, card: ModelCard, target: Path, *, leave_out: Iterable[str] = ()) -> None:
    """Copy the files that a card lists, and no other, into a folder that is being written."""
    left_out = set(leave_out)
    for name in card.files:
        if name not in left_out:
            copy = target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(_inside(source, name), copy)


def card_sha256(model: ModelCard | Path) -> str:
    """Return the digest of a card, which through its `files` is the digest of the whole model; children name it as their parent."""
    card = read_card(model, verify=False) if isinstance(model, Path) else model
    return hashlib.sha256(codec.dumps(card).encode()).hexdigest()


def network_bytes(folder: Path, card: ModelCard, runtime: Runtime) -> int:
    """Return the size on disk of the files that a runtime opens for a card, bytes."""
    return sum(_inside(folder, name).stat().st_size for name in network_files(card, runtime))


def _inside(folder: Path, name: str) -> Path:
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts:
        raise UserInputError(
            "the model card lists a file outside its folder.",
            seen=repr(name),
            expected="paths relative to the model folder",
            do="do not use this model; get an intact model from its provider",
        )
    return folder / pure
