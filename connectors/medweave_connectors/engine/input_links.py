"""Links at a site to inputs that a binding of a port places there."""

from __future__ import annotations

import posixpath
import shlex
from typing import Any

from streamflow.core.context import StreamFlowContext
from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.engine.scheduling.scheduler import MedweaveScheduler
from medweave_connectors.policy.pseudonym_home import home_of
from medweave_connectors.runlog import plan

LINKS = "inputs"  # in the run's folder at the site
TYPES = ("medweave.ssh", "medweave.slurm")  # not for pods, which recognize a shared volume by its path


async def make_site_links(context: StreamFlowContext, location: ExecutionLocation, value: Any) -> None:
    """Make the links of an input at its site, in the run's folder, which is removed with the run.

    Raises:
        OSError: the site reports an error.
    """
    home = home_of(plan(context.config).folder.parent)
    targets = {link: home.site_links[link] for link in _paths(value) if link in home.site_links}
    if not targets or not isinstance(context.scheduler, MedweaveScheduler):
        return
    await context.scheduler.folders.make_at(location, {posixpath.dirname(posixpath.dirname(link)) for link in targets})
    lines = ["umask 077"]
    for link, real in targets.items():
        folder = shlex.quote(posixpath.dirname(link))
        lines.append(f"mkdir -p {folder} && ln -sfn {shlex.quote(real)} {shlex.quote(link)}")
    connector: Any = context.deployment_manager.get_connector(location.deployment)
    answer = await connector.run(location, [f"( {' && '.join(lines)} )"], capture_output=True)
    if answer is not None and answer[1] != 0:
        raise OSError(f"{location.deployment}: links to the inputs could not be made: exit code {answer[1]}")


def _paths(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["path"]] if value.get("class") in ("File", "Directory") and "path" in value else []
        return own + [path for item in value.values() for path in _paths(item)]
    return [path for item in value for path in _paths(item)] if isinstance(value, list) else []
