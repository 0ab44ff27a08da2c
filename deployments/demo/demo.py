"""`make demo`: a synthetic cohort, the whole pipeline by `streamflow run streamflow.yml`, a table and one HTML report.

    make demo [STEPS=N] [CASES=N]

Everything lies below build/demo/; an earlier demo's folder is replaced. The figures go to build/demo/summary.json.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "build" / "demo"
COHORT, RESULTS, REPORT = DEMO / "cohort", DEMO / "output", DEMO / "report.html"

# The development cohort chose every setting. The held-out cohort's seed was used for no setting, threshold or filter:
# it is used for the figures printed here and in docs/benchmarks.md, and for nothing else.
DEVELOPMENT_CASES, DEVELOPMENT_SEED = 50, 20
DEVELOPMENT_NODULES = (
    5,
    9,
)  # more to learn from in each volume; held-out patients have 2 to 6, as the phantom draws them
HELD_OUT_CASES, HELD_OUT_SEED = 24, 67867967
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PAUSE_S = 0.2
PR_SET_PDEATHSIG = 1  # linux/prctl.h
FEWEST_CASES = 12  # a third are test cases, and some of the others validate


def command(name: str) -> str:
    """Return the program of that name in the environment that runs this script."""
    return str(Path(sys.executable).parent / name)


def run(words: Sequence[str], *, environment: Mapping[str, str], output: int | IO[bytes] | None = None) -> None:
    """Run a program, with its standard output in a file if set; exit with its exit code if it fails."""
    if exit_code := exit_code_of(words, environment=environment, output=output):
        print(f"\nmake demo: '{Path(words[0]).name}' ended with exit code {exit_code}; see above.", file=sys.stderr)
        sys.exit(exit_code)


def exit_code_of(words: Sequence[str], *, environment: Mapping[str, str], output: int | IO[bytes] | None = None) -> int:
    """Run a program; return its exit code, or 128 plus the number of the signal that ended it.

    INT, TERM and HUP to this script are passed on to the program, which cleans up; then the script exits. The program has a session
    of its own: Ctrl-C in a terminal would reach it twice, and a second signal makes the engine end at once.
    """
    received: list[int] = []
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if (number, handler) != (signal.SIGHUP, signal.SIG_IGN):  # nohup
            signal.signal(number, lambda number, _: received.append(number))
    try:
        process = subprocess.Popen(
            words, cwd=ROOT, env=dict(environment), stdout=output, start_new_session=True, preexec_fn=_end_with_script
        )
        exit_code = _wait(process, received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        sys.exit(128 + received[0])
    return exit_code if exit_code >= 0 else 128 - exit_code


def _end_with_script() -> None:
    """Let the kernel send TERM to this new process when the script is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait(process: subprocess.Popen[bytes], received: Sequence[int]) -> int:
    """Wait for a program and pass on the signals that arrive meanwhile; return its exit code."""
    num_passed = 0
    while True:
        try:
            return process.wait(PAUSE_S)
        except subprocess.TimeoutExpired:
            for number in received[num_passed:]:
                process.send_signal(number)
                num_passed += 1


def held_out_of(cases: int) -> int:
    """Return the number of held-out cases."""
    return round(cases * HELD_OUT_CASES / (DEVELOPMENT_CASES + HELD_OUT_CASES))


def make_cohort(environment: Mapping[str, str], cases: int = DEVELOPMENT_CASES + HELD_OUT_CASES) -> None:
    """Chest CT of two synthetic cohorts: one to train and validate on, one of about a third of the cases for the test."""
    held_out = held_out_of(cases)
    words = [
        "lung",
        "--grid",
        "demo",
        "--format",
        "dicom",
        "--cases",
        str(cases - held_out),
        "--seed",
        str(DEVELOPMENT_SEED),
    ]
    words += ["--nodules", *map(str, DEVELOPMENT_NODULES)]
    words += ["--held-out-cases", str(held_out), "--held-out-seed", str(HELD_OUT_SEED)]
    what = f"{cases - held_out} + {held_out} synthetic chest CT series"
    write_phantom(COHORT, words, what=what, environment=environment)


def write_phantom(cohort: Path, words: Sequence[str], *, what: str, environment: Mapping[str, str]) -> None:
    """Write a synthetic cohort into a demo's folder, with the run report next to it.

    Args:
        words: kind and options of `medweave-step phantom`.
        what: contents of the cohort, for people.
    """
    print(f"make {cohort.parent.name}: writing {what} to {cohort.relative_to(ROOT)}", flush=True)
    places = ["--output", str(cohort), "--run-report", str(cohort.with_name("phantom_report.json"))]
    run([command("medweave-step"), "phantom", *words, *places], environment=environment)


def write_bound_file(folder: Path, bound: Path, job: Path, *, cohort: Path, steps: int | None, **inputs: str) -> Path:
    """Write a bound file, with a job file that names the cohort, into a demo's folder; return the bound file.

    Args:
        bound, job: files of the repository, whose relative paths become absolute.
        steps: training steps instead of the job's.
        inputs: other inputs of the workflow.
    """
    values = YAML(typ="safe").load(job)
    for value in values.values():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict) and "path" in one:
                one["path"] = str((job.parent / one["path"]).resolve())
    values |= {"cohort": {"class": "Directory", "path": str(cohort)}, **inputs}
    if steps:
        values["training_steps"] = steps
        values.pop("training_epochs", None)
    (folder / "job.yml").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    document = YAML(typ="safe").load(bound)
    for workflow in document["workflows"].values():
        config = workflow["config"]
        config |= {"file": str((bound.parent / config["file"]).resolve()), "settings": str(folder / "job.yml")}
    path = folder / "streamflow.yml"
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return path


def with_options(*, steps: int | None = None, gate_candidates: str | None = None) -> Path:
    """Write streamflow.yml, and the job file that it names, with other inputs; return the first.

    Args:
        steps: training steps.
        gate_candidates: candidate and runtime that gate accepts.
    """
    bound = ROOT / "streamflow.yml"
    job = ROOT / YAML(typ="safe").load(bound)["workflows"]["lung"]["config"]["settings"]
    inputs = {"gate_candidates": gate_candidates} if gate_candidates else {}
    return write_bound_file(DEMO, bound, job, cohort=COHORT, steps=steps, **inputs)


def dicom_segs() -> list[str]:
    """Return the delivered DICOM SEG files, relative to the repository."""
    return sorted(str(path.relative_to(ROOT)) for path in RESULTS.rglob("lesion_mask.dcm"))


def summary_of(metrics: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return what machines read of a demo; the keys are part of the project's contract."""
    return {
        "dice_mean": metrics["dice_mean"],
        "lesion_sensitivity_10mm": metrics["lesion_sensitivity_10mm"],
        "lesion_sensitivity_6mm": metrics["lesion_sensitivity_6mm"],
        "lesion_sensitivity_6_to_8mm": metrics["lesion_sensitivity_6_to_8mm"],
        "false_positives_per_scan": metrics["false_positives_per_scan"],
        "patients": metrics["patients"],
        "lesions": metrics["lesions"],
        "baseline_dice": metrics["baseline"]["dice_mean"],
        "baseline_false_positives_per_scan": metrics["baseline"]["false_positives_per_scan"],
        "synthetic_data": metrics["synthetic"],
        "held_out_seed": HELD_OUT_SEED,
        "report": str(REPORT.relative_to(ROOT)),
        "dicom_seg": dicom_segs(),
        "seconds": round(seconds, 1),
    }


def print_table(metrics: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
    """The end of a demo, as a person reads it."""
    rows = [
        line("Dice, mean over cases", summary["dice_mean"], metrics["dice_ci"]),
        line(
            "sensitivity, lesions from 10 mm", summary["lesion_sensitivity_10mm"], metrics["lesion_sensitivity_10mm_ci"]
        ),
        line("sensitivity, lesions from 6 mm", summary["lesion_sensitivity_6mm"], metrics["lesion_sensitivity_6mm_ci"]),
        line(
            "sensitivity, lesions of 6 to 8 mm",
            summary["lesion_sensitivity_6_to_8mm"],
            metrics["lesion_sensitivity_6_to_8mm_ci"],
        ),
        line("false positives per scan", summary["false_positives_per_scan"], metrics["false_positives_per_scan_ci"]),
        line("HU threshold baseline: Dice", summary["baseline_dice"]),
        line("HU threshold baseline: false positives per scan", summary["baseline_false_positives_per_scan"]),
    ]
    print(f"\nSynthetic data: {summary['patients']} held-out patients, {summary['lesions']} lesions from 6 mm")
    print("\n".join(rows))
    print(f"\n  {len(summary['dicom_seg'])} DICOM SEG files, for example {summary['dicom_seg'][0]}")
    print_end(DEMO, summary)


def line(label: str, value: float | None, interval: Sequence[float] | None = None) -> str:
    """Return one line of a demo's table."""
    number = "   n/a" if value is None else f"{value:6.2f}"
    return f"  {label:<44} {number}" + (f"   95 % CI {interval[0]:.2f} to {interval[1]:.2f}" if interval else "")


def classification_summary(metrics: Mapping[str, Any], *, report: Path, seconds: float) -> dict[str, Any]:
    """Return the figures that all demos with a baseline on rows or samples have."""
    pooled = ("micro_f1", "macro_f1", "weighted_f1", "macro_roc_auc", "macro_average_precision", "accuracy")
    return {
        **{key: metrics[key] for key in pooled},
        "f1_by_class": {one["name"]: one["f1"] for one in metrics["by_class"]},
        "roc_auc_by_class": {one["name"]: one["roc_auc"] for one in metrics["by_class"]},
        "baseline_accuracy": metrics["baseline"]["accuracy"],
        "baseline_macro_f1": metrics["baseline"]["macro_f1"],
        "synthetic_data": metrics["synthetic"],
        "report": str(report.relative_to(ROOT)),
        "seconds": round(seconds, 1),
    }


def print_end(folder: Path, summary: Mapping[str, Any]) -> None:
    """Print where the report and the figures are, and how long the demo took."""
    print(f"  report   {summary['report']}   (open it in a browser; it needs no network)")
    print(f"  figures  build/{folder.name}/summary.json")
    print(f"  {summary['seconds']:.0f} s in all. Research use only, not a medical device.")


def begin(folder: Path) -> dict[str, str]:
    """Make the empty folder of a demo; return the environment of its commands, with the id of the run."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    run_id = time.strftime(f"{folder.name}-%Y%m%d-%H%M%S", time.gmtime())
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return os.environ | {"PATH": path, "MEDWEAVE_RUN_ID": run_id, "MEDWEAVE_RUNS_DIR": str(ROOT / "runs")}


def run_workflow(folder: Path, file: str, environment: Mapping[str, str]) -> Any:
    """Run a bound file into `output` of a demo's folder and write its `report.html`; return the metrics."""
    print(f"\nmake {folder.name}: streamflow run {file}", flush=True)
    words = [command("streamflow"), "run", "--quiet", "--outdir", str(folder / "output"), file]
    with (folder / "outputs.json").open("wb") as outputs:  # StreamFlow prints the CWL output object
        run(words, environment=environment, output=outputs)
    words = [command("medweave"), "report", str(ROOT / "runs" / environment["MEDWEAVE_RUN_ID"])]
    run([*words, "--output", str(folder / "report.html")], environment=environment, output=subprocess.DEVNULL)
    return json.loads((folder / "output" / "evaluation" / "metrics.json").read_text(encoding="utf-8"))


def write_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    """Write `summary.json`, which appears only when it is complete."""
    aside = folder / ".summary.json"
    aside.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    aside.replace(folder / "summary.json")


def number(text: str, *, least: int, example: int) -> int:
    """Parse --steps and --cases; raise `ArgumentTypeError` for other text than such a number."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(
            f"seen: {text!r}; expected: a whole number from {least}, for example {example}"
        )
    return int(text)


def parse_options(
    doc: str | None, *, cases: int, fewest: int, example: int, tested: str = "", what: str = "patients"
) -> argparse.Namespace:
    """Return --cases and --steps of a demo other than this one.

    Args:
        cases, fewest, example: numbers of patients: the default, the least, and one for the error message.
        tested: share of the patients that are for the test; without it, the demo has no --steps.
        what: what --cases counts.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cases",
        type=partial(number, least=fewest, example=example),
        default=cases,
        help=f"{what}{f', {tested} of them for the test' if tested else ''} (default: %(default)s)",
    )
    if tested:
        parser.add_argument(
            "--steps",
            type=partial(number, least=1, example=100),
            help="training steps instead of the job's; fewer find less",
        )
    return argparse.Namespace(**{"steps": None} | vars(parser.parse_args()))


def run_demo(
    folder: Path,
    bound: Path,
    job: Path,
    options: argparse.Namespace,
    *,
    make_cohort: Callable[[Mapping[str, str], int], None],
    summary_of: Callable[[Mapping[str, Any], float], dict[str, Any]],
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Write a cohort, run a bound file on it and write the summary; return the metrics and the summary."""
    started = time.monotonic()
    environment = begin(folder)
    make_cohort(environment, options.cases)
    file = write_bound_file(folder, bound, job, cohort=folder / "cohort", steps=options.steps)
    metrics = run_workflow(folder, str(file.relative_to(ROOT)), environment)
    summary = summary_of(metrics, time.monotonic() - started)
    write_summary(folder, summary)
    return metrics, summary


def main() -> int:
    """Run the demo; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--steps",
        type=partial(number, least=1, example=500),
        help="training steps instead of the recipe's; fewer find less",
    )
    parser.add_argument(
        "--cases",
        type=partial(number, least=FEWEST_CASES, example=30),
        default=DEVELOPMENT_CASES + HELD_OUT_CASES,
        help="patients, a third of them for the test (default: %(default)s)",
    )
    parser.add_argument(
        "--gate-candidates",
        metavar="CANDIDATE:RUNTIME",
        help="candidate and runtime that gate accepts, such as float32:openvino, whatever its speed",
    )
    options = parser.parse_args()
    steps, cases, fixed = options.steps, options.cases, options.gate_candidates
    started = time.monotonic()
    environment = begin(DEMO)
    make_cohort(environment, cases)
    own_file = with_options(steps=steps, gate_candidates=fixed) if steps or fixed else ROOT / "streamflow.yml"
    file = str(own_file.relative_to(ROOT))
    metrics = run_workflow(DEMO, file, environment)
    summary = summary_of(metrics, time.monotonic() - started)
    write_summary(DEMO, summary)
    print_table(metrics, summary)
    if steps or cases != parser.get_default("cases"):
        size = f"{f'{steps} training steps, ' if steps else ''}{cases} patients"
        print(f"  {size}, as requested; the figures in docs/benchmarks.md are those of the recipe.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
