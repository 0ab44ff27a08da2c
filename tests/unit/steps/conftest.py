"""What several files of tests read and none changes, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.openvino_models import NODULE_ANYWHERE, write_tiny_model
from support.segmented import Run, segment_series, series_with
from support.tables import LISTED, ROWS, encode, phantom


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder whose network segments everything brighter than air; copy it to change it."""
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder)
    return folder


@pytest.fixture(scope="session")
def model_without_anatomy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same network with a label that names no organ, for volumes without lungs."""
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder, labels=(NODULE_ANYWHERE,))
    return folder


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Run:
    """`segment` with that model, run on a series with two balls."""
    return segment_series(tmp_path_factory.mktemp("run"), model, series_with())


@pytest.fixture(scope="session")
def claims(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of claims with its schema and its list of excluded providers."""
    return phantom(tmp_path_factory.mktemp("claims"), "claims", "--rows", str(ROWS), "--listed-rows", str(LISTED))


@pytest.fixture(scope="session")
def encoded(claims: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The claims as input of a network: 160 training rows of excluded providers and 480 others, 80 test rows."""
    output = tmp_path_factory.mktemp("encoded") / "encoded"
    assert encode(claims, output, "--ratio", "3", "--test-ratio", "1", "--nodes", "2", "--rows-per-part", "200") == 0
    return output
