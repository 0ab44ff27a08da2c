"""`medweave validate`: which files, which form, which exit code."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from medweave.cli.main_command import main
from medweave.validate.charts import kube_version
from medweave.validate.command import FORMATS
from medweave.validate.findings import RULES
from medweave_core.documents.cwl_types import fits, may_fit, of_value, parse, spelled_type

TOOL = """\
cwlVersion: v1.2
class: CommandLineTool
baseCommand: [echo]
inputs:
  text: {type: string, inputBinding: {}}
outputs: []
"""
WRONG = TOOL.replace("string", "strin")
UNREAD = TOOL.replace(", inputBinding: {}", "")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("text", "code"), [(TOOL, 0), (UNREAD, 1), (WRONG, 65), (WRONG + "x: [", 65)])
def test_the_exit_code_is_that_of_the_worst_finding(text: str, code: int, folder: Path) -> None:
    (folder / "echo.cwl").write_text(text)
    assert main(["validate"]) == code


def test_text_names_file_line_place_and_fix(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "echo.cwl").write_text(WRONG)
    main(["validate"])
    text = capsys.readouterr().out
    assert "echo.cwl:5:10: error: 'strin' is not a CWL type. [cwl-type]" in text
    assert "at:       inputs.text.type" in text
    assert "do:       write 'string' (closest match)" in text
    assert text.endswith("1 file: 1 error, 0 warnings\n")


def test_github_takes_it_as_an_annotation(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "echo.cwl").write_text(WRONG)
    main(["validate", "--format", "github"])
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("::error file=echo.cwl,line=5,col=10,title=cwl-type::'strin' is not a CWL type.%0Aat:")


def test_sarif_has_every_rule_and_the_place(folder: Path) -> None:
    (folder / "echo.cwl").write_text(WRONG)
    assert main(["validate", "--format", "sarif", "--output", "out/found.sarif"]) == 65
    (run,) = json.loads((folder / "out" / "found.sarif").read_text())["runs"]
    (result,) = run["results"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == list(RULES)
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "cwl-type"
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "echo.cwl"
    assert place["region"] == {"startLine": 5, "startColumn": 10}


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_can_report_no_findings(form: str, folder: Path) -> None:
    (folder / "echo.cwl").write_text(TOOL)
    assert main(["validate", "--format", form]) == 0


GRAPH = """\
cwlVersion: v1.2
$graph:
  - {id: main, class: CommandLineTool, baseCommand: echo, outputs: {},
     inputs: {text: {type: strin}}}
"""
SCATTER = """\
cwlVersion: v1.2
class: Workflow
requirements: {ScatterFeatureRequirement: {}}
inputs: {texts: "string[]"}
outputs: {}
steps:
  echo: {run: echo.cwl, scatter: [text, other], in: {text: texts, other: texts}, out: []}
"""
TWO_TEXTS = TOOL.replace("outputs", "  other: {type: string, inputBinding: {}}\noutputs")


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [(GRAPH, "main.cwl:4:", "unknown identifier 'strin'"), (SCATTER, "main.cwl:1:", "Must specify scatterMethod")],
)
def test_cwltool_runs_only_on_request_and_its_refusal_is_a_finding(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, place: str, reason: str
) -> None:
    (folder / "main.cwl").write_text(text)
    (folder / "echo.cwl").write_text(TWO_TEXTS)
    assert main(["validate"]) == 0
    assert main(["validate", "--cwltool"]) == 65
    shown = capsys.readouterr().out
    assert place in shown
    assert reason in shown
    assert str(folder) not in shown


def test_workflows_that_run_each_other_are_validated_once(folder: Path) -> None:
    (folder / "roles.yml").write_text("one.cwl: {/again: check}\n")
    for name, run in (("one.cwl", "two.cwl"), ("two.cwl", "one.cwl")):
        step = f"{{run: {run}, in: {{}}, out: []}}"
        requirement = "requirements: {SubworkflowFeatureRequirement: {}}"
        head = f"cwlVersion: v1.2\nclass: Workflow\n{requirement}\n"
        (folder / name).write_text(f"{head}inputs: {{}}\noutputs: {{}}\nsteps: {{again: {step}}}\n")
    assert main(["validate"]) in (0, 1, 65)


def test_a_path_that_is_not_there_is_wrong_usage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_ignored_and_hidden_files_are_left_out_and_named_ones_are_not(folder: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], check=True)
    (folder / ".gitignore").write_text("build/\n")
    (folder / ".medweave-ignore").write_text("# broken on purpose\ntests/\n*.draft.cwl\n")
    for name in ("build/a.cwl", "tests/deep/a.cwl", ".hidden/a.cwl", "a.draft.cwl"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(WRONG)
    assert main(["validate"]) == 0
    assert main(["validate", "tests/deep/a.cwl"]) == 65
    assert main(["validate", "tests"]) == 65


def test_internal_error_prints_no_traceback_without_debug(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr("medweave.validate.checks.check", fails)
    assert main(["validate"]) == 70
    assert "ZeroDivisionError: by nought" in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):
        main(["validate", "--debug"])


def test_a_secret_is_never_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = "hunter" + "22" * 8
    (folder / "login.yml").write_text(f"user: me\npassword: {secret}\n")
    assert main(["validate"]) == 65
    assert secret not in capsys.readouterr().out


def test_references_to_other_files_are_assumed_valid(folder: Path) -> None:
    (folder / "echo.cwl").write_text(UNREAD + "requirements: [{$import: js.yml}]\n")
    (folder / "js.yml").write_text("class: InlineJavascriptRequirement\nexpressionLib: [inputs.text]\n")
    assert main(["validate"]) == 0


def test_reference_to_a_secret_is_not_a_secret(folder: Path) -> None:
    (folder / "login.yml").write_text("password: ${PASSWORD}\ntoken: /run/secrets/token\nsecretName: login\n")
    assert main(["validate"]) == 0


@pytest.mark.parametrize(
    ("name", "policy", "code"),
    [
        ("x/y:1.2", "tag", 0),
        ("x/y:1.2", "digest", 65),
        ("x/y@sha256:" + "0" * 64, "digest", 0),
        ("x/y:latest", "tag", 65),
        ("localhost:5000/y", "tag", 65),
        ("${REGISTRY}/y:${TAG}", "tag", 0),
    ],
)
def test_an_image_stays_what_it_is(name: str, policy: str, code: int, folder: Path) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "a", "image": name}]}}
    (folder / "pod.yaml").write_text(json.dumps(pod))
    assert main(["validate", "--images", policy]) == code


# As Helm 4.0.5 of `go install`, which knows no version of Kubernetes, writes it.
UNSTAMPED_HELM = r"""#!/bin/sh
case "$*" in *"--kube-version 1.34.0"*) ;; *)
  echo 'Error: chart requires kubeVersion: >=1.27.0-0 which is incompatible with Kubernetes v1.20.0' >&2; exit 1;; esac
[ $1 = template ] && exit 0
printf '%s\n' '==> Linting web' '[INFO] Chart.yaml: icon is recommended' "[ERROR] values.yaml: - at '/image': missing property 'repository'"
printf '%s\n' '' '[ERROR] templates/: ' "web:" "- at '/image': missing property 'repository'" ''
echo 'Error: 1 chart(s) linted, 1 chart(s) failed' >&2
exit 1
"""  # noqa: E501


def write_chart(folder: Path, helm: str, more: str = "") -> Path:
    """Write a chart, and a program `helm`; return the folder of `helm`."""
    chart, programs = folder / "web", folder / ".bin"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text(f"apiVersion: v2\nname: web\nversion: 1.0.0\n{more}")
    (chart / "values.yaml").write_text("{}\n")
    programs.mkdir()
    (programs / "helm").write_text(helm)
    (programs / "helm").chmod(0o755)
    return programs


def test_errors_of_helm_lint_are_findings(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = write_chart(folder, UNSTAMPED_HELM, 'kubeVersion: ">=1.27.0-0"\n')
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    assert main(["validate", "--helm"]) == 65
    output = capsys.readouterr().out
    assert "web/values.yaml:1:1: error: `helm lint` rejects the chart with values.yaml." in output
    assert "seen:     values.yaml: - at '/image': missing property 'repository'\n" in output


@pytest.mark.parametrize(
    ("constraint", "version"),
    [
        ("", "1.34.0"),
        (">=1.27.0-0", "1.34.0"),
        (">=1.40", "1.40.0"),
        ("> 1.27.3, < 1.30", "1.27.4"),
        ("1.27 - 1.33", "1.27.0"),
        ("<1.30.0-0", "1.29.0"),
        ("<=1.30.2", "1.30.2"),
        ("~1.30 || ^1.32", "1.30.0"),
        ("1.30.x", "1.30.0"),
        ("!=1.30", "1.34.0"),
        ("*", "1.34.0"),
    ],
)
def test_helm_gets_a_supported_kubernetes_version(constraint: str, version: str) -> None:
    assert kube_version(constraint) == version


def test_helm_runs_only_on_request(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = write_chart(
        folder,
        "#!/bin/sh\n[ $1 = lint ] && exit 0\necho 'Error: parse error at (web/templates/a.yaml:1): no b' >&2\nexit 1\n",
    )
    (folder / "web" / "templates" / "a.yaml").write_text("a: {{ .Values.b }}\n")
    assert main(["validate"]) == 0
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    assert main(["validate", "--helm"]) == 65
    assert "templates/a.yaml:1:1: error: `helm template` rejects" in capsys.readouterr().out
    monkeypatch.setenv("PATH", str(folder))
    assert main(["validate", "--helm"]) == 69


@pytest.mark.parametrize(
    ("source_type", "target_type", "all_fit", "some_fit"),
    [
        ("File", "File", True, True),
        ("File", "Directory", False, False),
        ("File?", "File", False, True),
        ("File", "File?", True, True),
        ("int[]", "int", False, False),
        (["File[]", {"type": "array", "items": ["null", "File"]}], "File[]", False, True),
        ("int[]", ["int[]", "null"], True, True),
        ("Any", "File", True, True),
        ({"type": "enum", "symbols": ["a"]}, {"type": "enum", "symbols": ["a", "b"]}, True, True),
        ({"type": "enum", "symbols": ["a", "b"]}, {"type": "enum", "symbols": ["a"]}, False, False),
        ({"type": "array", "items": "File"}, "File[]", True, True),
    ],
)
def test_types_along_an_edge(source_type: object, target_type: object, all_fit: bool, some_fit: bool) -> None:
    source, sink = parse(source_type, declared=False), parse(target_type, declared=False)
    assert (fits(source, sink), may_fit(source, sink)) == (all_fit, some_fit)


@pytest.mark.parametrize(
    ("value", "kind", "is_one"),
    [(1, "float", True), (1.5, "int", False), (True, "int", False), (None, "int?", True), ([1, 2], "int[]", True)],
)
def test_values_of_a_job(value: object, kind: str, is_one: bool) -> None:
    assert of_value(value, parse(kind, declared=False)) is is_one


def test_type_is_reported_as_written_in_the_document() -> None:
    assert spelled_type(parse("File[]?", declared=False)) == "File[]?"


SITE = "title: mine\ndeployments:\n  here: {type: medweave.local, config: {}}\nroles:\n  report: {deployment: here}\n"


@pytest.mark.parametrize(
    ("name", "text", "code", "message"),
    [
        ("things.yml", "a: 1\n", 1, "things.yml:1:1: warning: unknown file type"),
        ("empty.yml", "# nothing\n", 1, "empty.yml:1:1: warning: unknown file type"),
        ("deployments/sites/mine.yml", "", 65, "deployments/sites/mine.yml:1:1: error: this site file is empty"),
        ("deployments/sites/mine.yml", "- a\n", 65, "deployments/sites/mine.yml:1:1: error: this site file is empty"),
        ("my-site.yml", SITE.replace("deployments", "deploymnts"), 65, "my-site.yml:2:1: error: there is no such key."),
        ("streamflow.yml", "workflow: {}\nversion: v1.0\n", 65, "streamflow.yml:1:1: error: there is no such key."),
        ("my-site.yml", SITE, 0, "1 file: 0 errors"),
        ("pod.yaml", "apiVersion: v1\nkind: Pod\n", 0, "1 file: 0 errors"),
        ("notes.md", "anything\n", 0, "1 file: 0 errors"),
    ],
)
def test_named_file_is_recognized_or_reported(
    name: str, text: str, code: int, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    assert main(["validate", name]) == code
    assert message in capsys.readouterr().out


@pytest.mark.parametrize("stem", ["measure-lungs", "my-measure-lungs", "lungs"])
def test_job_file_belongs_to_the_workflow_named_by_its_suffix(
    stem: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "jobs").mkdir()
    for name in ("measure-lungs", "lungs"):
        (folder / f"{name}.cwl").write_text(TOOL.replace("text", f"of_{name.replace('-', '_')}"))
    (folder / "jobs" / f"{stem}.yml").write_text("wrong: a\n")
    assert main(["validate"]) == 65
    right = "lungs" if stem == "lungs" else "measure_lungs"
    assert f"expected: one of of_{right}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("path", "first", "keys"),
    [
        ("jobs/mine.yml", "# yaml-language-server: $schema=lungs.schema.json", "wrong: a"),
        ("mine/cohort.yml", "# yaml-language-server: $schema=../jobs/lungs.schema.json", "wrong: a"),
        ("jobs/mine.yml", "# a cohort", "of_lungs: a\nwrong: a"),
    ],
)
def test_job_file_of_any_name_is_assigned_by_schema_or_inputs(
    path: str, first: str, keys: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("measure-lungs", "lungs"):
        (folder / f"{name}.cwl").write_text(TOOL.replace("text", f"of_{name.replace('-', '_')}"))
    (folder / path).parent.mkdir(parents=True)
    (folder / path).write_text(f"{first}\n{keys}\n")
    assert main(["validate"]) == 65
    assert "expected: one of of_lungs\n" in capsys.readouterr().out


def test_ambiguous_job_file_is_assigned_to_no_workflow(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("measure", "segment"):
        (folder / f"{name}.cwl").write_text(TOOL)
    (folder / "jobs").mkdir()
    (folder / "jobs" / "mine.yml").write_text("text: a\nwrong: a\n")
    assert main(["validate"]) == 0
    assert main(["validate", "jobs/mine.yml"]) == 1
    assert "unknown file type" in capsys.readouterr().out


def test_network_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def request(*words: object, **__: object) -> None:
        calls.append(words)
        raise OSError("no network")

    monkeypatch.setattr("requests.sessions.Session.request", request)
    tool = TOOL.replace("outputs: []", "outputs: {a: {type: stdout, format: edam:format_3464}}\nstdout: a.json")
    (folder / "echo.cwl").write_text(tool + '$namespaces: {edam: "http://edamontology.org/"}\n')
    assert main(["validate"]) == 0
    assert calls == []


def test_files_of_a_run_are_left_out(folder: Path) -> None:
    run = folder / "runs" / "2026-01-01"
    run.mkdir(parents=True)
    (run / "events.jsonl").write_text("{}\n")
    (run / "streamflow.yml").write_text("version: v1.0\n")
    assert main(["validate"]) == 0
    assert main(["validate", "runs/2026-01-01"]) == 65
    (run / "events.jsonl").unlink()
    assert main(["validate"]) == 65


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        (".env", "# ours\nDB_PASSWORD={}\n", 2),
        (".config/login.yml", "user: me\npassword: {}\n", 2),
        (".docker/config.json", '{{"auths": {{\n "registry.example": {{"auth": "{}"}}}}}}\n', 2),
        ("settings.json", '{{\n "user": "me",\n "password": "{}"\n}}\n', 3),
        ("Containerfile", "FROM debian:12\nENV A=1 DB_PASSWORD={}\n", 2),
        ("Dockerfile", "FROM debian:12\nENV DB_PASSWORD {}\n", 2),
        ("pod.yaml", "spec:\n  env:\n    - name: DB_PASSWORD\n      value: {}\n", 4),
        ("web/values.yaml", 'extraEnv: [{{name: API_TOKEN, value: "{}"}}]\n', 1),
    ],
)
def test_secrets_in_files_tracked_by_git(
    name: str, text: str, line: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "aHVudGVy" + "Mjc3Nzc3"
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text.format(secret))
    subprocess.run(["git", "init", "--quiet"], check=True)
    subprocess.run(["git", "add", "--all"], check=True)
    assert main(["validate"]) == 65
    out = capsys.readouterr().out
    assert f"{name}:{line}:" in out
    assert out.count("[secret-in-clear]") == 1
    assert secret not in out
    (folder / name).write_text(text.format("${SECRET}"))
    assert main(["validate"]) == 0
