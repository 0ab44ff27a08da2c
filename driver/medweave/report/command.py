"""`medweave report RUN`: write one HTML file about a run, also about a failed one."""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave import __version__
from medweave.project.files import write_atomically
from medweave.project.prices import Prices
from medweave.report import compare
from medweave.report.energy import CO2E_G_PER_KWH, PUE, Model, energy_wh, gpu_wh, measured, spelled_co2e, total
from medweave.report.flow_picture import describe_steps, flow_picture, steps_of
from medweave.report.job_rows import job_rows
from medweave.report.paired_cases import paired_cases
from medweave.report.timeline import MOST_JOBS, colours, short_duration, timeline
from medweave_core.contracts import codec
from medweave_core.contracts.energy import spelled
from medweave_core.contracts.model import RESEARCH_USE_ONLY
from medweave_core.contracts.progress import duration
from medweave_core.contracts.report_fragment import (
    FRAGMENT_FILE,
    SECTIONS_BEGIN,
    SECTIONS_END,
    SUMMARY_FILE,
    ReportSummary,
    stylesheet,
)
from medweave_core.errors import BackendMissingError, StepError, UsageError, UserInputError, describe_exit_code
from medweave_core.runlog.engine_names import place_label
from medweave_core.runlog.history import Run, Transfers, read_run
from medweave_core.runlog.jobs import UNFINISHED, Job
from medweave_core.untrusted_text import load_json

DESCRIPTION = """\
Write the HTML report of a run: one file that opens offline and runs no script. The report shows where and when
each job ran, metrics, learning curves, cases, pictures, the gate decision, failures and software versions.

The command also works for a run that failed, was canceled or is still running."""
EPILOG = """\
examples:
  medweave report runs/lung-20260827-101500-3f2a
  medweave report runs/lung-20260827-101500-3f2a --compare runs/lung-20260826-101500-9b1c
  medweave report runs/lung-20260827-101500-3f2a --compare runs/lung-20260825-* runs/lung-20260826-*
  medweave report runs/lung-20260827-101500-3f2a --site my-site    add the cost, at the prices of the site file

exit codes:
  0   report written
  2   wrong usage
  65  the run cannot be read
  69  a library is missing"""

MOST_FAILURES, MOST_NOTICES = 20, 200
NO_PRICES = "unknown: no site file with `prices` given (--site)"
DATE = "%-d %B %Y, %H:%M:%S UTC"
STATE_WORDS = {
    "completed": "completed",
    "partial": "partial results delivered",
    "failed": "failed",
    "cancelled": "cancelled",
    "unknown": "ended, outcome unknown",
    UNFINISHED: "no end in the event log",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The part of the report that the step `report` wrote."""

    summary: ReportSummary
    sections: str


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `medweave report`."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder (runs/<run-id>)")
    parser.add_argument(
        "--output", type=Path, default=None, metavar="FILE", help="HTML file to write (default: RUN/report.html)"
    )
    parser.add_argument(
        "--compare", type=Path, nargs="+", default=[], metavar="OTHER",
        help="run folders of other runs of the same workflow, to compare with; evaluated cases are compared by paired tests",
    )  # fmt: skip
    parser.add_argument(
        "--carbon-intensity", type=_positive, default=CO2E_G_PER_KWH, metavar="G",
        help=f"carbon intensity of the electricity, in g CO2e per kWh (default: {CO2E_G_PER_KWH:g}, world average)",
    )  # fmt: skip
    parser.add_argument(
        "--pue", type=_positive, default=PUE, metavar="FACTOR",
        help=f"power usage effectiveness (PUE) of the data centers (default: {PUE:g}; 1 for this machine)",
    )  # fmt: skip

    parser.add_argument(
        "--site", default=None, metavar="SITE",
        help="site whose prices give the cost: site name (a file in deployments/sites/ of this folder or a "
            "parent folder) or path of a site file",
    )  # fmt: skip


def run(namespace: argparse.Namespace) -> int:
    """Write the report and print its path."""
    record = read_run(namespace.run)
    output = namespace.output or namespace.run / "report.html"
    model = Model(pue=namespace.pue, co2e_g_per_kwh=namespace.carbon_intensity)
    others = [read_run(folder) for folder in namespace.compare]
    _check_different([record, *others])
    prices = _prices(namespace.site) if namespace.site else None
    write_atomically(output, render(record, read_results(record), model, others, prices))
    print(output)
    return 0


def _prices(site: str) -> Prices | None:
    from medweave.project.sites import (  # imported late: it loads the schemas of connectors
        find_site,
        read_site,
    )

    return read_site(find_site(site, Path.cwd())).prices


def _positive(text: str) -> float:
    with contextlib.suppress(ValueError):
        if (value := float(text)) > 0 and math.isfinite(value):
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")


def read_results(record: Run) -> Results | None:
    """Return the fragment and summary of the step `report`, or None if the run has none.

    Raises:
        UserInputError: they exist and cannot be read.
    """
    for job in record.jobs:
        folder = job.folder / "report" if job.folder else None
        if folder is None or not (folder / FRAGMENT_FILE).is_file():
            continue
        try:
            html = (folder / FRAGMENT_FILE).read_text(encoding="utf-8")
            data = load_json((folder / SUMMARY_FILE).read_bytes())
        except (OSError, ValueError) as error:
            raise _bad_fragment(type(error).__name__) from error
        _, begin, rest = html.partition(SECTIONS_BEGIN)
        sections, end, _ = rest.partition(SECTIONS_END)
        if not begin or not end:
            raise _bad_fragment("section markers are missing")
        return Results(summary=codec.from_json(ReportSummary, data, where=SUMMARY_FILE), sections=sections)
    return None


def render(
    record: Run, results: Results | None, model: Model, others: Sequence[Run] = (), prices: Prices | None = None
) -> str:
    """Return the HTML page.

    Args:
        others: the runs to compare with.
        prices: prices of the named site file, or None.
    """
    try:
        import jinja2
    except ImportError as error:
        raise BackendMissingError(
            "the library 'jinja2' is missing.",
            seen=str(error),
            expected="medweave with the extra 'driver'",
            do="install it: pip install 'medweave[driver]'",
        ) from error
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("medweave.report", "."),
        autoescape=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    jobs, by_colour = record.jobs, colours(record.jobs)
    deployments: Mapping[str, str] = record.facts.get("deployments") or {}
    failed, running = record.failures(), [job for job in jobs if job.state == UNFINISHED and job.progress]
    return environment.get_template("report_template.html.j2").render(
        run=record,
        title=results.summary.title if results else f"Run of {record.workflow}",
        state=STATE_WORDS.get(record.state, record.state),
        took=duration(record.seconds),
        started=record.started.strftime(DATE),
        results=results,
        cards=[_card(item) for item in results.summary.figures] if results else [],
        style=stylesheet(),
        failures=[_failure(job) for job in failed[:MOST_FAILURES]],
        num_more_failures=max(len(failed) - MOST_FAILURES, 0),
        running=[f"{job.label}: {job.progress}." for job in running[:MOST_FAILURES]],
        flow=flow_picture(jobs, deployments) if jobs else "",
        flow_words=describe_steps(steps_of(jobs)),
        timeline=timeline(jobs, record.seconds),
        legend=[(name, deployments.get(name, ""), colour) for name, colour in by_colour.items()],
        num_jobs=len(jobs),
        rows=job_rows(jobs, lambda job: energy_wh(job, deployments, model)),
        most_jobs=MOST_JOBS,
        totals=[
            *_totals(record),
            *_energy([energy_wh(job, deployments, model) for job in jobs], model, gpus=[gpu_wh(job) for job in jobs]),
            *measured(jobs),
            ("Cost", prices.total_text([prices.of_job(job) for job in jobs], "job") if prices else NO_PRICES),
        ],
        method=f"{model.method} {prices.method}" if prices else model.method,
        transfers=[_transfer_row(transfers) for transfers in record.transfers],
        notices=record.notices[:MOST_NOTICES],
        num_more_notices=max(len(record.notices) - MOST_NOTICES, 0),
        delivered=[] if results else delivered(record),
        versions=versions(record),
        processors=processors(record),
        compared=[_compared(record, results, other, model, prices) for other in others],
        compared_title=_compared_title(others),
        paired=paired_cases([record, *others]) if others else None,
        contents=_contents(record, results, others),
        intended_use=RESEARCH_USE_ONLY,
        made_by=f"medweave {__version__}",
    )


def _compared(record: Run, results: Results | None, other: Run, model: Model, prices: Prices | None) -> dict[str, Any]:
    theirs = read_results(other)
    return {
        "run_id": other.run_id,
        "workflow": other.workflow if other.workflow != record.workflow else "",
        "started": other.started.strftime(DATE),
        "state": STATE_WORDS.get(other.state, other.state),
        "tables": [
            ("The run", list(compare.sums(record, other, model, prices))),
            ("All jobs of each step", compare.steps(record, other, model)),
            ("Results", compare.figures(_figures(results), _figures(theirs))),
            ("Different versions", compare.versions(versions(record), versions(other))),
        ],
    }


def _figures(results: Results | None) -> dict[str, float | None]:
    return {item.label: item.value for item in results.summary.figures} if results else {}


def _compared_title(others: Sequence[Run]) -> str:
    return "Comparison with another run" if len(others) == 1 else f"Comparison with {len(others)} other runs"


def _check_different(runs: Sequence[Run]) -> None:
    """Refuse a run that is named twice: it has nothing to be compared with."""
    run_ids = [run.run_id for run in runs]
    twice = [run_id for run_id in dict.fromkeys(run_ids) if run_ids.count(run_id) > 1]
    if twice:
        raise UsageError(
            "medweave report: a run is compared with itself.",
            seen=f"{', '.join(twice)} more than once",
            expected="each run once, as RUN or in --compare",
        )


def _contents(record: Run, results: Results | None, others: Sequence[Run]) -> list[tuple[str, str]]:
    sections = [("compared", _compared_title(others))] if others else []
    sections += [("execution", "Jobs by place and time")]
    sections += [("transfers", "Transfers between places")] if record.transfers else []
    sections += [("notices", "Notices")] if record.notices else []
    first = list(results.summary.sections) if results else []
    return [*first, *sections, ("software", "Versions")]


def _card(item: Any) -> dict[str, str]:
    value = "–" if item.value is None else f"{item.value:.2f}"
    interval = f"95 % interval {item.interval[0]:.2f} to {item.interval[1]:.2f}" if item.interval else ""
    baseline = "" if item.baseline is None else f"baseline {item.baseline:.2f}"
    return {"label": item.label, "value": value, "interval": interval, "note": item.note, "baseline": baseline}


def _failure(job: Job) -> dict[str, str]:
    exit_text = (
        describe_exit_code(job.exit_code or 0)
        if job.exit_code
        else "the command succeeded, but expected outputs are missing"
    )
    exit_text = "no exit code" if job.exit_code is None else exit_text
    attempt = f", attempt {job.attempt}" if job.attempt > 1 else ""
    return {
        "label": job.label,
        "where": f"{job.where}{attempt}",
        "exit": exit_text,
        "message": job.message,
        "progress": job.progress,
    }


def _transfer_row(moved: Transfers) -> dict[str, str]:
    return {
        "source": place_label(moved.source),
        "destination": place_label(moved.destination),
        "route": moved.route,
        "why": "; ".join(moved.reasons),
        "copies": str(moved.num_copies),
        "files": f"{moved.num_files:,}",
        "mib": f"{moved.num_bytes / 2**20:,.1f}",
        "wire_mib": f"{moved.wire_bytes / 2**20:,.1f}" if moved.wire_bytes < 0.95 * moved.num_bytes else "",
        "reused_mib": f"{moved.reused_bytes / 2**20:,.1f}",
        "took": short_duration(moved.seconds),
    }


def _totals(record: Run) -> list[tuple[str, str]]:
    cpu = [job.cpu_seconds for job in record.jobs if job.cpu_seconds is not None]
    peaks = [(job.peak_memory_mib, job.label) for job in record.jobs if job.peak_memory_mib is not None]
    completed = sum(job.state == "completed" for job in record.jobs)
    again = sum(bool(job.reused_from) for job in record.jobs)
    facts = [
        ("Jobs", f"{completed} of {len(record.jobs)} completed" + (f", {again} of them cache hits" if again else ""))
    ]
    facts += _waiting(record)
    facts += [("Processor time", duration(sum(cpu)))] if cpu else []
    facts += [("Peak memory of a job", f"{max(peaks)[0]:.0f} MiB ({max(peaks)[1]})")] if peaks else []
    return facts


def _waiting(record: Run) -> list[tuple[str, str]]:
    """Return the waiting and computing times of all attempts, without cache hits."""
    executed = [job for job in record.jobs if not job.reused_from]
    if not executed:
        return []
    waited, took = sum(job.waited_s or 0.0 for job in executed), sum(job.duration_s or 0.0 for job in executed)
    queued = sum(job.queued_s for job in executed)
    of_that = f", of which {short_duration(queued)} in queues" if queued else ""
    return [
        ("Waiting time, sum of all jobs", f"{short_duration(waited)}{of_that}"),
        ("Computing time, sum of all jobs", short_duration(took)),
    ]


def _energy(each_wh: Sequence[float | None], model: Model, *, gpus: Sequence[float | None]) -> list[tuple[str, str]]:
    """Return the estimate and its CO2e; `gpus` is the measured part of each job's GPUs, before the PUE."""
    sum_wh, num_unknown = total(each_wh)
    if num_unknown == len(each_wh):
        return []
    without = f", without {num_unknown} job{'s' * (num_unknown > 1)} of unknown processor time" if num_unknown else ""
    measured_wh, num_without = total(gpus)
    of_gpus = f", with {spelled(measured_wh)} measured on GPUs" if num_without < len(gpus) else ""
    text = f"about {spelled(sum_wh)}, {spelled_co2e(model.co2e_g(sum_wh))} CO2e, estimated{of_gpus}{without}"
    return [("Energy", text)]


def delivered(record: Run) -> list[dict[str, Any]]:
    """Return the cases that `segment` delivered, for runs without an evaluation."""
    return [
        dict(case)
        for job in record.jobs
        if job.report is not None and job.report.verb == "segment"
        for case in job.report.cases
    ]


def versions(record: Run) -> list[tuple[str, str]]:
    """Return name and version of the software of a run; the steps are named if their versions differ."""
    seen: dict[str, dict[str, list[str]]] = {}
    if version_of_engine := record.facts.get("streamflow_version"):
        seen["streamflow"] = {str(version_of_engine): []}
    for job in record.jobs:
        if job.report is None:
            continue
        for name, version in {"medweave": job.report.medweave_version, **job.report.versions}.items():
            steps = seen.setdefault(name, {}).setdefault(version, [])
            if job.report.verb not in steps:
                steps.append(job.report.verb)

    def text(steps_by_version: Mapping[str, list[str]]) -> str:
        if len(steps_by_version) == 1:
            return next(iter(steps_by_version))
        return "; ".join(f"{version} ({', '.join(steps)})" for version, steps in steps_by_version.items())

    return [(name, text(steps_by_version)) for name, steps_by_version in sorted(seen.items())]


def processors(record: Run) -> list[tuple[str, str]]:
    """Return processor and threads of each place."""
    threads_of: dict[tuple[str, str], list[int]] = {}
    for job in record.jobs:
        if job.report is not None:
            threads_of.setdefault((job.deployment, job.report.host_cpu), []).append(job.report.num_threads)
    return [(place, f"{cpu}, up to {max(threads)} threads per step") for (place, cpu), threads in threads_of.items()]


def _bad_fragment(seen: str) -> StepError:
    return UserInputError(
        "the results of step 'report' in this run cannot be read.",
        seen=seen,
        expected=f"report/{FRAGMENT_FILE} and report/{SUMMARY_FILE} in the format of this version of medweave",
        do="copy the run folder again, or run the step again",
    )
