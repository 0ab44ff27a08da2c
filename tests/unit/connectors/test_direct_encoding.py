"""Blocks of a direct stream: compression, and the handling of invalid and hostile blocks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medweave_connectors.transfer.agent import encoding, program_text
from medweave_connectors.transfer.agent.encoding import (
    AHEAD,
    BLOCK,
    HEAD,
    RAW,
    TRUST,
    ZLIB,
    ZSTD,
    Decoder,
    Encoder,
    NotDecoded,
)
from medweave_connectors.transfer.routes.direct import commands, peer_program
from medweave_connectors.transfer.routes.direct.direct_copy import (
    CopyBroke,
    DirectCopyResult,
    Listener,
    PeerTask,
    copy_directly,
)
from support.direct_ends import LocalEnd

CODECS = encoding.codecs()
CT_BYTES = 4 * BLOCK - 1


def slices(num_bytes: int, seed: int = 1) -> bytearray:
    """Return bytes like CT pixels: two bytes per pixel, noise in the lower byte and one of few values in the upper byte."""
    some = random.Random(seed).randbytes(num_bytes)
    pixels = bytearray(some)
    pixels[1::2] = some[1::2].translate(bytes([4] * 8 + [3] * 248))
    return pixels


def floats(num_bytes: int) -> bytearray:
    """Return numbers of four bytes, with the same value in one of the bytes."""
    data = bytearray(random.Random(2).randbytes(num_bytes))
    data[3::4] = bytes(len(data[3::4]))
    return data


def encoder(codec: int) -> Encoder:
    if codec not in CODECS:
        pytest.fail("this machine has no libzstd.so.1")
    return Encoder([codec])


def pieces(data: bytes) -> Iterator[bytearray]:
    for at in range(0, len(data), BLOCK):
        yield bytearray(data[at : at + BLOCK])


def decoded(blocks: list[tuple[bytes, bytes, int]]) -> bytes:
    decoder, out = Decoder(), []
    for head, body, size in blocks:
        how, length, decoded_length = decoder.head(head)
        assert (length, decoded_length) == (len(body), size)
        out.append(decoder.content(how, bytearray(body), size))
    return b"".join(out)


def on_wire(blocks: list[tuple[bytes, bytes, int]]) -> int:
    return sum(len(head) + len(body) for head, body, _ in blocks)


# ---- compression


@pytest.mark.parametrize("codec", [ZSTD, ZLIB])
@pytest.mark.parametrize(("make_numbers", "width", "share"), [(slices, 2, 0.6), (floats, 4, 0.8)])
def test_numbers_are_compressed_by_byte_planes(codec: int, make_numbers: Any, width: int, share: float) -> None:
    data = bytes(make_numbers(3 * BLOCK + 12345))
    blocks = list(encoder(codec).blocks(pieces(data)))
    assert {head[0] for head, _, _ in blocks} == {codec << 4 | width}
    assert on_wire(blocks) < share * len(data)
    assert decoded(blocks) == data


def test_compressed_data_is_sent_unchanged_and_rarely_probed() -> None:
    data = os.urandom(40 * BLOCK)
    coding = encoder(ZSTD)
    began = time.process_time()
    blocks = list(coding.blocks(pieces(data)))
    assert {head[0] for head, _, _ in blocks} == {RAW}
    assert on_wire(blocks) == len(data) + len(blocks) * HEAD.size
    assert time.process_time() - began < 2


@pytest.mark.slow
def test_parts_of_a_stream_are_probed_separately() -> None:
    parts = [bytes(slices(20 * BLOCK)), os.urandom(20 * BLOCK), bytes(slices(40 * BLOCK)), bytes(floats(30 * BLOCK))]
    data = b"".join(parts)
    hows = [head[0] for head, _, _ in encoder(ZSTD).blocks(pieces(data))]
    assert set(hows[:20]) == {ZSTD << 4 | 2}
    assert set(hows[20:40]) == {RAW}
    assert set(hows[40 + TRUST : 80]) == {ZSTD << 4 | 2}
    assert set(hows[80 + TRUST + 1 :]) == {ZSTD << 4 | 4}


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=70), st.sampled_from([1, 2, 4]), st.sampled_from(sorted(CODECS)))
def test_any_bytes_are_decoded_unchanged(seed: bytes, width: int, codec: int) -> None:
    data = bytearray(seed * 100)
    assert encoding.from_planes(encoding.to_planes(data, width), width) == data
    blocks = list(encoder(codec).blocks([data] if data else []))
    assert decoded(blocks) == data


def test_a_peer_without_codecs_receives_unencoded_data() -> None:
    blocks = list(Encoder([]).blocks(pieces(bytes(slices(BLOCK)))))
    assert [head[0] for head, _, _ in blocks] == [RAW]


@pytest.mark.slow
def test_only_a_few_blocks_are_encoded_ahead() -> None:
    produced: list[int] = []

    def items() -> Iterator[int]:
        for n in range(100):
            produced.append(n)
            yield n

    consumer = encoding.read_ahead(items())
    next(consumer)
    time.sleep(0.3)
    assert len(produced) <= AHEAD + 2
    before = threading.active_count()
    consumer.close()
    time.sleep(1.5)
    assert threading.active_count() < before, "the thread ends with its consumer"


def test_an_error_of_the_source_is_raised_after_earlier_blocks() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    consumer = encoding.read_ahead(items())
    assert next(consumer) == 1
    with pytest.raises(OSError, match="gone"):
        next(consumer)


# ---- invalid blocks


def decode_or_refuse(data: bytes) -> None:
    """Assert that a block is refused or decoded to its declared size, with little memory."""
    decoder = Decoder()
    tracemalloc.start()
    try:
        with contextlib.suppress(NotDecoded):
            how, length, size = decoder.head(data[: HEAD.size])
            body = data[HEAD.size :][:length]
            if len(body) == length and length:
                assert len(decoder.content(how, bytearray(body), size)) == size <= BLOCK
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 8 * BLOCK


HEADS = st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
KNOWN_HEADS = st.tuples(
    st.sampled_from([RAW, *(codec << 4 | width for codec in (ZSTD, ZLIB, 3) for width in (0, 1, 2, 3, 4))]),
    st.integers(0, 200),
    st.integers(0, 2**21),
)


@pytest.mark.slow
@settings(deadline=None, max_examples=500)
@given(HEADS | KNOWN_HEADS, st.binary(max_size=200))
def test_any_block_is_refused_or_has_its_declared_size(head: tuple[int, int, int], body: bytes) -> None:
    decode_or_refuse(HEAD.pack(*head) + body)


BLOCKS = {codec: head + body for codec in CODECS for head, body, _ in Encoder([codec]).blocks([slices(8192)])}


@pytest.mark.slow
@settings(deadline=None, max_examples=500)
@given(st.sampled_from(sorted(CODECS)), st.data())
def test_a_changed_block_is_refused_or_has_its_declared_size(codec: int, data: st.DataObject) -> None:
    block = bytearray(BLOCKS[codec])
    for _ in range(data.draw(st.integers(1, 4))):
        block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
    decode_or_refuse(bytes(block[: data.draw(st.integers(HEAD.size, len(block)))]))


def bomb(codec: int) -> bytes:
    """Return a block that decodes to 64 MiB and declares 1 MiB."""
    if codec == ZLIB:
        work = zlib.compressobj(9, zlib.DEFLATED, -15)
        body = work.compress(bytes(2**26)) + work.flush()
    else:  # one frame of zstd: no size, a window of 64 MiB, 512 blocks of 128 KiB of one byte
        body = b"\x28\xb5\x2f\xfd\x00\x80" + b"".join(
            (last | 1 << 1 | 2**17 << 3).to_bytes(3, "little") + b"\0" for last in [0] * 511 + [1]
        )
    return HEAD.pack(codec << 4 | 2, len(body), BLOCK) + body


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_a_block_larger_than_its_declared_size_is_refused(codec: int) -> None:
    block = bomb(codec)
    decoder = Decoder()
    how, _, size = decoder.head(block[: HEAD.size])
    with pytest.raises(NotDecoded, match="a block is damaged"):
        decoder.content(how, bytearray(block[HEAD.size :]), size)
    decode_or_refuse(block)


# ---- between two peers


def copy_ct(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, sender: str = "", receiver: str = ""
) -> DirectCopyResult:
    """Copy CT data between two processes, with code appended to the peers' programs. Return the result."""
    file = tmp_path / "ct"
    file.write_bytes(slices(CT_BYTES))
    real = commands.task_line

    def line(settings: Any, *, sends: bool) -> bytes:
        with monkeypatch.context() as patch:
            text = program_text.of("encoding") + (sender if sends else receiver)
            patch.setattr(program_text, "of", lambda name: text)
            return real(settings, sends=sends)

    monkeypatch.setattr(peer_program.commands, "task_line", line)
    source = PeerTask(LocalEnd("a").end, ["cat", str(file)])
    target = PeerTask(LocalEnd("b").end, ["sh", "-c", f"cat > {tmp_path}/copy"])

    async def act() -> DirectCopyResult:
        return await copy_directly(source, target, Listener.TARGET, ports=commands.PORTS, connected=lambda: None)

    result = asyncio.run(asyncio.wait_for(act(), 40))
    assert (tmp_path / "copy").read_bytes() == file.read_bytes()
    return result


WITHOUT_ZSTD = "\ndef codecs():\n    return {ZLIB: Zlib()}\n"
WITHOUT = "\ndef codecs():\n    return {}\n"


@pytest.mark.parametrize(
    ("sender", "receiver", "share"),
    [
        ("", "", 0.6),
        (WITHOUT_ZSTD, "", 0.6),
        ("", WITHOUT_ZSTD, 0.6),
        (WITHOUT, "", 1.01),
        ("", WITHOUT, 1.01),
    ],
)
def test_two_peers_use_the_codecs_that_both_support(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sender: str, receiver: str, share: float
) -> None:
    result = copy_ct(monkeypatch, tmp_path, sender=sender, receiver=receiver)
    assert result.num_bytes == CT_BYTES
    assert share - 0.2 < result.wire_bytes / result.num_bytes < share


BOMB = f"HEAD.pack(0x22, {len(bomb(ZLIB)) - HEAD.size}, BLOCK), bytes.fromhex('{bomb(ZLIB)[HEAD.size :].hex()}'), BLOCK"
HOSTILE = """
def _blocks(self, pieces):
    for piece in pieces:
        yield {block}
Encoder.blocks = _blocks
"""


@pytest.mark.parametrize(
    ("block", "why"),
    [
        ("HEAD.pack(0x77, 10, 20), bytes(10), 20", "the stream is not in the expected encoding"),
        (
            "HEAD.pack(0, BLOCK + 1, BLOCK + 1), bytes(BLOCK + 1), BLOCK + 1",
            "the stream is not in the expected encoding",
        ),
        ("HEAD.pack(0x12, 2**31, BLOCK), bytes(10), BLOCK", "the stream is not in the expected encoding"),
        ("HEAD.pack(0x22, 1000, BLOCK), bytes(1000), BLOCK", "a block is damaged"),
        (BOMB, "a block is damaged"),
    ],
)
def test_a_hostile_sender_is_reported_without_a_hang(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, block: str, why: str
) -> None:
    with pytest.raises(CopyBroke, match=why):
        copy_ct(monkeypatch, tmp_path, sender=HOSTILE.format(block=block))
