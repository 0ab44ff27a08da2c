"""What `medweave clean` starts for the pods of a file: `python -m medweave_connectors.cleanup`, a request on standard input.

The request is a JSON object: `run_id` and `token` of the run, `pid` of its driver, `has_folders`, `file` (the streamflow.yml) and
`deployments`, each with `name`, `type`, `config` and `places` (pairs of service and workdir). The answer is one too: `removed`,
`stays`, each a list of sentences by deployment. A deployment that cannot be cleaned does not keep the others from it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any

from medweave_connectors.host.errors import SiteConfigError, SiteUnreachable
from medweave_connectors.sites.compss.connector import MedweaveCompssConnector
from medweave_connectors.sites.helm.connector import MedweaveHelmConnector
from medweave_connectors.sites.kubernetes.connector import MedweaveKubernetesConnector
from medweave_connectors.sites.pods.api.namespace_client import ApiServerError
from medweave_connectors.sites.pods.cleanup import Cleaned, GoneRun
from medweave_core.runlog.run_ownership import RunOwner

CONNECTORS = {
    "medweave.kubernetes": MedweaveKubernetesConnector,
    "medweave.helm": MedweaveHelmConnector,
    "medweave.compss": MedweaveCompssConnector,
}


async def clean(request: Mapping[str, Any]) -> dict[str, dict[str, list[str]]]:
    """Clean each deployment."""
    answer: dict[str, dict[str, list[str]]] = {"removed": {}, "stays": {}}
    for deployment in request["deployments"]:
        gone = GoneRun(
            owner=RunOwner(request["run_id"], request["token"]),
            pid=request["pid"],
            has_folders=request["has_folders"],
            places=[(service, workdir) for service, workdir in deployment["places"]],
        )
        connector = CONNECTORS[deployment["type"]](deployment["name"], request["file"], **deployment["config"])
        try:
            async with connector.reached():
                cleaned = await connector.remove_left(gone)
        except (ApiServerError, SiteConfigError, SiteUnreachable) as error:
            cleaned = Cleaned(stays=[str(error)])
        answer["removed"][deployment["name"]] = cleaned.removed
        answer["stays"][deployment["name"]] = cleaned.stays
    return answer


if __name__ == "__main__":
    print(json.dumps(asyncio.run(clean(json.load(sys.stdin)))))
