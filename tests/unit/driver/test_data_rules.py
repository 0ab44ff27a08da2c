"""Data rules of a site: errors of `medweave bind`, and the rules that it writes for the run."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from medweave.placement.bind import bind
from medweave_core.errors import UsageError, UserInputError
from support.sites import ROLES, SITE, write_project

HOLDS = """\
holds:
  inputs: {cohort: identified, model: model}
  outputs:
    preprocess: {set: derived}
    train: model
"""
MAY_HOLD = """\
mayHold:
  desk: [identified, derived]
  cluster: [de-identified, derived, model]
"""
COHORT = "inputs:\n  cohort: {deployment: login, workdir: /ct}\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_project(tmp_path, SITE + MAY_HOLD)
    (tmp_path / "workflows/lung/roles.yml").write_text(ROLES + HOLDS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def without_line(text: str) -> str:
    """The beginning of an error, whose line is there."""
    assert re.match(r"\S+\.yml:\d+: ", text)
    return re.sub(r":\d+: ", ": ", text, count=1)


def bound(project: Path, **more: Any) -> dict[str, Any]:
    text = bind(project / "workflows/lung/train.cwl", "two", project / "streamflow.yml", **more)
    document: dict[str, Any] = YAML(typ="safe").load(text)
    return document


def change(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def site_of(project: Path) -> Path:
    return project / "deployments/sites/two.yml"


def test_the_bound_file_has_the_rules_for_the_run(project: Path) -> None:
    document = bound(project)
    assert document["bindingFilters"] == {
        "data-rules": {
            "type": "medweave.filter",
            "config": {
                "holds": {"/prepare": ["identified", "derived"], "/train": ["derived", "model"]},
                "mayHold": {"desk": ["identified", "derived"], "cluster": ["de-identified", "derived", "model"]},
            },
        }
    }
    (workflow,) = document["workflows"].values()
    assert [binding["filters"] for binding in workflow["bindings"]] == [["data-rules"]] * 2


def test_the_bound_file_says_what_each_input_and_output_carries(project: Path) -> None:
    change(
        project / "workflows/lung/train.cwl", "outputs: {}", "outputs: {best: {type: File, outputSource: train/model}}"
    )
    change(site_of(project), "desk: [identified, derived]", "desk: [identified, derived, model]")
    change(site_of(project), "title:", "transfers: {direct: false}\ntitle:")
    config = bound(project)["dataManager"]["config"]
    assert config["direct"] is False
    assert config["dataRules"] == {
        "carries": {
            "/": {"cohort": "identified", "best": "model"},
            "/prepare": {"cohort": "identified", "set": "derived"},
            "/train": {"set": "derived", "model": "model"},
        },
        "mayHold": {"desk": ["identified", "derived", "model"], "cluster": ["de-identified", "derived", "model"]},
        "driver": ["identified", "derived", "model"],
    }
    jsonschema.validate(
        config, json.loads(files("medweave_connectors").joinpath("engine/data/schema.json").read_text())
    )


def test_a_result_that_this_machine_may_not_hold_is_refused(project: Path) -> None:
    change(
        project / "workflows/lung/train.cwl", "outputs: {}", "outputs: {best: {type: File, outputSource: train/model}}"
    )
    with pytest.raises(
        UserInputError, match=r"mayHold: the data rules do not allow output 'best' on this machine"
    ) as caught:
        bound(project)
    assert caught.value.seen == "model data; this machine may hold identified, derived"
    assert "medweave.local whose mayHold has model" in caught.value.expected


def test_data_rules_for_copies_are_not_written_by_hand_into_a_site_file(project: Path) -> None:
    change(site_of(project), "title:", "transfers: {dataRules: {}}\ntitle:")
    with pytest.raises(UserInputError, match=r"transfers"):
        bound(project)


def test_a_site_without_rules_restricts_nothing(project: Path) -> None:
    site_of(project).write_text(SITE)
    (project / "workflows/lung/roles.yml").write_text(ROLES)
    document = bound(project)
    assert "bindingFilters" not in document
    assert document["dataManager"]["config"] == {}


@pytest.mark.parametrize(
    ("new", "allowed"),
    [
        ("desk: [derived, model]", "which may hold derived, model"),
        ("desk: []", "which may hold nothing"),
        ("idle: [identified, derived]", "which may hold nothing (no line in mayHold)"),
    ],
)
def test_a_forbidden_place_is_refused_with_its_field(project: Path, new: str, allowed: str) -> None:
    change(site_of(project), "desk: [identified, derived]", new)
    with pytest.raises(UserInputError) as caught:
        bound(project)
    assert without_line(caught.value.what) == (
        "deployments/sites/two.yml: roles.preprocess.deployment: the data rules do not allow step /prepare at 'desk'."
    )
    assert "identified" in caught.value.seen
    assert "data (cohort" in caught.value.seen, "the input or output"
    assert allowed in caught.value.seen
    if "idle" in new:
        assert caught.value.expected.endswith("has identified, derived: idle")
        assert caught.value.do == "bind role 'preprocess' to idle"
    else:
        assert caught.value.expected.endswith("has identified, derived: none")
        assert caught.value.do == "correct mayHold.desk, if it is wrong"


def test_a_forbidden_place_of_the_command_line_is_refused_as_that_option(project: Path) -> None:
    with pytest.raises(
        UsageError, match=r"--role preprocess=cluster/gpu: the data rules do not allow step /prepare at 'cluster'"
    ) as caught:
        bound(project, role_options=["preprocess=cluster/gpu"])
    assert caught.value.do == "bind role 'preprocess' to desk"


def test_a_cohort_that_was_de_identified_makes_the_steps_of_it_so(project: Path) -> None:
    change(site_of(project), "# Who does", f"{COHORT.replace('/ct', '/ct, holds: de-identified')}# Who does")
    change(site_of(project), "preprocess: {deployment: desk}", "preprocess: {deployment: cluster, service: gpu}")
    change(site_of(project), "  cluster: [de-", "  login: [de-identified]\n  cluster: [de-")
    classes = bound(project)["bindingFilters"]["data-rules"]["config"]["holds"]
    assert classes == {"/prepare": ["de-identified", "derived"], "/train": ["derived", "model"]}
    assert bound(project)["dataManager"]["config"]["dataRules"]["carries"]["/prepare"]["cohort"] == "de-identified"
    change(site_of(project), ", holds: de-identified", "")
    with pytest.raises(
        UserInputError,
        match=r"inputs\.cohort\.deployment: the data rules of the site do not allow this input at 'login'",
    ) as caught:
        bound(project)
    assert "identified data at 'login', which may hold de-identified" in caught.value.seen


# (file, old text, new text, place in the message, words in the message)
FAULTS = [
    ("site", "  desk: [id", "  dsk: [id", "deployments/sites/two.yml: mayHold.dsk: ", "write 'desk'"),
    ("site", "desk: [identified", "desk: [identifed", "deployments/sites/two.yml: mayHold.desk[0]: ", "de-identified"),
    ("site", "# Who does", "inputs:\n  model: {deployment: desk, workdir: /m, holds: model}\n# Who does",
     "deployments/sites/two.yml: inputs.model.holds: ", "de-identified"),
    ("roles", "holds:", "hold:", "workflows/lung/roles.yml: the workflow declares no data classes", "no key `holds`"),
    ("roles", "    train: model\n", "", "workflows/lung/roles.yml: holds.outputs.train: ", "'model' of role 'train'"),
    ("roles", "{set: derived}", "{}", "workflows/lung/roles.yml: holds.outputs.preprocess: ", "output 'set'"),
    ("roles", "train: model", "trian: model", "workflows/lung/roles.yml: holds.outputs.trian: ", "write 'train'"),
    ("roles", "set: derived", "sett: derived", "workflows/lung/roles.yml: holds.outputs.preprocess.sett: ", "'set'"),
    ("roles", "cohort: identified, ", "", "workflows/lung/roles.yml: holds.inputs: ", "input 'cohort'"),
    ("roles", "cohort: identified", "cohrt: identified", "workflows/lung/roles.yml: holds.inputs.cohrt: ", "'cohort'"),
    ("roles", "cohort: identified", "cohort: secret", "workflows/lung/roles.yml: holds.inputs.cohort: ", "identified"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "old", "new", "place", "words"), FAULTS, ids=[fault[2][:20] for fault in FAULTS])
def test_what_is_wrong_in_the_rules_is_told_with_its_place(
    project: Path, file: str, old: str, new: str, place: str, words: str
) -> None:
    change(site_of(project) if file == "site" else project / "workflows/lung/roles.yml", old, new)
    with pytest.raises(UserInputError) as caught:
        bound(project)
    assert without_line(caught.value.what).startswith(place)
    assert words in str(caught.value)
    assert caught.value.seen
    assert caught.value.do


def test_an_input_without_people_cannot_be_de_identified(project: Path) -> None:
    change(site_of(project), "# Who does", f"{COHORT.replace('/ct', '/ct, holds: de-identified')}# Who does")
    change(site_of(project), "mayHold:", "mayHold:\n  login: [model]")
    change(project / "workflows/lung/roles.yml", "cohort: identified", "cohort: model")
    with pytest.raises(
        UserInputError, match=r"inputs\.cohort\.holds: this data class is allowed only for an input with patient data"
    ) as caught:
        bound(project)
    assert caught.value.seen == "de-identified, but the workflow declares model"
