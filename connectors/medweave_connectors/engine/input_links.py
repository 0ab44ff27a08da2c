"""Links at a site, for data that a binding of a port says to lie there."""

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
TYPES = ("medweave.ssh", "medweave.slurm")  # pods find each other's volumes by path: there a path stays what it is


async def link_there(context: StreamFlowContext, location: ExecutionLocation, value: Any) -> None:
    """Makes the links of an input at its site, in the run's folder, which goes with the run.

    Raises:
        OSError: the site refuses.
    """
    home = home_of(plan(context.config).folder.parent)
    wanted = {link: home.there[link] for link in _paths(value) if link in home.there}
    if not wanted or not isinstance(context.scheduler, MedweaveScheduler):
        return
    await context.scheduler.folders.make_at(location, {posixpath.dirname(posixpath.dirname(link)) for link in wanted})
    lines = ["umask 077"]
    for link, real in wanted.items():
        folder = shlex.quote(posixpath.dirname(link))
        lines.append(f"mkdir -p {folder} && ln -sfn {shlex.quote(real)} {shlex.quote(link)}")
    connector = context.deployment_manager.get_connector(location.deployment)
    told = await connector.run(location, [f"( {' && '.join(lines)} )"], capture_output=True)
    if told is not None and told[1] != 0:
        raise OSError(f"{location.deployment}: links to the inputs could not be made: exit code {told[1]}")


def _paths(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["path"]] if value.get("class") in ("File", "Directory") and "path" in value else []
        return own + [path for each in value.values() for path in _paths(each)]
    return [path for each in value for path in _paths(each)] if isinstance(value, list) else []
