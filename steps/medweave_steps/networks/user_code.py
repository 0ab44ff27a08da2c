"""Networks that are code of the user: a class of a file or of an installed module, `--network module:Class`.

Nothing is imported before `load_class`. The code is run with the rights of this process: a `NetworkCode` is made only where the
user has agreed to it (`--allow-code`), and `check_unchanged` compares its digest with that of the model card.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import traceback
import types
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from medweave_core.errors import UsageError, UserInputError
from medweave_steps.networks.types import NetworkType
from medweave_steps.runtime.options import check_option

FOLDER = "scripts"
"""Folder of a model folder with the user's file; a MONAI Bundle has its own code there."""
CONSENT = "read the code, then add --allow-code: it runs with your rights on this machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCode:
    """Code of the user that may be run.

    Attributes:
        module: name of the module; of a file, the one that --network gives it.
        source: content of the file; None for an installed module.
        sha256: of the file or of the module's own source file, not of the modules that it imports.
    """

    module: str
    source: bytes | None
    sha256: str

    @property
    def card_entry(self) -> dict[str, str]:
        """Return `code` of the architecture in a model card."""
        return {"sha256": self.sha256} | ({"file": f"{FOLDER}/{self.module}.py"} if self.source is not None else {})

    def write_copy(self, folder: Path) -> None:
        """Write a copy of the file into a model folder; an installed module has none."""
        if self.source is not None:
            (folder / FOLDER).mkdir(exist_ok=True)
            (folder / FOLDER / f"{self.module}.py").write_bytes(self.source)


def is_user_class(name: str) -> bool:
    """Return whether a network's name means code of the user, `module:Class`."""
    return ":" in name


def user_network(name: str) -> NetworkType:
    """Return the network of a class of the user, which is not imported.

    Raises:
        UsageError: the name is not of the form `module:Class`.
    """
    module, _, word = name.partition(":")
    if not word.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise UsageError(
            f"unknown network '{name}'.",
            seen=f"--network {name}",
            expected="module:Class, with the name of a Python module and of a class in it",
            do="write --network my_network:MyNetwork --network-code my_network.py",
        )
    return NetworkType(
        class_name=name,
        arguments=lambda config, channels: {
            "in_channels": channels, "out_channels": 1, "input_shape": list(config.patch_shape),
        },
        output_kind=None,
        spatial_dims=(2, 3),
        out_channels="out_channels",
        check=_check,
    )  # fmt: skip


def _check(config: Any) -> None:
    module, path = config.network.partition(":")[0], config.network_code
    if not config.allow_code:
        raise no_consent(config.network)
    # Not the file's own name: workflow engines rename the files of a job.
    fits = path is None or (path.suffix == ".py" and "." not in module)
    check_option(fits, "network_code", path, "a file NAME.py, with --network NAME:Class and no dot in the name")


def no_consent(name: str) -> UsageError:
    """Return the error for code of the user that may not be run."""
    return UsageError(
        f"the network '{name}' is code that is not part of medweave, and it may not be run.",
        seen="no --allow-code",
        expected="your consent to run it",
        do=CONSENT,
    )


def read_code(name: str, path: Path | None) -> NetworkCode:
    """Return the code of a network without running it.

    Args:
        name: `module:Class`.
        path: the file of the module; None for an installed module.
    Raises:
        UserInputError: there is no such file or module.
    """
    module = name.partition(":")[0]
    try:
        source = path.read_bytes() if path else _module_file(module).read_bytes()
    except FileNotFoundError:
        raise UserInputError(
            f"the code of the network '{name}' is missing.",
            seen=f"no file {path.name}" if path else f"no module {module} is installed on this machine",
            expected=f"the Python file of the module {module}",
            do="set --network-code to the file, or install the package of the module",
        ) from None
    return NetworkCode(module=module, source=source if path else None, sha256=hashlib.sha256(source).hexdigest())


def check_unchanged(code: NetworkCode, entry: Mapping[str, Any], *, name: str) -> None:
    """Refuse code that is not what the model was trained with.

    Args:
        entry: `code` of the architecture in the model card.
        name: of the network, `module:Class`.
    Raises:
        UserInputError: the digests differ.
    """
    if code.sha256 != entry.get("sha256"):
        raise UserInputError(
            f"the code of the network '{name}' was changed after the model was trained.",
            seen=f"{code.module}.py with SHA-256 {code.sha256[:16]}…",
            expected=f"SHA-256 {str(entry.get('sha256'))[:16]}…, as in its model card",
            do="restore the code that the model was trained with, or train the model again",
        )


def load_class(name: str, code: NetworkCode) -> type:
    """Import the code of a network and return its class.

    Raises:
        UserInputError: the code cannot be imported, or has no such class.
    """
    word = name.partition(":")[2]
    try:
        module = importlib.import_module(code.module) if code.source is None else _run(code)
    except Exception as error:  # code of the user may raise anything
        raise failed(name, code, "cannot be imported", error) from error
    network_class = getattr(module, word, None)
    if not isinstance(network_class, type):
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise UserInputError(
            f"the code of the network '{name}' has no class {word}.",
            seen=f"{code.module}.py with the classes {', '.join(classes)}"
            if classes
            else f"{code.module}.py, no class",
            expected=f"a class {word}, derived from torch.nn.Module",
            do="correct --network or the code",
        )
    return network_class


def failed(name: str, code: NetworkCode, what: str, error: Exception) -> UserInputError:
    """Return the error for code of the user that raised an exception; names the line of its file."""
    places = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).name == f"{code.module.rpartition('.')[2]}.py"
    ]
    if isinstance(error, SyntaxError):
        places = [error.lineno]
    where = f" (line {places[-1]} of {code.module.rpartition('.')[2]}.py)" if places else ""
    return UserInputError(
        f"the code of the network '{name}' {what}.",
        seen=f"{type(error).__name__}: {' '.join(str(error).split())[:160]}{where}",
        expected="a torch.nn.Module that is made by Class(in_channels=, out_channels=, input_shape=(I, J, K))",
        do="correct the code; docs/how-to/bring-a-network.md has an example",
    )


def _run(code: NetworkCode) -> types.ModuleType:
    """Run the source as a module named after its digest; the same source is run once in a process."""
    assert code.source is not None
    name = f"medweave_network_code_{code.sha256[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    module = types.ModuleType(name)
    module.__file__ = f"{code.module}.py"
    compiled = compile(code.source, module.__file__, "exec")
    sys.modules[name] = module  # dataclasses look up their module there
    try:
        exec(compiled, module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _module_file(module: str) -> Path:
    """Return the source file of a module without importing it or its packages.

    Raises:
        FileNotFoundError: there is no such module, or it has no source file.
    """
    parts, path = module.split("."), None
    for number in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: number + 1]), path)
        if spec is None:
            raise FileNotFoundError(module)
        path = spec.submodule_search_locations
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise FileNotFoundError(module)
    return Path(spec.origin)
