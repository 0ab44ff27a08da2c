"""JPEG and PNG files without metadata: the same pixels, and nothing else."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from medweave_steps.deidentify.code_streams import CodeStreamError
from medweave_steps.deidentify.images.containers import png_of, strip_file
from medweave_steps.deidentify.images.photograph import PhotographJob, deidentify_photograph
from medweave_steps.io.findings import SeriesName
from medweave_steps.io.image.raster import read_raster
from support.image_files import noise

SECRET = b"Quillfeather"


def encoded(pixels: np.ndarray, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format=form, **options)
    return buffer.getvalue()


def decoded(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content)))


@settings(max_examples=20, deadline=None)
@given(
    quality=st.integers(20, 95),
    subsampling=st.integers(0, 2),
    progressive=st.booleans(),
    is_gray=st.booleans(),
    keep_rgb=st.booleans(),
    trailing=st.binary(max_size=30),
)
def test_jpeg_keeps_its_pixels_and_nothing_else(
    quality: int, subsampling: int, progressive: bool, is_gray: bool, keep_rgb: bool, trailing: bytes
) -> None:
    pixels = noise(quality, (20, 24) if is_gray else (20, 24, 3))
    exif = Image.Exif()
    exif[0x010E] = SECRET.decode()
    content = encoded(
        pixels, "JPEG", quality=quality, subsampling=0 if keep_rgb else subsampling, progressive=progressive,
        keep_rgb=keep_rgb and not is_gray,
        comment=SECRET, exif=exif, icc_profile=SECRET, dpi=(300, 300), restart_marker_blocks=2,
    )  # fmt: skip
    stripped = strip_file(content + trailing + SECRET)
    assert np.array_equal(decoded(stripped), decoded(content))
    assert SECRET not in stripped
    assert b"Exif" not in stripped
    assert strip_file(stripped) == stripped


def test_further_images_in_a_jpeg_are_removed() -> None:
    buffer = io.BytesIO()
    Image.fromarray(noise(1)).save(buffer, format="MPO", save_all=True, append_images=[Image.fromarray(noise(2))])
    stripped = strip_file(buffer.getvalue())
    assert np.array_equal(decoded(stripped), decoded(buffer.getvalue()))
    assert stripped.count(b"\xff\xd8\xff") == 1
    assert b"MPF" not in stripped


@pytest.mark.parametrize("mode", ["L", "RGB", "P", "I;16", "1"])
def test_png_keeps_its_pixels_and_nothing_else(mode: str) -> None:
    image = Image.fromarray(noise(1))
    image = Image.fromarray(noise(1, (20, 24)).astype(np.uint16) * 200) if mode == "I;16" else image.convert(mode)
    text = PngImagePlugin.PngInfo()
    text.add_text("Author", SECRET.decode())
    text.add_itxt("Title", SECRET.decode(), zip=False)
    text.add(b"prVt", SECRET)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", pnginfo=text, dpi=(300, 300), icc_profile=SECRET)
    content = buffer.getvalue()
    stripped = strip_file(content + SECRET)
    assert np.array_equal(decoded(stripped), decoded(content))
    assert SECRET not in stripped
    kinds = {kind for kind in (b"tEXt", b"iTXt", b"pHYs", b"iCCP", b"prVt") if kind in stripped}
    assert not kinds


def test_bytes_after_the_pixels_inside_of_png_are_removed() -> None:
    content = encoded(noise(1), "PNG")
    place = content.index(b"IDAT") - 4
    length = int.from_bytes(content[place : place + 4], "big")
    data = content[place + 8 : place + 8 + length] + SECRET
    chunk = struct.pack(">L", len(data)) + b"IDAT" + data + struct.pack(">L", zlib.crc32(b"IDAT" + data))
    stripped = strip_file(content[:place] + chunk + content[place + 12 + length :])
    assert stripped == content


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_a_file_without_end_is_no_image(form: str) -> None:
    content = encoded(noise(1), form)
    with pytest.raises(CodeStreamError):
        strip_file(content[:-20])


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_orientation_is_applied_without_loss(tmp_path: Path, form: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"source.{'jpg' if form == 'JPEG' else 'png'}"
    path.write_bytes(encoded(noise(orientation), form, exif=exif))
    job = PhotographJob(
        cohort=tmp_path, output=tmp_path, name=SeriesName(case_id="image-a", ordinal=1, noun="image"), source=path.name,
        target="new", face="absent", refuse_faces=False,
    )  # fmt: skip
    done = deidentify_photograph(job)
    assert done.finding is None
    assert done.is_turned == (orientation > 1)
    assert done.file == ("new.jpg" if form == "JPEG" and orientation == 1 else "new.png")
    new = read_raster(tmp_path / done.file)
    assert new.digest() == read_raster(path).digest()
    assert "exif-orientation" not in new.notes


def test_deep_gray_stays_deep(tmp_path: Path) -> None:
    path = tmp_path / "deep.png"
    pixels = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    path.write_bytes(encoded(pixels, "PNG"))
    assert np.array_equal(decoded(png_of(read_raster(path))), pixels)


def test_a_missing_file_is_not_named(tmp_path: Path) -> None:
    job = PhotographJob(
        cohort=tmp_path, output=tmp_path, name=SeriesName(case_id="image-a", ordinal=1, noun="image"),
        source=f"{SECRET.decode()}.jpg", target="new", face="absent", refuse_faces=False,
    )  # fmt: skip
    with pytest.raises(OSError, match="No such file") as error:
        deidentify_photograph(job)
    assert SECRET.decode() not in str(error.value)
