"""A bare ONNX file and its contract as a model folder, with OpenVINO IR and the parity of OpenVINO and ONNX Runtime."""

from __future__ import annotations

import dataclasses
import functools
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from medweave_core.contracts.model import ModelCard, ModelContract
from medweave_core.errors import StepError, UserInputError
from medweave_steps import __version__
from medweave_steps.bundle.onnx_contract import read_contract_of_onnx
from medweave_steps.bundle.onnx_graph import check_graph, check_output, read_onnx, unsupported
from medweave_steps.io.hashing import sha256_of_file
from medweave_steps.io.model import parity
from medweave_steps.io.model.folder import (
    ONNX_ARCHITECTURE,
    ONNX_FILE,
    card_sha256,
    openvino_file,
    write_card,
)
from medweave_steps.io.model.onnx_file import operators_of
from medweave_steps.io.model.openvino_ir import write_openvino
from medweave_steps.runtime.verb import StepContext
from medweave_steps.runtime.write import atomic_directory
from medweave_steps.tasks import task_named

_NUM_WINDOWS, _SEED = 3, 0
_LOGIT_TOLERANCE, _DECISION_TOLERANCE = 1e-3, 1e-4  # the defaults of `export`


def import_onnx(source: Path, contract_file: Path | None, output: Path, context: StepContext) -> Mapping[str, Any]:
    """Write a model folder of an ONNX file.

    Args:
        source: the ONNX file.
        contract_file: its contract; None for the one in the file's metadata.
        output: model folder to write.
    Returns:
        the results for the run report.
    Raises:
        UserInputError: the file is not valid, not supported, or does not fit the contract.
    """
    model, is_external = read_onnx(source)
    contract = read_contract_of_onnx(model, contract_file)
    check_graph(model, contract)
    card = _card(contract, model, source)
    with atomic_directory(output) as folder:
        copy = folder / ONNX_FILE
        copy.parent.mkdir(parents=True, exist_ok=True)
        if is_external:
            copy.write_bytes(model.SerializeToString(deterministic=True))
        else:
            shutil.copyfile(source, copy)
        _convert(copy, folder / openvino_file("float32"), contract)
        compared = _parity(folder, card, context)
        written = write_card(folder, card)
        sizes = {path.name: path.stat().st_size for path in sorted(copy.parent.iterdir())}
    context.notice(f"'{card.name}' is an ONNX file: its model card has neither training data nor metrics.")
    return {
        "model": card.name,
        "card_sha256": card_sha256(written),
        "output": card.output.activation,
        "opset": card.notes["opset"],
        "operators": operators_of(model),
        "parity": compared,
        "bytes": sizes,
    }


def _card(contract: ModelContract, model: Any, source: Path) -> ModelCard:
    opsets = {one.domain or "ai.onnx": one.version for one in model.opset_import}
    return ModelCard(
        name=contract.name,
        task=contract.task or f"{contract.task_name} by an imported network",
        task_name=contract.task_name,
        architecture=dict(ONNX_ARCHITECTURE),
        labels=contract.labels,
        classes=contract.classes,
        input=contract.input,
        output=contract.output,
        postprocessing=contract.postprocessing,
        precision="float32",
        files={},
        parent_sha256=None,
        data_sha256="unknown",
        synthetic_data=contract.synthetic_data,
        code_version=__version__,
        metrics={},
        training={"strategy": "imported"},
        notes={
            "source": "ONNX file",
            "source_sha256": sha256_of_file(source),
            "opset": opsets.get("ai.onnx", 0),
            "training_data": "unknown to medweave, as are the metrics",
        },
    )


def _convert(onnx_path: Path, xml_path: Path, contract: ModelContract) -> None:
    shape, channels = contract.input.patch_shape, contract.input.channels
    try:
        write_openvino(onnx_path, shape, xml_path, channels=channels)
    except StepError:
        raise
    except Exception as error:  # OpenVINO's frontends have their own classes
        names = re.search(r"No conversion rule found for operations: ([\w., -]+)", str(error))
        if names:
            operators = [re.sub(r"-\d+$", "", name) for name in names[1].strip().split(", ")]
            raise unsupported(operators, "operators that OpenVINO can convert") from error
        raise _not_run("OpenVINO", "convert", error, onnx_path.parent) from error


def _logits(library: str, open_runner: Callable[[], parity.Runner | None], windows: Sequence[Any], folder: Path) -> Any:
    """Return the output of a library for each window, None where the library is not installed."""
    try:
        runner = open_runner()
        return runner and [runner(window) for window in windows]
    except StepError:
        raise
    except Exception as error:  # OpenVINO raises RuntimeError, ONNX Runtime classes that are made at run time
        raise _not_run(library, "run", error, folder) from error


def _not_run(library: str, verb: str, error: Exception, folder: Path) -> UserInputError:
    return UserInputError(
        f"{library} cannot {verb} the ONNX file.",
        seen=" ".join(str(error).replace(str(folder), "").split())[-300:],
        expected="a float32 network of standard ONNX operators",
        do="export the network again with another opset, and with the batch as its only dynamic axis",
    )


def _parity(folder: Path, card: ModelCard, context: StepContext) -> list[dict[str, Any]]:
    """Return the difference of ONNX Runtime from OpenVINO on random input, and check the output of both.

    Raises:
        UserInputError: the output has another shape than the contract, or the two libraries differ.
    """
    shape, channels = card.input.patch_shape, card.input.channels
    task = task_named(card.task_name)
    windows = list(parity.parity_windows(shape, num_windows=_NUM_WINDOWS, seed=_SEED, channels=channels))
    threads, contract = context.num_threads, ModelContract.of_card(card)
    xml_path, onnx_path = folder / openvino_file("float32"), folder / ONNX_FILE
    expected = _logits("OpenVINO", lambda: parity.openvino_runner(xml_path, threads), windows, folder)
    check_output(expected[0].shape, task.output_shape(card, windows[0].shape), contract)
    others = _logits("ONNX Runtime", lambda: parity.onnxruntime_runner(onnx_path, threads), windows, folder)
    is_compared = others is not None
    backend, others = ("ONNX Runtime", others) if is_compared else ("OpenVINO", expected)
    pairs = zip(expected, others, strict=True)
    result = parity.compare(backend, pairs, decide=functools.partial(task.decisions, card=card))
    excess = parity.excess_of(
        result, logit_tolerance=_LOGIT_TOLERANCE, decision_tolerance=_DECISION_TOLERANCE, decided=task.decided
    )
    if excess:
        raise UserInputError(
            "the network of the ONNX file has no reliable outputs on random input.",
            seen=f"OpenVINO and ONNX Runtime: {excess[0]}",
            expected=excess[1],
            do="check the network in the framework that exported it",
        )
    if not is_compared:
        context.notice(
            "parity of OpenVINO and ONNX Runtime was not checked: ONNX Runtime is not installed on this machine "
            "(extra segment-ort)."
        )
        return []
    return [dataclasses.asdict(result)]
