"""Shared by all tests: the folder `tests/` is importable, so that builders live in `tests/support/`."""

from __future__ import annotations

import ast
import contextlib
import ctypes
import functools
import gc
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from support import timings

# Its assertions show their values, as those of a test file do.
pytest.register_assert_rewrite("support.connector_contract", "support.reuse_contract")

# Tests of a full disk run verbs under a limit on file size; Python (seen with 3.11) would keep byte code that the limit cut
# short, in the environment's own folders, and every later import of it would fail.
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
# Threads of OpenMP that wait for work spin: tests side by side take each other's cores so, and are 5 to 20 times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Sums of floating-point numbers depend on the number of threads: a test must not depend on what ran before it in its process.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
# Trainings go where a GPU is: there they promise no bits, and two ranks would need two of them.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

# How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile("untimed", hypothesis.settings(deadline=None))
hypothesis.settings.load_profile("untimed")

_parse = ast.parse


@functools.wraps(_parse)
def parse_without_collection(*arguments: Any, **keywords: Any) -> Any:
    """Run `ast.parse` without garbage collection.

    Python 3.11 raises SystemError (CPython #106905) where a collection in its middle runs the finalizer of what a killed process
    left: pytest formats the warning's traceback, and that parses too. MONAI's import parses its own source by way of torch.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        return _parse(*arguments, **keywords)
    finally:
        if enabled:
            gc.enable()


if sys.version_info < (3, 13):
    ast.parse = parse_without_collection


class _SignalStack(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


_NO_SIGNAL_STACK = _SignalStack(None, 2, 0)  # SS_DISABLE of Linux


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Compute with one thread, whatever the last test has set; handle signals on the main thread's own stack.

    After some thousand tests the next signal with a handler, such as SIGCHLD of torch's DataLoader, ended the process by SIGSEGV
    without a word, as `strace` showed: as if the alternate stack of the process were no memory any more. Whose it is, is not known.
    """
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    if sys.platform == "linux":
        ctypes.CDLL(None).sigaltstack(ctypes.byref(_NO_SIGNAL_STACK), None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import all test files. Each test process does that, and it takes half the time if their bytecode is cached and no garbage is
    collected: pytest rewrites assertions, in 8 s of processor time for all files."""
    keeps_no_code, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        sys.dont_write_bytecode = keeps_no_code


TAKE_MINUTES = ("cwl/", "docs/test_command", "validate/", "unit/steps/test_strategy_")
MAY_LACK = ("no COMPSs runtime",)  # what CI cannot have

_crashed: list[str] = []
_passed: set[str] = set()
_PASSED = "medweave/passed"  # in pytest's cache


# Whoever runs the tests may ignore these (a script that starts them with `&` ignores INT), and a shell that ignores a signal from
# there is no other option for its start.
signal.signal(signal.SIGUSR1, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
_handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}


@pytest.fixture(autouse=True)
def handlers_of_one_test() -> None:
    """Restore signal handlers: a verb in a test sets them, and ignored signals would stay ignored in later processes."""
    for number, handler in _handlers.items():
        signal.signal(number, handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Empty the temporary folder of a test that has passed: those of all tests take gigabytes.

    The folder itself stays, unlike with pytest's `tmp_path_retention_policy = "failed"`: a later test would have its path, and what
    medweave keeps in memory for a path, such as the home of a folder of runs, must not be another test's.
    """
    result = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if isinstance(folder, Path) and item.nodeid in _passed:
        for entry in folder.iterdir() if folder.is_dir() else ():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    entry.unlink()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a skipped test as failed in CI, where all requirements of tests are available."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI") == "true":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not reason.removeprefix("Skipped: ").startswith(MAY_LACK):
            report.outcome, report.longrepr = "failed", f"skipped in CI: {reason}"
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object, error: object) -> None:
    """Record a test process that died: its remaining tests were never run."""
    if error:
        _crashed.append(str(error))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--unfinished", action="store_true", help="only tests that the run before has not seen pass")
    timings.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--timings")
    if path:
        config.pluginmanager.register(timings)
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(timings.Timings(path, config.getoption("--timings-since")))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Side by side, a file that takes minutes and comes last is waited for by idle processors.
    here = f"{Path(__file__).parent}/"
    items.sort(key=lambda each: not str(each.path).removeprefix(here).startswith(TAKE_MINUTES))
    if config.getoption("--unfinished"):
        seen = set(config.cache.get(_PASSED, [])) if config.cache else set()
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in seen])
        items[:] = [item for item in items if item.nodeid not in seen]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed:
        _passed.add(report.nodeid)
    elif report.failed:
        _passed.discard(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if getattr(session.config, "cache", None) and not hasattr(session.config, "workerinput"):
        session.config.cache.set(_PASSED, sorted(_passed))
    for left in multiprocessing.active_children():
        left.terminate()  # a run that a failed test has started: Python would wait for its end
    # Not the exit code of failed tests, after which `make` runs only those again: here it runs all that have not passed.
    if _crashed:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
