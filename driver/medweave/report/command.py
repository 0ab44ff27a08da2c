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
from medweave.report.energy import CO2E_G_PER_KWH, PUE, Model, energy_wh, measured, spelled_co2e, total
from medweave.report.flow_picture import describe_steps, flow_picture, steps_of
from medweave.report.timeline import colours, short_duration, timeline
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
from medweave_core.errors import BackendMissingError, StepError, UserInputError, describe_exit_code
from medweave_core.runlog.engine_names import place_label
from medweave_core.runlog.history import Run, Transfers, read_run
from medweave_core.runlog.jobs import UNFINISHED, Job
from medweave_core.untrusted_text import load_json

DESCRIPTION = (
    "Joins the event log of a run and the reports of its steps into one self-contained HTML file: what ran where and\n"
    "when, metrics, curves, cases, pictures, the gate's decision, failures and versions. It opens offline and runs no script.\n"
    "A run that failed, was cancelled or is still running gets a report too."
)

NO_PRICES = "not known: no site file with `prices` was named (--site)"
DATE = "%-d %B %Y, %H:%M:%S UTC"
STATE_WORDS = {
    "completed": "completed",
    "partial": "a part was delivered",
    "failed": "failed",
    "cancelled": "cancelled",
    "unknown": "ended, outcome unknown",
    UNFINISHED: "no end in the log",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The part of the report that the step `report` wrote."""

    summary: ReportSummary
    sections: str


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `medweave report`."""
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run (runs/<run-id>)")
    parser.add_argument(
        "--output", type=Path, default=None, metavar="FILE", help="HTML file to write (default: RUN/report.html)"
    )
    parser.add_argument(
        "--compare", type=Path, default=None, metavar="OTHER",
        help="folder of another run of the same workflow, for a section that compares the two",
    )  # fmt: skip
    parser.add_argument(
        "--carbon-intensity", type=_positive, default=CO2E_G_PER_KWH, metavar="G",
        help=f"g CO2e per kWh of the electricity, for the estimate of CO2e (default: {CO2E_G_PER_KWH:g}, the world's average)",
    )  # fmt: skip
    parser.add_argument(
        "--pue", type=_positive, default=PUE, metavar="FACTOR",
        help=f"power usage effectiveness of the data centres, for the estimate of energy (default: {PUE:g}; this machine has 1)",
    )  # fmt: skip

    parser.add_argument(
        "--site", default=None, metavar="SITE",
        help="name of a file in deployments/sites/ at or above this folder, or the path of a site file, for its prices",
    )  # fmt: skip


def run(namespace: argparse.Namespace) -> int:
    """Write the report and print its path."""
    record = read_run(namespace.run)
    output = namespace.output or namespace.run / "report.html"
    model = Model(pue=namespace.pue, co2e_g_per_kwh=namespace.carbon_intensity)
    other = read_run(namespace.compare) if namespace.compare else None
    prices = _prices(namespace.site) if namespace.site else None
    write_atomically(output, render(record, read_results(record), model, other, prices))
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
    raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")


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
            raise _bad_fragment("no marks of its sections")
        return Results(summary=codec.from_json(ReportSummary, data, where=SUMMARY_FILE), sections=sections)
    return None


def render(
    record: Run, results: Results | None, model: Model, other: Run | None = None, prices: Prices | None = None
) -> str:
    """Return the HTML page.

    Args:
        other: the run to compare with.
        prices: prices of the named site file, or None.
    """
    try:
        import jinja2
    except ImportError as error:
        raise BackendMissingError(
            "the library 'jinja2' is not installed.",
            seen=str(error),
            expected="medweave installed with its extra 'driver'",
            do="pip install 'medweave[driver]'",
        ) from error
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("medweave.report", "."),
        autoescape=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    jobs, by_colour = record.jobs, colours(record.jobs)
    deployments: Mapping[str, str] = record.facts.get("deployments") or {}
    return environment.get_template("report_template.html.j2").render(
        run=record,
        title=results.summary.title if results else f"Run of {record.workflow}",
        state=STATE_WORDS.get(record.state, record.state),
        took=duration(record.seconds),
        started=record.started.strftime(DATE),
        results=results,
        cards=[_card(item) for item in results.summary.figures] if results else [],
        style=stylesheet(),
        failures=[_failure(job) for job in record.failures()],
        running=[f"{job.label}: {job.progress}." for job in jobs if job.state == UNFINISHED and job.progress],
        flow=flow_picture(jobs, deployments) if jobs else "",
        flow_words=describe_steps(steps_of(jobs)),
        timeline=timeline(jobs, record.seconds),
        legend=[(name, deployments.get(name, ""), colour) for name, colour in by_colour.items()],
        rows=[_row(job, energy_wh(job, deployments, model)) for job in jobs],
        totals=[
            *_totals(record),
            *_energy([energy_wh(job, deployments, model) for job in jobs], model),
            *measured(jobs),
            ("Cost", prices.total_text([prices.of_job(job) for job in jobs], "job") if prices else NO_PRICES),
        ],
        method=f"{model.method} {prices.method}" if prices else model.method,
        transfers=[_transfer_row(transfers) for transfers in record.transfers],
        delivered=[] if results else delivered(record),
        versions=versions(record),
        processors=processors(record),
        compared=_compared(record, results, other, model, prices) if other else None,
        contents=_contents(record, results, other),
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
            ("Each step, all of its jobs together", compare.steps(record, other, model)),
            ("Results", compare.figures(_figures(results), _figures(theirs))),
            ("Versions that differ", compare.versions(versions(record), versions(other))),
        ],
    }


def _figures(results: Results | None) -> dict[str, float | None]:
    return {item.label: item.value for item in results.summary.figures} if results else {}


def _contents(record: Run, results: Results | None, other: Run | None) -> list[tuple[str, str]]:
    sections = [("compared", "Compared with another run")] if other else []
    sections += [("execution", "What ran, where and when")]
    sections += [("transfers", "What moved between places")] if record.transfers else []
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
        else "its command succeeded, but its outputs are not complete"
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


def _row(job: Job, wh: float | None) -> dict[str, str]:
    def number(value: float | None, form: str) -> str:
        return "–" if value is None else form.format(value)

    waited = job.waited_s
    cores, memory = job.requested.get("cores"), job.requested.get("memory_mib")
    return {
        "label": f"{job.label} (attempt {job.attempt})" if job.attempt > 1 else job.label,
        "where": job.where,
        "state": "cache hit" if job.reused_from else job.state,
        "started": "–" if job.started_s is None or job.is_queued else f"+{short_duration(job.started_s)}",
        "waited": "–" if waited is None else short_duration(waited),
        "took": "–" if job.duration_s is None else short_duration(job.duration_s),
        "cpu": "–" if job.cpu_seconds is None else short_duration(job.cpu_seconds),
        "requested_cores": f"{cores:g}" if isinstance(cores, int | float) else "–",
        "energy": "–" if wh is None else spelled(wh),
        "memory": number(job.peak_memory_mib, "{:.0f}"),
        "requested_memory": f"{memory:.0f}" if isinstance(memory, int | float) else "–",
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
    facts = [("Jobs", f"{completed} of {len(record.jobs)} completed" + (f", {again} by earlier runs" if again else ""))]
    facts += _waiting(record)
    facts += [("Processor time", duration(sum(cpu)))] if cpu else []
    facts += [("Largest job", f"{max(peaks)[0]:.0f} MiB ({max(peaks)[1]})")] if peaks else []
    return facts


def _waiting(record: Run) -> list[tuple[str, str]]:
    """Return the waiting and computing times of all attempts, without cache hits."""
    executed = [job for job in record.jobs if not job.reused_from]
    if not executed:
        return []
    waited, took = sum(job.waited_s or 0.0 for job in executed), sum(job.duration_s or 0.0 for job in executed)
    queued = sum(job.queued_s for job in executed)
    of_that = f", {short_duration(queued)} of it in the queues of sites" if queued else ""
    return [
        ("Waited, all jobs together", f"{short_duration(waited)}{of_that}"),
        ("Computed, all jobs together", short_duration(took)),
    ]


def _energy(each_wh: Sequence[float | None], model: Model) -> list[tuple[str, str]]:
    sum_wh, num_unknown = total(each_wh)
    if num_unknown == len(each_wh):
        return []
    without = (
        f", without {num_unknown} job{'s' * (num_unknown > 1)} whose processor time is not known" if num_unknown else ""
    )
    return [("Energy", f"about {spelled(sum_wh)}, {spelled_co2e(model.co2e_g(sum_wh))} CO2e, estimated{without}")]


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
        "the results that the step 'report' left in this run cannot be read.",
        seen=seen,
        expected=f"report/{FRAGMENT_FILE} and report/{SUMMARY_FILE} as this version of medweave writes them",
        do="copy the run's folder again, or run the step again",
    )
