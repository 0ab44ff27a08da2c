"""The care purpose of inpatients: a model of train.cwl under cwltool, and a part of a grid by search.cwl under StreamFlow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from medweave_steps.io.model.folder import read_card
from support.both_engines import begin
from support.cwl_files import WORKFLOWS
from support.searches import table_in
from support.tables import phantom

FOLDER = WORKFLOWS / "care-purpose"
JSON = "http://edamontology.org/format_3464"
NETWORK = {"units": 16, "hidden_layers": 2}
PARAMETERS = 14_637 * 16 + 16 + (16**2 + 16) + 13 * 16 + 13
"""Of two layers of 16 units with 13 outputs: of 400 inpatients none has the rarest of the 14 classes."""
OPTIONS = {
    "task": "classification", "sampling": "natural", "network": "mlp", "optimizer": "adam", "schedule": "constant",
    "learning-rate": 0.001, "validation-interval": 1, "strategy": "parameter-server", "threads-per-rank": 1,
}  # fmt: skip


@pytest.mark.pipeline
def test_inpatients_are_classified_by_one_network_and_by_a_part_of_a_grid(tmp_path: Path) -> None:
    cohort = {"class": "Directory", "path": str(phantom(tmp_path, "inpatients", "--rows", "400"))}
    grid = {
        "options": OPTIONS | {"epochs": 1},
        "product": {"units,hidden-layers": {"fine": [[16, 2], [16, 4]], "coarse": [[32, 2]]}, "batch-size": [100], "ranks": [2]},
    }  # fmt: skip
    (tmp_path / "grid.json").write_text(json.dumps(grid))
    jobs = {
        "train": {f"training_{name}": value for name, value in (NETWORK | {"epochs": 2, "batch_size": 101}).items()}
        | {"training_strategy": "parameter-server", "training_ranks": 3, "training_threads": 1}
        | {"training_best_by": "loss", "training_transport": "gloo"},
        "search": {"grid": {"class": "File", "path": str(tmp_path / "grid.json"), "format": JSON}}
        | {"only": ["group=fine", "hidden-layers=2"]},
    }
    started = {}
    for name, engine in (("train", "cwltool"), ("search", "streamflow")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.json").write_text(json.dumps({"cohort": cohort, **jobs[name]}))
        with (tmp_path / name / "log").open("w") as log:
            started[name] = begin(
                tmp_path / name, FOLDER / f"{name}.cwl", engine, "job.json", "out", log=log,
                targets=["trained_model"] if engine == "cwltool" else (),
            )  # fmt: skip
    for name, process in started.items():
        assert process.wait(600) == 0, (tmp_path / name / "log").read_text()

    metrics = json.loads((tmp_path / "search" / "out" / "evaluation" / "metrics.json").read_text())
    assert (metrics["cases"], len(metrics["by_class"])) == (40, 13), "a tenth of the patients"
    assert {"micro_f1", "macro_f1", "weighted_f1", "macro_roc_auc", "macro_average_precision"} <= metrics.keys()
    assert metrics["baseline"]["rule"] == "logistic regression"
    text = (tmp_path / "search" / "out" / "report" / "fragment.html").read_text()
    assert "Medical care purpose of inpatients" in text

    card = read_card(tmp_path / "train" / "out" / "exported_model")
    assert (card.training["best_by"], card.training["transport"]) == ("loss", "gloo")
    assert (card.training["workers"], card.training["batch_size"]) == (2, 101), "an odd batch for two workers"
    (row,) = (table := table_in(tmp_path / "search" / "out" / "search")).rows
    assert (row.group, row.parameters, row.ranks) == ("fine", PARAMETERS, 2)
    assert row.metrics.keys() >= {"validation_log_loss", "validation_macro_f1", "validation_weighted_f1"}
    assert row.energy_kind in ("measured", "modelled")
    assert [(one.group, one.planned, one.selected, one.reason) for one in table.planned] == [
        ("fine", 2, 1, "not selected"), ("coarse", 1, 0, "not selected"),
    ]  # fmt: skip
    assert "not selected" in text
