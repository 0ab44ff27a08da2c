"""Paths and variables of streamflow.yml: relative paths start at its folder, `~` and `${NAME}` are expanded.

StreamFlow takes some paths from the caller's directory and reads a `workdir` before any connector sees it. So all of them are
resolved once, in the parsed configuration, which the managers get before the workflow is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from medweave_core.documents.line_numbers import Where, spelled
from medweave_core.documents.streamflow_bindings import our_deployments, targets
from medweave_core.errors import UsageError

LOCAL_TYPES = ("medweave.local",)
PATH_FORMAT = "path"  # `"format": "path"` in a connector's schema marks a path on this machine
_VARIABLE = re.compile(r"\$\{(\w+)\}")


def expand(text: str, *, where: Where | str) -> str:
    """Return a text with each `${NAME}` replaced by the variable's value.

    Raises:
        UsageError: a variable has no value.
    """

    def value(found: re.Match[str]) -> str:
        if found[1] not in os.environ:
            raise UsageError(
                f"{where}: variable {found[1]} is not set.",
                seen=text,
                expected=f"{found[1]} in the environment",
                do=f"export {found[1]}=…, or write the value",
            )
        return os.environ[found[1]]

    return _VARIABLE.sub(value, text)


def resolve(text: str, base: Path, *, where: Where) -> str:
    """Return a path of the file as an absolute path on this machine.

    Raises:
        UsageError: a `${NAME}` has no value.
    """
    return os.path.normpath(base / Path(expand(text, where=where)).expanduser())


def resolve_paths(config: MutableMapping[str, Any], default: Path, schemas: Mapping[str, Mapping[str, Any]]) -> None:
    """Make the paths of our deployments absolute, and expand the variables in their settings.

    A setting is a path where its connector's schema says `"format": "path"`, unless it holds `://` (a chart in a registry).
    The workdir of a local deployment is a path of this machine, that of any other is one of the site.

    Args:
        config: the parsed streamflow.yml with its path under `path`; changed in place.
        default: the workdir of a local deployment that names none (StreamFlow's own default is shared by all users).
        schemas: schema of `config` by type of connector.

    Raises:
        UsageError: a variable has no value, or the workdir at a site is missing, relative or holds a blank.
    """
    file = Path(config["path"]).absolute()
    ours = our_deployments(config)
    for name, deployment in ours.items():
        where = Where(file) / "deployments" / name
        settings = deployment.get("config") or {}
        deployment["config"] = _resolved(settings, schemas.get(deployment["type"], {}), file.parent, where / "config")
        if text := deployment.get("workdir"):
            deployment["workdir"] = _workdir(text, deployment["type"], file.parent, where / "workdir")
        elif deployment["type"] in LOCAL_TYPES:
            deployment["workdir"] = str(default)
        elif deployment.get("wraps") is None:
            raise _bad_workdir(where / "workdir", "no workdir")
    for name, workflow in (config.get("workflows") or {}).items():
        for place, _, target in targets(workflow):
            if target.get("deployment") in ours and target.get("workdir"):
                kind = ours[target["deployment"]]["type"]
                where = Where(file, ("workflows", name, *place, "workdir"))
                target["workdir"] = _workdir(target["workdir"], kind, file.parent, where)


def _workdir(text: str, kind: str, base: Path, where: Where) -> str:
    if kind in LOCAL_TYPES:
        return resolve(text, base, where=where)
    path = expand(text, where=where)
    if not path.startswith("/") or len(path.split()) != 1:
        raise _bad_workdir(where, path)
    return path


def _bad_workdir(where: Where, seen: str) -> UsageError:
    return UsageError(
        f"{where}: jobs at this site need a work directory.",
        seen=seen,
        expected="an absolute path at the site, without spaces, that only you use",
        do=f"write {spelled(where.field)}: /scratch/…",
    )


def _resolved(value: Any, schema: Mapping[str, Any], base: Path, where: Where) -> Any:
    if isinstance(value, str):
        if schema.get("format") == PATH_FORMAT and "://" not in value:
            return resolve(value, base, where=where)
        return expand(value, where=where)
    if isinstance(value, list):
        return [_resolved(item, schema.get("items", {}), base, where / n) for n, item in enumerate(value)]
    if isinstance(value, Mapping):
        named, others = schema.get("properties", {}), schema.get("additionalProperties")
        of_others = others if isinstance(others, Mapping) else {}
        return {key: _resolved(item, named.get(key, of_others), base, where / key) for key, item in value.items()}
    return value
