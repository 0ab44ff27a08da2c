"""One WFDB record: its header, compared with its data, and one lead in mV at 300 Hz.

Records are read by the `wfdb` library. Comments of headers, which may name the patient, are never read into a result or a message.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import ecg_channel
from medweave_steps.io.findings import SeriesName
from medweave_steps.runtime.imports import require

Signal = npt.NDArray[np.float64]

RATE_HZ = 300
"""Sampling rate of prepared signals; of the PhysioNet/CinC Challenge 2017."""
RATES_HZ = (100.0, 10000.0)
"""Sampling rates that are read: below, R peaks cannot be placed; above, the header is most likely wrong."""
_PER_MV = {"mV": 1.0, "uV": 1e-3}
_BYTES = {"8": 1, "80": 1, "16": 2, "61": 2, "160": 2, "24": 3, "32": 4}
"""Bytes of a sample in the formats of fixed size."""
# wfdb raises these, and plain Exception, for a header or data that it cannot read.
_UNREADABLE = (Exception,)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHeader:
    """The header of a WFDB record.

    Attributes:
        path: of the header, without suffix.
        rate_hz: sampling rate.
        num_samples: of each signal; 0 where the header does not state it.
        channels: name of each signal, such as `ECG` or `ECG II`; empty for one that is no ECG.
        data_files: names of the data files, in the folder of the header.
        record: as wfdb reads it.
    """

    path: Path
    rate_hz: float
    num_samples: int
    channels: tuple[str, ...]
    data_files: tuple[str, ...]
    record: Any


def read_header(path: Path, name: SeriesName) -> RecordHeader:
    """Read the header of a record.

    Args:
        path: of the file NAME.hea.
    Raises:
        FindingError: it is no WFDB header of one segment with a signal, or names no file of its folder.
    """
    wfdb = require("wfdb.io", extra="signals")
    try:
        record = wfdb.rdheader(str(path.with_suffix("")))
        signals, rate = int(record.n_sig), float(record.fs)
        files = tuple(dict.fromkeys(record.file_name or ()))
        units = (record.units, record.fmt, record.sig_name)
        is_whole = signals > 0 and all(len(values or ()) == signals for values in units)
    except _UNREADABLE as error:
        raise _bad_header(name, "text that is not a header of one segment") from error
    if not is_whole:
        raise _bad_header(name, f"{signals} signals, and lines that describe {len(record.fmt or ())} of them")
    if any(PurePosixPath(file).name != file or file in ("", ".", "..", "-", "~") for file in files):
        raise _bad_header(name, "no data file in the folder of the header")
    if not RATES_HZ[0] <= rate <= RATES_HZ[1]:
        low, high = RATES_HZ
        raise name.refuse(
            "sampling-rate", "the sampling rate cannot be used.", seen=f"{rate:g} Hz", expected=f"{low:g} to {high:g} Hz",
            do="correct the header, or leave the recording out",
        )  # fmt: skip
    return RecordHeader(
        path=path.with_suffix(""), rate_hz=rate, num_samples=int(record.sig_len or 0),
        channels=tuple(ecg_channel(lead or "") for lead in record.sig_name), data_files=files, record=record,
    )  # fmt: skip


def read_digital(header: RecordHeader, channel: str, name: SeriesName) -> tuple[npt.NDArray[np.int64], float, int]:
    """Read one lead as it is stored.

    Returns:
        digital values, int64 [samples]; digital units per mV; the digital value of 0 mV.
    Raises:
        FindingError: header and data disagree, the lead is missing, or it has another unit than mV.
    """
    place = _place_of(header, channel, name)
    unit = str(header.record.units[place])
    if unit not in _PER_MV:
        raise name.refuse(
            "signal-unit", "the signal has no unit of voltage that is known.", seen=f"unit {unit[:8]!r}", expected="mV or uV",
            do="correct the header, or leave the recording out",
        )  # fmt: skip
    _check_sizes(header, name)
    try:
        record = require("wfdb.io", extra="signals").rdrecord(str(header.path), channels=[place], physical=False)
        digital = np.asarray(record.d_signal[:, 0], np.int64)
        stored = int(record.calc_checksum()[0])
    except _UNREADABLE as error:
        raise _disagree(name, "data that cannot be read as the header describes it", "complete data") from error
    first, checksum = header.record.init_value[place], header.record.checksum[place]
    if first is not None and digital[0] != first:
        raise _disagree(name, f"a first value of {digital[0]}", f"{first}, as in the header")
    # The public data set has 0 in place of checksums. wfdb's checksums are unsigned, the header's may be signed.
    if checksum and (int(checksum) - stored) % 2**16:
        raise _disagree(name, f"checksum {stored}", f"{int(checksum) % 2**16}, as in the header")
    return digital, float(record.adc_gain[0]) * _PER_MV[unit], int(record.baseline[0])


def read_signal(header: RecordHeader, channel: str, name: SeriesName) -> Signal:
    """Return one lead in mV at 300 Hz, float64 [samples]; another rate is resampled by a polyphase filter.

    Raises:
        FindingError: as `read_digital`, or samples are missing.
    """
    digital, gain, baseline = read_digital(header, channel, name)
    missing = int(np.count_nonzero(digital == _missing_value(header, channel)))
    if missing:
        raise name.refuse(
            "missing-samples", "the signal has missing samples.", seen=f"{missing} of {len(digital)} samples",
            expected="a value for each sample", do="leave the recording out with --on-error skip",
        )  # fmt: skip
    signal = (digital - baseline) / gain
    if header.rate_hz == RATE_HZ:
        return np.asarray(signal, np.float64)
    ratio = RATE_HZ / Fraction(header.rate_hz).limit_denominator(1000)
    resample = require("scipy.signal", extra="signals").resample_poly
    return np.asarray(resample(signal, ratio.numerator, ratio.denominator), np.float64)


def _place_of(header: RecordHeader, channel: str, name: SeriesName) -> int:
    places = [place for place, own in enumerate(header.channels) if own == channel]
    if len(places) != 1:
        raise name.refuse(
            "missing-lead", f"the recording has {'no' if not places else 'several'} leads {channel}.",
            seen=", ".join(own or "another signal" for own in header.channels), expected=f"one lead {channel}",
            do="correct the header, or leave the recording out with --on-error skip",
        )  # fmt: skip
    return places[0]


def _missing_value(header: RecordHeader, channel: str) -> int:
    """Return the digital value of a missing sample: the lowest one of the format."""
    fmt = str(header.record.fmt[header.channels.index(channel)])
    return -(2 ** (8 * _BYTES.get(fmt, 2) - 1)) if fmt != "212" else -(2**11)


def _check_sizes(header: RecordHeader, name: SeriesName) -> None:
    """Compare the size of each data file with the header, for formats whose samples have a fixed size."""
    record = header.record
    for file in header.data_files:
        try:
            size = (header.path.parent / file).stat().st_size
        except OSError:
            raise _disagree(name, "no data file", "the data file that the header names") from None
        places = [place for place, own in enumerate(record.file_name) if own == file]
        formats = {str(record.fmt[place]) for place in places}
        if not header.num_samples or not formats <= set(_BYTES):
            continue
        start = int(record.byte_offset[places[0]] or 0)
        per_frame = sum(_BYTES[str(record.fmt[place])] * int(record.samps_per_frame[place] or 1) for place in places)
        expected = start + per_frame * header.num_samples
        if size != expected:
            raise _disagree(name, f"a data file of {size} bytes", f"{expected} bytes: {header.num_samples} samples")


def _disagree(name: SeriesName, seen: str, expected: str) -> Exception:
    return name.refuse(
        "header-and-data",
        "header and data disagree.",
        seen=seen,
        expected=expected,
        do="copy header (.hea) and data (.mat, .dat) from the source again, or leave the recording out with --on-error skip",
    )


def _bad_header(name: SeriesName, seen: str) -> Exception:
    return name.refuse(
        "bad-header",
        "the header (.hea) cannot be used.",
        seen=seen,
        expected="a WFDB header of one segment, with its data in the same folder",
        do="copy the record again, or leave the recording out with --on-error skip",
    )
