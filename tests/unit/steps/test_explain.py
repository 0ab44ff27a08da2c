"""From prepared cases to Grad-CAM maps on the source grid, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import jsonschema
import nibabel
import numpy as np
import pytest
from PIL import Image

from medweave_core.contracts import codec
from medweave_core.contracts.explanations import MAP_NIFTI, MAP_PICTURE, OVERLAY
from medweave_core.contracts.model import RESEARCH_USE_ONLY
from medweave_core.contracts.schema import schema_of
from medweave_core.contracts.volume import Grid
from medweave_core.errors import UserInputError
from medweave_steps.explain.regions import find_label_maps, names_beside
from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.io.geometry import affine_rows
from medweave_steps.io.hashing import digests_below, sha256_of_file
from medweave_steps.io.model.folder import card_sha256, write_card
from medweave_steps.io.model.network import build_network
from support.explained import (
    BALL,
    NO_BALL,
    RADIUS_MM,
    SOURCE_AFFINE,
    SOURCE_SHAPE,
    VOLUME_SHAPE,
    Run,
    center_of,
    explain,
    image_card,
    trained_network,
    volume_card,
    volumes,
    write_model,
)
from support.image_set import CLASSES, SHAPE, image_set
from support.openvino_models import write_tiny_model

torch = pytest.importorskip("torch")
pytest.importorskip("monai")

NUM_CASES = 6


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return volumes(tmp_path_factory.mktemp("batches") / "batch", NUM_CASES)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, batch: Path) -> Path:
    folder, card = tmp_path_factory.mktemp("models") / "model", volume_card()
    write_model(folder, card, trained_network(batch, card))
    return folder


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Label maps on the source grid: 7 within 1.5 radii of the center of the ball."""
    folder = tmp_path_factory.mktemp("regions")
    points = np.stack(np.indices(SOURCE_SHAPE), axis=-1) @ SOURCE_AFFINE[:3, :3].T
    for place in range(NUM_CASES):
        distance = np.linalg.norm(points - SOURCE_AFFINE[:3, :3] @ np.array(center_of(place)), axis=-1)
        labels = np.where(distance <= 1.5 * RADIUS_MM, 7, 0).astype(np.int16)
        nibabel.save(nibabel.Nifti1Image(labels, SOURCE_AFFINE), folder / f"case-{place:02}.nii.gz")
    (folder / "names.tsv").write_text("index\tname\n7\tsurroundings of the ball\n")
    return folder


@pytest.fixture(scope="module")
def run(model: Path, batch: Path, regions: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    words = ("--target-class", BALL, "--regions", str(regions), "--region-names", str(regions / "names.tsv"))
    return explain(tmp_path_factory.mktemp("run"), model, batch, *words)


def refused(
    folder: Path, model: Path, batch: Path, capsys: pytest.CaptureFixture[str], *words: str, options: tuple[str, ...] = (),
    exit_code: int = 65,
) -> None:  # fmt: skip
    """Check that `explain` ends with an exit code and these words, and leaves nothing."""
    ended = explain(folder, model, batch, *options, output="refused")
    message = capsys.readouterr().err
    assert ended.exit_code == exit_code, message
    assert not list(folder.glob("*refused*/"))
    for word in words:
        assert word in message
    assert str(folder) not in message


def test_the_record_names_model_layer_and_files(run: Run, model: Path) -> None:
    assert run.exit_code == 0
    record = run.record
    jsonschema.validate(json.loads((run.output / "explanations.json").read_text()), schema_of("explanations"))
    assert record.model_sha256 == card_sha256(model)
    assert record.intended_use == RESEARCH_USE_ONLY
    assert (record.method, record.synthetic_data, record.synthetic_model) == ("grad-cam", True, True)
    assert (record.layer.name, record.layer.kind) == ("layers.2", "Conv3d")
    assert (record.layer.grid, record.layer.input_shape, record.layer.is_default) == ((12, 12, 12), (24, 24, 24), True)
    for case in record.cases:
        assert set(case.files) == {MAP_NIFTI, OVERLAY}
        for name, digest in case.files.items():
            assert sha256_of_file(run.output / case.case_id / name) == digest
    report = json.loads(run.report.read_text())
    assert report["results"]["num_cases"] == NUM_CASES
    assert "layer layers.2 (Conv3d): 12 x 12 x 12 features for 24 x 24 x 24 voxels" in report["notices"]


def test_maps_are_on_the_grid_of_the_source(run: Run, batch: Path) -> None:
    for case in open_prepared(batch).cases():
        written = nibabel.load(run.output / case.case.case_id / MAP_NIFTI)
        assert written.shape == SOURCE_SHAPE != case.info().grid.shape
        np.testing.assert_array_equal(written.affine, SOURCE_AFFINE.astype(np.float32))
        assert written.get_data_dtype() == np.float32
        values = written.get_fdata()
        assert values.min() >= 0
        assert 0.5 < values.max() <= 1


def test_the_map_of_a_ball_is_largest_there(run: Run) -> None:
    for place, case in enumerate(run.record.cases):
        assert case.explained_class == BALL
        assert case.is_predicted == (place % 2 == 0)
        (region,) = case.regions
        assert (region.value, region.name, case.regions_grid) == (7, "surroundings of the ball", "source")
        if place % 2 == 0:
            values = nibabel.load(run.output / case.case_id / MAP_NIFTI).get_fdata()
            peak = np.array(np.unravel_index(values.argmax(), values.shape))
            distance = np.linalg.norm(SOURCE_AFFINE[:3, :3] @ (peak - np.array(center_of(place))))
            assert distance <= 1.5 * RADIUS_MM
            assert region.ratio is not None
            assert region.ratio > 3


def test_the_mass_of_a_region_is_that_of_the_written_map(run: Run, regions: Path) -> None:
    case = run.record.cases[0]
    values = nibabel.load(run.output / case.case_id / MAP_NIFTI).get_fdata()
    inside = nibabel.load(regions / f"{case.case_id}.nii.gz").get_fdata() == 7
    (region,) = case.regions
    assert region.mass_share == pytest.approx(values[inside].sum() / values.sum(), abs=1e-5)
    assert region.volume_share == pytest.approx(inside.mean(), abs=1e-6)
    assert (case.brain_mass_share, case.brain_volume_share) == (None, None), "the batch has no brain masks"


def test_the_maps_of_a_trained_network_pass_the_sanity_check(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    check = run.record.sanity_check
    assert check is not None
    assert (check.num_cases, check.threshold, check.passed) == (NUM_CASES, 0.5, True)
    correlations = [abs(c.sanity_correlation) for c in run.record.cases if c.sanity_correlation is not None]
    assert len(correlations) == check.num_compared > 0
    assert check.median_absolute_correlation == pytest.approx(np.median(correlations), abs=1e-4)


def test_by_default_the_predicted_class_is_explained_and_repeated_runs_are_equal(
    tmp_path: Path, model: Path, batch: Path
) -> None:
    first = explain(tmp_path, model, batch, "--sanity-cases", "2", output="first")
    assert [case.explained_class for case in first.record.cases] == [BALL, NO_BALL] * (NUM_CASES // 2)
    assert all(case.is_predicted and case.probability > 0.5 for case in first.record.cases)
    assert first.record.sanity_check is not None
    assert first.record.sanity_check.num_cases == 2
    second = explain(tmp_path, model, batch, "--sanity-cases", "2", output="second")
    assert digests_below(first.output) == digests_below(second.output)


def test_label_maps_on_the_prepared_grid_are_taken(tmp_path: Path, model: Path, batch: Path) -> None:
    info = open_prepared(batch).cases()[0].info()
    labels = np.zeros(info.grid.shape, np.uint8)
    labels[:12] = 1
    nibabel.save(nibabel.Nifti1Image(labels, np.asarray(info.grid.affine)), tmp_path / "case-00.nii")
    run = explain(tmp_path, model, batch, "--regions", str(tmp_path), "--sanity-cases", "0")
    first, *others = run.record.cases
    assert first.regions_grid == "prepared"
    assert [(region.name, region.volume_share) for region in first.regions] == [("label 1", 0.5)]
    assert all(case.regions == () for case in others)
    assert run.record.sanity_check is None
    assert "5 of 6 cases have no label map in --regions" in json.loads(run.report.read_text())["notices"]


def test_the_share_of_the_brain_is_counted_on_the_grid_of_the_label_map_or_the_source(
    tmp_path: Path, model: Path
) -> None:
    batch, first = volumes(tmp_path / "batch", 2), 12  # slice, of 24: the brain is the upper half
    infos = [case.info() for case in open_prepared(batch).cases()]
    for info in infos:
        folder = batch / "cases" / info.case_id
        volume_IJK = np.load(folder / "volume.npy")
        volume_IJK[..., :first] = 0
        np.save(folder / "volume.npy", volume_IJK)
        (folder / "volume_info.json").write_text(codec.dumps(dataclasses.replace(info, has_brain_mask=True)))
    cohort = dataclasses.replace(open_prepared(batch).cohort, has_brain_masks=True)
    (batch / "cohort.json").write_text(codec.dumps(cohort))
    card = volume_card()
    shutil.copytree(model, tmp_path / "model")
    write_card(
        tmp_path / "model", dataclasses.replace(card, input=dataclasses.replace(card.input, has_brain_mask=True))
    )
    labels = nibabel.Nifti1Image(np.ones(VOLUME_SHAPE, np.uint8), np.asarray(infos[0].grid.affine))
    nibabel.save(labels, tmp_path / "case-00.nii")

    run = explain(
        tmp_path, tmp_path / "model", batch, "--regions", str(tmp_path), "--sanity-cases", "0", "--target-class", BALL
    )
    assert run.exit_code == 0
    prepared, source = run.record.cases
    assert (prepared.regions_grid, prepared.brain_volume_share) == ("prepared", 0.5)
    assert prepared.brain_mass_share is not None
    values = nibabel.load(run.output / source.case_id / MAP_NIFTI).get_fdata()
    affine = np.linalg.inv(np.asarray(infos[1].grid.affine)) @ SOURCE_AFFINE
    inside_K = affine[2, 2] * np.arange(SOURCE_SHAPE[2]) + affine[2, 3] >= first - 0.5
    assert (source.regions, source.brain_volume_share) == ((), pytest.approx(inside_K.mean(), abs=1e-6))
    assert 0.1 < inside_K.mean() < 0.9
    assert source.brain_mass_share == pytest.approx(values[..., inside_K].sum() / values.sum(), abs=1e-5)
    assert 0 < source.brain_mass_share < 1


def test_label_maps_of_bids_derivatives_are_found_with_their_names(tmp_path: Path) -> None:
    for name in (
        "sub-01/anat/sub-01_dseg.nii.gz",
        "sub-02/anat/sub-02_space-T1w_dseg.nii",
        "sub-02/anat/sub-02_T1w.nii.gz",
    ):
        path = tmp_path / "derivatives" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "derivatives" / "dseg.tsv").touch()
    folders = [tmp_path / "derivatives"]
    found = find_label_maps(folders, ["sub-01", "sub-02", "sub-0"])
    assert {case_id: path.name for case_id, path in found.items()} == {
        "sub-01": "sub-01_dseg.nii.gz",
        "sub-02": "sub-02_space-T1w_dseg.nii",
    }
    assert names_beside(folders) == tmp_path / "derivatives" / "dseg.tsv"
    (tmp_path / "derivatives" / "sub-01.nii.gz").touch()
    with pytest.raises(UserInputError, match="several label maps for sub-01"):
        find_label_maps(folders, ["sub-01"])


def test_a_label_map_on_another_grid_is_refused(
    tmp_path: Path, model: Path, batch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shifted = SOURCE_AFFINE.copy()
    shifted[0, 3] += 3
    nibabel.save(nibabel.Nifti1Image(np.ones(SOURCE_SHAPE, np.uint8), shifted), tmp_path / "case-00.nii.gz")
    words = ("label map of case-00 is on another grid", "first voxel at (23.0, -30.0, 7.0) mm", "32 x 48 x 21 voxels")
    refused(tmp_path, model, batch, capsys, *words, options=("--regions", str(tmp_path)))


def test_label_maps_with_fractions_or_of_other_cases_are_refused(
    tmp_path: Path, model: Path, batch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = np.full(SOURCE_SHAPE, 0.5, np.float32)
    nibabel.save(nibabel.Nifti1Image(values, SOURCE_AFFINE), tmp_path / "other.nii.gz")
    options = ("--regions", str(tmp_path))
    refused(tmp_path, model, batch, capsys, "no label map of a case", "1 other NIfTI files", options=options)
    (tmp_path / "other.nii.gz").rename(tmp_path / "case-00.nii.gz")
    refused(tmp_path, model, batch, capsys, "values that are no labels", "value 0.5", options=options)
    (tmp_path / "names.csv").write_text("value,name\n1,one\n")
    options = (*options, "--region-names", str(tmp_path / "names.csv"))
    refused(tmp_path, model, batch, capsys, "--region-names cannot be read", "index and name", options=options)


def test_images_get_a_picture_of_the_size_of_the_source(tmp_path: Path) -> None:
    batch = image_set(tmp_path / "batch", of_split={"test": 3})
    # An image of 40 x 20 pixels, scaled by 0.4 and placed in the middle: 16 x 8 pixels from row 2.
    path = batch / "cases/case-00/volume_info.json"
    info = open_prepared(batch).cases()[0].info()
    grid = Grid(
        shape=(16, 12, 1), affine=affine_rows([[2.5, 0, 0, 0.75], [0, 2.5, 0, -4.25], [0, 0, 1, 0], [0, 0, 0, 1]])
    )
    source = Grid(shape=(40, 20, 1), affine=info.source_grid.affine)
    path.write_text(codec.dumps(dataclasses.replace(info, source_grid=source, grid=grid, crop_start=(0, -2, 0))))
    write_model(tmp_path / "model", image_card())
    run = explain(tmp_path, tmp_path / "model", batch, "--layer", "layer1.0.conv2", "--target-class", CLASSES[1])
    assert run.exit_code == 0
    assert run.record.layer.grid == (4, 3)
    assert not run.record.layer.is_default
    case = run.record.cases[0]
    assert set(case.files) == {MAP_PICTURE, OVERLAY}
    with Image.open(run.output / "case-00" / MAP_PICTURE) as picture:
        assert picture.size == (40, 20)
        assert np.asarray(picture).dtype == np.uint16
    with Image.open(run.output / "case-00" / OVERLAY) as overlay:
        assert overlay.mode == "RGB"
        assert overlay.width * 12 == overlay.height * 16


def test_the_map_of_an_image_is_where_the_color_of_its_class_is(tmp_path: Path) -> None:
    """The network has a feature for each class: how far its color is above the gray of the background."""
    layers = [
        {"kind": "conv", "channels": 3, "kernel": 1}, {"kind": "activation", "function": "relu"},
        {"kind": "pool", "type": "average", "size": "all"}, {"kind": "dense", "units": "outputs"},
    ]  # fmt: skip
    arguments = {"in_channels": 3, "outputs": 3, "input_shape": list(SHAPE), "layers": layers}
    architecture = {"class": "medweave_steps.networks.layer_stack.LayerStack", "arguments": arguments}
    card = dataclasses.replace(image_card(), architecture=architecture)
    network = build_network(card.architecture)
    conv, dense = network.layers[0], network.layers[-1]
    with torch.no_grad():
        conv.weight.copy_(torch.eye(3)[..., None, None])
        conv.bias.fill_(-0.7)
        dense.weight.copy_(torch.eye(3))
        dense.bias.zero_()
    write_model(tmp_path / "model", card, network)
    batch = image_set(tmp_path / "batch", of_split={"test": 3})
    run = explain(tmp_path, tmp_path / "model", batch, "--sanity-cases", "0")
    assert run.exit_code == 0
    assert run.record.layer.grid == SHAPE[:2]
    for place, case in enumerate(run.record.cases):
        assert (case.explained_class, case.is_predicted) == (CLASSES[place], True)
        color_IJ = np.load(batch / "cases" / case.case_id / "volume.npy")[place, :, :, 0]
        with Image.open(run.output / case.case_id / MAP_PICTURE) as picture:
            values_IJ = np.asarray(picture).T  # of a picture, rows are the first axis
        assert set(np.unique(values_IJ)) == {0, 65535}
        np.testing.assert_array_equal(values_IJ > 0, color_IJ > 0.7)
    other = explain(
        tmp_path, tmp_path / "model", batch, "--sanity-cases", "0", "--target-class", CLASSES[0], output="one"
    )
    assert [case.is_empty for case in other.record.cases] == [False, True, True]


def test_an_unknown_layer_is_refused_with_close_matches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = image_set(tmp_path / "batch", of_split={"test": 1})
    write_model(tmp_path / "model", image_card())
    words = ("no layer 'layer1.0.conv3'", "layer1.0.conv2 (4 x 3)", "conv1 (8 x 6)", "closest matches: layer1.0.conv")
    refused(tmp_path, tmp_path / "model", batch, capsys, *words, options=("--layer", "layer1.0.conv3"))
    refused(tmp_path, tmp_path / "model", batch, capsys, "no layer 'fc'", options=("--layer", "fc"))


def test_a_layer_that_is_changed_in_place_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = image_set(tmp_path / "batch", of_split={"test": 1})
    write_model(tmp_path / "model", image_card())
    words = ("cannot be computed at the layer 'layer1.0.bn2'", "name another layer")
    refused(tmp_path, tmp_path / "model", batch, capsys, *words, options=("--layer", "layer1.0.bn2"))


def test_an_unknown_class_is_refused(
    tmp_path: Path, model: Path, batch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--target-class", "bal")
    refused(tmp_path, model, batch, capsys, "no class 'bal'", "write 'ball'", options=options, exit_code=2)
    refused(tmp_path, model, batch, capsys, "--region-names", options=("--region-names", "x"), exit_code=2)


def test_models_without_torch_weights_and_of_other_tasks_are_refused(
    tmp_path: Path, model: Path, batch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny_model(tmp_path / "segments")
    refused(tmp_path, tmp_path / "segments", batch, capsys, "'tiny-nodules' does not classify")
    write_model(tmp_path / "int8", volume_card(precision="int8"))
    refused(tmp_path, tmp_path / "int8", batch, capsys, "cannot be explained", "precision int8")
    card = volume_card()
    write_model(tmp_path / "empty", card)
    for path in (tmp_path / "empty/models").iterdir():
        path.unlink()
    write_card(tmp_path / "empty", card)
    refused(tmp_path, tmp_path / "empty", batch, capsys, "no torch weights", "models/model.safetensors")
    write_model(tmp_path / "onnx", volume_card(architecture={"class": "onnx", "arguments": {}}), torch.nn.Linear(1, 1))
    refused(tmp_path, tmp_path / "onnx", batch, capsys, "has no torch network")


def test_an_empty_map_is_a_notice(tmp_path: Path, batch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = volume_card()
    network = build_network(card.architecture)
    torch.nn.init.zeros_(network.layers[-1].weight)  # no feature counts
    write_model(tmp_path / "model", card, network)
    run = explain(tmp_path, tmp_path / "model", batch, "--sanity-cases", "1", "--target-class", BALL)
    assert run.exit_code == 0
    assert all(case.is_empty for case in run.record.cases)
    assert "case-00: empty map: no feature of the layer speaks for ball" in capsys.readouterr().err
    check = run.record.sanity_check
    assert check is not None
    assert (check.num_cases, check.num_compared, check.passed) == (1, 0, None)


def test_values_that_are_not_finite_are_refused(
    tmp_path: Path, batch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card = volume_card()
    network = build_network(card.architecture)
    torch.nn.init.constant_(network.layers[0].weight, float("nan"))
    write_model(tmp_path / "model", card, network)
    refused(tmp_path, tmp_path / "model", batch, capsys, "NaN or infinite", exit_code=70)


def test_an_empty_batch_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "batch").mkdir()
    write_model(tmp_path / "model", image_card())
    batch = image_set(tmp_path / "batch", of_split={"test": 0}, classes=())
    run = explain(tmp_path, tmp_path / "model", batch)
    assert run.exit_code == 0
    assert "the batch contains no case" in capsys.readouterr().err
    assert (run.record.cases, run.record.sanity_check) == ((), None)


def test_a_network_without_an_axis_of_slices_keeps_the_names_of_its_layers(tmp_path: Path) -> None:
    plain = {
        "class": "monai.networks.nets.DenseNet", "input": "2-D",
        "arguments": {"spatial_dims": 2, "in_channels": 3, "out_channels": 3, "init_features": 4, "growth_rate": 4,
                      "block_config": [2]},
    }  # fmt: skip
    batch = image_set(tmp_path / "batch", of_split={"test": 1}, is_multi_label=True)
    card = dataclasses.replace(image_card(is_multi_label=True), architecture=plain)
    write_model(tmp_path / "model", card)
    run = explain(tmp_path, tmp_path / "model", batch)
    assert run.exit_code == 0
    assert run.record.layer.name == "features.denseblock1"
