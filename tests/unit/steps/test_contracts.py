"""Contracts travel as JSON between steps: strict when read, equal after a round trip, and published as schemas."""

from __future__ import annotations

import json
import pickle

import jsonschema
import pytest

from medweave_core.contracts import codec
from medweave_core.contracts.labels import PRESETS
from medweave_core.contracts.model import InputContract, ModelCard, Postprocessing
from medweave_core.contracts.schema import PUBLISHED, schema_of
from medweave_core.contracts.volume import Grid, VolumeInfo
from medweave_core.errors import InternalError, StepError, UserInputError
from medweave_steps.io.findings import refuse

IDENTITY = ((1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0), (0.0, 0.0, 0.0, 1.0))


def volume_info() -> VolumeInfo:
    grid = Grid(shape=(4, 5, 6), affine=IDENTITY)
    return VolumeInfo(
        case_id="case-01", source_format="dicom", source_grid=grid, source_sha256="0" * 64, source_axis=(2, 1, 0),
        source_flipped=(True, True, False), grid=grid, crop_start=(0, 1, 2), window_hu=(-1000.0, 400.0),
    )  # fmt: skip


def model_card() -> ModelCard:
    contract = InputContract(
        spacing_mm=(2.0, 2.0, 2.0), window_hu=(-1000.0, 400.0), patch_shape=(96, 96, 96), patch_multiple=8
    )
    return ModelCard(
        name="lung-nodule", task="segmentation", architecture={"class": "monai.networks.nets.UNet", "arguments": {}},
        labels=PRESETS["lung-nodule"], input=contract,
        postprocessing=Postprocessing(), precision="float32", files={}, parent_sha256=None,
        data_sha256="0" * 64, synthetic_data=True, code_version="0.1.0", metrics={"validation_dice": None}, training={},
    )  # fmt: skip


@pytest.mark.parametrize(("cls", "value"), [(VolumeInfo, volume_info()), (ModelCard, model_card())])
def test_a_contract_survives_the_round_trip(cls: type, value: object) -> None:
    assert codec.from_json(cls, json.loads(codec.dumps(value)), where="test") == value


def test_an_unknown_key_is_refused_with_its_path() -> None:
    data = json.loads(codec.dumps(volume_info()))
    data["grid"]["spacing"] = [1, 1, 1]
    with pytest.raises(UserInputError) as caught:
        codec.from_json(VolumeInfo, data, where="volume_info.json of case-01")
    assert "$.grid" in str(caught.value)
    assert "spacing" in caught.value.seen


def test_a_missing_key_is_refused() -> None:
    data = json.loads(codec.dumps(volume_info()))
    del data["crop_start"]
    with pytest.raises(UserInputError, match="crop_start"):
        codec.from_json(VolumeInfo, data, where="volume_info.json")


@pytest.mark.parametrize("value", ["RAS", 1, [1, 2], [1, 2, "3"], [1, 2, True], None])
def test_a_wrong_type_is_refused(value: object) -> None:
    data = json.loads(codec.dumps(volume_info())) | {"crop_start": value}
    with pytest.raises(UserInputError, match="crop_start"):
        codec.from_json(VolumeInfo, data, where="volume_info.json")


def test_a_word_outside_the_closed_list_is_refused() -> None:
    data = json.loads(codec.dumps(model_card())) | {"precision": "bfloat16"}
    with pytest.raises(UserInputError, match="float32, int8"):
        codec.from_json(ModelCard, data, where="model_card.json")


def test_a_number_that_is_not_finite_is_never_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        codec.dumps({"dice": float("nan")})


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_schemas_are_valid_and_closed(name: str) -> None:
    schema = schema_of(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["additionalProperties"] is False
    assert schema["description"]


def test_a_written_contract_fits_its_schema() -> None:
    jsonschema.validate(json.loads(codec.dumps(volume_info())), schema_of("volume-info"))
    jsonschema.validate(json.loads(codec.dumps(model_card())), schema_of("model-card"))


def test_attribute_docs_become_descriptions() -> None:
    properties = schema_of("volume-info")["properties"]
    assert "HU" in properties["window_hu"]["description"]
    assert properties["source_flipped"]["description"] == properties["source_axis"]["description"]


@pytest.mark.parametrize(
    "error",
    [
        InternalError("it failed.", seen="this", expected="that", do="so"),
        UserInputError(what="it failed."),
        refuse("gap", "slices are missing.", seen="3", expected="4", do="send them", case_id="case-1"),
    ],
)
def test_an_error_from_another_process_says_all_that_it_said_there(error: StepError) -> None:
    # A task's error came to the user as its first line alone.
    came = pickle.loads(pickle.dumps(error))
    assert type(came) is type(error)
    assert str(came) == str(error)
    assert getattr(came, "finding", None) == getattr(error, "finding", None)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("inf"), float("nan")])
def test_a_temperature_that_logits_cannot_be_divided_by_is_refused(temperature: float) -> None:
    with pytest.raises(UserInputError, match="temperature"):
        Postprocessing(temperature=temperature)
