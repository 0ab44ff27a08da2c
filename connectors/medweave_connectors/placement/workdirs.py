"""Where jobs work: relative paths start at the folder of streamflow.yml, `~` and `${NAME}` are expanded.

StreamFlow reads a `workdir` before any connector sees it, and takes it as it is. So the paths are resolved in the parsed
configuration, which the managers get before the workflow is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

from medweave_steps.contracts.errors import UsageError

LOCAL_TYPES = ("medweave.local",)
_VARIABLE = re.compile(r"\$\{(\w+)\}")


def resolve(text: str, base: Path, *, where: str) -> str:
    """An absolute path from what stands in the file.

    Raises:
        UsageError: a `${NAME}` has no value.
    """

    def value(found: re.Match[str]) -> str:
        if found[1] not in os.environ:
            raise UsageError(
                f"streamflow.yml, {where}: the variable {found[1]} has no value.",
                seen=text,
                expected=f"{found[1]} in the environment of streamflow",
                do=f"export {found[1]}=…, or write the path",
            )
        return os.environ[found[1]]

    expanded = Path(_VARIABLE.sub(value, text)).expanduser()
    return os.path.normpath(base / expanded)


def resolve_workdirs(config: MutableMapping[str, Any], default: Path) -> None:
    """Makes the workdirs of our local deployments, and of the targets on them, absolute.

    Args:
        config: the parsed streamflow.yml with its path under `path`; changed in place.
        default: the workdir of a deployment that names none (StreamFlow's own default is shared by all users).
    """
    base = Path(config["path"]).absolute().parent
    ours = {name: d for name, d in (config.get("deployments") or {}).items() if d.get("type") in LOCAL_TYPES}
    for name, deployment in ours.items():
        text = deployment.get("workdir")
        deployment["workdir"] = resolve(text, base, where=f"deployments.{name}.workdir") if text else str(default)
    for where, target in _targets(config):
        if target.get("deployment") in ours and target.get("workdir"):
            target["workdir"] = resolve(target["workdir"], base, where=where)


def _targets(config: MutableMapping[str, Any]) -> Iterator[tuple[str, MutableMapping[str, Any]]]:
    for name, workflow in (config.get("workflows") or {}).items():
        for number, binding in enumerate(workflow.get("bindings") or []):
            targets = binding["target"] if isinstance(binding["target"], list) else [binding["target"]]
            for target in targets:
                yield f"workflows.{name}.bindings[{number}].target.workdir", target
