"""The figures of `make demo-fraud`, `demo-ecg` and `demo-care`, from small records of `evaluate` and `search`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.scripts import module_of

ROOT = Path(__file__).resolve().parents[3]
POOLED = ("micro_f1", "macro_f1", "weighted_f1", "macro_roc_auc", "macro_average_precision", "accuracy")


def pooled(first: float) -> dict[str, Any]:
    """Return figures over all classes, each another number, with intervals."""
    figures = {name: round(first + place / 100, 2) for place, name in enumerate(POOLED)}
    return {**figures, **{f"{name}_ci": [0.1, 0.9] for name in POOLED}}


def by_class(*names: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "f1": 0.3 + place / 10, "f1_ci": [0.1, 0.9], "roc_auc": 0.5 + place / 10, "average_precision": 0.7}
        for place, name in enumerate(names)
    ]  # fmt: skip


METRICS: dict[str, Any] = {
    **pooled(0.8), "by_class": by_class("kept", "excluded"), "baseline": pooled(0.6), "cases": 40, "patients": 7,
    "synthetic": True, "by_recording": {**pooled(0.9), "by_class": by_class("N", "A"), "scored_classes": ["N", "A"]},
}  # fmt: skip


@pytest.fixture
def demo_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    monkeypatch.syspath_prepend(str(ROOT / "deployments" / "demo"))
    yield lambda name: module_of(ROOT / "deployments" / "demo" / f"{name}.py")
    sys.modules.pop("demo", None)


@pytest.mark.parametrize("name", ["fraud", "ecg", "care"])
def test_the_summary_has_scores_baseline_and_seconds(
    name: str, demo_of: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    demo = demo_of(name)
    own: dict[str, Any] = {"roc_auc": 0.6, "average_precision": 0.7, "f1": 0.4, "test_rows": 40}
    if name == "ecg":
        own = {
            "recording_macro_f1": 0.91, "recording_macro_f1_ci": [0.1, 0.9], "recording_accuracy": 0.95,
            "recording_f1_by_class": {"N": 0.3, "A": 0.4}, "test_recordings": 7, "test_samples": 40,
        }  # fmt: skip
    if name == "care":
        monkeypatch.setattr(demo, "RESULTS", tmp_path)
        own = with_search(tmp_path)
    summary = demo.summary_of(METRICS, 12.34)
    assert summary == own | {
        "micro_f1": 0.8, "macro_f1": 0.81, "weighted_f1": 0.82, "macro_roc_auc": 0.83, "macro_average_precision": 0.84,
        "accuracy": 0.85, "f1_by_class": {"kept": 0.3, "excluded": 0.4}, "roc_auc_by_class": {"kept": 0.5, "excluded": 0.6},
        "baseline_accuracy": 0.65, "baseline_macro_f1": 0.61, "synthetic_data": True,
        "report": f"build/demo-{name}/report.html", "seconds": 12.3,
    }  # fmt: skip
    demo.print_table(METRICS, summary)
    shown = capsys.readouterr().out
    assert f"build/demo-{name}/report.html" in shown
    assert "12 s in all" in shown


def with_search(folder: Path) -> dict[str, Any]:
    """Write the table of a search of one trial in two groups of combinations; return what the summary has of it."""
    groups = {
        group: {"group": group, "planned": 4, "selected": selected, "skipped": 4 - selected}
        for group, selected in (("fine", 1), ("coarse", 0))
    }
    varied = {"units": 16, "hidden-layers": 2, "ranks": 3}
    known = {
        "state": "completed",
        "parameters": 9,
        "score": 0.5,
        "seconds": 2.0,
        "energy_wh": 0.1,
        "energy_kind": "modelled",
    }
    row = {"trial_id": "t0", "group": "fine", "varied": varied, "host": "h", **known}
    (folder / "search").mkdir()
    table = {"rows": [row], "planned": list(groups.values()), "best": "t0"}
    (folder / "search" / "search.json").write_text(json.dumps(table))
    return {
        "planned": 8, "selected": 1, "skipped": 7, "groups": groups, "test_patients": 40,
        "trials": [{"group": "fine", **varied, **known, "selected": True}],
    }  # fmt: skip
