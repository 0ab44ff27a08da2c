"""`environment.modules` of a Slurm service, by Environment Modules on real nodes."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Any

import pytest

from support.slurm_runs import GANG, go, write
from support.testbed import Sites


@pytest.fixture
def service(tmp_path: Path, testbed: Sites, shared_folder: Path) -> dict[str, Any]:
    """Return the keys of a service whose site has one module, `tool/1.0`, with one program."""
    modulefile = f"#%Module1.0\nprepend-path PATH {shared_folder}/bin\n"
    script = f"""cd {quote(str(shared_folder))} && mkdir -p modules/tool bin && printf %s {quote(modulefile)} > modules/tool/1.0 &&
        printf '#!/bin/sh\\necho of the module\\n' > bin/site-tool && chmod +x bin/site-tool"""
    made = testbed.hpc("sh", "-c", script)
    assert made.returncode == 0, made.stderr
    (tmp_path / "prologue.sh").write_text(f"export MODULEPATH={shared_folder}/modules\n")
    return {"prologue": "prologue.sh"}


@pytest.mark.parametrize(("target", "keys"), [({}, {}), ({"locations": 2}, GANG)], ids=["job", "gang"])
def test_a_command_has_the_modules_of_its_service_on_each_node(
    tmp_path: Path, testbed: Sites, service: dict[str, Any], target: dict[str, Any], keys: dict[str, Any]
) -> None:
    script = (
        'output=$(site-tool) && [ "$LOADEDMODULES" = tool/1.0 ] || exit 9; '
        '[ "${MEDWEAVE_NODE_RANK:-0}" != 0 ] || echo "$output" > result.txt'
    )
    service["environment"] = {"modules": ["tool/1.0"]}
    write(tmp_path, {"first": (script, keys)}, target=target, service=service)
    ended = go(tmp_path, testbed)
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "results" / "result.txt").read_text() == "of the module\n"


def test_a_module_that_the_site_lacks_is_named(tmp_path: Path, testbed: Sites, service: dict[str, Any]) -> None:
    service["environment"] = {"modules": ["tool/1.0", "absent/9"]}
    write(tmp_path, {"first": "echo ran > result.txt"}, service=service)
    ended = go(tmp_path, testbed)
    assert ended.exit_code == 1
    assert "environment.modules[1]: not found at the site." in ended.stderr
    assert "`module load absent/9` failed on n" in ended.stderr
    assert not (tmp_path / "results" / "result.txt").exists()
