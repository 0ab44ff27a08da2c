"""MR with several contrasts through check, preprocess and train: refusals, prepared cases, and their distribution over ranks."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

from medweave_core.contracts.labels import Label
from medweave_core.contracts.model import InputContract, ModelCard
from medweave_core.contracts.volume import Triple
from medweave_core.errors import UserInputError
from medweave_steps.cli import main
from medweave_steps.io.cohort.prepared import PreparedFolder, open_prepared
from medweave_steps.io.model.bundle_files import inference_config
from medweave_steps.io.model.folder import write_card
from medweave_steps.preprocess.contrasts import box_of_multiples
from medweave_steps.segment.fit import check_fits
from medweave_steps.tasks.segmentation.volumes import VolumeSampler
from medweave_steps.train.config import TrainConfig
from support.brain_cohort import MATRIX_SIZE, PREPARED_SHAPE, SPACING_MM, write_brains
from support.model_folders import tiny_card
from support.one_label import open_sampler


def step(folder: Path, *words: str) -> int:
    return main([*words, "--num-threads", "1", "--run-report", str(folder / f"{words[0]}.json")])


def preprocess(folder: Path, *options: str, output: str = "prepared") -> int:
    cohort = ("--cohort", str(folder / "cohort"), "--cohort-index", str(folder / "index.json"))
    return step(folder, "preprocess", *cohort, "--output", str(folder / output), *options)


def checked(folder: Path) -> int:
    merge = ("--merge-labels", "1,2,3:whole tumour")
    return step(folder, "check", "--cohort", str(folder / "cohort"), "--output", str(folder / "index.json"), *merge)


@pytest.fixture(scope="module")
def brains(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with cohort/, index.json and prepared/ of seven brains."""
    folder = tmp_path_factory.mktemp("brains")
    write_brains(folder / "cohort", 7)
    assert checked(folder) == 0
    spacing = ("--spacing-mm", *[str(SPACING_MM)] * 3)
    assert preprocess(folder, *spacing) == 0
    return folder


def prepared(folder: Path) -> PreparedFolder:
    return open_prepared(folder / "prepared" / "training_set")


def test_the_index_names_the_contrasts(brains: Path) -> None:
    index = json.loads((brains / "index.json").read_text())
    contrasts = ["FLAIR", "T1w", "T1gd", "T2w"]
    assert index["channels"] == contrasts
    assert [case["channels"] for case in index["cases"]] == [contrasts] * 7
    assert not any(finding["code"] == "no-air" for finding in index["findings"])


def test_each_contrast_has_mean_0_and_deviation_1_over_the_whole_volume(brains: Path) -> None:
    for case in prepared(brains).cases():
        volume = case.volume_CIJK()
        assert (volume.shape, volume.dtype) == ((4, *PREPARED_SHAPE), np.float32)
        np.testing.assert_allclose(volume.mean((1, 2, 3), dtype=np.float64), 0, atol=1e-4)
        np.testing.assert_allclose(volume.std((1, 2, 3), dtype=np.float64), 1, atol=1e-3)


def test_the_label_is_the_whole_tumour(brains: Path) -> None:
    cohort = prepared(brains).cohort
    assert (cohort.labels, cohort.window_hu) == ((Label(value=1, name="whole tumour"),), None)
    for case in prepared(brains).cases():
        source = nibabel.load(brains / "cohort" / "labelsTr" / f"{case.case.case_id}.nii.gz").get_fdata()
        assert sorted(np.unique(case.label_IJK())) == [0, 1]
        assert int(case.label_IJK().sum()) == int((source[:, :, 2:18] > 0).sum()), "slices 2 to 17 of 20 are included"


def test_voxels_are_where_they_were(brains: Path) -> None:
    case = prepared(brains).cases()[0]
    source = nibabel.load(brains / "cohort" / "imagesTr" / f"{case.case.case_id}.nii.gz").get_fdata()
    retained = source[::-1, ::-1, 2:18, 2]  # the files run to the left and to the back
    expected = (retained - retained.mean()) / retained.std()
    np.testing.assert_allclose(case.volume_CIJK()[2], expected, atol=1e-4)
    assert case.info().crop_start == (0, 0, 2)


@pytest.mark.parametrize(
    ("shape", "box"),
    [
        ((240, 240, 155), ((0, 0, 2), (240, 240, 154))),
        ((33, 39, 8), ((1, 4, 0), (33, 36, 8))),
    ],
)
def test_volumes_are_cut_to_multiples_of_8(shape: Triple, box: tuple[Triple, Triple]) -> None:
    assert box_of_multiples(shape, case_id="case-0") == box


def test_a_volume_that_is_too_small_to_be_cut_is_reported() -> None:
    with pytest.raises(UserInputError, match="too small"):
        box_of_multiples((7, 64, 64), case_id="case-0")


@pytest.fixture
def one(tmp_path: Path) -> Path:
    write_brains(tmp_path / "cohort", 3)
    return tmp_path


def changed(folder: Path, change: Any, number: int = 2) -> None:
    path = folder / "cohort" / "imagesTr" / f"BRATS_{number:03d}.nii.gz"
    image = nibabel.load(path)
    nibabel.save(nibabel.Nifti1Image(change(np.asarray(image.dataobj)), image.affine), path)


def message(capsys: pytest.CaptureFixture[str], *parts: str) -> None:
    messages = capsys.readouterr().err
    assert all(part in messages for part in parts), messages


def test_a_case_that_lacks_a_contrast_is_named(one: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(one, lambda values: values[..., :3])
    assert checked(one) == 65
    message(capsys, "BRATS_002", "32 x 32 x 20 x 3 voxels", "a fourth axis of 4: FLAIR, T1w, T1gd, T2w")


def test_a_case_with_an_empty_contrast_is_left_out(one: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def without_t1gd(values: np.ndarray) -> np.ndarray:
        values = values.copy()
        values[..., 2] = 7
        return values

    changed(one, without_t1gd)
    assert checked(one) == 0
    assert preprocess(one, "--spacing-mm", "7.5", "7.5", "7.5") == 0
    message(capsys, "skipped: BRATS_002: a contrast is empty", "T1gd has the value 7 everywhere")
    assert json.loads((one / "preprocess.json").read_text())["results"]["num_failed_cases"] == 1


@pytest.mark.parametrize("options", [("--window-hu", "-1000", "400"), ("--crop", "lungs")])
def test_what_is_for_ct_is_refused(brains: Path, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert preprocess(brains, *options, output="none") == 2
    message(capsys, "the cohort is MR")


def test_a_cohort_that_changed_after_check_is_refused(one: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(one) == 0

    def other_t2w(values: np.ndarray) -> np.ndarray:
        values = values.copy()
        values[16, 16, 10, 3] += 1  # the last contrast is read last
        return values

    changed(one, other_t2w)
    assert preprocess(one, "--spacing-mm", "7.5", "7.5", "7.5") == 65
    message(capsys, "BRATS_002", "the cohort has changed since `check` ran")


def card_for(folder: Path, **changes: Any) -> ModelCard:
    """Return the card of a model that accepts the prepared cases, with changes."""
    cohort = prepared(folder).cohort
    contract = InputContract(
        spacing_mm=cohort.spacing_mm, window_hu=None, patch_shape=PREPARED_SHAPE, patch_multiple=8, crop=cohort.crop,
        modality="MR", unit="SD", channels=4, channel_names=cohort.channels,
    )  # fmt: skip
    return tiny_card(input=dataclasses.replace(contract, **changes))


@pytest.mark.parametrize(
    ("changes", "seen", "expected"),
    [
        ({"channels": 1, "channel_names": ("CT",)}, "4 channels: FLAIR, T1w, T1gd, T2w", "1 channel: CT"),
        ({"channel_names": ("T1w", "FLAIR", "T1gd", "T2w")}, "4 channels: FLAIR, T1w", "4 channels: T1w, FLAIR"),
        ({"window_hu": (-1000.0, 400.0)}, "values clipped to nothing (MR)", "values clipped to [-1000, 400] HU"),
        ({"unit": "HU"}, "unit SD", "unit HU"),
        ({"crop": "none"}, "crop 'multiple-of-8'", "crop 'none'"),
    ],
)
def test_a_model_of_another_input_is_not_opened(
    brains: Path, changes: dict[str, Any], seen: str, expected: str
) -> None:
    infos = [case.info() for case in prepared(brains).cases()]
    check_fits(card_for(brains), prepared(brains).cohort, infos)
    with pytest.raises(UserInputError) as caught:
        check_fits(card_for(brains, **changes), prepared(brains).cohort, infos)
    assert caught.value.seen.startswith(seen)
    assert caught.value.expected.startswith(expected)


def test_a_cohort_is_prepared_as_the_model_takes_it_or_not_at_all(
    brains: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, card in (("fits", card_for(brains)), ("ct", tiny_card())):
        (tmp_path / name).mkdir()
        write_card(tmp_path / name, card)
    options = ("--purpose", "inference", "--segmentation-model")
    assert preprocess(brains, *options, str(tmp_path / "fits"), output="inference") == 0
    batch = open_prepared(brains / "inference" / "inference_batches" / "batch-000")
    assert (batch.cohort.channels, batch.cohort.spacing_mm) == (("FLAIR", "T1w", "T1gd", "T2w"), (SPACING_MM,) * 3)
    assert preprocess(brains, *options, str(tmp_path / "ct"), output="none") == 65
    message(capsys, "input.channels 1", "4: FLAIR, T1w, T1gd, T2w, as in the cohort")


def test_a_bundle_of_it_makes_contrasts_standard_too(brains: Path) -> None:
    transforms = inference_config(card_for(brains))["preprocessing"]["transforms"]
    assert {"_target_": "NormalizeIntensityd", "keys": "image", "channel_wise": True} in transforms
    assert not any(transform["_target_"] == "ScaleIntensityRanged" for transform in transforms)


# -- whole volumes, each once an epoch ---------------------------------------------------------------------------------


def volumes(folder: Path, **options: Any) -> VolumeSampler:
    values: dict[str, Any] = {
        "epochs": 3,
        "patch_shape": PREPARED_SHAPE,
        "window_shape": PREPARED_SHAPE,
        "batch_size": 2,
    }
    config = TrainConfig(training_set=folder, output=folder, network="distmis-as-described", **values | options)
    cases = prepared(folder).cases("train")
    sampler = open_sampler(config, prepared(folder), cases, whole_volumes=True)
    assert isinstance(sampler, VolumeSampler)
    return sampler


def test_epochs_have_other_orders_and_seeds_too(brains: Path) -> None:
    def order(sampler: VolumeSampler, epoch: int) -> list[str]:
        steps = range(epoch * 5, (epoch + 1) * 5)
        return [sampler.batch(number).case_ids[0] for number in steps]

    one_by_one = volumes(brains, batch_size=1)
    assert len(one_by_one.cases) == 5
    orders = {tuple(order(one_by_one, epoch)) for epoch in range(4)}
    assert len(orders) > 1
    assert order(one_by_one, 0) == order(volumes(brains, batch_size=1), 0)
    assert any(order(volumes(brains, batch_size=1, seed=seed), 0) != order(one_by_one, 0) for seed in (1, 2, 3))


def test_a_volume_is_the_whole_case_as_it_is_stored(brains: Path) -> None:
    sampler = volumes(brains)
    batch = sampler.batch(0)
    cases = {case.case.case_id: case for case in prepared(brains).cases("train")}
    for image, label, name in zip(batch.image_BCIJK, batch.label_BCIJK, batch.case_ids, strict=True):
        np.testing.assert_array_equal(image, cases[name].volume_CIJK())
        np.testing.assert_array_equal(label[0], cases[name].label_IJK())


def test_a_training_opens_no_nifti(brains: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Labels are merged once, by preprocess; what an epoch reads are the arrays of that.
    monkeypatch.setattr(nibabel, "load", lambda *_, **__: pytest.fail("a NIfTI file is opened"))
    monkeypatch.setattr(nibabel.Nifti1Image, "from_bytes", lambda *_, **__: pytest.fail("a NIfTI file is opened"))
    (brains / "cohort").rename(brains / "elsewhere")
    try:
        shape = list(map(str, PREPARED_SHAPE))
        words = (
            "train",
            "--training-set",
            str(brains / "prepared" / "training_set"),
            "--output",
            str(tmp_path / "model"),
        )
        words += ("--training-log", str(tmp_path / "log"), "--network", "distmis-as-described", "--epochs", "1")
        assert step(tmp_path, *words, "--batch-size", "5", "--patch-shape", *shape, "--window-shape", *shape) == 0
    finally:
        (brains / "elsewhere").rename(brains / "cohort")
    assert all(set(np.unique(case.label_IJK())) == {0, 1} for case in prepared(brains).cases("train"))


def test_a_case_that_is_larger_than_a_patch_is_named(brains: Path) -> None:
    with pytest.raises(UserInputError, match="larger than --patch-shape") as caught:
        volumes(brains, patch_shape=(32, 24, 16))
    assert caught.value.seen == f"{MATRIX_SIZE} x 32 x 16 voxels"
