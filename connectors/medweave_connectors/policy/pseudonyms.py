"""Names that stand for the names of files and folders. Pure.

They are keyed: with the key a path has the same pseudonym in each run, and nobody can find a name out by trying names. The key
stays in the home of a folder of runs.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import posixpath
import re

DIGITS = 12
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
# What a name may keep of its end: programs tell kinds of files by it. Any other end may be a part of a person's name.
_KINDS = """
7z avi bai bam bed bin bmp bval bvec bz2 cfg ckpt crai cram csi csv cwl dat dbf dcm ecg edf fa fai fasta fastq feather
fq geojson gif gii gz h5 hdf5 hdr hea htm html idx img ini jp2 jpeg jpg json jsonl key log mat md md5 mgh mgz mha mhd
mif mp4 mzml nc nef nii npy npz nrrd nwb ome onnx par parquet pb pdf pem pickle pkl png ps pt pth py r raw rda rds rec
rst safetensors sam sav seg sh sql sqlite stl svg svs tab tar tbi tfrecord tgz tif tiff toml trc trk tsv txt vcf vti
vtk vtp wav weights whl xls xlsx xml xyz xz yaml yml zip zst
"""
KINDS = frozenset(_KINDS.split())


def stem_and_kind(name: str) -> tuple[str, str]:
    """A name without the ends that say which kind of file it is, and these: `Doe_J.nii.gz` is `Doe_J` and `.nii.gz`."""
    kind = ""
    while True:
        stem, end = posixpath.splitext(name)
        if not stem or end[1:].lower() not in KINDS:
            return name, kind
        name, kind = stem, end + kind


def pseudonym(key: bytes, port: str, path: str) -> str:
    """The name for a file or folder, without its kind: `cohort-3f2a91c07be4`.

    Args:
        port: the input of the workflow that it is given for.
        path: absolute, without its kind.
    """
    digits = hmac.new(key, os.fsencode(path), hashlib.sha256).hexdigest()[:DIGITS]
    return f"{_UNSAFE.sub('-', port).strip('-') or 'input'}-{digits}"
