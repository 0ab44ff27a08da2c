"""`helm test`: in a pod of the same image and limits, does OpenVINO compute, and are the folders as the chart promises?

usage: self_test.py WORKDIR MODEL_CACHE     exit 0, or 1 with the reason on standard error
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path


def convolution() -> tuple[float, float]:
    """One voxel of a 3-D convolution of ones with a kernel of 3 x 3 x 3 ones, and the seconds until it was there."""
    import numpy
    import openvino
    from openvino import opset13

    started = time.perf_counter()
    volume = opset13.parameter([1, 1, 3, 3, 3], numpy.float32)
    kernel = opset13.constant(numpy.ones((1, 1, 3, 3, 3), numpy.float32))
    network = opset13.convolution(volume, kernel, [1, 1, 1], [0, 0, 0], [0, 0, 0], [1, 1, 1])
    compiled = openvino.compile_model(openvino.Model([network], [volume]), "CPU")
    answer = compiled(numpy.ones((1, 1, 3, 3, 3), numpy.float32))[0]
    return float(answer[0, 0, 0, 0, 0]), time.perf_counter() - started


def main(workdir: str, model_cache: str) -> None:
    """Raises SystemExit with the four lines of an error at the first promise that does not hold."""
    value, seconds = convolution()
    if value != 27.0:
        fail("OpenVINO computes wrongly on this node", f"{value:g}", "27", "try another node; report the CPU's type")
    for folder in (workdir, model_cache, tempfile.gettempdir(), str(Path.home())):
        try:
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            fail(f"{folder} is not writable", str(error), "a writable volume", "look at the claim's access and `user`")
    print(f"27 of 27 in {seconds:.2f} s with OpenVINO, {workdir} and {model_cache} are writable")


def fail(what: str, seen: str, expected: str, remedy: str) -> None:
    """Ends the program as all of medweave's errors read."""
    sys.exit(f"helm test: {what}.\n  seen:     {seen}\n  expected: {expected}\n  do:       {remedy}")


if __name__ == "__main__":
    main(*sys.argv[1:])
