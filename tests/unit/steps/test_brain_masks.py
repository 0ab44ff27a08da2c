"""`preprocess --brain-masks` and `--shape`: T1-weighted heads become volumes of one shape, normalized inside of the brain."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from medweave_core.contracts.model import InputContract
from medweave_core.errors import UserInputError
from medweave_steps.cli import main
from medweave_steps.explain.regions import brain_on_grid
from medweave_steps.io.cohort.prepared import CaseFolder, PreparedFolder, open_prepared
from medweave_steps.io.findings import FindingError
from medweave_steps.io.model.folder import check_cohort_fits, write_card
from medweave_steps.io.model.input_check import check_inputs
from medweave_steps.preprocess.bias_field import correct_bias_field
from medweave_steps.preprocess.contrasts import box_of_shape, cut
from support.head_cohort import AFFINE, brain, head, save, write_heads
from support.identified import deidentify
from support.image_files import check
from support.model_folders import tiny_card

SHAPE = (16, 24, 16)
SUBJECTS = tuple(f"{number:02d}" for number in range(1, 7))


def region() -> np.ndarray:
    """Return a label map whose only voxels are a corner of the brain."""
    label = np.zeros((18, 20, 15), np.uint8)
    label[4:6, 3:6, 5:7] = 1
    return label


def write_labelled_heads(folder: Path) -> Path:
    """Write six subjects with label maps, of a synthetic cohort."""
    write_heads(folder, len(SUBJECTS))
    for subject in SUBJECTS:
        save(folder / "derivatives" / "regions" / f"sub-{subject}/anat/sub-{subject}_dseg.nii.gz", region())
    (folder / "cohort_card.json").write_text('{"synthetic": true}')
    return folder


def checked(folder: Path) -> Path:
    assert check(folder, "--targets", str(folder / "participants.tsv"))[0] == 0
    return folder


def preprocess(folder: Path, *words: str, output: str = "prepared") -> tuple[int, Path]:
    out = folder.parent / f"{folder.name}-out"
    files = ("--cohort", str(folder), "--cohort-index", str(out / "cohort_index.json"), "--output", str(out / output))
    code = main(["preprocess", *files, "--run-report", str(out / "report.json"), "--num-threads", "1", *words])
    return code, out / output


def masks_of(folder: Path) -> tuple[str, str]:
    return "--brain-masks", str(folder / "derivatives" / "brain")


GRID = ("--spacing-mm", "2", "2", "2", "--shape", *map(str, SHAPE))


@pytest.fixture
def heads(tmp_path: Path) -> Path:
    return checked(write_labelled_heads(tmp_path / "cohort"))


def cases_of(output: Path) -> list[CaseFolder]:
    folders = [output / "training_set", *sorted((output / "inference_batches").iterdir())]
    return [case for folder in folders for case in open_prepared(folder).cases()]


def training_set(output: Path) -> PreparedFolder:
    return open_prepared(output / "training_set")


def test_voxels_outside_of_the_mask_are_0_and_those_inside_have_mean_0_and_deviation_1(heads: Path) -> None:
    code, output = preprocess(heads, *GRID, *masks_of(heads))
    assert code == 0
    cases = cases_of(output)
    assert len(cases) == len(SUBJECTS)
    # The mask is cut out around its middle: 9, 10.5 and 9 on axes of 16, 24 and 16 voxels.
    inside = np.zeros(SHAPE, bool)
    inside[3:13, 4:19, 4:12] = True
    for case in cases:
        volume = case.volume_CIJK()[0]
        assert volume.shape == SHAPE
        assert not volume[~inside].any()
        assert abs(float(volume[inside].mean(dtype=np.float64))) < 1e-5
        assert abs(float(volume[inside].std(dtype=np.float64)) - 1) < 1e-5
        assert case.info().has_brain_mask
        assert case.info().crop_start == (1, -1, 1)
        # `explain` finds the mask again.
        np.testing.assert_array_equal(brain_on_grid("source", case.volume_CIJK(), case.info()), brain())
        number = SUBJECTS.index(case.case.case_id.removeprefix("sub-"))
        source = head(number)[4:14, 3:18, 5:13].astype(np.float64)
        np.testing.assert_allclose(volume[3:13, 4:19, 4:12], (source - source.mean()) / source.std(), atol=1e-5)
        corner = np.asarray(case.info().grid.affine) @ (3, 4, 4, 1)
        np.testing.assert_allclose(corner[:3], (8, 6, 10))
        assert np.argwhere(case.label_IJK()).min(axis=0).tolist() == [3, 4, 4]
        assert int(case.label_IJK().sum()) == int(region().sum())
    assert training_set(output).cohort.has_brain_masks
    assert training_set(output).cohort.crop == "fixed-shape"


def test_the_run_report_says_that_masks_were_applied(heads: Path) -> None:
    assert preprocess(heads, *GRID, *masks_of(heads))[0] == 0
    report = json.loads((heads.parent / "cohort-out" / "report.json").read_text())
    assert report["results"]["num_brain_masks"] == len(SUBJECTS)
    assert report["results"]["shape"] == list(SHAPE)
    assert all(case["has_brain_mask"] for case in report["cases"])


def test_a_mask_in_another_orientation_is_on_the_same_grid(heads: Path) -> None:
    masks = heads.parent / "masks"
    # Axes to Posterior and Left: first index p is j = 19 - p, second l is i = 17 - l.
    to_posterior_left = np.array([[0, -2.0, 0, 34], [-2.0, 0, 0, 38], [0, 0, 2.0, 0], [0, 0, 0, 1]])
    turned = brain().transpose(1, 0, 2)[::-1, ::-1]
    for subject in SUBJECTS:
        save(masks / f"sub-{subject}.nii.gz", turned, to_posterior_left)
    assert preprocess(heads, *GRID, *masks_of(heads), output="first")[0] == 0
    code, output = preprocess(heads, *GRID, "--brain-masks", str(masks), output="second")
    assert code == 0
    for one, other in zip(cases_of(output), cases_of(output.with_name("first")), strict=True):
        np.testing.assert_array_equal(one.volume_CIJK(), other.volume_CIJK())


def test_without_mask_the_shape_is_around_the_middle_of_the_scan(heads: Path) -> None:
    code, output = preprocess(heads, *GRID)
    assert code == 0
    for case in cases_of(output):
        volume = case.volume_CIJK()[0]
        assert case.info().crop_start == (1, -2, 0)
        scan = volume[:, 2:22, :15]
        assert abs(float(scan.mean(dtype=np.float64))) < 1e-5
        assert abs(float(scan.std(dtype=np.float64)) - 1) < 1e-5
        padding = np.unique(volume[:, :2])
        assert len(padding) == 1
        assert padding[0] < scan.min()
        assert not case.info().has_brain_mask
    assert not training_set(output).cohort.has_brain_masks


def test_a_mask_without_fixed_shape_keeps_multiples_of_8(heads: Path) -> None:
    code, output = preprocess(heads, "--spacing-mm", "2", "2", "2", *masks_of(heads))
    assert code == 0
    assert {case.volume_CIJK().shape for case in cases_of(output)} == {(1, 16, 16, 8)}


def test_a_mask_on_another_grid_is_an_error(heads: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = heads / "derivatives" / "brain" / "sub-02" / "anat" / "sub-02_desc-brain_mask.nii.gz"
    shifted = AFFINE.copy()
    shifted[0, 3] = 2
    save(path, brain(), shifted)
    code, output = preprocess(heads, *GRID, *masks_of(heads))
    assert code == 65
    message = capsys.readouterr().err
    assert "sub-02: the brain mask is on another grid than its scan" in message
    assert "expected: the same voxels" in message
    assert "do:       make the mask from this scan" in message
    assert not output.exists()


def test_a_mask_that_is_not_binary_is_an_error(heads: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = heads / "derivatives" / "brain" / "sub-02" / "anat" / "sub-02_desc-brain_mask.nii.gz"
    save(path, np.arange(brain().size, dtype=np.int16).reshape(brain().shape), AFFINE)
    assert preprocess(heads, *GRID, *masks_of(heads))[0] == 65
    assert "the brain mask is not binary" in capsys.readouterr().err


def test_every_case_needs_one_mask(heads: Path, capsys: pytest.CaptureFixture[str]) -> None:
    brains = heads / "derivatives" / "brain"
    (brains / "sub-02" / "anat" / "sub-02_desc-brain_mask.nii.gz").unlink()
    save(brains / "sub-03.nii.gz", brain(), AFFINE)
    save(brains / "sub-99_desc-brain_mask.nii.gz", brain(), AFFINE)  # of a case that check left out
    assert preprocess(heads, *GRID, *masks_of(heads))[0] == 65
    message = capsys.readouterr().err
    assert "no mask for sub-02; several masks for sub-03" in message
    assert "sub-99" not in message


def test_a_brain_larger_than_the_shape_is_skipped_with_a_notice(
    heads: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = heads / "derivatives" / "brain" / "sub-02" / "anat" / "sub-02_desc-brain_mask.nii.gz"
    large = brain()
    large[1:18, 5, 6] = 1
    save(path, large, AFFINE)
    code, output = preprocess(heads, *GRID, *masks_of(heads))
    assert code == 0
    assert "sub-02: the brain is larger than the shape of the volume. (seen: " in capsys.readouterr().err
    assert "sub-02" not in {case.case.case_id for case in cases_of(output)}


def test_if_no_brain_fits_the_error_names_the_first_cases(heads: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--spacing-mm", "2", "2", "2", "--shape", "8", "8", "8")
    assert preprocess(heads, *words, *masks_of(heads))[0] == 65
    what, seen, expected, do = capsys.readouterr().err.splitlines()[-4:]
    assert what == "medweave-step preprocess: none of 6 cases can be preprocessed."
    assert seen.count("the brain is larger than the shape of the volume") == 3
    assert seen.endswith("; 3 more")
    assert "expected: " in expected
    assert "do: " in do


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--shape", "4", "96", "96"), "three numbers of voxels from 8 to 1024"),
        (("--shape", "16", "16", "16", "--crop", "none"), "fixed-shape with --shape"),
        (("--crop", "fixed-shape"), "fixed-shape only with --shape"),
        (("--brain-masks", "/nowhere"), "--brain-masks is not an existing folder"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    heads: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert preprocess(heads, *words)[0] == 2
    assert message in capsys.readouterr().err


def test_a_fixed_shape_is_for_classifications(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_labelled_heads(tmp_path / "cohort")
    assert check(folder)[0] == 0
    assert preprocess(folder, *GRID)[0] == 2
    assert "--shape applies to classifications" in capsys.readouterr().err


def test_ct_has_no_brain_mask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "cohort"
    save(folder / "scan-1.nii.gz", head(1) - 1000, AFFINE)
    assert check(folder)[0] == 0
    for words in (("--shape", "16", "16", "16"), ("--brain-masks", str(tmp_path))):
        assert preprocess(folder, "--purpose", "inference", *words)[0] == 2
        assert f"{words[0]} applies to MR and PET" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("size", "center", "start", "stop"),
    [(4, 10, 3, 7), (3, 10, 4, 7), (4, 9, 3, 7), (12, 10, -1, 11), (13, 10, -1, 12)],
)
def test_the_box_is_around_its_center(size: int, center: int, start: int, stop: int) -> None:
    box = box_of_shape((size, size, size), double_center=(center, center, center))
    assert box == ((start,) * 3, (stop,) * 3)


def test_cut_pads_with_zeros_only_where_needed() -> None:
    volume = np.arange(1, 28, dtype=np.float32).reshape(3, 3, 3)
    assert np.shares_memory(cut(volume, ((0, 1, 0), (2, 3, 3))), volume)
    padded = cut(volume, ((-1, 0, 1), (2, 3, 5)))
    assert padded.shape == (3, 3, 4)
    assert not padded[0].any()
    assert not padded[:, :, 2:].any()
    np.testing.assert_array_equal(padded[1:, :, :2], volume[:2, :, 1:])


def test_a_bias_field_is_divided_out_inside_of_the_brain() -> None:
    i, j, k = np.meshgrid(*(np.linspace(-1, 1, side) for side in (32, 36, 28)), indexing="ij")
    brain_IJK = i**2 + j**2 + k**2 < 0.8
    tissue_IJK = np.where(i**2 + j**2 + k**2 < 0.3, 900.0, 600.0) + np.random.default_rng(0).normal(0, 10, i.shape)
    seen_IJK = (np.where(brain_IJK, tissue_IJK, 0) * np.exp(0.35 * i + 0.2 * j)).astype(np.float32)
    corrected = correct_bias_field(seen_IJK, brain_IJK, (4.0, 4.0, 4.0), case_id="sub-01")
    assert corrected.dtype == np.float32
    before, after = (float((array / tissue_IJK)[brain_IJK].std()) for array in (seen_IJK, corrected))
    assert before > 0.15
    assert after < before / 3
    again = correct_bias_field(seen_IJK, brain_IJK, (4.0, 4.0, 4.0), case_id="sub-01")
    np.testing.assert_array_equal(corrected, again)


def test_a_bias_field_needs_positive_voxels() -> None:
    brain_IJK = np.zeros((16, 16, 16), bool)
    brain_IJK[2:6, 2:6, 2:6] = True
    with pytest.raises(FindingError, match="sub-01: no bias field") as caught:
        correct_bias_field(np.ones(brain_IJK.shape, np.float32), brain_IJK, (4.0, 4.0, 4.0), case_id="sub-01")
    assert caught.value.finding.seen == "64 voxels above 0 in the brain mask"


def test_the_card_decides_about_the_bias_correction(heads: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert preprocess(heads, *GRID, "--bias-correction", "n4")[0] == 2
    assert "applies to MR with brain masks" in capsys.readouterr().err
    code, plain = preprocess(heads, *GRID, *masks_of(heads), output="plain")
    assert code == 0
    code, output = preprocess(heads, *GRID, *masks_of(heads), "--bias-correction", "n4")
    assert code == 0
    assert training_set(output).cohort.bias_correction == "n4"
    first, other = (cases_of(folder)[0].volume_CIJK() for folder in (plain, output))
    assert not np.array_equal(first, other)
    model = heads.parent / "model"
    model.mkdir()
    card = dataclasses.replace(tiny_card(), input=dataclasses.replace(CONTRACT, bias_correction="n4"))
    write_card(model, card)
    words = ("--purpose", "inference", "--segmentation-model", str(model), *masks_of(heads))
    assert preprocess(heads, *words, "--bias-correction", "none", output="contradiction")[0] == 2
    assert "--bias-correction contradicts the model card" in capsys.readouterr().err
    code, by_card = preprocess(heads, *words, output="by-card")
    assert code == 0
    check_cohort_fits(card, open_prepared(by_card / "inference_batches" / "batch-000").cohort)
    with pytest.raises(UserInputError, match="do not match the model") as caught:
        check_cohort_fits(card, training_set(plain).cohort)
    assert "brain masks, n4 (model_card.json)" in caught.value.expected


CONTRACT = InputContract(
    spacing_mm=(2.0, 2.0, 2.0), window_hu=None, patch_shape=SHAPE, patch_multiple=1, crop="fixed-shape", modality="MR",
    unit="SD", channel_names=("T1w",), has_brain_mask=True,
)  # fmt: skip


def test_a_model_that_was_trained_with_masks_gets_masks_and_its_shape(
    heads: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = heads.parent / "model"
    model.mkdir()
    write_card(model, dataclasses.replace(tiny_card(), input=CONTRACT))
    words = ("--purpose", "inference", "--segmentation-model", str(model))
    assert preprocess(heads, *words)[0] == 2
    assert "was trained with brain masks" in capsys.readouterr().err
    code, output = preprocess(heads, *words, *masks_of(heads))
    assert code == 0
    cases = cases_of(output)
    assert {case.volume_CIJK().shape for case in cases} == {(1, *SHAPE)}
    cohort = open_prepared(output / "inference_batches" / "batch-000").cohort
    card = dataclasses.replace(tiny_card(), input=CONTRACT)
    check_inputs(card, cohort, [case.info() for case in cases])
    check_cohort_fits(card, cohort)
    without = dataclasses.replace(card, input=dataclasses.replace(CONTRACT, has_brain_mask=False))
    with pytest.raises(UserInputError, match="does not match sub-01") as caught:
        check_inputs(without, cohort, [case.info() for case in cases])
    assert "voxels outside of a brain mask set to 0 (volume_info.json)" in caught.value.seen
    with pytest.raises(UserInputError, match="do not match the model") as caught:
        check_cohort_fits(without, cohort)
    assert "brain masks (cohort.json)" in caught.value.seen
    write_card(model, without)
    assert preprocess(heads, *words, *masks_of(heads), output="other")[0] == 2
    assert "was trained without brain masks" in capsys.readouterr().err


def test_the_masks_of_a_de_identified_cohort_give_the_same_volumes(heads: Path) -> None:
    words = (*masks_of(heads), "--keep-brain-masks", "--keep-columns", "group")
    assert deidentify(heads, *words) == 0
    out = heads.parent / "out"
    kept = Path("derivatives", "brain")
    assert sorted(path.name for path in (out / kept).iterdir()) == sorted(
        f"{path.name}.nii.gz" for path in out.glob("sub-*")
    )
    assert check(out, "--targets", str(out / "participants.tsv"))[0] == 0
    code, prepared = preprocess(out, *GRID, "--brain-masks", str(kept))
    assert code == 0
    assert preprocess(heads, *GRID, *masks_of(heads))[0] == 0
    before = {case.volume_CIJK().tobytes() for case in cases_of(heads.parent / "cohort-out" / "prepared")}
    assert {case.volume_CIJK().tobytes() for case in cases_of(prepared)} == before
    assert deidentify(heads, *words, name="again") == 0
    for path in (out / kept).iterdir():
        assert path.read_bytes() == (heads.parent / "again" / kept / path.name).read_bytes()


def test_masks_from_outside_of_the_cohort_are_kept_in_a_folder_of_their_own(heads: Path) -> None:
    (heads / "derivatives" / "brain").rename(heads.parent / "masks")
    assert deidentify(heads, "--brain-masks", str(heads.parent / "masks"), "--keep-brain-masks") == 0
    assert len(list((heads.parent / "out" / "brain-masks").iterdir())) == len(SUBJECTS)


def test_brain_masks_of_a_bids_folder_are_no_ground_truth(tmp_path: Path) -> None:
    folder = checked(write_heads(tmp_path / "cohort", 4))
    index = json.loads((tmp_path / "cohort-out" / "cohort_index.json").read_text())
    assert {case["ground_truth"] for case in index["cases"]} == {None}
    assert deidentify(folder, "--brain-masks", "derivatives/brain", name="out") == 0
    assert not (tmp_path / "out" / "derivatives").exists()


def test_masks_are_kept_only_on_request_and_only_where_names_allow_it(
    heads: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deidentify(heads, *masks_of(heads)) == 0
    assert not (heads.parent / "out" / "brain-masks").exists()
    assert deidentify(heads, "--keep-brain-masks", name="none") == 2
    assert "--keep-brain-masks needs --brain-masks" in capsys.readouterr().err
    plain = tmp_path / "plain"
    save(plain / "images" / "scan.nii.gz", head(1), AFFINE)
    save(tmp_path / "masks" / "scan.nii.gz", brain(), AFFINE)
    words = ("--brain-masks", str(tmp_path / "masks"), "--keep-brain-masks")
    assert deidentify(plain, *words, name="plain-out") == 2
    assert "--keep-brain-masks applies to BIDS folders and to DICOM series" in capsys.readouterr().err
