"""Pseudonyms of files and folders. Pure.

They are keyed digests of the path: with the same key a path has the same pseudonym in each run, and without the key a pseudonym
cannot be tested against guessed names. The key stays in the home of a folder of runs.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import posixpath
import re

DIGITS = 12
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
# Suffixes that a pseudonym has too, because programs recognize file types by them. Any other suffix may be a part of a name.
_KINDS = """
7z avi bai bam bed bin bmp bval bvec bz2 cfg ckpt crai cram csi csv cwl dat dbf dcm ecg edf fa fai fasta fastq feather
fq geojson gif gii gz h5 hdf5 hdr hea htm html idx img ini jp2 jpeg jpg json jsonl key log mat md md5 mgh mgz mha mhd
mif mp4 mzml nc nef nii npy npz nrrd nwb ome onnx par parquet pb pdf pem pickle pkl png ps pt pth py r raw rda rds rec
rst safetensors sam sav seg sh sql sqlite stl svg svs tab tar tbi tfrecord tgz tif tiff toml trc trk tsv txt vcf vti
vtk vtp wav weights whl xls xlsx xml xyz xz yaml yml zip zst
"""
KINDS = frozenset(_KINDS.split())


def stem_and_kind(name: str) -> tuple[str, str]:
    """Split a name into its stem and the suffixes of its file type: `Doe_J.nii.gz` into `Doe_J` and `.nii.gz`."""
    kind = ""
    while True:
        stem, end = posixpath.splitext(name)
        if not stem or end[1:].lower() not in KINDS:
            return name, kind
        name, kind = stem, end + kind


def pseudonym(key: bytes, port: str, path: str) -> str:
    """Return the pseudonym of a file or folder, without suffixes: `cohort-3f2a91c07be4`.

    Args:
        port: the input of the workflow.
        path: absolute, without suffixes.
    """
    digits = hmac.new(key, os.fsencode(path), hashlib.sha256).hexdigest()[:DIGITS]
    return f"{_UNSAFE.sub('-', port).strip('-') or 'input'}-{digits}"
