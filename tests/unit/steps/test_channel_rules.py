"""The rules file of `check --channels`, and the modality that a channel's name stands for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from medweave_core.contracts.volume import modality_of, unit_of
from medweave_core.errors import StepError, UsageError
from medweave_steps.cli import main
from medweave_steps.io.cohort.channel_rules import ChannelRule, read_channel_rules
from support.nifti_files import save, volume

RULES = [
    {"name": "FLAIR", "series_description": "flair", "inversion_time_ms": [2000, 2600]},
    {"name": "T1w", "contrast": False},
]


def test_rules_are_read_from_json_and_yaml(tmp_path: Path) -> None:
    (tmp_path / "rules.json").write_text(json.dumps(RULES))
    (tmp_path / "rules.yaml").write_text(
        "- name: FLAIR\n  series_description: flair\n  inversion_time_ms: [2000, 2600]\n- {name: T1w, contrast: false}\n"
    )
    rules = read_channel_rules(tmp_path / "rules.json")
    assert rules == read_channel_rules(tmp_path / "rules.yaml")
    assert rules[0] == ChannelRule(name="FLAIR", series_description="flair", inversion_time_ms=(2000, 2600))


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([], "a list"),
        ({"FLAIR": {}}, "a dict"),
        ([{"name": "T1w"}, {"name": "T1w", "contrast": True}], "the names T1w, T1w"),
        ([{"name": "T1w", "echo_time": [1, 2]}], "echo_time"),
        ([{"name": "T1w", "echo_time_ms": [20, 5]}], "echo_time_ms [20, 5]"),
        ([{"name": "T1w", "series_description": "("}], "series_description of T1w"),
        ([{"name": "T1/w"}], "T1/w"),
        ([{"name": "PET"}], "modality MR for the name 'PET'"),
        ([{"name": "uptake", "modality": "PT"}], "modality PT for the name 'uptake'"),
        ([{"name": "CT", "modality": "CT"}, {"name": "PET", "modality": "PT"}], "channels of CT, PT in one case"),
    ],
)
def test_rules_that_cannot_be_used_are_refused(tmp_path: Path, rules: Any, words: str) -> None:
    (tmp_path / "rules.json").write_text(json.dumps(rules))
    with pytest.raises(StepError) as error:
        read_channel_rules(tmp_path / "rules.json")
    assert words in error.value.seen


def test_a_file_that_is_no_rules_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rules.json").write_text("- a: [")
    (tmp_path / "rules.yaml").write_text("- a: [")
    for name in ("rules.json", "rules.yaml"):
        with pytest.raises(StepError, match="no valid channel rules"):
            read_channel_rules(tmp_path / name)
    with pytest.raises(UsageError):
        read_channel_rules(tmp_path / "absent.yaml")


def test_rules_for_nifti_volumes_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "cohort" / "a.nii.gz", volume())
    (tmp_path / "rules.json").write_text(json.dumps(RULES))
    command = ["check", "--cohort", str(tmp_path / "cohort"), "--output", str(tmp_path / "index.json")]
    command += ["--channels", str(tmp_path / "rules.json"), "--run-report", str(tmp_path / "report.json")]
    assert main([*command, "--num-threads", "1"]) == 2
    assert "for DICOM series only" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("channels", "modality", "unit"),
    [
        (("CT",), "CT", "HU"),
        (("FLAIR", "T1w"), "MR", "SD"),
        (("PET",), "PT", "SUV"),
        (("PET FDG", "PET PSMA"), "PT", "SUV"),
        (("PETRA",), "MR", "SD"),
    ],
)
def test_modality_and_unit_follow_from_the_channels(channels: tuple[str, ...], modality: str, unit: str) -> None:
    assert (modality_of(channels), unit_of(channels)) == (modality, unit)
