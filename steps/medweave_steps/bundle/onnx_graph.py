"""An ONNX file of another program: read as data, and its graph compared with the contract."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from medweave_core.contracts.model import ModelContract
from medweave_core.errors import UserInputError
from medweave_steps.io.model.onnx_file import invalid, nodes_of, shape_of, tensors_of
from medweave_steps.runtime.imports import require

_LARGEST_BYTES = 2**31 - 1  # of a protobuf message
_STANDARD_DOMAINS = ("", "ai.onnx")
_QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ConvInteger", "MatMulInteger")


def read_onnx(path: Path) -> tuple[Any, bool]:
    """Return the model of an ONNX file with all its weights, and whether some of them were in other files.

    Raises:
        UserInputError: it is no complete ONNX file, or a file with its weights is missing or too short.
    """
    onnx = require("onnx", extra="export")
    try:
        content = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise _not_onnx(path, "no such file" if not path.is_dir() else "a folder") from error
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's DecodeError has no public base
        raise _not_onnx(path, f"{len(content)} bytes that are no complete protobuf message") from error
    if not model.graph.node or not model.opset_import:
        raise _not_onnx(path, f"{len(content)} bytes without a graph")
    if any(isinstance(name, bytes) for name in _names(model)):
        raise _not_onnx(path, "names that are not UTF-8")
    is_external = _load_external_data(model, path.parent)
    return model, is_external


def _names(model: Any) -> Iterator[Any]:
    """Yield the names in a model: str, or bytes for a name that is not UTF-8."""
    yield from (one.domain for one in model.opset_import)
    yield from (text for one in model.metadata_props for text in (one.key, one.value))
    yield from (text for one in model.functions for text in (one.domain, one.name))
    for node in nodes_of(model):
        yield from (node.op_type, node.domain, node.name, *node.input, *node.output)
    for value in (*model.graph.input, *model.graph.output):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    for tensor in tensors_of(model):
        yield tensor.name
        yield from (text for one in tensor.external_data for text in (one.key, one.value))


def _not_onnx(path: Path, seen: str) -> UserInputError:
    return UserInputError(
        "the file of --from-onnx is not a complete ONNX file.",
        seen=f"{path.name}: {seen}",
        expected="a model written by an ONNX exporter",
        do="copy or export the file again; it may be truncated, or a git-lfs pointer",
    )


def _load_external_data(model: Any, folder: Path) -> bool:
    helper = require("onnx.external_data_helper", extra="export")
    external = [tensor for tensor in tensors_of(model) if helper.uses_external_data(tensor)]
    total = 0
    for tensor in external:
        try:
            info = helper.ExternalDataInfo(tensor)
        except ValueError as error:
            raise _no_weights(tensor.name, "offset or length", str(error)) from error
        name = PurePosixPath(info.location)
        if name.is_absolute() or ".." in name.parts:
            raise _no_weights(tensor.name, info.location, "a path outside the folder of the ONNX file")
        path = folder / name
        if not path.is_file():
            raise _no_weights(tensor.name, info.location, "no such file next to the ONNX file")
        size, end = path.stat().st_size, (info.offset or 0) + (info.length or 0)
        if size < end:
            raise _no_weights(tensor.name, info.location, f"{size} bytes of at least {end}")
        total += info.length or size
    if total > _LARGEST_BYTES:
        raise _no_weights(external[0].name, "in all", f"{total} bytes of weights, more than one ONNX file can hold")
    if external:
        helper.load_external_data_for_model(model, str(folder))
    return bool(external)


def _no_weights(tensor: str, location: str, seen: str) -> UserInputError:
    return UserInputError(
        "the weights of the ONNX file cannot be read.",
        seen=f"external data of '{tensor}', {location}: {seen}",
        expected="all files of the external data in the folder of the ONNX file, below 2 GiB together",
        do="copy these files, too, or export the model into one file",
    )


def check_graph(model: Any, contract: ModelContract) -> None:
    """Check that a model is valid ONNX with one input and one output, and that these fit the contract.

    Raises:
        UserInputError: names the operators, inputs, outputs or axes that do not fit.
    """
    _check_operators(model)
    image, logits = _only_input_and_output(model)
    _check_input(image, contract)
    _check_type(logits, "output")
    _check_logits(model, logits)
    problem = invalid(model)
    if problem:
        raise UserInputError(
            "the ONNX file is not valid.",
            seen=problem,
            expected="a model that passes onnx.checker with shape inference",
            do="export the model again with a current version of its framework",
        )


def _check_operators(model: Any) -> None:
    onnx = require("onnx", extra="export")
    versions = {one.domain if one.domain not in _STANDARD_DOMAINS else "": one.version for one in model.opset_import}
    own = {(function.domain, function.name) for function in model.functions}
    unknown, quantized = set(), set()
    for node in nodes_of(model):
        domain = "" if node.domain in _STANDARD_DOMAINS else node.domain
        if (node.domain, node.op_type) in own:
            continue
        if not onnx.defs.has(node.op_type, versions.get(domain, 0), domain):
            unknown.add(f"{domain}.{node.op_type}" if domain else node.op_type)
        elif node.op_type in _QUANTIZED or node.op_type.startswith("QLinear"):
            quantized.add(node.op_type)
    if unknown:
        raise unsupported(sorted(unknown), f"operators of ONNX opset {versions.get('', 0)}")
    if quantized:
        raise UserInputError(
            "the ONNX file is quantized.",
            seen=f"the operators {', '.join(sorted(quantized))}",
            expected="a float32 network",
            do="import the float32 file, and run `medweave-step quantize` and `medweave-step gate` on the model folder",
        )


def unsupported(operators: Sequence[str], expected: str) -> UserInputError:
    """Return the error for operators that no installed runtime has."""
    return UserInputError(
        "the ONNX file has operators that are not supported.",
        seen=", ".join(operators),
        expected=expected,
        do="export the network with standard ONNX operators, without custom ones and without optimization for one runtime",
    )


def _only_input_and_output(model: Any) -> tuple[Any, Any]:
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    outputs = list(model.graph.output)
    for values, role, do in (
        (inputs, "inputs", "export the network with one image as input; several images can be channels of one input"),
        (outputs, "outputs", "export the network with its logits as the only output"),
    ):
        if len(values) != 1:
            raise UserInputError(
                f"the network of the ONNX file has {len(values)} {role}.",
                seen=", ".join(described(value) for value in values) or f"no {role}",
                expected="one input (the image) and one output (the logits)",
                do=do,
            )
    return inputs[0], outputs[0]


def described(value: Any) -> str:
    """Return name and shape of an input or output, such as `image [batch, 1, 96, 96, 96]`."""
    return f"{value.name} [{', '.join(map(str, shape_of(value)))}]"


def _check_input(image: Any, contract: ModelContract) -> None:
    _check_type(image, "input")
    shape, patch, channels = shape_of(image), contract.input.patch_shape, contract.input.channels
    expected = f"[batch or 1, {channels}, {', '.join(map(str, patch))}]: channels and patch_shape of the contract"
    if len(shape) != 5:
        raise _unfit(
            f"input {described(image)}",
            expected,
            "export the network with the axes batch, channel, I, J, K; an image has one slice (K is 1)",
        )
    free = [str(size) for size in shape[1:] if isinstance(size, str)]
    if free:
        raise UserInputError(
            "the input of the ONNX file has dynamic axes.",
            seen=f"{described(image)}: {', '.join(free)}",
            expected=f"fixed sizes except for the batch: {expected}",
            do="export with a dynamic batch axis only, or fix an axis with `python -m onnxruntime.tools.make_dynamic_shape_fixed "
            f"--dim_param {free[0]} --dim_value SIZE`",
        )
    if shape[1:] != (channels, *patch) or (not isinstance(shape[0], str) and shape[0] != 1):
        raise _unfit(
            f"input {described(image)}", expected, "correct the contract, or export the network for this input"
        )


def _check_type(value: Any, role: str) -> None:
    onnx = require("onnx", extra="export")
    number = value.type.tensor_type.elem_type
    if number != onnx.TensorProto.FLOAT:
        names = {value: name for name, value in onnx.TensorProto.DataType.items()}
        raise _unfit(
            f"{role} {described(value)} of type {names.get(number, number)}",
            "type FLOAT (float32)",
            "export the network in float32",
        )


def _check_logits(model: Any, logits: Any) -> None:
    """Refuse a network that ends in an activation: it would be applied twice."""
    makers = {name: node for node in model.graph.node for name in node.output}
    node = makers.get(logits.name)
    while node is not None and node.op_type == "Identity":
        node = makers.get(node.input[0])
    if node is not None and node.op_type in ("Sigmoid", "Softmax"):
        raise _unfit(
            f"output {described(logits)} by the operator {node.op_type}: probabilities",
            "logits; the activation is in the contract (output.activation)",
            f"export the network without its last {node.op_type}",
        )


def check_output(shape: Sequence[int], expected: Sequence[int], contract: ModelContract) -> None:
    """Compare the output for one input with that of the contract.

    Raises:
        UserInputError: the shapes differ; the message has the outputs of the contract.
    """
    if tuple(shape) == tuple(expected):
        return
    names = [one.name for one in contract.classes or contract.output.regions or contract.labels]
    if not contract.classes and contract.output.activation == "softmax":
        names = ["background", *names]
    raise _unfit(
        f"an output of shape {tuple(shape)}",
        f"shape {tuple(expected)}, for {', '.join(names)}",
        "correct labels, regions, classes and activation in the contract; the output has to be logits",
    )


def _unfit(seen: str, expected: str, do: str) -> UserInputError:
    return UserInputError("the ONNX file does not fit its contract.", seen=seen, expected=expected, do=do)
