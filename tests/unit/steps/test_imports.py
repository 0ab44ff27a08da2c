"""What the libraries of the training steps bring along when they are imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TAKEN = ("matplotlib", "sklearn", "ignite", "nibabel")


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_networks_come_without_what_monai_could_also_use_and_others_can_still_use_it() -> None:
    program = f"""
import sys
from pathlib import Path
from medweave_steps.runtime.imports import require_lean
nets = require_lean("monai.networks.nets", extra="train")
print(nets.UNet.__name__, [name for name in {TAKEN} if name in sys.modules])
import scipy.ndimage, matplotlib, nibabel
"""
    assert run(program).split("\n")[0] == "UNet []"


@pytest.mark.slow
def test_quantization_comes_without_torch_and_leaves_what_is_loaded() -> None:
    program = """
import sys
from pathlib import Path
import scipy
from medweave_steps.runtime.imports import hidden_modules, require_lean
require_lean("nncf", extra="quantize")
print("torch" in sys.modules)
with hidden_modules("monai"):
    import scipy.ndimage
    try:
        import matplotlib
    except ImportError:
        print("hidden")
import matplotlib
print(sys.modules["scipy"] is scipy)
"""
    assert run(program).split() == ["False", "hidden", "True"]


@pytest.mark.slow
def test_who_compiles_nothing_trains_without_torchs_compiler_and_who_asks_for_it_has_it(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from medweave_steps.runtime.imports import require, skip_torch_compiler
torch = require("torch", extra="train")
skip_torch_compiler()
store = torch.distributed.FileStore({str(tmp_path / "store")!r}, 1)
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
network = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.Adam(network.parameters())
network(torch.ones(1, 2)).sum().backward()
optimizer.step()
torch.distributed.destroy_process_group()
print([name for name in sys.modules if name.startswith("torch._dynamo.")], "sympy" in sys.modules)
optimizer.step()
import torch._dynamo.utils
print(torch._dynamo.utils.get_optimize_ddp_mode(), torch._dynamo.config.optimize_ddp, torch._dynamo is sys.modules["torch._dynamo"])
print(torch.export.export(torch.nn.Linear(2, 1), (torch.ones(1, 2),)).module()(torch.ones(1, 2)).shape)
"""
    assert run(program).splitlines() == ["[] False", "ddp_optimizer True True", "torch.Size([1, 1])"]
