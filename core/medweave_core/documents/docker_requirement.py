"""CWL's DockerRequirement: refused where no setting of the file says what runs containers. Pure: no streamflow in here.

StreamFlow would start `docker` on the driver's machine for a job whose software the site provides, also where the requirement is
only a hint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medweave_core.documents.cwl_types import required

DOCKER_REQUIREMENT = "DockerRequirement"
_KEYS = ("dockerPull", "dockerImageId", "dockerFile", "dockerLoad", "dockerImport")


def image_of(*documents: Mapping[str, Any]) -> str | None:
    """Return the image that a DockerRequirement of these documents names, the last one's first; None without such a requirement.

    Args:
        documents: a workflow, its step and the step's tool: requirements and hints are inherited in this order.
    """
    for document in reversed(documents):
        section_and_keys = required(document).get(DOCKER_REQUIREMENT)
        if section_and_keys is not None:
            keys = section_and_keys[1] if isinstance(section_and_keys[1], Mapping) else {}
            return next((f"{key}: {keys[key]}" for key in _KEYS if key in keys), DOCKER_REQUIREMENT)
    return None


def refusal(step: str, image: str) -> dict[str, str]:
    """Return the parts of the error for a step whose tool asks for a container.

    Args:
        step: path of the step.
        image: as `image_of` returns it.
    """
    return {
        "what": (
            f"step {step} requests a container ({DOCKER_REQUIREMENT}), but medweave sites start no containers for "
            "tools."
        ),
        "seen": image,
        "expected": "a tool without it: the site provides the software, by `environment` of its deployment or service (a virtual "
        "environment, modules or an Apptainer image) or by the image of its chart",
        "do": f"remove {DOCKER_REQUIREMENT} from the tool and install its software at the site; in a StreamFlow file "
        f"written by hand, `docker: [{{step: /, deployment: {{type: none, config: {{}}}}}}]` in the workflow's "
        "config declares that the software is installed",
    }
