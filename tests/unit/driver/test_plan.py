"""`medweave plan`: what a run would do, before it starts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from medweave.cli.main_command import main
from medweave.placement.bind import fit
from medweave.plan.document import Figures, Move, Plan, ResourceRequest, schema
from medweave.plan.flow import routes_between
from medweave.plan.past_runs import Past, read_past
from medweave.plan.planner import make_plan
from medweave.plan.resources import excess
from medweave.plan.sizes import Size, size_of
from medweave.plan.text import size, text_of
from medweave.project.sites import Place
from medweave_connectors.transfer.plan import BUCKET, DIRECT, SAME, THROUGH, driver_route
from medweave_core.contracts import codec
from medweave_core.errors import UsageError, UserInputError
from support.cwl_files import PIPELINES, ROOT, known_as
from support.recorded import Recorder

TRAIN = ROOT / "workflows" / "lung-nodule-segmentation" / "train.cwl"
JOBS = ROOT / "deployments" / "jobs"
PAGE = ROOT / "docs" / "how-to" / "plan-a-run.md"
NO_RUNS = Past(runs=(), looked_in=(Path("runs"),))


def planned(site: str, job: Path, *, role: Sequence[str] = (), past: Past = NO_RUNS) -> Plan:
    """The plan of the lung pipeline's training."""
    return make_plan(fit(TRAIN, site, job, role), past)


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., Plan]:
    """Plans at the testbed, of a job file with these values and with the folder `ct` next to it as cohort."""

    def made(*, role: Sequence[str] = (), past: Past = NO_RUNS, **values: Any) -> Plan:
        (tmp_path / "ct").mkdir(exist_ok=True)
        job = tmp_path / "job.yml"
        job.write_text(json.dumps({"cohort": {"class": "Directory", "path": "ct"}} | values))
        return planned("testbed", job, role=role, past=past)

    return made


def moves(plan: Plan) -> dict[tuple[str | None, str | None], set[str]]:
    return {(move.source, move.destination): {item.name for item in move.items} for move in plan.moves}


def move(plan: Plan, source: str | None, destination: str | None) -> Move:
    return next(move for move in plan.moves if (move.source, move.destination) == (source, destination))


# ---- text


def test_the_text_is_that_of_the_guide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = text_of(planned("university-hpc-and-hospital", JOBS / "university-hpc-and-hospital-train.yml"))
    shown = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert text == shown[0], "write the text into docs/how-to/plan-a-run.md"


@pytest.mark.parametrize("site", sorted(path.stem for path in ROOT.glob("deployments/sites/*.yml")))
@pytest.mark.parametrize("workflow", PIPELINES, ids=known_as)
def test_each_plan_of_the_repository_has_each_step_once_and_fits_the_schema(workflow: Path, site: str) -> None:
    named = (JOBS / f"{site}-{known_as(workflow)}.yml", workflow.parent / "jobs" / f"example-{workflow.stem}.yml")
    fitted = fit(workflow, site, next((job for job in named if job.is_file()), None))
    plan = make_plan(fitted, NO_RUNS)
    assert sorted(step.step for step in plan.steps) == sorted(step.path for step in fitted.pipeline.steps)
    jsonschema.validate(json.loads(codec.dumps(plan)), schema(), jsonschema.Draft202012Validator)
    for step in plan.steps:
        assert step.why == f"roles.{step.role} of {plan.site}"
        assert re.search(rf"^ .*\b{step.step.lstrip('/')}\b", text_of(plan), re.MULTILINE)


def test_the_command_prints_text_or_json_and_writes_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["plan", str(TRAIN), "--site", "university-hpc-and-hospital"]
    words += ["--job", str(JOBS / "university-hpc-and-hospital-train.yml")]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("Plan of ")
    assert main([*words, "--format", "json"]) == 0
    printed = capsys.readouterr().out
    jsonschema.validate(json.loads(printed), schema(), jsonschema.Draft202012Validator)
    assert main([*words, "--format", "json", "--output", "plan.json"]) == 0
    assert (tmp_path / "plan.json").read_text() == printed
    assert main([*words, "--format", "svg", "--output", "plan.svg"]) == 0
    assert ElementTree.parse(tmp_path / "plan.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"


# ---- steps


@pytest.mark.slow
def test_a_step_that_does_not_run_says_why_and_moves_nothing(plan: Callable[..., Plan]) -> None:
    without = plan()
    step = next(step for step in without.steps if step.step == "/train_distributed")
    assert (step.runs, step.condition) == (False, "distributed")
    assert re.search(r"^ +train_distributed +- +does not run +distributed is false$", text_of(without), re.MULTILINE)
    assert [int(number) for number in re.findall(r"^  ([0-9]+) ", text_of(without), re.MULTILINE)] == list(range(1, 11))
    assert "training-ddp" not in {place for pair in moves(without) for place in pair}
    export = next(step for step in without.steps if step.step == "/export")
    assert export.after == ("/train",)
    with_it = plan(distributed=True)
    assert next(step for step in with_it.steps if step.step == "/export").after == ("/train_distributed",)
    assert moves(with_it)["training-ddp", "slurm"] == {"train_distributed/trained_model"}


def test_each_step_comes_after_those_that_it_reads_from(plan: Callable[..., Plan]) -> None:
    done: set[str] = set()
    for step in plan(distributed=True).steps:
        assert set(step.after) <= done
        done.add(step.step)


def test_each_step_names_the_inputs_that_it_reads(plan: Callable[..., Plan]) -> None:
    by_step = {step.step: step.inputs for step in plan(identified=True).steps if step.inputs}
    assert by_step == {"/deidentify": ("cohort",)}
    by_step = {step.step: step.inputs for step in plan(identified=False).steps if step.inputs and step.runs}
    assert by_step == {"/check": ("cohort",), "/preprocess": ("cohort",), "/evaluate": ("cohort",)}


def test_a_role_that_the_command_line_places_says_so(plan: Callable[..., Plan]) -> None:
    step = next(step for step in plan(role=["export=laptop"]).steps if step.step == "/export")
    assert (step.deployment, step.why) == ("laptop", "--role export=laptop")


def test_a_scatter_is_one_job_for_each_item(plan: Callable[..., Plan]) -> None:
    assert {step.step: step.one_job_for_each for step in plan().steps if step.one_job_for_each} == {
        "/segment": ("preprocess/inference_batches",)
    }


def test_steps_that_wait_for_each_other_are_an_error(tmp_path: Path) -> None:
    from medweave.plan.flow import Flow
    from medweave.project.workflows import read_pipeline

    (tmp_path / "tool.cwl").write_text("class: CommandLineTool\n")
    (tmp_path / "roles.yml").write_text("w.cwl: {/a: train, /b: train}\n")
    steps = {name: f"{{run: tool.cwl, in: {{x: {other}/y}}, out: [y]}}" for name, other in (("a", "b"), ("b", "a"))}
    (tmp_path / "w.cwl").write_text(f"class: Workflow\nsteps: {{a: {steps['a']}, b: {steps['b']}}}\n")
    pipeline = read_pipeline(tmp_path / "w.cwl")
    with pytest.raises(UserInputError, match="depend on each other in a cycle"):
        Flow(pipeline=pipeline, values={}).ordered()


# ---- resources


def test_requests_are_listed_with_the_limits_of_the_place(plan: Callable[..., Plan]) -> None:
    asks = {step.step: {resource.name: resource for resource in step.asks} for step in plan().steps}
    assert asks["/train"]["GPUs"] == ResourceRequest(name="GPUs", unit="GPUs", least=0, most=1, cap=2)
    assert asks["/train"]["time"] == ResourceRequest(name="time", unit="s", least=172800, most=172800, cap=3600)
    assert asks["/gate"]["memory"] == ResourceRequest(name="memory", unit="MiB", least=3072, most=3072, cap=4096)
    assert asks["/check"]["memory"].cap is None


@pytest.mark.parametrize(("name", "is_problem"), [("memory", True), ("cores", True), ("time", False)])
def test_more_than_a_place_gives_is_a_problem_but_a_long_time_is_cut(name: Any, is_problem: bool) -> None:
    resource = ResourceRequest(name=name, unit="MiB", least=9, most=9, cap=8)
    problem = excess("/gate", Place(deployment="pods", service="segment"), resource)
    assert (
        problem is not None and "/gate requests more" in problem.what and "pods/segment" in problem.what
    ) == is_problem
    fitting = ResourceRequest(name=name, unit="MiB", least=8, most=9, cap=8)
    assert excess("/gate", Place(deployment="pods"), fitting) is None


def test_a_site_that_gives_too_little_makes_the_plan_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "small.yml"
    text = (ROOT / "deployments/sites/testbed.yml").read_text().replace("../..", str(ROOT))
    site.write_text(text.replace("memory: 4Gi", "memory: 2Gi"))
    job = tmp_path / "job.yml"
    (tmp_path / "ct").mkdir()
    job.write_text("cohort: {class: Directory, path: ct}\n")
    assert main(["plan", str(TRAIN), "--site", str(site), "--job", str(job)]) == UserInputError.exit_code
    output = capsys.readouterr().out
    assert "The run would fail: 2 problems" in output  # gate and segment
    assert "step /segment requests more memory than a job gets at inference/segment." in output


# ---- data


def test_sizes_of_inputs_are_counted_and_later_ones_not_known(plan: Callable[..., Plan], tmp_path: Path) -> None:
    (tmp_path / "ct" / "a").mkdir(parents=True)
    (tmp_path / "ct" / "a" / "1.dcm").write_bytes(b"x" * 5000)
    (tmp_path / "ct" / "2.dcm").write_bytes(b"x" * 120)
    (tmp_path / "ct" / "3.dcm").symlink_to(tmp_path / "ct" / "2.dcm")
    (tmp_path / "ct" / "up").symlink_to(tmp_path / "ct")  # a loop, which is walked once
    made = plan(role=["check=slurm/normal"], identified=False)
    (cohort,) = [item for item in move(made, None, "slurm").items if item.name == "cohort"]
    assert (cohort.num_files, cohort.num_bytes, cohort.needed_by) == (3, 5240, ("/check",))
    assert (made.inputs[0].num_files, made.inputs[0].num_bytes) == (3, 5240)
    assert "5.1 KiB in 3 files" in text_of(made)
    training_set = next(item for item in move(made, None, "slurm").items if item.name == "preprocess/training_set")
    assert (training_set.num_files, training_set.num_bytes) == (None, None)


def test_sizes_of_literals_lists_and_urls(tmp_path: Path) -> None:
    (tmp_path / "a b").write_bytes(b"abc")
    file = {"class": "File", "path": "a b"}
    assert size_of([file, {"class": "File", "contents": "ä"}], tmp_path) == Size(2, 5)
    assert size_of({"class": "Directory", "listing": [file]}, tmp_path) == Size(1, 3)
    assert size_of({**file, "secondaryFiles": [file]}, tmp_path) == Size(2, 6)
    assert size_of({"class": "File", "location": (tmp_path / "a b").as_uri()}, tmp_path) == Size(1, 3)
    assert size_of({"class": "File", "location": "https://example.org/x"}, tmp_path) is None


def test_an_input_that_is_missing_is_a_problem_that_names_nobody(plan: Callable[..., Plan], tmp_path: Path) -> None:
    assert plan().problems == ()
    (tmp_path / "ct" / "MUELLER^ANNA").symlink_to(tmp_path / "nowhere")
    (problem,) = plan().problems
    assert (problem.what, "MUELLER" in str(problem)) == ("input 'cohort' cannot be read.", False)
    made = plan(cohort={"class": "Directory", "path": "cd"})
    assert made.problems[0].seen.endswith("cd")
    assert re.match(r"job file, line \d+: cohort\.path: input 'cohort' cannot be read\.", made.problems[0].what)
    assert "The run would fail: 1 problem\n" in text_of(made)


def test_what_moves_moves_once_for_all_that_need_it(plan: Callable[..., Plan]) -> None:
    made = plan()
    assert moves(made)[None, "slurm"] == {"preprocess/training_set"}
    assert move(made, None, "slurm").items[0].needed_by == ("/train", "/quantize")
    assert moves(made)["slurm", "inference"] == {"export/exported_model", "quantize/int8_candidate"}
    results = {item.name for item in move(made, "inference", None).items if "results" in item.needed_by}
    assert results == {"gate/accepted_model", "gate/gate_decision", "segment/segmentations"}
    assert planned("laptop", JOBS / "hpc-and-cloud-train.yml").moves == ()


def test_an_input_that_lies_at_a_site_is_not_sent_there() -> None:
    made = planned("university-hpc-and-hospital", JOBS / "university-hpc-and-hospital-train.yml")
    assert all(item.name != "cohort" for move in made.moves for item in move.items)
    assert [(data.name, data.place, data.num_bytes) for data in made.inputs] == [("cohort", "hospital", None)]
    home = next(item for item in move(made, "hospital", None).items if item.name == "deidentify/home")
    assert (home.classes, home.needed_by) == (("identified",), ("results",))


def test_routes_have_the_names_of_the_event_log_and_follow_the_sites_settings() -> None:
    class Here:
        local = True

    class There:
        local = False

    here, there = Here(), There()
    assert [route.route for route in routes_between(None, "a", {})] == [driver_route(here, there)]  # type: ignore[arg-type]
    assert [route.route for route in routes_between("a", None, {})] == [driver_route(there, here)]  # type: ignore[arg-type]
    bucket = {"bucket": {"bucket": "b"}}
    assert [route.route for route in routes_between("a", "b", bucket)] == [SAME, DIRECT, BUCKET, THROUGH]
    off = {"sameFileSystem": False, "direct": False}
    assert [route.route for route in routes_between("a", "b", off)] == [THROUGH]
    assert "50000 to 50019" in routes_between("a", "b", {"directPorts": [50000, 50019]})[1].condition


def test_classes_of_data_are_those_that_the_rules_are_held_against() -> None:
    made = planned("university-hpc-and-hospital", JOBS / "university-hpc-and-hospital-train.yml")
    holdings = {holding.place: holding for holding in made.holdings}
    assert holdings["hpc"].gets == holdings["hpc"].may_hold == ("derived", "model", "aggregate")
    assert "identified" in (holdings[None].gets or ())
    for holding in made.holdings:
        assert set(holding.gets or ()) <= set(holding.may_hold or ())


def test_a_forbidden_place_is_an_error_as_in_bind(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", str(TRAIN), "--site", "university-hpc-and-hospital", "--role", "evaluate=hpc/cpu"]
    assert main([*words, "--job", str(JOBS / "university-hpc-and-hospital-train.yml")]) == UsageError.exit_code
    assert "the data rules do not allow step /evaluate at 'hpc'" in capsys.readouterr().err


# ---- earlier runs


def earlier(folder: Path, train_s: float, *, at: str = "site-a", state: str = "completed", sent: int = 1000) -> None:
    """A run of train and report, with one copy from the laptop."""
    run = Recorder(folder, workflow_file="../workflows/lung-nodule-segmentation/train.cwl")
    run.job("/train/0", 1, 1.6 + train_s, deployment=at)
    run.job("/report/0", 500, 510)
    transfer = {"from": "__LOCAL__", "route": "from-driver", "bytes": sent, "files": 1}
    run.event(511, "transfer.ended", deployment="site-a", **transfer)
    run.end(600 + train_s, state)


def test_times_are_the_median_and_range_of_jobs_at_the_same_place(tmp_path: Path) -> None:
    for name, seconds in (("a", 30.0), ("b", 40.0), ("c", 80.0)):
        earlier(tmp_path / name, seconds)
    earlier(tmp_path / "elsewhere", 7.0, at="laptop")
    past = read_past([tmp_path], TRAIN)
    expected = Figures(num_runs=3, median=pytest.approx(40.0), low=pytest.approx(30.0), high=pytest.approx(80.0))  # type: ignore[arg-type]
    assert past.job_seconds("/train", ("site-a", "gpu4")) == expected
    assert past.job_seconds("/train", ("site-a", "cpu")) is None
    places: dict[str, tuple[str, str | None]] = {"/train": ("site-a", "gpu4"), "/report": ("laptop", None)}
    assert past.seconds(places) == Figures(num_runs=3, median=640.0, low=630.0, high=680.0)
    assert past.seconds(places | {"/gate": ("laptop", None)}) is None


def test_only_completed_runs_of_this_workflow_tell_what_moved(tmp_path: Path) -> None:
    earlier(tmp_path / "a", 30.0, sent=1000)
    earlier(tmp_path / "b", 30.0, sent=3000)
    earlier(tmp_path / "failed", 30.0, sent=9, state="failed")
    Recorder(tmp_path / "other", workflow_file="workflows/skin/train.cwl").end(1)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "events.jsonl").write_text("{}\n{}\n")
    past = read_past([tmp_path], TRAIN)
    assert sorted(run.run_id for run in past.runs) == ["a", "b", "failed"]
    assert past.moved(None, "site-a") == (Figures(num_runs=2, median=2000, low=1000, high=3000), ("from-driver",))
    assert past.moved("site-a", None) == (None, ())


def test_earlier_runs_are_shown(plan: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Recorder(tmp_path / "runs" / "one", workflow_file="workflows/lung-nodule-segmentation/train.cwl")
    run.job("/check/0", 1, 20)
    transfer = {"from": "laptop", "route": "from-driver", "bytes": 3 * 2**20}
    run.event(21, "transfer.ended", deployment="slurm", **transfer)
    run.end(30)
    text = text_of(plan(past=read_past([tmp_path / "runs"], TRAIN)))
    assert re.search(r"of 1 earlier run in \S*runs/ \(with the same or other data\)", text)
    assert re.search(r"^  check +18 s \(1 run\), about 0.0062 Wh; 0.01 core-hours$", text, re.MULTILINE)
    assert re.search(r"^  train +unknown at this place$", text, re.MULTILINE)
    assert re.search(r"^  whole run +unknown: no complete run at these places$", text, re.MULTILINE)
    assert "    earlier runs copied 3.0 MiB (1 run), route from-driver\n" in text


def test_hours_are_those_of_all_jobs_by_what_the_tool_asks_for_on_each_node(
    plan: Callable[..., Plan], tmp_path: Path
) -> None:
    for name, seconds in (("a", 3600.0), ("b", 7200.0)):
        run = Recorder(tmp_path / "runs" / name, workflow_file="workflows/lung-nodule-segmentation/train.cwl")
        for number in range(3):
            run.job(f"/check/0.{number}", 0, seconds)
        run.end(9000)
    past = read_past([tmp_path / "runs"], TRAIN)
    (where,) = {(job.deployment, job.service) for run in past.runs for job in run.jobs}
    hours = past.hours("/check", where, 4)
    assert hours == Figures(num_runs=2, median=pytest.approx(18, rel=0.01), low=pytest.approx(12, rel=0.01),
                           high=pytest.approx(24, rel=0.01))  # type: ignore[arg-type]  # fmt: skip
    made = plan(past=past)
    (step,) = (planned for planned in made.steps if planned.step == "/check")
    assert (step.deployment, step.service) == where == ("laptop", None)
    (cores,) = (resource.most for resource in step.asks if resource.name == "cores")
    assert step.core_hours is not None
    assert step.core_hours.median == pytest.approx(3 * 1.5 * cores * step.locations, rel=0.01)
    assert step.gpu_hours is None
    assert made.core_hours is None, "what the other steps hold is not known"
    assert f"; {step.core_hours.median:.2f} core-hours\n" in text_of(made)


def test_without_earlier_runs_nothing_is_estimated(plan: Callable[..., Plan]) -> None:
    made = plan()
    assert all(step.job_seconds is None for step in made.steps)
    assert made.seconds is None
    assert "Duration: unknown; no earlier run of this workflow in runs/." in text_of(made)


# ---- wrong calls


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--site", "tesbed"], 2, "write 'testbed' (closest match)"),
        (["--site", "laptop", "--job", "no.yml"], 65, "no.yml"),
        (["--site", "laptop", "--runs", "no-runs"], 2, "no-runs: no such folder"),
        (["--site", "laptop", "--role", "train=moon"], 2, "there is no deployment 'moon'"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_a_wrong_call_is_an_error(
    words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(TRAIN), *words]) == code
    assert message in capsys.readouterr().err


def test_a_missing_workflow_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(ROOT / "workflows" / "no.cwl"), "--site", "laptop"]) == UserInputError.exit_code
    assert "there is no such CWL workflow" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (2**20 - 1, "1.0 MiB"), (3 * 2**40, "3.0 TiB")],
)
def test_bytes_as_people_read_them(num_bytes: int, text: str) -> None:
    assert size(num_bytes) == text
