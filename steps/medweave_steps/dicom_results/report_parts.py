"""Parts of measurement reports (template TID 1500) that do not depend on what is reported."""

from __future__ import annotations

from typing import Any

from medweave_core.contracts.model import ModelCard
from medweave_steps import __version__
from medweave_steps.dicom_results.common import MANUFACTURER, derived_uid
from medweave_steps.runtime.imports import require

SERIES_NUMBER = 9002


def observer(card: ModelCard, *, model_sha256: str) -> Any:
    """Return the observation context: a device, this version of medweave with the model."""
    sr = require("highdicom.sr", extra="segment")
    codes = require("pydicom.sr.codedict", extra="segment").codes
    device = sr.DeviceObserverIdentifyingAttributes(
        uid=derived_uid("device", model_sha256),
        name=f"medweave {__version__}, research use only",
        manufacturer_name=MANUFACTURER,
        model_name=card.name[:64],
    )
    context = sr.ObserverContext(observer_type=codes.DCM.Device, observer_identifying_attributes=device)
    return sr.ObservationContext(observer_device_context=context)


def algorithm(card: ModelCard, *, model_sha256: str) -> Any:
    """Return the identification of the model as the algorithm."""
    sr = require("highdicom.sr", extra="segment")
    return sr.AlgorithmIdentification(name=card.name[:64], version=f"{card.precision} {model_sha256[:16]}")


def document_fields(card: ModelCard, *, model_sha256: str) -> dict[str, Any]:
    """Return the arguments of a highdicom report that name its place in the series, the device and the state of the report."""
    return {
        "series_number": SERIES_NUMBER,
        "instance_number": 1,
        "manufacturer": MANUFACTURER,
        "manufacturer_model_name": card.name[:64],
        "software_versions": __version__,
        "device_serial_number": model_sha256[:16],
        "is_complete": True,
        "is_final": False,
    }
