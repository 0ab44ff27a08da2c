"""Cache hits that `medweave plan` predicts, compared with repeated runs of the real engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from medweave.placement.bind import bind, fit
from medweave.plan.document import Plan, Reuse
from medweave.plan.past_runs import read_past
from medweave.plan.picture import picture_of
from medweave.plan.planner import make_plan
from medweave.plan.text import text_of
from medweave_core.runlog.history import read_runs
from support.engine import run
from support.engine_file import ssh_site
from support.reuse_runs import ON
from support.ssh_server import ssh_server

SITE = """title: one machine
deployments:
  here: {type: medweave.local, config: {}}
roles:
  check: {deployment: here}
"""
FILE = {"type": "File", "outputBinding": {"glob": "result*"}}


def tool(script: str, *names: str, **kinds: str | dict[str, Any]) -> dict[str, Any]:
    """A tool whose script has its inputs in the order of their names in `names`."""
    return {
        "cwlVersion": "v1.2",
        "class": "CommandLineTool",
        "baseCommand": ["sh", "-c", script, "sh"],
        "inputs": {
            name: (kind if isinstance(kind, dict) else {"type": kind})
            | ({"inputBinding": {"position": names.index(name)}} if name in names else {})
            for name, kind in kinds.items()
        },
        "outputs": {"result": FILE},
    }


def write(folder: Path) -> None:
    """`copy` of a folder, `each` for each word of the job file, `again` for each of the results, and `mark`, which reads all."""
    tools = {
        "copy": tool(
            'find "$1" -type f -exec cat {} + > result.txt; echo "$2" >> result.txt', "data", "ratio",
            data="Directory", ratio="float", purpose={"type": "string", "default": "test"},
        ),
        "each": tool('{ cat "$1"; echo "$2"; } > "result-$2.txt"', "text", "word", text="File", word="string"),
        "again": tool('cp "$1" "result-$(basename "$1")"', "text", text="File"),
        "mark": tool('cat "$@" > result.txt', "key", "texts", seed="int?", key="File", texts="File[]"),
        "last": tool('cat "$1" > result.txt', "text", text="File"),
    }  # fmt: skip
    for name, document in tools.items():
        (folder / f"{name}.cwl").write_text(json.dumps(document))
    steps = {
        "copy": ({"data": "data", "ratio": "ratio", "purpose": {"default": "training"}}, {}),
        "each": ({"text": "copy/result", "word": "words"}, {"scatter": "word"}),
        "again": ({"text": "each/result"}, {"scatter": "text"}),
        "mark": ({"texts": "again/result", "seed": "seed", "key": "key"}, {}),
        "last": ({"text": "mark/result"}, {}),
    }
    workflow = {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "requirements": {"ScatterFeatureRequirement": {}},
        "inputs": {
            "data": "Directory", "ratio": {"type": "float", "default": 0.5}, "words": "string[]", "seed": "int?", "key": "File",
        },
        "outputs": {"result": {"type": "File", "outputSource": "last/result"}},
        "steps": {
            name: {"run": f"{name}.cwl", "in": reads, "out": ["result"]} | keys for name, (reads, keys) in steps.items()
        },
    }  # fmt: skip
    (folder / "tiny.cwl").write_text(json.dumps(workflow))
    (folder / "roles.yml").write_text(json.dumps({"tiny.cwl": {f"/{name}": "check" for name in steps}}))
    (folder / "site.yml").write_text(SITE)
    (folder / "data" / "inner").mkdir(parents=True)
    (folder / "data" / "one.txt").write_text("one\n")
    (folder / "key.txt").write_text("secret\n")


def give(folder: Path, **values: Any) -> None:
    data = {"data": {"class": "Directory", "path": "data"}, "key": {"class": "File", "path": "key.txt"}}
    (folder / "job.yml").write_text(json.dumps(data | {"words": ["red", "blue"]} | values))


def planned(folder: Path) -> Plan:
    fitted = fit(folder / "tiny.cwl", str(folder / "site.yml"), folder / "job.yml")
    return make_plan(fitted, read_past([folder / "runs"], fitted.pipeline.path))


def predict(folder: Path) -> dict[str, Reuse]:
    return {step.step[1:]: step.reuse for step in planned(folder).steps if step.reuse is not None}


def run_again(folder: Path) -> tuple[str, dict[str, Sequence[str]]]:
    """Runs it: the run's id, and for each step the runs that its jobs were reused from."""
    (folder / "streamflow.yml").write_text(
        bind(folder / "tiny.cwl", str(folder / "site.yml"), folder / "streamflow.yml", folder / "job.yml")
    )
    ended = run(folder, environment=ON)
    assert ended.exit_code == 0, ended.stderr
    last = max(read_runs(folder / "runs"), key=lambda each: each.started)
    jobs = sorted(last.jobs, key=lambda job: job.name)
    return last.run_id, {
        step: [job.reused_from for job in jobs if job.step == f"/{step}"]
        for step in ("copy", "each", "again", "mark", "last")
    }


def check_predictions(previews: dict[str, Reuse], executed: dict[str, Sequence[str]]) -> None:
    """Whatever the plan was sure of has come so."""
    for step, reuse in previews.items():
        if reuse.state == "reused":
            assert all(executed[step]), (step, executed)
            assert set(executed[step]) == set(reuse.from_runs)
        if reuse.state == "runs":
            assert "" in executed[step], (step, reuse, executed)
        if reuse.num_jobs is not None:
            assert len(executed[step]) == reuse.num_jobs
            assert sum(map(bool, executed[step])) >= reuse.num_reused


def states(previews: dict[str, Reuse]) -> list[str]:
    return [previews[step].state for step in ("copy", "each", "again", "mark", "last")]


@pytest.mark.slow
def test_what_the_plan_is_sure_of_is_what_the_run_does(tmp_path: Path) -> None:
    write(tmp_path)
    give(tmp_path)
    previews = predict(tmp_path)
    assert {(reuse.state, reuse.why) for reuse in previews.values()} == {("runs", "no earlier run has this job")}
    first, executed = run_again(tmp_path)
    check_predictions(previews, executed)

    previews = predict(tmp_path)
    assert states(previews) == ["reused"] * 5, previews
    assert {reuse.from_runs for reuse in previews.values()} == {(first,)}
    assert (previews["each"].num_jobs, previews["each"].num_reused) == (2, 2)
    second, executed = run_again(tmp_path)
    check_predictions(previews, executed)

    # One parameter: its step runs, and the steps after it are unknown.
    give(tmp_path, seed=3)
    previews = predict(tmp_path)
    assert states(previews) == ["reused", "reused", "reused", "runs", "not-known"]
    assert (previews["mark"].why, previews["last"].after) == (f"changed since run {second}: input seed", ("/mark",))
    _, executed = run_again(tmp_path)
    check_predictions(previews, executed)
    assert all(executed["last"]), "what mark has written is the same in spite of its seed: only the run could know"

    # One of the items that a step is scattered over.
    give(tmp_path, words=["red", "green"], seed=3)
    previews = predict(tmp_path)
    assert states(previews) == ["reused", "runs", "not-known", "not-known", "not-known"]
    assert (previews["each"].num_jobs, previews["each"].num_reused) == (2, 1)
    assert "input word" in previews["each"].why
    _, executed = run_again(tmp_path)
    check_predictions(previews, executed)
    assert sum(map(bool, executed["again"])) == 1

    # A number, a file of a folder; then all of it back to what the first run had.
    for change in ("number", "file"):
        give(tmp_path, ratio=0.25 if change == "number" else 0.5)
        (tmp_path / "data" / "one.txt").write_text("two\n" if change == "file" else "one\n")
        previews = predict(tmp_path)
        assert states(previews) == ["runs", "not-known", "not-known", "not-known", "not-known"]
        _, executed = run_again(tmp_path)
        check_predictions(previews, executed)
    (tmp_path / "data" / "one.txt").write_text("one\n")
    give(tmp_path, ratio=0.5)
    previews = predict(tmp_path)
    assert states(previews) == ["reused"] * 5
    assert {reuse.from_runs for reuse in previews.values()} == {(first,)}
    check_predictions(previews, run_again(tmp_path)[1])


@pytest.mark.slow
def test_what_has_changed_without_a_job_file_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    last = json.loads((tmp_path / "last.cwl").read_text()) | {"hints": {"WorkReuse": {"enableReuse": False}}}
    (tmp_path / "last.cwl").write_text(json.dumps(last))
    give(tmp_path)
    first, _ = run_again(tmp_path)
    plan = planned(tmp_path)
    assert plan.steps[-1].reuse == Reuse(state="runs", why="its tool sets WorkReuse: {enableReuse: false}")
    text, picture = text_of(plan), picture_of(plan)
    assert f"  each   cache hit: outputs of {first}\n" in text
    assert picture.count("box reused") == 6, (
        "one for each but the last, and one more for each of the two that are scattered"
    )
    assert f"cache hit: outputs of {first}" in picture

    # A cache entry that was changed is not used.
    cached = next((tmp_path / "runs" / ".kept").glob("*/result-red.txt"))
    cached.write_text("other\n")
    previews = predict(tmp_path)
    assert (previews["copy"].state, previews["each"].state, previews["each"].num_reused) == ("reused", "runs", 1)
    assert previews["each"].why == "an output is no longer in the cache"

    # A tool that was edited may have another command, which only the engine knows.
    (tmp_path / "mark.cwl").write_text((tmp_path / "mark.cwl").read_text().replace("cat", "cat  "))
    previews = predict(tmp_path)
    assert previews["copy"].state == "reused"
    assert previews["mark"].state == "not-known"
    assert "has been edited since run" in previews["mark"].why

    monkeypatch.setenv("MEDWEAVE_REUSE", "0")
    assert {reuse.why for reuse in predict(tmp_path).values()} == {"the cache is disabled (MEDWEAVE_REUSE=0)"}


@pytest.mark.slow
def test_at_a_site_the_same_holds_if_the_site_still_has_it(tmp_path: Path) -> None:
    """Real ssh: folders are listed there by a program, and the digests of the plan are the same."""
    with ssh_server(tmp_path / "server") as server:
        write(tmp_path)
        give(tmp_path)
        deployments = {"there": ssh_site(server.port, str(tmp_path / "site"))}
        site = {"title": "a site", "deployments": deployments, "roles": {"check": {"deployment": "there"}}}
        (tmp_path / "site.yml").write_text(yaml.safe_dump(site))
        first, _ = run_again(tmp_path)
        previews = predict(tmp_path)
        assert states(previews) == ["reused"] * 5, previews
        assert {(reuse.from_runs, reuse.unless) for reuse in previews.values()} == {((first,), "there")}
        assert (
            f"cache hit: outputs of {first}, if there still has them, with the same programs and settings"
            in text_of(planned(tmp_path))
        )
        check_predictions(previews, run_again(tmp_path)[1])
        (tmp_path / "data" / "inner" / "two.txt").write_text("two\n")
        previews = predict(tmp_path)
        assert states(previews) == ["runs", *["not-known"] * 4]
        assert previews["copy"].why.endswith(": input data")
        check_predictions(previews, run_again(tmp_path)[1])
