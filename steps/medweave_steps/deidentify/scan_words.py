"""Free text that names the contrast of an MR or PET series, reduced to words of a closed list.

Readers distinguish contrasts by SeriesDescription and ContrastBolusAgent. Both are free text and may hold names, so only words of
this list stay: they name sequences, weightings, planes, agents, tracers and corrections, and no person.
"""

from __future__ import annotations

import re

from medweave_steps.deidentify.identifiers import Identifiers

_LISTED = """
    T1 T1W T1WI T1GD T1GAD T1C T1CE T1POST T1PRE T2 T2W T2WI T2STAR T2* PD PDW FLAIR T1FLAIR T2FLAIR STIR TIRM DIR DWI
    DTI ADC FA TRACE EP2D EPI SWI SWAN GRE SE FSE TSE TFE FFE FLASH SPGR FSPGR BRAVO MPRAGE MP2RAGE SPACE CUBE VISTA
    VIBE LAVA THRIVE DIXON HASTE SSFSE TRUFI TRUFISP FIESTA BSSFP CISS IR PWI PERFUSION DSC DCE ASL CBF CBV MTT TTP TOF
    MRA MRV BOLD FMRI FS FATSAT SPIR SPAIR WATER FAT INPHASE OPPOSED PHASE MAGNITUDE GD GAD GADO GADOLINIUM KM CE C+ +C
    PRE POST CONTRAST NATIVE ENHANCED WITH WITHOUT W WO NO NONE YES IV INTRAVENOUS GADAVIST GADOVIST GADOBUTROL
    MAGNEVIST GADOPENTETATE DIMEGLUMINE DTPA DOTAREM CLARISCAN GADOTERATE MEGLUMINE PROHANCE GADOTERIDOL MULTIHANCE
    GADOBENATE EOVIST PRIMOVIST GADOXETATE OMNISCAN GADODIAMIDE ELUCIREM VUEWAY GADOPICLENOL AX AXIAL TRA TRANS
    TRANSVERSE TRANSVERSAL SAG SAGITTAL COR CORONAL OBL OBLIQUE ISO 2D 3D BRAIN HEAD NECK CHEST THORAX ABDOMEN PELVIS
    PROSTATE LIVER HEART CARDIAC SPINE BREAST KNEE WHOLEBODY WB BODY WHOLE PET PT CT AC NAC CTAC MRAC NONAC CORRECTED
    UNCORRECTED ATTENUATION EMISSION STATIC DYNAMIC GATED FDG FET PSMA DOTATATE DOTATOC FLT FMISO CHOLINE AMYLOID TAU
    RECON OSEM PSF FBP SUV BQML SCAN SERIES REFORMAT MPR MIP ORIGINAL DERIVED SYNTHETIC LOCALIZER SCOUT SURVEY EARLY
    LATE DELAYED ARTERIAL VENOUS PORTAL
"""
_WORDS = frozenset(_LISTED.split())
_DIFFUSION = re.compile(r"B(0|\d{1,3}0)")  # b-values, s/mm2
_WITHOUT = re.compile(r"\bw/o\b", re.I)  # else only its W would stay, which means with
_WORD = re.compile(r"\+C(?![^\W_])|C\+|[^\W_]+\*?")


def scan_words(text: str, identifiers: Identifiers) -> str:
    """Return the words of a text that the list holds, in their order and spelling; empty if there are none.

    Args:
        identifiers: words of the header that identify the patient; they are left out.
    """
    words = [word for word in _WORD.findall(_WITHOUT.sub("WO", text)) if is_scan_word(word)]
    return " ".join(word for word in words if not identifiers.in_text(word))[:64]


def is_scan_word(word: str) -> bool:
    """Return whether the list holds a word, or it is a b-value."""
    return word.upper() in _WORDS or _DIFFUSION.fullmatch(word.upper()) is not None
