"""Odd values at any place of a file: `validate`, `bind` and `plan` report the place, without an internal error."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from medweave.cli.main_command import main
from medweave.validate.command import validate
from support.small_repository import (
    BOUND,
    FILES,
    JOB,
    KINDS,
    ROLES,
    SITE,
    TOOL,
    WORKFLOW,
    with_odd_values,
    write_small_repository,
)

OWN_FAULT = 70
SEED, PER_KIND = 8, 9  # of each kind of file, so many of its places and values


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_small_repository(tmp_path)
    return tmp_path


def odd(names: tuple[str, ...], number: int) -> list[tuple[str, str, str]]:
    chosen = random.Random(SEED)
    return [(name, *case) for name in names for case in chosen.sample(list(with_odd_values(name)), number)]


def findings_in(folder: Path) -> list[tuple[str, int, str, str]]:
    findings = validate([folder])[0]
    return [
        (str(finding.file.relative_to(folder.resolve())), finding.line, finding.rule, finding.fix)
        for finding in findings
    ]


def test_small_repository_has_no_findings(small: Path) -> None:
    assert findings_in(small) == []


@pytest.mark.parametrize("kind", KINDS)
def test_odd_value_anywhere_causes_no_internal_error(
    kind: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, label, text in odd((kind,), PER_KIND):
        (small / name).write_text(text, encoding="utf-8")
        code = main(["validate"])
        output = capsys.readouterr()
        assert code in (0, 1, 65), f"{label}: {output.err}"
        assert bool(code) == bool(re.search(r"^[\w./-]+:\d+:\d+: (?:error|warning): ", output.out, re.MULTILINE)), label


@pytest.mark.parametrize("words", [["bind", "--output", "out.yml"], ["plan"]], ids=lambda words: words[0])
def test_bind_and_plan_report_the_line_of_an_odd_value(
    words: list[str], small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [words[0], WORKFLOW, "--site", SITE, "--job", JOB, *words[1:]]
    assert main(command) == 0, capsys.readouterr().err
    for name, label, text in odd((ROLES, WORKFLOW, TOOL, SITE, JOB), PER_KIND):
        (small / name).write_text(text, encoding="utf-8")
        code = main(command)
        output = "".join(capsys.readouterr())
        assert code in (0, 2, 65), f"{label}: {output}"
        assert code == 0 or Path(name).name in output, f"{label}: {output}"
        (small / name).write_text(FILES[name], encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (SITE, "deployments:\n", "deployments: [x]\nthings:\n"),
        (BOUND, "    config: {file:", "    config: x\n    settings: {file:"),
        (BOUND, "config: {}, scheduling_policy: first", "config: fast"),
        (WORKFLOW, "inputs:\n", "inputs: 3\nthings:\n"),
        (TOOL, "outputs:\n", "outputs: 3\nthings:\n"),
        (ROLES, "/once: report", "/once: [report]"),
        (ROLES, "/once: report", "/once: {a: report}"),
        (WORKFLOW, "    in: {scan: scans,", "    in: -1\n    x: {scan: scans,"),
        (WORKFLOW, "run: ../tools/measure.cwl", "run: 1.5"),
        (WORKFLOW, "scans: File[]", "scans: {type: 3}"),
        (JOB, "again: true", "again: &x [*x]"),
        (SITE, "title: small", "title: &x [*x]"),
        (SITE, "title: small", "title: " + "[" * 3000 + "]" * 3000),
    ],
)  # fmt: skip
def test_ordinary_mistakes_are_reported_with_their_line(
    name: str, old: str, new: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert old in FILES[name]
    (small / name).write_text(FILES[name].replace(old, new, 1), encoding="utf-8")
    assert main(["validate"]) == 65
    assert re.search(rf"^{re.escape(name)}:\d+:\d+: error", capsys.readouterr().out, re.MULTILINE)
    assert main(["bind", WORKFLOW, "--site", SITE, "--job", JOB, "--output", "out.yml"]) in (
        (0, 65) if name == BOUND else (65,)
    )


@pytest.mark.parametrize(
    ("name", "old", "new", "rule", "fix"),
    [
        (WORKFLOW, "\nsteps:\n", "\nstpes:\n", "cwl-structure", "steps"),
        (WORKFLOW, "when: $(inputs.again)", "when: $(inputs.agian)", "cwl-expression", "again"),
        (WORKFLOW, "    out: [result]\n  once", "    uot: [result]\n  once", "cwl-structure", "out"),
        (TOOL, "\noutputs:", "\noutptus:", "cwl-structure", "outputs"),
        (TOOL, "$(runtime.cores)", "$(runtme.cores)", "cwl-expression", "runtime"),
        (TOOL, "$(runtime.cores)", "$(runtime.core)", "cwl-expression", "cores"),
        (TOOL, "ramMin: 512", 'ramMin: "3 GB"', "cwl-requirement", "number"),
        (SITE, "deployments:", "deploymnts:", "site", "deployments"),
        (SITE, "  report: {deployment: here}", "  report: {deploymnt: here}", "site", "deployment"),
        ("deployments/schedules/nightly.yml", "file: ", "flie: ", "schedule", "file"),
        ("deployments/schedules/nightly.yml", "name: nightly", "nmae: nightly", "schedule", "name"),
        (JOB, "{class: File, path: scan.nii.gz}, {", "{class: File, pth: scan.nii.gz}, {", "job-type", "path"),
        (JOB, "{class: File, path: scan.nii.gz}, {", "{class: File}, {", "job-type", "path"),
        (JOB, "location: scan.nii.gz", "location: file:///nowhere/scan.nii.gz", "job-file", "path"),
        ("deployments/pod.yaml", "valueFrom: {secretKeyRef: {name: a, key: b}}", "value: hunter2", "secret-in-clear", "revoke"),
    ],
)  # fmt: skip
def test_mistake_is_reported_once_with_the_right_name(
    name: str, old: str, new: str, rule: str, fix: str, small: Path
) -> None:
    assert old in FILES[name]
    after = FILES[name].replace(old, new, 1)
    (small / name).write_text(after, encoding="utf-8")
    ((file, line, of_rule, do),) = findings_in(small)
    number = next(
        n for n, (a, b) in enumerate(zip(FILES[name].split("\n"), after.split("\n"), strict=True), 1) if a != b
    )
    assert (file, line, of_rule) == (name, number, rule)
    assert fix in do
