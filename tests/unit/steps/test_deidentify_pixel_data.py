"""What `deidentify` removes from pixel data: comments, application data, trailing bytes, foreign offset tables."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate, generate_frames
from pydicom.pixels import iter_pixels
from pydicom.uid import JPEG2000Lossless, JPEGLSLossless, RLELossless

from medweave_steps.deidentify.code_streams import CodeStreamError, strip_jpeg, strip_jpeg_2000, strip_rle
from support.dicom_builder import CtSeries, write_datasets
from support.identified import deidentify, results

SECRET = b"Li^Bo 4711"  # short words: no search for words would report them
SYNTAX = {"jpeg2000": JPEG2000Lossless, "jpegls": JPEGLSLossless, "rle": RLELossless}


def frame_of(syntax: str) -> tuple[Dataset, bytes]:
    """Return a compressed slice and its only code stream."""
    dataset = CtSeries(shape=(1, 64, 80)).datasets()[0]
    dataset.compress(SYNTAX[syntax], generate_instance_uid=False)
    return dataset, next(generate_frames(dataset.PixelData, number_of_frames=1))


def segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def decoded(dataset: Dataset, stream: bytes) -> np.ndarray:
    dataset.PixelData = encapsulate([stream])
    return dataset.pixel_array


def jpeg(mode: str, **options: object) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (48, 40, len(mode))).astype(np.uint8).squeeze()
    buffer = io.BytesIO()
    Image.fromarray(pixels, mode).save(buffer, "JPEG", comment=SECRET, exif=b"Exif\0\0" + SECRET, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_rows": 1}])
def test_jpeg(mode: str, options: dict[str, object]) -> None:
    stream = jpeg(mode, **options) + SECRET + b"\xff\xd9"
    new = strip_jpeg(stream, is_color=mode == "RGB")
    assert SECRET not in new
    assert b"JFIF" not in new
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(new))), np.asarray(Image.open(io.BytesIO(stream))))


def test_the_color_transform_of_a_color_jpeg_stays() -> None:
    stream = jpeg("RGB")
    adobe = segment(0xEE, b"Adobe\0\x64Li^B\0" + SECRET)  # transform 0: the samples are RGB
    new = strip_jpeg(stream[:2] + adobe + stream[2:], is_color=True)
    assert SECRET not in new
    assert b"Li^B" not in new
    assert segment(0xEE, b"Adobe\0\x64\0\0\0\0\0") in new
    assert b"Adobe" not in strip_jpeg(stream[:2] + adobe + stream[2:], is_color=False)


def test_jpeg_ls() -> None:
    dataset, stream = frame_of("jpegls")
    with_words = stream[:2] + segment(0xFE, SECRET) + segment(0xE8, SECRET) + stream[2:] + SECRET
    new = strip_jpeg(with_words, is_color=False, is_jpeg_ls=True)
    assert SECRET not in new
    assert np.array_equal(decoded(dataset, new), decoded(dataset, stream))


def test_jpeg_2000_comments_in_main_header_and_tile_part() -> None:
    dataset, stream = frame_of("jpeg2000")
    comment = segment(0x64, b"\0\1" + SECRET)
    at, tile = stream.index(b"\xff\x52"), stream.index(b"\xff\x90")
    length = int.from_bytes(stream[tile + 6 : tile + 10], "big")
    longer = (length + len(comment)).to_bytes(4, "big") if length else bytes(4)
    tile_header = stream[tile : tile + 6] + longer + stream[tile + 10 : tile + 12] + comment
    new = strip_jpeg_2000(stream[:at] + comment + stream[at:tile] + tile_header + stream[tile + 12 :] + SECRET)
    assert SECRET not in new
    assert np.array_equal(decoded(dataset, new), decoded(dataset, stream))


def test_jpeg_2000_in_a_file_of_boxes() -> None:
    _, stream = frame_of("jpeg2000")
    boxes = b"\0\0\0\x0cjP  \r\n\x87\n" + struct.pack(">L4s", 8 + len(SECRET), b"uuid") + SECRET
    file = boxes + struct.pack(">L4s", 8 + len(stream), b"jp2c") + stream
    assert strip_jpeg_2000(file) == strip_jpeg_2000(stream)
    with pytest.raises(CodeStreamError):
        strip_jpeg_2000(boxes)


def test_rle_gaps_and_tail() -> None:
    dataset, frame = frame_of("rle")
    number, first, second, *_ = struct.unpack("<16L", frame[:64])
    assert number == 2
    with_gap = struct.pack("<16L", 2, first + 10, second + 20, *[0x4C69] * 13)
    with_gap += SECRET + frame[first:second] + SECRET + frame[second:] + SECRET
    new = strip_rle(with_gap, 64 * 80)
    assert SECRET not in new
    assert struct.unpack("<16L", new[:64])[3:] == (0,) * 13
    assert np.array_equal(decoded(dataset, new), decoded(dataset, frame))
    assert strip_rle(frame, 64 * 80) == frame


@pytest.mark.parametrize("syntax", SYNTAX)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_stream_that_is_cut_off_is_refused(syntax: str, share: float) -> None:
    _, stream = frame_of(syntax)
    cut = stream[: int(len(stream) * share)]
    with pytest.raises(CodeStreamError):
        {"rle": lambda: strip_rle(cut, 64 * 80), "jpeg2000": lambda: strip_jpeg_2000(cut)}.get(
            syntax, lambda: strip_jpeg(cut, is_color=False, is_jpeg_ls=True)
        )()


@pytest.mark.parametrize(
    "junk", [b"", b"\xff", b"\xff\xd8", b"\xff\xd8\xff", b"\xff\xd8\xff\xd8\xff\xd9", b"\xff\x4f" * 9]
)
def test_junk_is_refused(junk: bytes) -> None:
    for strip in (
        lambda: strip_jpeg(junk, is_color=False),
        lambda: strip_jpeg_2000(junk),
        lambda: strip_rle(junk, 4),
    ):
        with pytest.raises(CodeStreamError):
            strip()


def enhanced(syntax: str) -> Dataset:
    dataset = CtSeries(shape=(4, 64, 80)).enhanced()
    dataset.compress(SYNTAX[syntax], generate_instance_uid=False)
    return dataset


def written(folder: Path) -> Dataset:
    (path,) = (folder.parent / "out").rglob("*.dcm")
    assert SECRET not in path.read_bytes()
    return pydicom.dcmread(path)


def frames_of(dataset: Dataset) -> list[np.ndarray]:
    return list(iter_pixels(dataset))


@pytest.mark.parametrize("syntax", SYNTAX)
def test_offset_tables_are_written_anew(tmp_path: Path, syntax: str) -> None:
    dataset = enhanced(syntax)
    frames = list(generate_frames(dataset.PixelData, number_of_frames=4))
    expected = frames_of(dataset)
    dataset.PixelData = encapsulate(frames, has_bot=False)
    lengths = [len(frame) + len(frame) % 2 for frame in frames]
    offsets = [sum(lengths[:index]) + 8 * index for index in range(4)]
    dataset.ExtendedOffsetTable = struct.pack("<4Q", *offsets) + SECRET
    dataset.ExtendedOffsetTableLengths = struct.pack("<4Q", *lengths)
    folder = tmp_path / "cohort"
    write_raw(dataset, folder)
    assert deidentify(folder) == 0
    new = written(folder)
    assert "ExtendedOffsetTable" not in new
    assert all(map(np.array_equal, frames_of(new), expected))


def write_raw(dataset: Dataset, folder: Path) -> None:
    folder.mkdir(parents=True)
    pydicom.dcmwrite(folder / "a.dcm", dataset, enforce_file_format=True)


@pytest.mark.parametrize("num_frames", [3, 5])
def test_another_number_of_frames_than_stated_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], num_frames: int
) -> None:
    dataset = enhanced("jpeg2000")
    dataset.NumberOfFrames = num_frames
    write_raw(dataset, tmp_path / "cohort")
    assert deidentify(tmp_path / "cohort") == 65
    assert "number of" in capsys.readouterr().err


def test_a_native_frame_more_than_stated_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    datasets = CtSeries().datasets()
    datasets[1].PixelData *= 2
    write_datasets(datasets, tmp_path / "cohort")
    assert deidentify(tmp_path / "cohort") == 65
    assert "at least one row more of pixel data than declared in the header" in capsys.readouterr().err


def test_a_header_with_fewer_columns_than_the_pixels_have_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    datasets = CtSeries().datasets()
    for dataset in datasets:
        dataset.Columns -= 1
    write_datasets(datasets, tmp_path / "cohort")
    assert deidentify(tmp_path / "cohort") == 65
    assert "at least one row more of pixel data than declared in the header" in capsys.readouterr().err


def test_elements_and_bytes_behind_the_pixels_are_removed(tmp_path: Path) -> None:
    (dataset,) = CtSeries(shape=(1, 36, 34)).datasets()
    dataset.add_new(0x7FE10010, "LO", "PRIVATE")
    dataset.add_new(0x7FE11010, "OB", SECRET)
    dataset.add_new(0xFFFCFFFC, "OB", SECRET)
    inner = Dataset()
    inner.Rows = inner.Columns = 2
    inner.add_new(0x7FE00010, "OW", SECRET)
    dataset.ReferencedImageSequence = [inner]
    folder = tmp_path / "cohort"
    write_raw(dataset, folder)
    assert deidentify(folder) == 0
    assert np.array_equal(written(folder).pixel_array, dataset.pixel_array)
    assert "pixel-data-trimmed" not in results(folder)["actions"]


def test_bytes_behind_the_last_element_never_leave(tmp_path: Path) -> None:
    (dataset,) = CtSeries(shape=(1, 36, 34)).datasets()
    folder = tmp_path / "cohort"
    write_raw(dataset, folder)
    with (folder / "a.dcm").open("ab") as stream:
        stream.write(SECRET * 3)
    assert deidentify(folder) in (0, 65)
    assert not any(SECRET in path.read_bytes() for path in tmp_path.glob("out/**/*.dcm"))


@pytest.mark.parametrize(
    ("vr", "descriptor", "stored", "new"),
    [
        ("OW", [4, 0, 16], b"\1\0\2\0\3\0\4\0" + SECRET, b"\1\0\2\0\3\0\4\0"),
        ("OW", [4, 0, 8], b"\1\2\3\4" + SECRET, b"\1\2\3\4"),
        ("OW", [3, 0, 8], b"\1\2\3" + b"J" + SECRET, b"\1\2\3\0"),
        ("OW", [4, 0, 8], b"\1\0\2\0\3\0\4\0", b"\1\0\2\0\3\0\4\0"),
        ("US", [2, 0, 16], [1, 2, 0x4C69], [1, 2]),
        ("OW", [4, 0], b"\1\0\2\0", None),
        ("OW", None, SECRET, None),
    ],
)
def test_bytes_behind_a_look_up_table_are_removed(
    tmp_path: Path, vr: str, descriptor: list[int] | None, stored: object, new: object
) -> None:
    (dataset,) = CtSeries(shape=(1, 36, 34)).datasets()
    table = Dataset()
    if descriptor:
        table.add_new(0x00283002, "US", descriptor)
    table.add_new(0x00283006, vr, stored)
    dataset.VOILUTSequence = [table]
    folder = tmp_path / "cohort"
    write_raw(dataset, folder)
    assert deidentify(folder) == 0
    (item,) = written(folder).VOILUTSequence
    assert item.get("LUTData") == new
