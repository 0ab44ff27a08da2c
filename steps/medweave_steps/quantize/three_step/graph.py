"""An ONNX graph that can be changed: nodes in topological order, and constants as arrays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy.typing as npt

from medweave_core.errors import UserInputError
from medweave_steps.runtime.imports import require

Array = npt.NDArray[Any]


class Graph:
    """The nodes and constants of an ONNX model.

    Attributes:
        nodes: onnx.NodeProto in topological order. Constant nodes and Identity nodes of constants are resolved into `constants`.
        constants: values by tensor name.
        model: the model that was read, without its initializers, which older files list as inputs, too.
    """

    def __init__(self, model: Any) -> None:
        numpy_helper = require("onnx.numpy_helper", extra="quantize")
        self.constants: dict[str, Array] = {
            tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer
        }
        del model.graph.initializer[:]  # a copy of the others frees the memory of these
        self.model = type(model)()
        self.model.CopyFrom(model)
        inputs = [value for value in model.graph.input if value.name not in self.constants]
        del self.model.graph.input[:]
        self.model.graph.input.extend(inputs)
        self.nodes: list[Any] = []
        for node in self.model.graph.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self.constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
            elif node.op_type == "Identity" and node.input[0] in self.constants:
                self.constants[node.output[0]] = self.constants[node.input[0]]
            else:
                node.name = node.name or node.output[0]
                self.nodes.append(node)
        self._numbers: dict[str, int] = {}

    @classmethod
    def read(cls, path: Path) -> Graph:
        """Return the graph of an ONNX file.

        Raises:
            UserInputError: the file is no ONNX.
        """
        onnx = require("onnx", extra="quantize")
        try:
            return cls(onnx.load(str(path)))
        except Exception as error:  # protobuf's DecodeError has no public class that all versions share
            raise UserInputError(
                f"{path.name} of the model folder cannot be read as ONNX.",
                seen=f"{type(error).__name__}: {' '.join(str(error).split())[:160]}",
                expected="an ONNX model as export writes it",
                do="export the trained model again",
            ) from error

    @property
    def input_name(self) -> str:
        """Return the name of the only input that is no constant."""
        return str(self.model.graph.input[0].name)

    @property
    def output_names(self) -> list[str]:
        """Return the names of the outputs."""
        return [str(value.name) for value in self.model.graph.output]

    def consumers(self, name: str) -> list[Any]:
        """Return the nodes that read a tensor, in topological order."""
        return [node for node in self.nodes if name in node.input]

    def producer(self, name: str) -> Any | None:
        """Return the node that computes a tensor, or None for the graph's input and constants."""
        return next((node for node in self.nodes if name in node.output), None)

    def sole_consumer(self, name: str) -> Any | None:
        """Return the only node that reads a tensor, or None if several do or the tensor is an output of the graph."""
        readers = self.consumers(name)
        return readers[0] if len(readers) == 1 and name not in self.output_names else None

    def add_constant(self, near: str, value: Array) -> str:
        """Store a constant under an unused name that starts with the name of the tensor that it belongs to; return the name."""
        name = self.unused_name(near)
        self.constants[name] = value
        return name

    def unused_name(self, near: str) -> str:
        """Return a name that no tensor and no node has."""
        self._numbers[near] = self._numbers.get(near, 0) + 1
        return f"{near}/medweave_{self._numbers[near]}"

    def new_node(self, kind: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
        """Return a node that is not in the graph yet."""
        helper = require("onnx.helper", extra="quantize")
        return helper.make_node(kind, inputs, outputs, name=f"{outputs[0]}/{kind}", **attributes)

    def to_model(self, *, extra_outputs: tuple[str, ...] = ()) -> Any:
        """Return the onnx.ModelProto, with the constants that a node reads.

        Args:
            extra_outputs: tensors that are to be outputs, too, after those of the graph.
        """
        onnx = require("onnx", extra="quantize")
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        del model.graph.node[:], model.graph.value_info[:]
        model.graph.node.extend(self.nodes)
        read = {name for node in self.nodes for name in node.input}
        model.graph.initializer.extend(
            onnx.numpy_helper.from_array(value, name) for name, value in self.constants.items() if name in read
        )
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in extra_outputs)
        return model


def attribute(node: Any, name: str, default: Any) -> Any:
    """Return an attribute of a node, or the default that the ONNX standard gives it."""
    helper = require("onnx.helper", extra="quantize")
    return next((helper.get_attribute_value(item) for item in node.attribute if item.name == name), default)


def set_attribute(node: Any, name: str, value: Any) -> None:
    """Set an attribute of a node."""
    helper = require("onnx.helper", extra="quantize")
    others = [item for item in node.attribute if item.name != name]
    del node.attribute[:]
    node.attribute.extend([*others, helper.make_attribute(name, value)])


def replace_input(node: Any, old: str, new: str) -> None:
    """Let a node read another tensor wherever it reads `old`."""
    for number, name in enumerate(node.input):
        if name == old:
            node.input[number] = new


def activations(graph: Graph, node: Any) -> Iterator[str]:
    """Yield the inputs of a node that are not constants."""
    yield from (name for name in node.input if name and name not in graph.constants)
