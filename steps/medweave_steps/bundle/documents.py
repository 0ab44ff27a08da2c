"""Reads a Bundle's configuration as data. Nothing in it is run: expressions (`$…`) and macros (`%…`) are refused where needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_core.errors import UserInputError
from medweave_steps.io.model.folder import METADATA_FILE
from medweave_steps.runtime.imports import require

_CONFIG_FILES = tuple(f"configs/inference.{suffix}" for suffix in ("json", "yaml", "yml"))
_NETWORKS = "monai.networks.nets"
_MOST_REFERENCES = 20


class NotPlainError(Exception):
    """Raised for a value of the configuration that only running code can determine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleDocuments:
    """The parsed `configs/inference.*` and `configs/metadata.json` (empty if missing)."""

    config: Mapping[str, Any]
    metadata: Mapping[str, Any]

    def plain(self, value: Any, *, depth: int = 0) -> Any:
        """Return a value with its references (`@id`, `@a::b`) resolved.

        Raises:
            NotPlainError: it holds an expression, a macro, or a reference to nothing.
        """
        if depth > _MOST_REFERENCES:
            raise NotPlainError("circular references")
        if isinstance(value, Mapping):
            return {key: self.plain(item, depth=depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.plain(item, depth=depth + 1) for item in value]
        if not isinstance(value, str) or value[:1] not in ("$", "%", "@"):
            return value
        if not value.startswith("@"):
            raise NotPlainError(f"{value[:60]!r}, which requires code execution")
        target: Any = self.config
        for key in value[1:].replace("#", "::").split("::"):
            if isinstance(target, Mapping) and key in target:
                target = target[key]
            elif isinstance(target, list) and key.isdigit() and int(key) < len(target):
                target = target[int(key)]
            else:
                raise NotPlainError(f"{value[:60]!r}, which is missing in the configuration")
        return self.plain(target, depth=depth + 1)

    def components(self, key: str) -> list[Mapping[str, Any]]:
        """Return the configured objects below a key of the top level (`preprocessing`), in order, values as written."""
        found: list[Mapping[str, Any]] = []
        _collect(self.config.get(key), found)
        return found


def _collect(value: Any, found: list[Mapping[str, Any]]) -> None:
    if isinstance(value, Mapping):
        if isinstance(value.get("_target_"), str) and short_name(value) != "Compose":
            found.append(value)
            return
        for item in value.values():
            _collect(item, found)
    elif isinstance(value, list):
        for item in value:
            _collect(item, found)


def short_name(component: Mapping[str, Any]) -> str:
    """Return the class name of a configured object, without its modules; aliases of MONAI's dictionary transforms end in `d`."""
    name = str(component.get("_target_", "")).rpartition(".")[2]
    if name.endswith("Dict"):
        return name.removesuffix("Dict") + "d"
    return name.removesuffix("D") + "d" if name.endswith("D") else name


def open_bundle(bundle: Path) -> BundleDocuments:
    """Parse the configuration of a local MONAI Bundle.

    Raises:
        UserInputError: there is no inference configuration, or a file cannot be parsed.
        BackendMissingError: MONAI is not installed.
    """
    parser: Any = require("monai.bundle", extra="export").ConfigParser
    path = next((bundle / name for name in _CONFIG_FILES if (bundle / name).is_file()), None)
    if path is None:
        raise UserInputError(
            "the folder is not an importable MONAI Bundle.",
            seen="no " + ", no ".join(_CONFIG_FILES),
            expected="configs/inference.json (or .yaml) with `network_def`, configs/metadata.json, models/model.pt",
            do="set --bundle to the folder that contains configs/ and models/",
        )
    try:
        config = parser.load_config_file(str(path))
        metadata = json.loads(_text(bundle / METADATA_FILE))
        if not isinstance(config, Mapping) or not isinstance(metadata, Mapping):
            raise ValueError("no object at the top level")
    except OSError:
        raise
    except Exception as error:  # the YAML library's errors share no base with JSON's
        text = " ".join(str(error).replace(str(bundle), "").split())
        raise UserInputError(
            "the configuration of the Bundle cannot be parsed.",
            seen=f"{type(error).__name__}: {text[:160]}",
            expected=f"{path.name} and metadata.json as JSON or YAML documents",
            do="correct the file; `python -m monai.bundle` reads the same file",
        ) from error
    return BundleDocuments(config=config, metadata=metadata)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else "{}"


def read_architecture(documents: BundleDocuments) -> dict[str, Any]:
    """Return class and arguments of the Bundle's network, for the model card.

    Raises:
        UserInputError: there is no `network_def`, it is not one of MONAI's networks, or its arguments need code to be run.
    """
    definition = documents.config.get("network_def")
    if not isinstance(definition, Mapping) or not isinstance(definition.get("_target_"), str):
        raise _refused(f"network_def: {str(definition)[:80]}")
    target = str(definition["_target_"])
    module, _, name = target.rpartition(".")
    if not name.isidentifier() or not (module == "" or module == _NETWORKS or module.startswith(_NETWORKS + ".")):
        raise _refused(f"_target_ {target!r}")
    special = {
        key: item for key, item in definition.items() if key.startswith("_") and key not in ("_target_", "_desc_")
    }
    if any(item for item in special.values()):
        raise _refused(f"the instructions {', '.join(sorted(special))} in network_def")
    arguments = {key: item for key, item in definition.items() if not key.startswith("_")}
    try:
        plain = documents.plain(arguments)
    except NotPlainError as error:
        raise _refused(f"an argument {error}") from error
    if "_target_" in json.dumps(plain, default=str):
        raise _refused("an argument that is a configured object")
    return {"class": f"{_NETWORKS}.{name}", "arguments": plain}


def _refused(seen: str) -> UserInputError:
    return UserInputError(
        "the network of the Bundle cannot be imported.",
        seen=seen,
        expected=f"network_def with a class of {_NETWORKS} and arguments that are plain values or references to them; "
        "code of the Bundle is never executed",
        do="replace the expressions by plain values in configs/inference.json, or train the network with medweave",
    )
