"""Writing OpenVINO IR, from ONNX or a graph: the same graph gives the same files, and a full disk raises its own error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from medweave_core.contracts.volume import Triple
from medweave_core.errors import StorageError
from medweave_steps.runtime.imports import require

_ONNX_METADATA = "framework"
"""Runtime info of a converted model: the metadata of its ONNX file, which may be of another program and hold anything."""


def write_openvino(onnx_path: Path, patch_shape: Triple, path: Path, *, channels: int = 1) -> None:
    """Write OpenVINO IR, weights in float32 as they are, for one window at a time.

    The batch is fixed at 1: on two cores a window of 112 x 136 x 80 took 0.19 s, against 0.22 s with a free batch axis,
    and batches of 2 and 4 were no faster per window. A program that wants another batch may reshape.
    """
    openvino = require("openvino", extra="export")
    # convert_model folds batch norms and shape arithmetic, which Core.read_model leaves to the first use.
    model = openvino.convert_model(str(onnx_path))
    if model.has_rt_info(_ONNX_METADATA):
        del model.rt_info[_ONNX_METADATA]
    model.reshape([1, channels, *patch_shape])
    save_ir(model, path, extra="export")


def save_ir(model: Any, xml_path: Path, *, extra: str) -> None:
    """Write `.xml` and, in the same folder, `.bin`; weights keep their type (no float16).

    Args:
        model: an openvino.Model; its operations are renamed by type and place.
        xml_path: where to write.
        extra: the extra that OpenVINO belongs to here, for the error.
    Raises:
        StorageError: the files could not be written.
    """
    openvino = require("openvino", extra=extra)
    # Converters number added nodes per process; names by position make the files comparable.
    for number, operation in enumerate(model.get_ordered_ops()):
        operation.set_friendly_name(f"{operation.get_type_name()}_{number}")
    xml_path.parent.mkdir(parents=True, exist_ok=True)
    try:
        openvino.save_model(model, str(xml_path), compress_to_fp16=False)
    except RuntimeError as error:
        # C++ streams say no more than this; any other error is not about storage.
        if "iostream" not in str(error):
            raise
        raise StorageError(
            "a file of the model could not be written.",
            seen=f"{xml_path.name} or its .bin: OpenVINO reports an {str(error).split(': ')[-1]}",
            expected="a writable output folder with enough free space",
            do="free space on the disk or choose another output folder",
        ) from error
