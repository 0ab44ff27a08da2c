"""The classification of rows of a table under StreamFlow and cwltool: equal models, probabilities and figures."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from medweave_steps.io.model.folder import read_card
from support.both_engines import only, run_both, run_under_streamflow
from support.cwl_files import WORKFLOWS
from support.tables import phantom

FOLDER = WORKFLOWS / "provider-fraud"
YAML = "http://edamontology.org/format_3750"


@pytest.mark.pipeline
def test_claims_give_equal_models_and_probabilities_under_both_engines(tmp_path: Path) -> None:
    phantom(tmp_path, "claims", "--rows", "400", "--listed-rows", "60")
    job = {
        "cohort": {"class": "Directory", "path": "claims"}, "target_list": "exclusions.csv", "training_epochs": 2,
        "training_layers": {"class": "File", "path": str(FOLDER / "mlp.yml"), "format": YAML}, "training_threads": 1,
        "rows_per_part": 16,
    }  # fmt: skip
    results = run_both(tmp_path, FOLDER / "train.cwl", job)
    same = ("model.safetensors", "classifications.csv", "metrics.json")
    chosen = {name: only(files, *same) for name, files in results.items()}
    assert chosen["streamflow"] == chosen["cwltool"]

    root = tmp_path / "by-cwltool"
    assert {one.name for one in read_card(root / "exported_model").classes} == {"excluded", "not-excluded"}
    metrics = json.loads((root / "evaluation" / "metrics.json").read_text())
    assert metrics["cases"] == 24, "a fifth of the 60 rows of excluded providers, and as many others"
    tables = list(root.rglob("classifications.csv"))
    assert len(tables) == 2, "one table per batch of at most 16 rows"
    rows = [row for path in tables for row in csv.DictReader(path.open(encoding="utf-8", newline=""))]
    assert len({row["case_id"] for row in rows}) == len(rows) == 24
    assert json.loads((root / "report" / "summary.json").read_text())["title"]

    # Some of the rows again, as a new table: without schema and exclusion list, and by the model alone.
    header, *lines = (tmp_path / "claims" / "claims.tsv").read_text().splitlines()
    new = tmp_path / "new"
    (new / "cohort").mkdir(parents=True)
    (new / "cohort" / "claims.tsv").write_text("\n".join([header, *lines[:40]]) + "\n")
    model = {"class": "Directory", "path": str(root / "exported_model")}
    again = {"cohort": {"class": "Directory", "path": "cohort"}, "classification_model": model}
    run_under_streamflow(new, FOLDER / "infer.cwl", again)
    (table,) = (new / "by-streamflow").rglob("classifications.csv")
    classified = {row["case_id"]: row for row in csv.DictReader(table.open(encoding="utf-8", newline=""))}
    assert len(classified) == 40
    tested = {row["case_id"]: row for row in rows if row["case_id"] in classified}
    assert tested
    assert classified.items() >= tested.items(), "the split does not matter"


@pytest.mark.pipeline
def test_times_of_repeated_trainings_are_compared_over_numbers_of_nodes(tmp_path: Path) -> None:
    phantom(tmp_path, "claims", "--rows", "300", "--listed-rows", "40")
    job = {
        "cohort": {"class": "Directory", "path": "claims"}, "target_list": "exclusions.csv", "training_epochs": 1,
        "training_layers": {"class": "File", "path": str(FOLDER / "mlp.yml"), "format": YAML},
        "ratios": [2], "nodes": [1, 2], "trial_seeds": [0, 1], "alpha": 0.1,
    }  # fmt: skip
    run_under_streamflow(tmp_path, FOLDER / "timings.cwl", job)
    folder = tmp_path / "by-streamflow" / "statistics"
    with (folder / "measurements.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["ratio"], row["rows"], row["ranks"], row["seed"]) for row in rows] == [
        ("1:2", "96", str(ranks), str(seed)) for ranks in (1, 2) for seed in (0, 1)
    ]  # fmt: skip
    statistics = json.loads((folder / "statistics.json").read_text())
    assert statistics["alpha"] == 0.1
    analyses = statistics["analyses"]
    assert [(one["name"], *(row["df"] for row in one["anova"])) for one in analyses] == [("1:2", 1, 2)]
    seconds = [float(row["seconds"]) for row in rows[:2]]
    assert analyses[0]["groups"][0]["mean"] == pytest.approx(sum(seconds) / 2)
    assert all(group["letters"] for one in analyses for group in one["groups"])
    assert "1:2" in (folder / "fragment.html").read_text()
