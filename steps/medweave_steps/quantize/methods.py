"""The methods of `quantize`: their source files, libraries and options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from medweave_core.errors import UsageError
from medweave_steps.io.model.folder import onnx_file, openvino_file, openvino_weights_file
from medweave_steps.runtime.options import Variants, option

MethodName = Literal["nncf", "three-step", "ort-static"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NncfOptions:
    """Options of NNCF."""

    preset: Literal["mixed", "performance"] = option(
        "nncf: activations: mixed is asymmetric for those that may be negative; performance is always symmetric",
        default="mixed",
    )
    # On a trained lung model, 14 cases and 73 lesions, both defaults together changed the false positives per scan by +0.07;
    # bias correction with all layers in int8, as NNCF would do it, by +0.93. The time per window was the same.
    float_input_layer: bool = option("nncf: keep the first convolution, whose input is HU, in float32", default=True)
    bias_correction: bool = option(
        "nncf: correct the bias of each layer to the mean float32 output on the calibration windows", default=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreeStepOptions:
    """Options of the paper's three steps."""

    threshold: Literal["max", "percentile", "minimum-mse", "kl"] = option(
        "three-step: where activations are clipped: at the largest value, the 99.99th percentile, or with the smallest mean squared"
        " error or Kullback-Leibler divergence",
        default="minimum-mse",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OrtStaticOptions:
    """ONNX Runtime's own quantization has no options here."""


MethodOptions = NncfOptions | ThreeStepOptions | OrtStaticOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method.

    Attributes:
        options: class of its options.
        libraries: must be installed.
        sources: files of the exported model that it reads; the first one is the network.
        output: the network that it writes.
        windows: how many it calibrates on by default.
    """

    options: type[NncfOptions] | type[ThreeStepOptions] | type[OrtStaticOptions]
    libraries: tuple[str, ...]
    sources: tuple[str, ...]
    output: str
    windows: int = 16


_ONNX = ("onnx", "onnxruntime")

METHODS: dict[str, Method] = {
    "nncf": Method(
        options=NncfOptions,
        libraries=("openvino",),
        sources=(openvino_file("float32"), openvino_weights_file("float32")),
        output=openvino_file("int8"),
    ),
    # 200 samples: the paper is silent, this is medweave's choice for it.
    "three-step": Method(
        options=ThreeStepOptions,
        libraries=_ONNX,
        sources=(onnx_file("float32"),),
        output=onnx_file("int8"),
        windows=200,
    ),
    "ort-static": Method(
        options=OrtStaticOptions, libraries=_ONNX, sources=(onnx_file("float32"),), output=onnx_file("int8")
    ),
}


def options_of(name: str) -> type:
    """Return the class of a method's options.

    Raises:
        UsageError: there is no such method.
    """
    if name not in METHODS:
        raise UsageError("invalid value of --method.", seen=name, expected=", ".join(METHODS))
    return METHODS[name].options


OPTIONS = Variants(
    selector="method",
    built_in=lambda: {name: method.options for name, method in METHODS.items()},
    options_of=options_of,
)
