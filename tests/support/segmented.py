"""Runs the verb `segment` on scans with balls in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medweave_steps.cli import main
from support.dicom_builder import CtSeries
from support.prepared_builder import Scan, prepare, with_balls

# Centre as [slice, row, column], and radius in mm: the first is the larger.
TWO_BALLS = (((8, 20, 30), 6.0), ((17, 45, 50), 4.5))
CASE = "case-0000000a"


def series_with(balls: Sequence[tuple[Sequence[float], float]] = TWO_BALLS, **options) -> CtSeries:
    """Return a CT series of air with balls in it."""
    options = {"shape": (24, 64, 72), "spacing_mm": (1.5, 0.7, 0.8)} | options
    series = CtSeries(**options)
    series.stored = np.rint(with_balls(series.shape, series.affine_ras(), balls) + 1024).astype(np.int16)
    return series


def scan_of(series: CtSeries, *, case_id: str = CASE, headers: Sequence | None = None) -> Scan:
    """Return the series as `preprocess` sees it."""
    headers = series.datasets() if headers is None else headers
    for header in headers:
        header.pop("PixelData", None)
    return Scan(case_id=case_id, hu=series.hu(), affine_ras=series.affine_ras(), headers=headers)


@dataclass
class Run:
    """A finished run of the verb."""

    exit_code: int
    output: Path
    report: Path

    def case(self, name: str = "", case_id: str = CASE) -> Path:
        """Return a file of a case."""
        return self.output / case_id / name


def segment(folder: Path, model: Path | Sequence[Path], batch: Path, *extra: str, output: str = "segmentations") -> Run:
    """Run `medweave-step segment` in this process, with one thread; several models are an ensemble."""
    models = [model] if isinstance(model, Path) else model
    report = folder / f"{output}_report.json"
    words = ["--segmentation-model", *map(str, models), "--case-batch", str(batch), "--output", str(folder / output)]
    code = main(["segment", *words, "--run-report", str(report), "--num-threads", "1", *extra])
    return Run(code, folder / output, report)


def segment_series(folder: Path, model: Path, series: CtSeries, *, headers: Sequence | None = None) -> Run:
    """Prepare and segment one series."""
    batch = prepare(folder / "batch", [scan_of(series, headers=headers)])
    return segment(folder, model, batch)
