"""Names of channels: their modality, and the names that are refused."""

from __future__ import annotations

from collections.abc import Sequence

from medweave_core.contracts.cohort import Finding
from medweave_core.contracts.volume import CT_CHANNELS, is_pet_channel
from medweave_steps.io.findings import FindingError, notice, refuse

_MR_CONTRASTS = {
    "T1PRE", "T1POST", "BOLD",
    "FLAIR", "T1", "T1W", "T1N", "T1C", "T1CE", "T1GD", "T2", "T2W", "T2F", "T2STAR", "T2STARW", "PD", "PDW", "ADC", "DWI", "HBV",
    "TRACE", "DCE", "SWI", "MP2RAGE", "MPRAGE", "UNIT1", "STIR", "FA", "MD", "MR", "MRI",
}  # fmt: skip
# Names of other modalities in data sets of nnU-Net and MSD. Their values are neither HU nor what MR contrasts are.
_OTHER_MODALITIES = {
    "PET": "PET", "PT": "PET", "SUV": "PET", "FDG": "PET", "SPECT": "SPECT", "NM": "nuclear medicine", "CBCT": "cone-beam CT",
    "US": "ultrasound", "ULTRASOUND": "ultrasound", "CR": "X-ray", "DX": "X-ray", "XR": "X-ray", "X-RAY": "X-ray", "XRAY": "X-ray",
    "MG": "mammography", "R": "color", "G": "color", "B": "color", "RGB": "color", "RED": "color", "GREEN": "color",
    "BLUE": "color",
}  # fmt: skip
_NNUNET_SCHEMES = {"NONORM", "ZSCORE", "RESCALE_TO_0_1", "RGB_TO_0_1"}


def check_channels(names: Sequence[str]) -> tuple[tuple[str, ...], list[Finding]]:
    """Return the channels of a cohort and notices about their names: CT alone, or contrasts of MR under any name.

    Raises:
        FindingError: another modality, CT together with other channels, or one name twice.
    """
    channels, words = tuple(names), [name.upper() for name in names]
    if words == list(CT_CHANNELS):
        return CT_CHANNELS, []
    if "CT" in words:
        raise _wrong(
            "CT together with other channels is not supported: CT is clipped in HU, other channels are standardized.",
            seen=f"channels {', '.join(names)}",
            expected="CT alone, or MR contrasts",
            do="make a data set of the CT channel alone",
        )
    pet = {"PET" for name in names if is_pet_channel(name)}  # also "PET FDG"
    others = sorted(pet | {_OTHER_MODALITIES[word] for word in words if word in _OTHER_MODALITIES})
    if others:
        raise _wrong(
            "the modality of the data set is neither CT nor MR.",
            seen=f"channels {', '.join(names)} ({', '.join(others)})",
            expected="CT alone, or MR contrasts such as T1w, T2w, FLAIR, ADC, DWI",
            do="use a CT or MR data set, such as MSD Task06 (lung) or Task01 (brain tumours); read PET from DICOM, which has the "
            "unit of its values",
        )
    if len(set(words)) < len(words):
        raise _wrong(
            "two channels of the data set have the same name.",
            seen=f"channels {', '.join(names)}",
            expected="a different name for each channel, such as its contrast",
            do="rename the channels in dataset.json",
        )
    return channels, _name_notices(channels)


def _name_notices(channels: Sequence[str]) -> list[Finding]:
    """Return notices about names that are no contrasts."""
    schemes = [name for name in channels if name.upper() in _NNUNET_SCHEMES]
    unknown = [name for name in channels if name.upper() not in _MR_CONTRASTS | _NNUNET_SCHEMES]
    findings = []
    if schemes:
        findings.append(
            notice(
                "channel-normalization",
                "channels are named after a normalization of nnU-Net; medweave standardizes every channel other than CT to "
                "mean 0 and standard deviation 1.",
                seen=", ".join(schemes),
                do="name the channels after their contrasts, so that a model can be matched with other cohorts",
            )
        )
    if unknown:
        findings.append(
            notice(
                "channel-names",
                "channel names that are no known MR contrast: the channels are read like MR, without a unit.",
                seen=", ".join(unknown),
                do="check that the channels are MR contrasts; name a CT channel CT",
            )
        )
    return findings


def _wrong(what: str, *, seen: str, expected: str, do: str) -> FindingError:
    return refuse("wrong-modality", what, seen=seen, expected=expected, do=do)
