"""`medweave bind`: its output, and its errors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from medweave.cli.main_command import main
from medweave.placement.bind import bind
from medweave.placement.bound_file import BoundWorkflow, render
from medweave.project.sites import read_site
from medweave.project.workflows import read_pipeline
from medweave_core.errors import StepError, UsageError, UserInputError
from support.sites import SITE, write_project

BOUND = """\
# lung/train.cwl at the site 'two': two machines.
# Do not edit it: change deployments/sites/two.yml and make it again, in the folder .. seen from here:
#   medweave bind workflows/lung/train.cwl --site two --output bound/streamflow.yml
#   streamflow run bound/streamflow.yml --outdir results
# Variables that must be set when it runs: SCRATCH
version: v1.0
workflows:
  lung-train:
    type: cwl
    config:
      file: ../workflows/lung/train.cwl
      settings: ../workflows/lung/jobs/demo-train.yml
    bindings:
      - {step: /prepare, target: {deployment: desk}}                              # role preprocess
      - {step: /train, target: {deployment: cluster, service: gpu, locations: 2}} # role train
deployments: # copied from deployments/sites/two.yml
  # The machine with the data.
  desk:
    type: medweave.local
    workdir: ../deployments/work # next to the sites
    config: {}
  cluster:
    type: slurm
    wraps: login
    config:
      maxConcurrentJobs: 2
      services:
        gpu: {partition: gpu}
  # Access to the cluster.
  login:
    type: ssh
    workdir: ${SCRATCH}/jobs
    config: {nodes: ["login.example.org"], sshKey: keys/id}
# The same at every site. The event log and the reports of a run are in runs/<run-id>/ next to this file.
scheduling:
  scheduler: {type: medweave.scheduler, config: {}}
dataManager: {type: medweave.transfer, config: {}}
database: {type: medweave.database, config: {}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_project(tmp_path)


def bound(project: Path, site: str = "two", **more: Any) -> str:
    return bind(project / "workflows" / "lung" / "train.cwl", site, project / "bound" / "streamflow.yml", **more)


def loaded(text: str) -> dict[str, Any]:
    document: dict[str, Any] = YAML(typ="safe").load(text)
    return document


def change(project: Path, old: str, new: str) -> None:
    path = project / "deployments" / "sites" / "two.yml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_settings_of_transfers_are_the_sites(project: Path) -> None:
    site = project / "deployments" / "sites" / "two.yml"
    site.write_text(SITE + "transfers: {direct: false, directPorts: [50000, 50019], limitMiBps: 20}\n")
    settings = {"direct": False, "directPorts": [50000, 50019], "limitMiBps": 20}
    assert loaded(bound(project))["dataManager"] == {"type": "medweave.transfer", "config": settings}
    site.write_text(SITE + "transfers: {dirct: false}\n")
    with pytest.raises(UserInputError, match="transfers"):
        bound(project)


def test_a_bucket_is_declared_as_the_guide_says(project: Path) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "how-to" / "declare-a-route-or-a-bucket.md").read_text()
    (declared,) = re.findall(r"^```yaml\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    site = project / "deployments" / "sites" / "two.yml"
    site.write_text(SITE + declared)
    assert loaded(bound(project))["dataManager"]["config"]["bucket"]["credentials"] == "~/.config/medweave/bucket"
    for right, wrong in (("https://", "http://"), ("bucket: between", "bucket: Between"), ("region:", "secretKey:")):
        assert right in declared
        site.write_text(SITE + declared.replace(right, wrong))
        with pytest.raises(UserInputError, match="transfers"):
            bound(project)


def test_the_bound_file_holds_what_the_workflow_needs_and_says_where_it_came_from(project: Path) -> None:
    assert bound(project) == BOUND


def test_it_is_the_same_from_every_folder_and_by_every_spelling(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project / "deployments" / "sites")
    (project / "bound").mkdir()
    assert (
        main(["bind", "../../workflows/lung/train.cwl", "--site", "two.yml", "-o", "../../bound/streamflow.yml"]) == 0
    )
    assert (project / "bound" / "streamflow.yml").read_text() == BOUND


def test_the_command_says_what_it_wrote(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = project / "new" / "x.yml"
    assert main(["bind", str(project / "workflows/lung/train.cwl"), "--site", "two", "--output", str(output)]) == 0
    assert capsys.readouterr().out == f"{output}\n"
    assert loaded(output.read_text())["workflows"]["lung-train"]["config"]["file"] == "../workflows/lung/train.cwl"


def test_another_job_is_named_in_the_file_and_in_its_command(project: Path) -> None:
    job = project / "my job.yml"
    job.write_text("cohort: {class: Directory, path: x}\nseed: 1\n")
    text = bound(project, job=job)
    assert loaded(text)["workflows"]["lung-train"]["config"]["settings"] == "../my job.yml"
    assert "--job 'my job.yml'" in text


def test_a_role_may_be_placed_elsewhere_for_one_file(project: Path) -> None:
    text = bound(project, role_options=["preprocess=idle", "train=cluster/gpu:4"])
    workflow, deployments = loaded(text)["workflows"]["lung-train"], loaded(text)["deployments"]
    assert [binding["target"] for binding in workflow["bindings"]] == [
        {"deployment": "idle"},
        {"deployment": "cluster", "service": "gpu", "locations": 4},
    ]
    assert list(deployments) == ["cluster", "login", "idle"]
    assert "--site two --role preprocess=idle --role train=cluster/gpu:4 --output" in text


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("train", "ROLE=DEPLOYMENT[/SERVICE][:LOCATIONS]"),
        ("tarin=desk", "write 'train' (closest match)"),
        ("measure=desk", "use the role of the step in roles.yml, not the step's name"),
        ("train=desk:two", "ROLE=DEPLOYMENT[/SERVICE][:LOCATIONS]"),
        ("train=dsk", "there is no deployment 'dsk'"),
        ("train=cluster", "a service: one of gpu"),
        ("train=cluster/cpu", "there is no service 'cpu' in deployment 'cluster'"),
        ("train=desk:2", "one location"),
    ],
)
def test_a_place_that_does_not_exist_is_wrong_usage(project: Path, option: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        bound(project, role_options=[option])
    assert caught.value.what.startswith(f"--role {option}: ")
    assert message in str(caught.value)


def test_paths_of_settings_are_rewritten_where_the_connectors_schema_marks_them(project: Path) -> None:
    change(
        project, "sshKey: keys/id", "sshKey: keys/id, jump: {keys: [a/b, ~/c, '${D}/e', /f, 'oci://g/h']}, word: i/j"
    )
    pipeline = read_pipeline(project / "workflows" / "lung" / "train.cwl")
    site = read_site(project / "deployments" / "sites" / "two.yml")
    job = project / "workflows" / "lung" / "jobs" / "demo-train.yml"
    binding = BoundWorkflow(pipeline=pipeline, site=site, job=job, job_is_default=True, output=project / "x.yml")
    path = {"type": "string", "format": "path"}
    keys = {"type": "object", "additionalProperties": {"type": "array", "items": path}}
    schema = {"properties": {"sshKey": path, "jump": keys, "word": {"type": "string"}}}
    config = loaded(render(binding, {"ssh": schema}))["deployments"]["login"]["config"]
    assert config["sshKey"] == "deployments/sites/keys/id"
    assert config["jump"]["keys"] == ["deployments/sites/a/b", "~/c", "${D}/e", "/f", "oci://g/h"]
    assert config["word"] == "i/j"


@pytest.mark.parametrize(
    ("config", "chart"),
    [
        ("chart: ../charts/x", "../deployments/charts/x"),
        ("chart: oci://registry.example.org/x", "oci://registry.example.org/x"),
        ("chart: x/y, repo: 'https://charts.example.org'", "x/y"),
    ],
)
def test_a_chart_is_a_path_unless_it_comes_from_a_registry_or_repository(
    project: Path, config: str, chart: str
) -> None:
    change(project, "type: ssh", "type: medweave.helm")
    change(project, '{nodes: ["login.example.org"], sshKey: keys/id}', f"{{{config}}}")
    assert loaded(bound(project))["deployments"]["login"]["config"]["chart"] == chart


def test_an_input_that_lies_at_the_site_is_bound_to_its_place(project: Path) -> None:
    change(project, "# Who does", "inputs:\n  cohort: {deployment: login, workdir: '${DATA}/ct'}\n# Who does")
    document = loaded(bound(project))
    assert document["workflows"]["lung-train"]["bindings"][-1] == {
        "port": "/cohort", "target": {"deployment": "login", "workdir": "${DATA}/ct"},
    }  # fmt: skip
    assert "DATA, SCRATCH" in bound(project)


def test_an_optional_input_that_lies_at_the_site_may_be_missing_in_the_job_file(project: Path) -> None:
    change(project, "# Who does", "inputs:\n  masks: {deployment: login, workdir: /masks}\n# Who does")
    workflow = project / "workflows" / "lung" / "train.cwl"
    workflow.write_text(re.sub(r"inputs:\s*\{", "inputs: {masks: Directory?, ", workflow.read_text(), count=1))
    (*_, last) = loaded(bound(project))["workflows"]["lung-train"]["bindings"]
    assert last == {"port": "/masks", "target": {"deployment": "login", "workdir": "/masks"}}


def test_an_input_of_the_workflow_beside_it_is_left_out(project: Path) -> None:
    change(project, "# Who does", "inputs:\n  model: {deployment: login, workdir: /models}\n# Who does")
    assert not [
        binding for binding in loaded(bound(project))["workflows"]["lung-train"]["bindings"] if "port" in binding
    ]


@pytest.mark.parametrize("is_list", [False, True])
@pytest.mark.parametrize("path", ["/data/ct", "../ct", "a/../../ct", "file:///ct"])
def test_a_path_that_would_leave_the_sites_folder_is_refused(project: Path, path: str, is_list: bool) -> None:
    change(project, "# Who does", "inputs:\n  cohort: {deployment: login, workdir: /data}\n# Who does")
    folders = [{"class": "Directory", "path": one} for one in ("ct", path)]
    if is_list:
        workflow = project / "workflows" / "lung" / "train.cwl"
        workflow.write_text(workflow.read_text().replace("cohort: Directory,", "cohort: 'Directory[]',", 1))
    job = {"cohort": folders if is_list else folders[1]}
    (project / "workflows/lung/jobs/demo-train.yml").write_text(json.dumps(job))
    with pytest.raises(UserInputError, match=r"demo-train\.yml:\d+: cohort: this input is stored at a site") as caught:
        bound(project)
    assert path in caught.value.seen


def test_a_deployment_behind_an_alias_is_copied_as_it_reads(project: Path) -> None:
    change(project, "config: {nodes:", "config: &login {nodes:")
    change(project, "  idle:\n    type: medweave.local\n    config: {}", "  other:\n    type: ssh\n    config: *login")
    change(project, "preprocess: {deployment: desk}", "preprocess: {deployment: other}")
    deployments = loaded(bound(project))["deployments"]
    assert deployments["other"]["config"] == deployments["login"]["config"]


def test_an_alias_of_what_is_not_copied_is_refused(project: Path) -> None:
    change(project, "title: two machines", "title: &name two machines")
    change(project, "nodes: [", "username: *name, nodes: [")
    with pytest.raises(UserInputError, match="deployments cannot be copied"):
        bound(project)


DESK = "preprocess: {deployment: desk}"
DESK_CONFIG = "    config: {}\n  cluster"
BEFORE_ROLES = "# Who does"
SLURM = "type: slurm\n    wraps: login\n    config:\n      maxConcurrentJobs: 2\n      services:\n        gpu: {partition: gpu}"
# (old text in the site file, new text, field in the message, words in the message)
FAULTS = [
    ("title: two machines\n", "", "", ["'title' is missing"]),
    ("service: gpu,", "servic: gpu,", "roles.train.servic", ["write 'service' (closest match)"]),
    ("service: gpu,", "service: gpus,", "roles.train.service", ["no service 'gpus' in", "write 'gpu' (closest match)"]),
    ("service: gpu, ", "", "roles.train", ["no service is chosen", "one of gpu"]),
    ("locations: 2", "locations: 0", "roles.train.locations", ["less than the minimum of 1"]),
    ("locations: 2", "locations: two", "roles.train.locations", ['"two"', "integer"]),
    ("deployment: cluster", "deployment: clutser", "roles.train.deployment", ["write 'cluster'"]),
    (DESK, DESK.replace("ss:", "s:"), "roles.preproces", ["write 'preprocess'"]),
    (DESK, DESK.replace("}", ", service: x}"), "roles.preprocess.service", ["no services"]),
    (DESK, DESK.replace("}", ", locations: 2}"), "roles.preprocess.locations", ["one location"]),
    (DESK, "preprocess: desk", "roles.preprocess", ['"desk"', "object"]),
    (f"  {DESK}\n", "", "roles", ["no deployment for role 'preprocess'", "step /prepare"]),
    (f"  {DESK}\n", f"  {DESK}\n  gate: {{deployment: desk}}\n  segment: {{deployment: idle}}\n",
     "roles.gate", ["same machines", "gate on desk/-, segment on idle/-"]),
    (f"  {DESK}\n", f"  {DESK}\n  gate: {{deployment: desk}}\n  classify: {{deployment: idle}}\n",
     "roles.gate", ["same machines", "gate on desk/-, classify on idle/-"]),
    ("wraps: login", "wraps: logon", "deployments.cluster.wraps", ["no deployment 'logon'", "write 'login'"]),
    ("type: ssh", "type: ssh\n    wraps: cluster", "deployments.cluster.wraps", ["cycle", "cluster → login → cluster"]),
    ("type: slurm", "type: medweave.slrum", "deployments.cluster.type", ["no connector 'medweave.slrum'", "medweave.local"]),
    (DESK_CONFIG, DESK_CONFIG.replace("{}", "{speed: 1}"), "deployments.desk.config.speed", ["transferBufferSize"]),
    (DESK_CONFIG, DESK_CONFIG.replace("{}", "{transferBufferSize: 0}"),
     "deployments.desk.config.transferBufferSize", ["minimum"]),
    ("    type: medweave.local\n    workdir", "    workdir", "deployments.desk", ["'type' is missing"]),
    (SLURM, SLURM.replace("slurm", "medweave.slurm").replace("gpu}", "gpu, environment: {virtualEnvironment: ~/e, apptainer: /i}}"),
     "deployments.cluster.config.services.gpu.environment.apptainer", ["exclude each other", "virtualEnvironment: ~/e"]),
    ("  desk:", "  Desk:", "deployments", ["Desk"]),
    (BEFORE_ROLES, f"inputs:\n  cohrt: {{deployment: desk, workdir: /x}}\n{BEFORE_ROLES}",
     "inputs.cohrt", ["has this input", "cohort, model, seed"]),
    (BEFORE_ROLES, f"inputs:\n  cohort: {{deployment: desk}}\n{BEFORE_ROLES}",
     "inputs.cohort", ["'workdir' is missing"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "field", "words"), FAULTS, ids=[f"{fault[2]}-{fault[3][0]}" for fault in FAULTS]
)
def test_a_fault_is_told_with_the_path_to_its_field(
    project: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, field: str, words: list[str]
) -> None:
    monkeypatch.chdir(project)
    change(project, old, new)
    with pytest.raises(UserInputError) as caught:
        bound(project)
    place = rf"deployments/sites/two\.yml:\d+: {re.escape(field)}: " if field else r"deployments/sites/two\.yml:1: the"
    assert re.match(place, caught.value.what)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.seen
    assert caught.value.expected
    assert caught.value.do


def test_more_nodes_than_hosts_are_refused(project: Path) -> None:
    change(project, "type: ssh", "type: medweave.ssh")
    change(project, 'nodes: ["login.example.org"]', "nodes: [ws-1, ws-2]")
    assert "{step: /train, target: {deployment: login, locations: 2}}" in bound(project, role_options=["train=login:2"])
    change(project, "deployment: cluster, service: gpu, locations: 2", "deployment: login, locations: 3")
    with pytest.raises(
        UserInputError, match=r"roles\.train\.locations: deployment 'login' has too few hosts"
    ) as caught:
        bound(project)
    assert (caught.value.seen, caught.value.expected) == ("3", "at most 2: its `nodes` are ws-1, ws-2")


@pytest.mark.parametrize(
    "tool",
    [
        "class: CommandLineTool\n",
        "class: CommandLineTool\nhints: {other:Gang: {}}\n",
        'class: CommandLineTool\n$namespaces: {medweave: "urn:else#"}\nhints: {medweave:Gang: {}}\n',
    ],
)
def test_nodes_for_a_step_that_runs_on_one_are_refused(project: Path, tool: str) -> None:
    (project / "workflows/lung/tools/train.cwl").write_text(tool)
    with pytest.raises(UserInputError, match=r"roles\.train\.locations: step /train runs on one node"):
        bound(project)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("run: tools/train.cwl", 'hints: {"urn:medweave:cwl#Gang": {}}, run: tools/prepare.cwl'),
        ("run: tools/train.cwl", 'run: {class: CommandLineTool, hints: [{class: "urn:medweave:cwl#Gang"}]}'),
    ],
)
def test_the_hint_may_stand_at_the_step_or_in_a_tool_inside(project: Path, old: str, new: str) -> None:
    workflow = project / "workflows" / "lung" / "train.cwl"
    workflow.write_text(workflow.read_text().replace(old, new))
    assert "locations: 2" in bound(project)


def test_of_a_role_only_the_steps_that_can_use_several_nodes_get_them(project: Path) -> None:
    roles = project / "workflows" / "lung" / "roles.yml"
    roles.write_text(roles.read_text().replace("/prepare: preprocess", "/prepare: train"))
    text = bound(project)
    assert "{step: /train, target: {deployment: cluster, service: gpu, locations: 2}}" in text
    assert "{step: /prepare, target: {deployment: cluster, service: gpu}}" in text


def test_deployments_on_one_line_are_refused(project: Path) -> None:
    (project / "deployments/sites/two.yml").write_text(
        "title: x\ndeployments: {desk: {type: medweave.local, config: {}}}\n"
        "roles: {preprocess: {deployment: desk}, train: {deployment: desk}}\n"
    )
    with pytest.raises(UserInputError, match="deployments cannot be copied"):
        bound(project)


def test_an_unknown_site_names_the_known_ones(project: Path) -> None:
    (project / "deployments/sites/two-pods.yml").write_text("kind: Deployment\n")  # a manifest that a site names
    with pytest.raises(UsageError, match="there is no site 'tow'") as caught:
        bound(project, "tow")
    assert "one of two, or" in caught.value.expected
    assert caught.value.do == "write 'two' (closest match)"


def test_a_site_file_that_is_not_there_is_an_error(project: Path) -> None:
    with pytest.raises(UserInputError, match=r"nowhere\.yml: there is no such site file"):
        bound(project, str(project / "nowhere.yml"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("roles.yml", "train.cwl: {/prepare: preprocess}\n", "step /train has no role"),
        ("roles.yml", "train.cwl: {/prepare: preprocess, /train: train, /tarin: train}\n", "there is no step /tarin"),
        ("roles.yml", "infer.cwl: {/prepare: preprocess}\n", "this file has no roles for the steps of train.cwl"),
        ("train.cwl", "class: CommandLineTool\n", "not a workflow with steps"),
        ("jobs/demo-train.yml", "cohort: x\nsead: 1\n", "'sead'"),
    ],
)
def test_documents_that_do_not_fit_are_errors(project: Path, name: str, text: str, message: str) -> None:
    (project / "workflows" / "lung" / name).write_text(text)
    with pytest.raises(StepError) as caught:
        bound(project)
    assert message in str(caught.value)


def test_without_a_job_of_a_demo_one_has_to_be_named(project: Path) -> None:
    (project / "workflows/lung/jobs/demo-train.yml").unlink()
    with pytest.raises(UsageError, match="no job file given"):
        bound(project)


def test_a_failure_leaves_the_earlier_file_as_it_was(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = project / "x.yml"
    output.write_text("earlier")
    change(project, "type: slurm", "type: medweave.slrum")
    assert main(["bind", str(project / "workflows/lung/train.cwl"), "--site", "two", "-o", str(output)]) == 65
    assert "medweave bind: " in capsys.readouterr().err
    assert output.read_text() == "earlier"


def test_the_site_of_these_tests_is_right(project: Path) -> None:
    # A fault in it would let the tests of faults pass for another reason.
    assert (project / "deployments/sites/two.yml").read_text() == SITE
    assert read_site(project / "deployments/sites/two.yml").name == "two"
