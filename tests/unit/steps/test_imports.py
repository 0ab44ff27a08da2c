"""What the libraries of the training steps bring along when they are imported."""

from __future__ import annotations

import subprocess
import sys

TAKEN = ("matplotlib", "sklearn", "ignite", "nibabel")


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_networks_come_without_what_monai_could_also_use_and_others_can_still_use_it() -> None:
    program = f"""
import sys
from medweave_steps.runtime.imports import require
nets = require("monai.networks.nets", extra="train")
print(nets.UNet.__name__, [name for name in {TAKEN} if name in sys.modules])
import scipy.ndimage, matplotlib, nibabel
"""
    assert run(program).split("\n")[0] == "UNet []"


def test_quantization_comes_without_torch_and_leaves_what_is_loaded() -> None:
    program = """
import sys
import scipy
from medweave_steps.runtime.imports import require, without
require("nncf", extra="quantize")
print("torch" in sys.modules)
with without("monai"):
    import scipy.ndimage
    try:
        import matplotlib
    except ImportError:
        print("hidden")
import matplotlib
print(sys.modules["scipy"] is scipy)
"""
    assert run(program).split() == ["False", "hidden", "True"]
