"""The residual network for ECG: parameters, lengths, partitions, and the chain from training to report."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from medweave_core.errors import UsageError
from medweave_steps.cli import main
from medweave_steps.io.model.folder import read_card
from medweave_steps.io.model.network import build_network
from medweave_steps.networks import network_type
from medweave_steps.report.classification.pictures import CURVE_ROWS, curve_of
from medweave_steps.train.network import architecture
from support.image_files import preprocess
from support.recordings import ecg_cohort

torch = pytest.importorskip("torch")

SHAPE = (1300, 1, 1)


def described(shape: tuple[int, int, int] = SHAPE, **options: Any) -> Any:
    own = network_type("ecg-resnet").Options(**options)
    config: Any = SimpleNamespace(network="ecg-resnet", network_options=own, patch_shape=shape, task="classification")
    return architecture(config, channels=1, out_channels=4)


def convolutions(network: Any) -> list[Any]:
    return [module for module in network.modules() if isinstance(module, torch.nn.Conv2d)]


@pytest.mark.parametrize(("width", "expected"), [(1.0, 32_476_484), (0.125, 511_404)])
def test_the_network_has_75_convolutions_and_the_parameters_of_the_reference(width: float, expected: int) -> None:
    with torch.device("meta"):
        network = build_network(described(width=width))
    assert len(convolutions(network)) == 75
    assert sum(parameter.numel() for parameter in network.parameters()) == expected
    channels = [conv.out_channels for conv in convolutions(network)[1::2]]
    assert channels == [round(64 * width) * (1 + block // 10) for block in range(37)]


def test_every_fourth_block_halves_the_length_and_partitions_give_the_same_logits() -> None:
    torch.manual_seed(0)
    network = build_network(described(width=1 / 16)).eval()
    signal = torch.randn(2, 1, *SHAPE)
    features, lengths = signal, []
    with torch.inference_mode():
        for name, part in network.partitions():
            features = part(features)
            if name.startswith("blocks."):
                lengths.append(features.shape[-1])
        assert torch.equal(features, network(signal))
    assert lengths == [(1300, 650, 325, 163, 82, 41, 21, 11, 6, 3)[(block + 1) // 4] for block in range(37)]
    assert features.shape == (2, 4)


def test_options_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="patch-shape"):
        described(shape=(64, 64, 1))


def test_the_picture_of_a_sample_is_its_curve() -> None:
    signal = np.zeros(1300, np.float32)
    signal[130] = 1.0
    picture = curve_of(signal)
    assert picture.shape == (CURVE_ROWS, 1300)
    assert picture[0].argmin() == 130
    assert (picture[0] == 0).sum() == 2  # up to the peak and down again
    assert (picture[-1] == 0).all()


def run(verb: str, folder: Path, name: str, *words: str) -> int:
    options = ["--output", str(folder / name), "--run-report", str(folder / f"{name}.json"), "--num-threads", "1"]
    return main([verb, *words, *options])


def test_a_network_is_trained_evaluated_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Export and OpenVINO of this network take most of such a chain: tests/cwl/test_atrial_fibrillation.py runs them."""
    labels = {f"A{number}": rhythm for number, rhythm in enumerate("NNNNAAAA", start=1)}
    cohort = ecg_cohort(tmp_path / "cohort", labels)
    (cohort / "cohort_card.json").write_text(json.dumps({"synthetic": True}))
    code, prepared, _ = preprocess(cohort, "--fractions", "0.5", "0.25", "0.25")
    assert code == 0
    words = ["--training-set", str(prepared / "training_set"), "--task", "classification", "--network", "ecg-resnet"]
    words += [
        "--width",
        "0.0625",
        "--steps",
        "2",
        "--epoch-steps",
        "2",
        "--batch-size",
        "2",
        "--validation-interval",
        "1",
    ]
    assert run("train", tmp_path, "trained", *words, "--training-log", str(tmp_path / "log")) == 0
    card = read_card(tmp_path / "trained")
    assert (card.input.modality, card.input.unit, card.input.patch_shape) == ("ECG", "mV", SHAPE)
    batch = str(prepared / "inference_batches" / "batch-000")
    model = ["--model", str(tmp_path / "trained"), "--case-batch", batch]
    assert run("classify", tmp_path, "classes", *model, "--backend", "torch") == 0
    rows = (tmp_path / "classes" / "classifications.csv").read_text().splitlines()[1:]
    assert run("explain", tmp_path, "maps", *model) == 65
    assert "samples of an ECG cannot be explained" in capsys.readouterr().err
    classified = ["--classifications", str(tmp_path / "classes"), "--case-batches", batch]
    index = ["--cohort-index", str(cohort.parent / "cohort-out" / "cohort_index.json")]
    fitted = ["--training-set", str(prepared / "training_set"), "--bootstrap-resamples", "100"]
    assert run("evaluate", tmp_path, "metrics", *index, *classified, *fitted) == 0
    metrics = json.loads((tmp_path / "metrics" / "metrics.json").read_text())
    assert (metrics["patients"], metrics["cases"]) == (2, len(rows))
    assert (metrics["baseline"]["rule"], metrics["baseline"]["bins"]) == ("amplitude histogram", 64)
    assert metrics["baseline"]["macro_f1"] is not None
    of_training = ["--training-log", str(tmp_path / "log"), "--run-reports", str(tmp_path / "trained.json")]
    words = ["--evaluation", str(tmp_path / "metrics"), *classified, *of_training]
    assert run("report", tmp_path, "report", *words) == 0
    html = (tmp_path / "report" / "fragment.html").read_text()
    assert f"{metrics['cases']} samples of 2 recordings" in html
    assert metrics["by_recording"]["recordings"] == 2
    assert '<h2 id="recordings">Whole recordings</h2>' in html
    assert "F1, mean over N, A" in html
    assert "Recordings by known class (rows) and predicted class (columns)" in html
    assert "five heartbeats of 260 values each at 300 Hz, mV" in html
    assert "logistic regression on the amplitude histogram (64 bins)" in html
