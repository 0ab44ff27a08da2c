"""`train --preset auto`: options chosen for the training set and the memory, and printed with their reasons."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medweave_core.contracts import codec
from medweave_core.contracts.cohort import PreparedCohort
from medweave_core.errors import StepError, UsageError, UserInputError
from medweave_steps.cli import build_parser, load_verb, main
from medweave_steps.inference.intensity import scaled
from medweave_steps.inference.windows import scale_hu
from medweave_steps.io.cohort.prepared import PreparedFolder, open_prepared
from medweave_steps.io.model.folder import check_cohort_fits, read_card
from medweave_steps.runtime.options import read_options
from medweave_steps.tasks import task_named
from medweave_steps.train.config import TrainConfig
from medweave_steps.train.planner import MEMORY_MODELS
from medweave_steps.train.preset import GIB, Memory, Preset, apply_auto, apply_checkpoint
from support.label_set import REGION_WORDS, label_set
from support.training_set import training_set

MEMORY = Memory(model=MEMORY_MODELS["cpu", False], num_bytes=8 * GIB, source="a test")


def noisy_set(folder: Path) -> PreparedFolder:
    """Return a training set whose lesions have values around 40 HU."""
    training_set(folder)
    for path in folder.glob("cases/*/volume.npy"):
        volume = np.load(path)
        np.save(path, volume + np.random.default_rng(0).normal(0, 20, volume.shape).astype(np.float32))
    return open_prepared(folder)


def auto(prepared: PreparedFolder, *words: str, memory: Memory = MEMORY) -> Preset:
    """Return the preset for a command line."""
    line = ["--training-set", str(prepared.folder), "--output", "o", "--preset", "auto", *words]
    namespace = build_parser(load_verb("train")).parse_args(line)
    config = read_options(TrainConfig, namespace)
    given = frozenset(vars(namespace))
    return apply_auto(config, prepared, prepared.cases("train"), options_set=given, memory=memory)


@pytest.mark.slow
def test_training_with_auto_records_its_choices_and_resumes_with_them(tmp_path: Path) -> None:
    noisy_set(tmp_path / "data")
    report = tmp_path / "report.json"
    words = [
        "--training-set", str(tmp_path / "data"), "--preset", "auto", "--steps", "4", "--channels", "4", "8", "8",
        "--num-threads", "1", "--run-report", str(report), "--precision", "float32", "--device", "cpu",
    ]  # fmt: skip
    first = ["--output", str(tmp_path / "model"), "--training-log", str(tmp_path / "log"), "--memory-gib", "1.2"]
    checkpoints = ["--checkpoint-folder", str(tmp_path / "checkpoints"), "--checkpoint-interval", "2"]
    assert main(["train", *words, *first, *checkpoints]) == 0
    card = read_card(tmp_path / "model")
    facts = json.loads(report.read_text())
    assert "preset auto chose these options" in facts["notices"][0]
    assert "intensity" in facts["results"]["training"]["preset"]["choices"]
    assert card.training["preset"]["fingerprint"]["num_cases"] == 2
    assert (card.training["optimizer"], card.training["schedule"], card.training["network"]) == (
        "sgd",
        "polynomial",
        "resenc-unet",
    )
    window, scaled_range = card.input.window_hu, card.input.scaled_range
    assert window is not None
    assert -50 < window[0] < 40 < window[1] < 130
    assert scaled_range[0] < -1 < 1 < scaled_range[1]
    prepared = open_prepared(tmp_path / "data")
    check_cohort_fits(card, prepared.cohort)
    volume = prepared.cases()[0].volume_CIJK()
    np.testing.assert_array_equal(scaled(volume, window, scaled_range), scale_hu(volume, card.input))
    second = ["--output", str(tmp_path / "again"), "--training-log", str(tmp_path / "log2")]
    # After half of the steps, with another memory, which would give another batch.
    before = ["--resume-from", str(tmp_path / "checkpoints" / "checkpoint-before.pt"), "--memory-gib", "99"]
    assert main(["train", *words, *second, *before]) == 0
    assert read_card(tmp_path / "again").files == card.files


def test_a_resumed_training_keeps_the_strategy_of_its_command_line(tmp_path: Path) -> None:
    prepared = noisy_set(tmp_path / "data")
    began = auto(prepared, "--strategy", "local-sgd", "--ranks", "2", "--sync-interval", "1", "--steps", "4").config
    line = ["--training-set", str(prepared.folder), "--output", "o", "--preset", "auto"]
    namespace = build_parser(load_verb("train")).parse_args(line)
    config, content = read_options(TrainConfig, namespace), {"identity": json.dumps(began.identity())}
    resumed = apply_checkpoint(config, content, options_set=frozenset(vars(namespace))).config
    assert (resumed.strategy, resumed.ranks, resumed.strategy_options) == ("single", 1, config.strategy_options)
    assert (resumed.steps, resumed.network, resumed.patch_shape) == (4, "resenc-unet", began.patch_shape)


def test_the_choices_are_nnunets(tmp_path: Path) -> None:
    preset = auto(noisy_set(tmp_path / "data"))
    chosen = preset.config
    assert (chosen.optimizer, chosen.momentum, chosen.learning_rate, chosen.weight_decay) == ("sgd", 0.99, 0.01, 3e-5)
    assert (chosen.schedule, chosen.gradient_clip, chosen.augmentation) == ("polynomial", 12, "full")
    assert (chosen.steps, chosen.epoch_steps, chosen.validation_interval) == (250_000, 250, 50)
    assert (chosen.network, chosen.channels) == ("resenc-unet", (32, 64, 128))
    assert chosen.patch_shape == chosen.window_shape == (24, 20, 16)
    assert (chosen.batch_size, chosen.lesion_share, chosen.bright_share, chosen.overlap) == (2, 0.5, 0, 0.5)
    for word in ("spacing", "patch", "batch", "foreground", "network", "intensity", "optimizer", "schedule", "steps"):
        assert f"\n  {word} " in preset.notice
    assert "24 x 20 x 16" in preset.notice


def test_options_that_are_set_are_kept_even_at_their_default(tmp_path: Path) -> None:
    words = ["--batch-size", "10", "--optimizer", "adam", "--learning-rate", "0.001", "--patch-shape", "16", "16", "16"]
    preset = auto(noisy_set(tmp_path / "data"), *words, "--window-hu", "-900", "300", "--momentum", "0.99")
    chosen = preset.config
    assert (chosen.batch_size, chosen.optimizer, chosen.learning_rate) == (10, "adam", 0.001)
    assert (chosen.patch_shape, chosen.window_shape, chosen.window_hu) == ((16, 16, 16), (16, 16, 16), (-900, 300))
    assert (chosen.weight_decay, chosen.schedule) == (0, "polynomial")
    assert "Set: --batch-size, --patch-shape, --window-hu." in preset.notice
    assert "SGD" not in preset.notice


def test_another_network_gets_all_but_the_network(tmp_path: Path) -> None:
    preset = auto(noisy_set(tmp_path / "data"), "--network", "unet", "--augmentation", "basic")
    assert (preset.config.network, preset.config.channels) == ("unet", (8, 16, 32, 64, 128))
    assert (preset.config.patch_shape, preset.config.augmentation) == ((24, 16, 16), "basic")


def test_mr_keeps_its_own_z_score(tmp_path: Path) -> None:
    prepared = noisy_set(tmp_path / "data")
    cohort = dataclasses.replace(prepared.cohort, channels=("T1",), window_hu=None)
    preset = auto(dataclasses.replace(prepared, cohort=cohort))
    assert (preset.config.window_hu, preset.config.scaled_range) == (None, (0, 1))
    assert "z-score" in preset.notice


def test_another_spacing_than_nnunets_is_reported_with_the_option_that_follows_the_rule(tmp_path: Path) -> None:
    prepared = noisy_set(tmp_path / "data")
    assert "nnU-Net's rule: median" in auto(prepared).notice
    for path in prepared.folder.glob("cases/*/volume_info.json"):
        info = json.loads(path.read_text())
        info["source_grid"]["affine"] = [[0.8, 0, 0, 0], [0, 0.8, 0, 0], [0, 0, 1.25, 0], [0, 0, 0, 1]]
        path.write_text(json.dumps(info))
    assert "preprocess --spacing-mm 0.8 0.8 1.25" in auto(prepared).notice


def test_what_does_not_fit_the_memory_says_what_would(tmp_path: Path) -> None:
    prepared = noisy_set(tmp_path / "data")
    little = dataclasses.replace(MEMORY, num_bytes=0.5 * GIB)
    with pytest.raises(UserInputError) as error:
        auto(prepared, memory=little)
    assert "0.5 GiB (a test)" in error.value.seen
    assert "1.0 GiB for 2 patches of 16 x 16 x 16 voxels" in error.value.expected
    assert "--memory-gib of at least 1.0 GiB" in error.value.do
    with pytest.raises(UserInputError) as error:
        auto(prepared, "--patch-shape", "256", "256", "256")
    assert "1 patch of 256 x 256 x 256 voxels" in error.value.expected
    assert "--patch-shape 24 20 16, which fits" in error.value.do


def test_more_channels_than_the_patch_has_stages_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--channels") as error:
        auto(noisy_set(tmp_path / "data"), "--channels", "4", "8", "8", "16")
    assert "a patch of 24 x 20 x 16 voxels has 3 stages" in error.value.expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--memory-gib", "4"], "memory-gib"),
        (["--preset", "auto", "--memory-gib", "0"], "memory-gib"),
        (["--preset", "auto", "--epochs", "3"], "preset"),
        (["--window-hu", "40", "-40"], "window-hu"),
        (["--scaled-range", "1", "1"], "scaled-range"),
    ],
)
def test_options_that_do_not_go_together_are_refused(words: list[str], message: str) -> None:
    namespace = build_parser(load_verb("train")).parse_args(["--training-set", "t", "--output", "o", *words])
    with pytest.raises(UsageError, match=f"--{message}"):
        read_options(TrainConfig, namespace)


def test_a_window_beyond_that_of_preprocess_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    training_set(tmp_path / "data")
    words = ["--training-set", str(tmp_path / "data"), "--output", str(tmp_path / "model"), "--num-threads", "1"]
    words += ["--training-log", str(tmp_path / "log"), "--run-report", str(tmp_path / "report.json")]
    assert main(["train", *words, "--window-hu", "-2000", "400"]) == UsageError.exit_code
    assert "within -1000 400" in capfd.readouterr().err


def test_patches_are_clipped_and_scaled_as_the_model_card_says(tmp_path: Path) -> None:
    prepared = noisy_set(tmp_path / "data").with_input(window_hu=(-900.0, 100.0), scaled_range=(-9.0, 1.0))
    config = TrainConfig(training_set=Path("a"), output=Path("b"), augment=False, patch_shape=(16, 16, 16))
    task = task_named("segmentation").training_of_cohort(prepared.cohort, config.task_options)
    image = task.open_sampler(config, prepared, prepared.cases("train")).batch(0).image_BCIJK
    assert image.min() == pytest.approx(-9, abs=1e-5)
    assert 0 < image.max() <= 1


def test_cases_clipped_to_a_narrower_window_than_a_model_sees_are_refused(tmp_path: Path) -> None:
    prepared, words = noisy_set(tmp_path / "data"), ["--steps", "1", "--channels", "4", "8"]
    line = ["--training-set", str(prepared.folder), "--output", str(tmp_path / "model"), "--num-threads", "1"]
    line += ["--training-log", str(tmp_path / "log"), "--run-report", str(tmp_path / "report.json")]
    assert main(["train", *line, *words, "--preset", "auto"]) == 0
    card = read_card(tmp_path / "model")
    assert card.input.window_hu is not None
    narrow: PreparedCohort = dataclasses.replace(prepared.cohort, window_hu=(0.0, card.input.window_hu[1]))
    with pytest.raises(StepError, match="do not match the model"):
        check_cohort_fits(card, narrow)


def test_the_notice_for_scans_that_are_not_synthetic_names_the_preset(tmp_path: Path, monkeypatch: Any) -> None:
    from medweave_steps.runtime.verb import StepContext
    from medweave_steps.train import command

    monkeypatch.setattr(command, "train_on_rank", lambda job, group: ({}, StepContext(verb="train", num_threads=1)))
    prepared = noisy_set(tmp_path / "data")
    path = prepared.folder / "cohort.json"
    path.write_text(codec.dumps(dataclasses.replace(prepared.cohort, synthetic=False)))
    report = tmp_path / "report.json"
    words = ["--training-set", str(prepared.folder), "--output", str(tmp_path / "model"), "--num-threads", "1"]
    words += ["--run-report", str(report), "--training-log", str(tmp_path / "log")]
    assert main(["train", *words]) == 0
    assert "--preset auto" in json.loads(report.read_text())["notices"][0]


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), REGION_WORDS], ids=["labels", "regions"])
def test_several_labels_or_regions_learn_with_deep_supervision(words: tuple[str, ...], tmp_path: Path) -> None:
    label_set(tmp_path / "data")
    line = ["--training-set", str(tmp_path / "data"), "--output", str(tmp_path / "model"), "--num-threads", "1"]
    line += ["--training-log", str(tmp_path / "log"), "--run-report", str(tmp_path / "report.json")]
    own = ["--channels", "4", "8", "16", "--steps", "60", "--epoch-steps", "20", "--precision", "float32"]
    assert main(["train", *line, *words, *own, "--preset", "auto", "--device", "cpu"]) == 0
    card = read_card(tmp_path / "model")
    assert card.architecture["arguments"]["out_channels"] == (3 if words else 4)
    points = json.loads((tmp_path / "log" / "curves.json").read_text())
    losses = [point["loss"] for point in points if "loss" in point]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.slow
def test_folds_are_planned_once_so_that_their_models_agree(tmp_path: Path) -> None:
    noisy_set(tmp_path / "data")
    line = ["--training-set", str(tmp_path / "data"), "--output", str(tmp_path / "models"), "--num-threads", "1"]
    line += ["--training-log", str(tmp_path / "log"), "--run-report", str(tmp_path / "report.json")]
    assert main(["train", *line, "--preset", "auto", "--folds", "3", "--channels", "4", "8", "--steps", "1"]) == 0
    cards = [read_card(tmp_path / "models" / f"fold-{number}") for number in range(3)]
    assert cards[0].input == cards[1].input == cards[2].input
    assert cards[0].training["preset"]["fingerprint"]["num_cases"] == 3


@pytest.mark.slow
def test_folds_need_no_case_in_the_validation_split(tmp_path: Path) -> None:
    training_set(tmp_path / "data", ("train",) * 3)
    line = ["--training-set", str(tmp_path / "data"), "--output", str(tmp_path / "models"), "--num-threads", "1"]
    line += ["--training-log", str(tmp_path / "log"), "--run-report", str(tmp_path / "report.json")]
    assert main(["train", *line, "--preset", "auto", "--folds", "3", "--channels", "4", "8", "--steps", "1"]) == 0
    card = read_card(tmp_path / "models" / "fold-0")
    assert card.training["preset"]["fingerprint"]["num_cases"] == 3
