"""`preprocess` compared with a plain SimpleITK pipeline, and its peak memory on a long series.

Ours is the whole work on one case: read, resample, find the lungs, crop, clip, write arrays and source headers. The
reference only reads and resamples (linear, the same grid, the same threads) and clips. A second figure compares reading and
resampling alone. The series are phantoms, written once to build/bench/data; both pipelines find them in the page cache.

    .venv/bin/python tests/bench/preprocess.py [--pairs 7]
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness import ROOT, machine, run_measuring_memory, run_pairs, say, single_figure

sys.path.insert(0, str(ROOT / "tests"))

from medweave_steps.cli import main as medweave_step
from medweave_steps.io.cohort.prepared import read_index
from medweave_steps.io.cohort.source import open_source
from medweave_steps.phantom.chest import ChestSpec, generate_chest
from medweave_steps.preprocess.case import CaseJob, prepare_case
from medweave_steps.preprocess.config import CaseSettings
from medweave_steps.preprocess.resample import needed_planes, plan_resampling, resample_planes
from support.dicom_builder import CtSeries

DATA = ROOT / "build" / "bench" / "data"
SPACING_MM = (2.0, 2.0, 2.0)
WINDOW_HU = (-1000.0, 400.0)
MEMORY_BAR_MIB = 4096
SAME_HU = 0.05  # both are float32; SimpleITK works out positions in another order


def series_of(num_slices: int, spacing_mm: float) -> Path:
    """Write a phantom of 512 x 512 pixels as uncompressed DICOM, with its `cohort_index.json`, once; return its folder."""
    folder = DATA / f"ct-512x512x{num_slices}"
    index = folder / "cohort_index.json"
    if index.exists():
        return folder
    say("data", f"writing a phantom of 512 x 512 x {num_slices}")
    shutil.rmtree(folder, ignore_errors=True)
    phantom = generate_chest(ChestSpec(seed=11, num_slices=num_slices, slice_spacing_mm=(spacing_mm, spacing_mm)))
    column_mm, row_mm, slice_mm = phantom.spacing_mm
    CtSeries(
        key=f"bench-{num_slices}",
        shape=phantom.hu_KJI.shape,
        spacing_mm=(slice_mm, row_mm, column_mm),
        origin=phantom.origin_mm,
        stored=phantom.hu_KJI.astype(np.int32) + 1024,
    ).write(folder / "cohort" / "series-0001")
    words = ["check", "--cohort", str(folder / "cohort"), "--output", str(index)]
    code = medweave_step([*words, "--run-report", str(folder / "check_report.json")])
    if code:
        raise SystemExit(code)
    return folder


def prepare(folder: Path, num_threads: int) -> None:
    """Run our complete preprocessing of the case."""
    with tempfile.TemporaryDirectory(dir=DATA) as output:
        prepare_case(
            CaseJob(
                cohort=folder / "cohort",
                entry=read_index(folder / "cohort_index.json").cases[0],
                settings=CaseSettings(spacing_mm=SPACING_MM, window_hu=WINDOW_HU, crop="lungs", margin_mm=10.0),
                folder=Path(output),
                values=None,
                for_segment=True,
                keep_all_lesions=False,
                num_workers=num_threads,
            )
        )


def read_and_resample(folder: Path, num_threads: int) -> Any:
    """Run our reading and resampling alone; return float32 [I, J, K] on the uncropped grid, clipped."""
    source = open_source(folder / "cohort", read_index(folder / "cohort_index.json").cases[0])
    plan = plan_resampling(source.grid, SPACING_MM)
    planes = source.planes(num_workers=num_threads, wanted=needed_planes(plan, source.plane_axis))
    volume = resample_planes(planes, plan, plane_axis=source.plane_axis)
    return np.clip(volume, *WINDOW_HU, out=volume)


def simple_itk(folder: Path) -> Any:
    """Run the plain pipeline: read, resample linearly on the same grid, clip; return a SimpleITK image in LPS order."""
    import SimpleITK

    series = str(folder / "cohort" / "series-0001")
    reader = SimpleITK.ImageSeriesReader()
    reader.SetFileNames(SimpleITK.ImageSeriesReader.GetGDCMSeriesFileNames(series))
    reader.SetOutputPixelType(SimpleITK.sitkFloat32)
    image = reader.Execute()
    spans = [(n - 1) * spacing for n, spacing in zip(image.GetSize(), image.GetSpacing(), strict=True)]
    size = [int(span / new + 1e-6) + 1 for span, new in zip(spans, SPACING_MM, strict=True)]
    # Our grid begins at the first voxel towards left, back, feet; in LPS that is the high end of the first two axes.
    shifts = [span - (n - 1) * new for span, n, new in zip(spans[:2], size[:2], SPACING_MM[:2], strict=True)]
    origin = image.TransformContinuousIndexToPhysicalPoint(
        [shift / spacing for shift, spacing in zip([*shifts, 0.0], image.GetSpacing(), strict=True)]
    )
    grid = (size, SimpleITK.Transform(), SimpleITK.sitkLinear, origin, SPACING_MM, image.GetDirection())
    # Border voxels may lie outside by a rounding error; extrapolation repeats the border, as ours does.
    resampled = SimpleITK.Resample(image, *grid, -1024.0, SimpleITK.sitkFloat32, True)
    return SimpleITK.Clamp(resampled, SimpleITK.sitkFloat32, *WINDOW_HU)


def largest_difference(folder: Path, num_threads: int) -> float:
    """Return the largest difference to SimpleITK's volume, HU, so that the figures compare the same work."""
    import SimpleITK

    theirs = SimpleITK.GetArrayFromImage(simple_itk(folder))[:, ::-1, ::-1].transpose(2, 1, 0)
    return float(np.abs(read_and_resample(folder, num_threads) - theirs).max())


def processor_seconds(work: Callable[[], Any]) -> float:
    """Return the processor time of all threads in the second of two runs, s; a busy machine changes it less than the wall time."""
    work()
    started = time.process_time()
    work()
    return round(time.process_time() - started, 3)


def bench_speed(pairs: int) -> None:
    """Measure the seconds per series of 512 x 512 x 300."""
    import SimpleITK

    folder, num_threads = series_of(300, 1.0), machine()["cpus"]
    SimpleITK.ProcessObject.SetGlobalDefaultNumberOfThreads(num_threads)
    tool = f"SimpleITK {SimpleITK.Version_VersionString()}, {num_threads} threads"
    difference = largest_difference(folder, num_threads)
    if difference > SAME_HU:
        raise SystemExit(f"the two pipelines differ by {difference:.3f} HU: they do not do the same work")
    notes = {
        "series": "512 x 512 x 300, uncompressed",
        "spacing_mm": SPACING_MM,
        "largest_difference_hu": round(difference, 5),
    }
    cpu = {
        "cpu_seconds_ours": processor_seconds(lambda: prepare(folder, num_threads)),
        "cpu_seconds_reference": processor_seconds(lambda: simple_itk(folder)),
    }
    run_pairs(
        "preprocess",
        lambda: prepare(folder, num_threads),
        lambda: bool(simple_itk(folder)) and None,
        reference_tool=tool,
        pairs=pairs,
        notes={**notes, **cpu, "ours": "whole case, to disk", "reference": "read, resample and clip in memory"},
    )
    run_pairs(
        "preprocess_read_and_resample",
        lambda: bool(read_and_resample(folder, num_threads).size) and None,
        lambda: bool(simple_itk(folder)) and None,
        reference_tool=tool,
        pairs=pairs,
        notes=notes,
    )


def bench_memory() -> None:
    """Measure the peak memory of the verb and its processes on a series of 512 x 512 x 600."""
    folder = series_of(600, 0.6)
    with tempfile.TemporaryDirectory(dir=DATA) as scratch:
        paths = {
            "cohort": folder / "cohort",
            "cohort-index": folder / "cohort_index.json",
            "output": Path(scratch) / "prepared",
            "run-report": Path(scratch) / "run_report.json",
        }
        words = [word for name, path in paths.items() for word in (f"--{name}", str(path))]
        run = run_measuring_memory(
            [sys.executable, "-m", "medweave_steps", "preprocess", "--purpose", "inference", *words]
        )
        if run.exit_code:
            raise SystemExit(run.exit_code)
        report = json.loads(paths["run-report"].read_text(encoding="utf-8"))
    single_figure(
        "preprocess_memory",
        round(run.peak_memory_mib, 1),
        unit="MiB",
        bar=MEMORY_BAR_MIB,
        notes={"series": "512 x 512 x 600, uncompressed", "own_report_mib": report["peak_memory_mib"]},
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7, help="alternating pairs (default: 7)")
    arguments = parser.parse_args()
    bench_speed(arguments.pairs)
    bench_memory()
