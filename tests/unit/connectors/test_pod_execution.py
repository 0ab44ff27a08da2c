"""The exit code of a command in a pod, as its shell reports it."""

from __future__ import annotations

import subprocess

import pytest

from medweave_connectors.sites.pods.exec.commands import build_exit_code_wrapper
from medweave_connectors.sites.pods.exec.execution import ExitCodeFilter

MARK = b"medweave-pod end 0a1b "


@pytest.mark.parametrize(
    ("pieces", "own", "code"),
    [
        ((b"talk\n", MARK + b"0\n"), b"talk\n", 0),
        ((b"no end of line", MARK + b"137\n"), b"no end of line", 137),
        ((b"talk\nmedweave-", b"pod end 0a1b ", b"7", b"\n"), b"talk\n", 7),
        ((b"talk\n",), b"talk\n", None),
        ((MARK + b"1",), b"", None),  # cut
        (
            (b"medweave-pod /sys/x 1\nmedweave-pod end ffff 0\n",),
            b"medweave-pod /sys/x 1\nmedweave-pod end ffff 0\n",
            None,
        ),
        ((), b"", None),
    ],
)
def test_the_own_end_is_taken_out(pieces: tuple[bytes, ...], own: bytes, code: int | None) -> None:
    end = ExitCodeFilter(MARK)
    assert b"".join(end.feed(piece) for piece in pieces) == own
    assert end.exit_code == code


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -s TERM -- -$PPID; sleep 9", 143)]
)
def test_a_shell_tells_the_end(script: str, code: int) -> None:
    words = build_exit_code_wrapper(["sh", "-c", script], MARK.decode())
    ended = subprocess.run(words, capture_output=True, check=False, start_new_session=True)
    assert ended.stderr.endswith(MARK + f"{code}\n".encode())
    assert ended.returncode == code
