"""The advice as text for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from medweave.advise.document import Advice, Option, StageAdvice
from medweave.advise.stages import verdict
from medweave_core.contracts.progress import duration

WIDTH = 110


def text_of(advice: Advice) -> str:
    """Return the advice as text."""
    measured = (_head, _options, _checks, _notes) if advice.method else ()
    parts = [*(part(advice) for part in measured), *map(_stages, advice.hybrid)]
    return "\n\n".join("\n".join(lines) for part in parts if (lines := list(part))) + "\n"


def _head(advice: Advice) -> Iterator[str]:
    yield advice.title
    best = advice.soonest
    if best is None:
        yield "No prediction: no option has enough measurements, or none fits into GPU memory."
        return
    sure = (
        "no other option is faster within its interval"
        if advice.is_sure
        else "other options may be faster, because the intervals overlap"
    )
    wait = f", after {duration(best.queue_wait_s)} in the queue" if best.queue_wait_s else ""
    yield from textwrap.wrap(
        f"Fastest: {_name(best)}: {duration(best.elapsed_s)} (between {duration(best.low_s)} and "
        f"{duration(best.high_s)}){wait}, efficiency {best.efficiency:.2f} ({best.efficiency_low:.2f} to "
        f"{best.efficiency_high:.2f}); {sure}.",
        WIDTH,
    )
    if advice.measure_next:
        yield f"To reduce the uncertainty, measure next: {advice.measure_next}."


def _options(advice: Advice) -> Iterator[str]:
    rows = [("strategy", "GPUs", "time", "at least", "at most", "queue", "efficiency", "of", "to", "")]
    for option in advice.options:
        notes = [*(["measured"] if option.is_measured else []), *([] if option.fits else ["does not fit into memory"])]
        rows.append(
            (
                option.strategy, str(option.gpus), duration(option.elapsed_s), duration(option.low_s), duration(option.high_s),
                duration(option.queue_wait_s), f"{option.efficiency:.2f}", f"{option.efficiency_low:.2f}",
                f"{option.efficiency_high:.2f}", ", ".join(notes),
            )
        )  # fmt: skip
    yield from _table(rows)


def _checks(advice: Advice) -> Iterator[str]:
    if not advice.checks:
        return
    inside = sum(check.is_inside for check in advice.checks)
    yield f"Rows that were not used for calibration ({inside} of {len(advice.checks)} in their interval)"
    rows = [("strategy", "GPUs", "measured", "expected", "error", "at least", "at most", "")]
    rows += [
        (
            check.strategy, str(check.gpus), duration(check.measured_s), duration(check.elapsed_s), f"{100 * check.error:+.1f} %",
            duration(check.low_s), duration(check.high_s), "" if check.is_inside else "outside",
        )
        for check in advice.checks
    ]  # fmt: skip
    yield from _table(rows)


def _notes(advice: Advice) -> Iterator[str]:
    yield from textwrap.wrap(advice.method, WIDTH)
    for title, lines in (("Not judged", advice.not_judged), ("What these measurements cannot show", advice.unseen)):
        if lines:
            yield f"{title}:"
        for line in lines:
            yield from textwrap.wrap(line, WIDTH, initial_indent="  - ", subsequent_indent="    ")


def _stages(hybrid: StageAdvice) -> Iterator[str]:
    unit = f" {hybrid.unit}" if hybrid.unit else ""
    stages = hybrid.stages
    yield f"Strategy hybrid: the network in {len(stages)} stages, each on one GPU"
    rows = [("stage", "GPU", f"load{unit}", "share", "memory MiB", "partitions")]
    for number, stage in enumerate(stages, start=1):
        names = stage.partitions
        shown = names if len(names) < 3 else (names[0], "…", names[-1])
        share, memory = f"{100 * stage.share:.0f} %", f"{stage.memory_mib:.0f}"
        rows.append((str(number), str(stage.gpu), f"{stage.load:.4g}", share, memory, ", ".join(shown)))
    yield from _table(rows)
    yield from textwrap.wrap(
        f"The stages are at most {hybrid.speed_up_bound:.2f} times as fast as one GPU (total load / largest stage), efficiency "
        f"{hybrid.speed_up_bound / len(stages):.2f}. Only many micro-batches per step come near this bound; with one, the stages "
        "run one after the other. R replicas on R times as many GPUs are at most R times as fast as that.",
        WIDTH,
    )
    yield from textwrap.wrap(verdict(hybrid), WIDTH)


def _name(option: Option) -> str:
    return f"{option.strategy} on {option.gpus} GPU{'s' if option.gpus > 1 else ''}"


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Return a table whose columns fit their widest cell; numbers are aligned to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            f"{cell:<{width}}" if place == 0 else f"{cell:>{width}}"
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        cells[-1] = row[-1]
        yield ("  " + "  ".join(cells)).rstrip()
