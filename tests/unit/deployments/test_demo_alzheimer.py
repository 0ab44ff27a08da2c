"""The figures of `make demo-alzheimer`, from small records of `explain`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from medweave_core.contracts import codec
from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.explanations import ExplainedCase, ExplainedLayer, Explanations, RegionMass
from support.scripts import module_of

ROOT = Path(__file__).resolve().parents[3]
CONTRACT = {"accuracy", "auc", "explanation_mass_ratio", "sanity_check_passed", "seconds", "report"}
METRICS = {
    "accuracy": 0.75, "accuracy_ci": [0.5, 1.0], "macro_roc_auc": 0.875, "macro_roc_auc_ci": [0.6, 1.0], "patients": 4,
    "synthetic": True,
}  # fmt: skip


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "deployments" / "demo"))
    module = module_of(ROOT / "deployments" / "demo" / "alzheimer.py")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    yield module
    sys.modules.pop("demo", None)


def explained(case_id: str, *shares: tuple[float | None, float], **values: Any) -> ExplainedCase:
    """Return the record of a case with a region for each pair of shares: of the mass, and of the volume."""
    regions = [
        RegionMass(value=place, name=f"label {place}", mass_share=mass, volume_share=volume, ratio=None)
        for place, (mass, volume) in enumerate(shares, start=1)
    ]
    is_empty = bool(shares) and shares[0][0] is None
    return ExplainedCase(
        case_id=case_id, source_format="nifti", files={}, explained_class="AD", is_predicted=True, probability=0.9,
        is_empty=is_empty, regions=tuple(regions), regions_grid="source", **values,
    )  # fmt: skip


def write_batches(folder: Path, *batches: tuple[ExplainedCase, ...]) -> None:
    """Write the records of `explain` as the workflow leaves them."""
    layer = ExplainedLayer(name="a", kind="Conv3d", grid=(2, 2, 2), input_shape=(8, 8, 8), is_default=True)
    for place, cases in enumerate(batches):
        record = Explanations(
            model_name="tiny", model_sha256="0" * 64, layer=layer, synthetic_data=True, synthetic_model=True,
            classes=(ImageClass(name="AD"), ImageClass(name="NC")), cases=cases, sanity_check=None,
        )  # fmt: skip
        path = folder / f"explanations-batch-{place:03}" / "explanations.json"
        path.parent.mkdir()
        path.write_text(codec.dumps(record))


def test_the_summary_has_the_means_over_the_explained_scans(
    demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Two regions are 5 % of the volume, the brain is 20 %: a map that is uniform over the brain has the ratio 5.
    write_batches(
        tmp_path,
        (
            explained("a", (0.1, 0.02), (0.1, 0.03), brain_mass_share=0.8, brain_volume_share=0.2, sanity_correlation=0.1),
            explained("b", (0.2, 0.02), (0.2, 0.03), brain_mass_share=0.4, brain_volume_share=0.2, sanity_correlation=-0.3),
        ),
        (
            explained("empty", (None, 0.02), (None, 0.03), brain_volume_share=0.2),
            explained("without label map", brain_mass_share=0.9, brain_volume_share=0.25, sanity_correlation=-0.9),
        ),
    )  # fmt: skip
    summary = demo.summary_of(METRICS, 12.34)
    assert summary.keys() >= CONTRACT
    assert summary == {
        "accuracy": 0.75,
        "auc": 0.875,
        "explanation_mass_ratio": 6.0,  # of 4 and 8
        "explanation_mass_ratio_of_uniform_brain": 4.75,  # of 5, 5, 5 and 4
        "explanation_mass_ratio_in_brain": 2.5,  # of 1 (a is uniform over the brain) and 4
        "explanation_mass_in_brain": 0.7,  # of 0.8, 0.4 and 0.9
        "explanations_not_empty": 2,
        "sanity_check_passed": True,
        "subjects": 4,
        "synthetic_data": True,
        "report": "build/demo-alzheimer/report.html",
        "seconds": 12.3,
    }
    demo.print_table(METRICS, summary)
    printed = " ".join(capsys.readouterr().out.split())
    for text in (
        "relative to the whole volume 6.00",
        "uniform over the brain 4.75",
        "relative to the brain 2.50",
        "inside the brain 0.70",
        "sanity check of the maps passed",
    ):
        assert text in printed, text


def test_without_maps_to_judge_there_are_no_ratios_and_the_sanity_check_has_not_passed(
    demo: ModuleType, tmp_path: Path
) -> None:
    write_batches(tmp_path, (explained("no mask", (0.2, 0.05)),), (explained("empty", (None, 0.05)),))
    summary = demo.summary_of(METRICS, 1.0)
    assert summary["explanation_mass_ratio"] == 4.0
    assert summary["explanation_mass_ratio_in_brain"] is None
    assert summary["explanation_mass_ratio_of_uniform_brain"] is None
    assert summary["explanation_mass_in_brain"] is None
    assert summary["sanity_check_passed"] is False
