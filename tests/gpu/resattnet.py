"""One training step of 3D-ResAttNet on one GPU: `python tests/gpu/resattnet.py FOLDER`, a minute.

For machines with an NVIDIA GPU; pytest does not collect it. For ResAttNet-18 and ResAttNet-34 and six volumes of 96 x 112 x 96
voxels in mixed bfloat16 (on a CPU float32), it measures the seconds of a step (forward, backward, SGD; median of 20 after 5) and
the peak memory of the device. It fails if a loss is not finite, or if the numbers of parameters are not those of the reference.

    python tests/gpu/resattnet.py FOLDER --device cpu --width 0.125 --batch-size 1    # tries the script without a GPU

Prints one line for each network and writes FOLDER/gpu_resattnet.json.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch

from medweave_steps.networks.resattnet import ResAttNet

SHAPE = (96, 112, 96)
LAYERS = {"resattnet18": (2, 2, 2, 2), "resattnet34": (3, 4, 6, 3)}
PARAMETERS = {"resattnet18": 33_469_123, "resattnet34": 63_778_755}
WARM_UP, MEASURED = 5, 20


def measure(name: str, *, device: str, width: float, batch_size: int, steps: int) -> dict[str, Any]:
    """Return parameters, median seconds of a step, peak memory in MiB and the last loss."""
    channels = [max(1, round(width * full)) for full in (64, 128, 256, 512)]
    network = ResAttNet(in_channels=1, num_classes=2, layers=LAYERS[name], channels=channels).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9)
    images, classes = torch.randn(batch_size, 1, *SHAPE, device=device), torch.arange(batch_size, device=device) % 2
    seconds, loss = [], torch.tensor(math.nan)
    for _ in range(steps):
        started = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            logits = network(images)
        loss = torch.nn.functional.cross_entropy(logits.float(), classes)
        loss.backward()
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    warm = sorted(seconds[min(WARM_UP, steps - 1) :])
    return {
        "parameters": sum(weight.numel() for weight in network.parameters()),
        "seconds_per_step": round(warm[len(warm) // 2], 4),
        "peak_memory_mib": round(torch.cuda.max_memory_allocated() / 2**20) if device == "cuda" else None,
        "loss": round(loss.item(), 4),
    }


def main() -> int:
    """Measure both networks; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder to write; created")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--width", type=float, default=1.0, help="channels as a fraction of the full network's")
    parser.add_argument("--batch-size", type=int, default=6, help="volumes of a step")
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    results: dict[str, Any] = {"torch": torch.__version__, "shape": SHAPE, "batch_size": options.batch_size}
    if options.device == "cuda":
        results["gpu"] = torch.cuda.get_device_name()
    is_right = True
    for name in LAYERS:
        if options.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        steps = WARM_UP + MEASURED if options.device == "cuda" else 2
        found = measure(name, device=options.device, width=options.width, batch_size=options.batch_size, steps=steps)
        is_right &= math.isfinite(found["loss"]) and (options.width != 1 or found["parameters"] == PARAMETERS[name])
        results[name] = found
        print(f"{name}: {json.dumps(found)}", flush=True)
    (options.folder / "gpu_resattnet.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 0 if is_right else 1


if __name__ == "__main__":
    raise SystemExit(main())
