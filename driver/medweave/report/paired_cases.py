"""Compare several runs by their evaluated cases: the paired tests of `medweave-step stats`, over patients."""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from medweave_core.contracts import codec
from medweave_core.contracts.statistics import STATISTICS_FILE, Analysis, Statistics
from medweave_core.runlog.history import Run
from medweave_core.untrusted_text import load_json

SCORES = {"dice": "Dice", "true_probability": "Probability of the true class"}
"""Figures of a case that `evaluate` reports, of masks and of classes."""
TIME_LIMIT_S = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedCases:
    """Paired tests of runs.

    Attributes:
        score: displayed name of the compared figure.
        cases: number of cases that all runs have.
        left_out: number of cases that only some of the runs have.
        reason: why there is no test; empty with one.
        analysis: None without a test.
        alpha: of the tests.
    """

    score: str
    cases: int
    left_out: int
    reason: str = ""
    analysis: Analysis | None = None
    alpha: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseScore:
    """The score of one case.

    Attributes:
        patient: equal for cases of one patient.
        value: of the score.
    """

    patient: str
    value: float


def case_scores(run: Run, score: str) -> dict[str, CaseScore]:
    """Return the defined scores that the run's `evaluate` reported, by case id."""
    return {
        str(case["case_id"]): CaseScore(patient=str(case.get("patient_key") or case["case_id"]), value=float(value))
        for job in run.jobs
        if job.report is not None and job.report.verb == "evaluate"
        for case in job.report.cases
        if isinstance(value := case.get(score), int | float)
    }


def paired_cases(runs: Sequence[Run]) -> PairedCases | None:
    """Return the paired tests of all pairs of runs; None if fewer than two of the runs have scores of cases.

    Args:
        runs: with different run ids; runs without scores are not compared.
    """
    for score, name in SCORES.items():
        by_run = {run.run_id: scores for run in runs if (scores := case_scores(run, score))}
        if len(by_run) > 1:
            return _tested(by_run, score, name)
    return None


def _tested(by_run: Mapping[str, Mapping[str, CaseScore]], score: str, name: str) -> PairedCases:
    common = set.intersection(*(set(scores) for scores in by_run.values()))
    known = set().union(*by_run.values())
    statistics, reason = _statistics(by_run, sorted(common), score) if common else (None, "the runs share no case")
    return PairedCases(
        score=name,
        cases=len(common),
        left_out=len(known) - len(common),
        reason=reason,
        analysis=statistics.analyses[0] if statistics else None,
        alpha=statistics.alpha if statistics else 0.0,
    )


def _statistics(
    by_run: Mapping[str, Mapping[str, CaseScore]], cases: Sequence[str], score: str
) -> tuple[Statistics | None, str]:
    """Return what `medweave-step stats` computes; None with the reason if it fails.

    The step runs as a process of its own, since it needs libraries that the driver does not have.
    """
    with tempfile.TemporaryDirectory() as folder:
        table, output = Path(folder, "cases.csv"), Path(folder, "statistics")
        with table.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow((score, "run", "patient"))
            patients = next(
                iter(by_run.values())
            )  # keys of one patient may differ between runs: those of the first run count
            for run_id, scores in by_run.items():
                writer.writerows((repr(scores[case].value), run_id, patients[case].patient) for case in cases)
        words = ["--measurements", str(table), "--response", score, "--factor", "run", "--patient", "patient"]
        words += ["--output", str(output), "--run-report", str(Path(folder, "run_report.json")), "--num-threads", "1"]
        try:
            ended = subprocess.run(
                [sys.executable, "-m", "medweave_steps", "stats", *words],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None, f"medweave-step stats did not end within {TIME_LIMIT_S} s"
        if ended.returncode:
            return None, " ".join(ended.stderr.removeprefix("medweave-step stats: ").split())
        document = load_json((output / STATISTICS_FILE).read_bytes())
        return codec.from_json(Statistics, document, where=STATISTICS_FILE), ""
