"""One rule decides for every step which frames of an image object are slices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset

from medweave_steps.evaluate.delivered import read_mask
from medweave_steps.io.dicom.source_headers import frame_order
from support.checked import check, errors_of, notices_of, only_error, open_only
from support.dicom_builder import CtSeries, segmentation, write_datasets
from support.identified import deidentify
from support.odd_headers import run_verbs, small_series
from support.openvino_models import NODULE_ANYWHERE

SERIES = small_series("frames")


def with_frame_type(dataset: Dataset, frame: int, *words: str) -> None:
    item = Dataset()
    item.FrameType = list(words)
    dataset.PerFrameFunctionalGroupsSequence[frame].CTImageFrameTypeSequence = [item]


def drop_last_group(dataset: Dataset) -> None:
    dataset.PerFrameFunctionalGroupsSequence = list(dataset.PerFrameFunctionalGroupsSequence)[:-1]


def add_group(dataset: Dataset) -> None:
    groups = list(dataset.PerFrameFunctionalGroupsSequence)
    dataset.PerFrameFunctionalGroupsSequence = [*groups, groups[-1]]


def drop_all_groups(dataset: Dataset) -> None:
    del dataset.PerFrameFunctionalGroupsSequence


def drop_number(dataset: Dataset) -> None:
    del dataset.NumberOfFrames


def huge_number(dataset: Dataset) -> None:
    dataset.NumberOfFrames = 2_000_000_000


def no_number(dataset: Dataset) -> None:
    dataset.NumberOfFrames = 0


def negative_number(dataset: Dataset) -> None:
    dataset.NumberOfFrames = -6


@pytest.mark.parametrize(
    "change",
    [drop_last_group, add_group, drop_all_groups, drop_number, huge_number, no_number, negative_number],
)
def test_frames_that_disagree_are_refused_by_check_and_deidentify(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Dataset], None]
) -> None:
    dataset = SERIES.enhanced()
    change(dataset)
    write_datasets([dataset], tmp_path / "cohort")
    assert only_error(tmp_path / "cohort").code == "frames-disagree"
    assert deidentify(tmp_path / "cohort") == 65
    assert "number of frames" in capsys.readouterr().err


@pytest.mark.slow
def test_a_segmentation_whose_frames_disagree(tmp_path: Path) -> None:
    datasets = SERIES.datasets()
    mask = np.zeros(SERIES.shape, np.uint8)
    mask[1:3, 4:9, 4:9] = 1
    truth = segmentation(datasets, mask)
    truth.PerFrameFunctionalGroupsSequence = list(truth.PerFrameFunctionalGroupsSequence)[:1]
    write_datasets([*datasets, truth], tmp_path)
    assert [error.code for error in errors_of(tmp_path)] == ["frames-disagree"]


@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize(
    "words",
    [
        ("ORIGINAL", "PRIMARY", "LOCALIZER"),
        ("DERIVED", "PRIMARY", "VOLUME", "MAXIMUM"),
        ("DERIVED", "SECONDARY", "AXIAL", "CSA MIP"),
    ],
)
def test_a_picture_among_the_frames_is_left_out(tmp_path: Path, place: int, words: tuple[str, ...]) -> None:
    volume = CtSeries(key="frames", shape=(5, 36, 34))
    order = list(range(4))
    order.insert(place, 4)
    dataset = volume.enhanced(order=order)
    with_frame_type(dataset, place, *words)
    write_datasets([dataset], tmp_path)
    source = open_only(tmp_path)
    np.testing.assert_array_equal(source.volume(), volume.hu()[:4])
    assert "localizer" in notices_of(tmp_path)
    assert [frame for _, frame in frame_order(source.headers())] == [n for n in range(5) if n != place]


def test_positions_of_frames_in_files_of_their_own(tmp_path: Path) -> None:
    datasets = []
    for index in range(4):
        dataset = SERIES.enhanced(order=[index])
        dataset.SOPInstanceUID = f"2.25.{index + 1}"
        group = dataset.PerFrameFunctionalGroupsSequence[0]
        shared = dataset.SharedFunctionalGroupsSequence[0]
        shared.PlanePositionSequence = group.PlanePositionSequence
        del group.PlanePositionSequence
        datasets.append(dataset)
    write_datasets(datasets, tmp_path)
    source = open_only(tmp_path)
    np.testing.assert_array_equal(source.volume(), SERIES.hu())
    assert frame_order(source.headers()) == [(index, 0) for index in range(4)]


def test_a_file_left_out_of_an_older_index_is_noticed(tmp_path: Path) -> None:
    dataset = SERIES.enhanced()
    (path,) = write_datasets([dataset], tmp_path)
    (case,) = check(tmp_path).index.cases
    drop_last_group(dataset)
    write_datasets([dataset], tmp_path)
    from medweave_core.errors import UserInputError
    from medweave_steps.io.cohort.source import open_source

    with pytest.raises(UserInputError, match="has changed since `check` ran"):
        open_source(tmp_path, case)
    assert path.is_file()


def test_the_delivered_segmentation_names_the_frames_of_the_file(tmp_path: Path, model_without_anatomy: Path) -> None:
    volume = CtSeries(key="frames", shape=(5, 36, 34))
    dataset = volume.enhanced(order=[4, 3, 0, 2, 1])
    with_frame_type(dataset, 0, "ORIGINAL", "PRIMARY", "LOCALIZER")
    write_datasets([dataset], tmp_path / "cohort")
    ends = run_verbs(tmp_path / "cohort", tmp_path, model_without_anatomy)
    assert set(ends.codes.values()) == {0}
    (case,) = check(tmp_path / "cohort").index.cases
    folder = tmp_path / "segmented" / case.case_id
    _, kind = read_mask(tmp_path / "cohort", folder, case, NODULE_ANYWHERE)
    assert kind == "dicom-seg"
    groups = pydicom.dcmread(folder / "lesion_mask.dcm").PerFrameFunctionalGroupsSequence
    sources = [group.DerivationImageSequence[0].SourceImageSequence[0] for group in groups]
    assert [source.ReferencedFrameNumber for source in sources] == [3, 5, 4, 2]


@pytest.mark.parametrize("photometric", ["RGB", "PALETTE COLOR"])
def test_all_steps_leave_out_color_pictures(tmp_path: Path, photometric: str) -> None:
    dataset = SERIES.enhanced()
    dataset.PhotometricInterpretation = photometric
    assert frame_order([dataset]) == []
    write_datasets([dataset], tmp_path)
    assert set(notices_of(tmp_path)) == {"color-pictures"}
