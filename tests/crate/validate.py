"""Run roc-validator in its own environment: its pins are not medweave's. `validate.py CRATE…` prints a JSON line for each.

The shapes of the profiles are in its package. It would download the JSON-LD context of RO-Crate 1.1; that comes from the package of
ro-crate-py 0.14, which has a copy: no network is needed.
"""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from types import SimpleNamespace
from typing import Any

import rdflib.plugins.shared.jsonld.context as jsonld
from rocrate_validator import models, services
from rocrate_validator.utils.http import HttpRequester

PROFILE = "provenance-run-crate"
ADDRESS = "https://w3id.org/ro/crate/1.1/context"
CONTEXT = json.loads(files("rocrate").joinpath("data", "ro-crate.jsonld").read_text("utf-8"))


def main() -> int:
    """Return 0 if all crates conform to what the profile requires."""
    assert CONTEXT["@id"] == ADDRESS
    jsonld.source_to_json = _to_json
    HttpRequester.get = _get  # type: ignore[method-assign]
    conform = [_conforms(crate) for crate in sys.argv[1:]]
    return 0 if all(conform) else 1


def _conforms(crate: str) -> bool:
    settings = services.ValidationSettings(
        rocrate_uri=crate, profile_identifier=PROFILE, requirement_severity=models.Severity.REQUIRED
    )
    result = services.validate(settings)
    issues = [{"check": issue.check.identifier, "says": issue.message} for issue in result.get_issues()]
    print(json.dumps({"crate": crate, "profile": PROFILE, "passed": result.passed(), "issues": issues}))
    return result.passed() and not issues


def _to_json(source: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
    return _known(str(source)), None


def _get(self: HttpRequester, url: str, *_: Any, **__: Any) -> Any:
    known = _known(url)
    return SimpleNamespace(status_code=200, headers={"Content-Type": "application/ld+json"}, json=lambda: known)


def _known(url: str) -> Any:
    if url != ADDRESS:
        raise ValueError(f"the crate needs {url}, which is not the context of RO-Crate 1.1")
    return CONTEXT


if __name__ == "__main__":
    sys.exit(main())
