"""The HPC site: munge, MariaDB, slurmdbd, slurmctld and two slurmd, in the site's own view of the file system."""

from __future__ import annotations

import secrets
from functools import partial
from pathlib import Path

from . import slurm_config
from .commands import Commands
from .layout import SLURM_ACCOUNT, SLURM_NODES, Layout
from .part import Part, Testbed
from .walls import HPC


def inside(testbed: Testbed, *words: str) -> list[str]:
    """Return the words that run a program with the HPC site's view."""
    return [*testbed.walls.inside(HPC), *words]


def ask(testbed: Testbed, *words: str, timeout_s: float = 15) -> str | None:
    """Return why a program of the HPC site fails; None if it does not."""
    code, output, errors = testbed.commands.outcome(inside(testbed, *words), timeout_s=timeout_s)
    return None if code == 0 else f"`{' '.join(words)}` says: " + " ".join((errors or output).split())[:200]


def configuration(layout: Layout) -> Path:
    """Return the folder that is /etc/slurm at the site."""
    return layout.slurm / "etc"


def write_configuration(layout: Layout, commands: Commands) -> None:
    """Write Slurm's files; they must be there before the site's view is made, which shows them as /etc/slurm."""
    folder = configuration(layout)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text, mode in (
        ("slurm.conf", slurm_config.slurm_conf(layout), 0o644),
        ("gres.conf", slurm_config.gres_conf(), 0o644),
        ("slurmdbd.conf", slurm_config.slurmdbd_conf(), 0o600),
        ("task-prolog", slurm_config.task_prolog(layout), 0o755),
        ("mariadb.cnf", slurm_config.database_conf(), 0o644),
    ):
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(mode)
    commands.run(["chown", "slurm:", folder / "slurmdbd.conf"])
    key = folder / "munge.key"
    if not key.exists():
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        commands.run(["chown", "munge:", key])


def start_munge(testbed: Testbed) -> None:
    """Start the authentication of Slurm's messages."""
    files = ["--key-file=/etc/slurm/munge.key", "--seed-file=/var/lib/munge/seed", "--pid-file=/run/munge/munged.pid"]
    words = ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged", "--foreground", "--force", *files]
    testbed.daemons.start("munge", words, view=HPC)


def start_database(testbed: Testbed) -> None:
    """Create the database's files the first time and start MariaDB."""
    if not (testbed.layout.slurm / "site/var/lib/mysql/mysql").exists():
        words = [
            "mariadb-install-db",
            "--defaults-file=/etc/slurm/mariadb.cnf",
            "--auth-root-authentication-method=socket",
        ]
        log = testbed.layout.log / "database-files.log"
        testbed.commands.run(inside(testbed, *words, "--skip-test-db"), log=log)
    testbed.daemons.start("database", ["mariadbd", "--defaults-file=/etc/slurm/mariadb.cnf"], view=HPC)


def start_accounting(testbed: Testbed) -> None:
    """Create Slurm's database and start slurmdbd."""
    testbed.commands.run(inside(testbed, "mariadb"), text=slurm_config.database_statements())
    testbed.daemons.start("slurmdbd", ["slurmdbd", "-D"], view=HPC)


def start_controller(testbed: Testbed) -> None:
    """Register the cluster and start slurmctld."""
    first = not (testbed.layout.slurm / "site/var/lib/slurm/slurmctld/clustername").exists()
    testbed.daemons.start("slurmctld", ["slurmctld", "-D", *(["-i"] if first else [])], view=HPC)


def start_node(testbed: Testbed, node: str) -> None:
    """Start one node under its own host name."""
    script = f"hostname {node} && exec slurmd -D -N {node}"
    path = f"{testbed.layout.environment}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    words = ["unshare", "--uts", "/bin/sh", "-c", script]
    testbed.daemons.start(f"slurmd-{node}", words, view=HPC, environment={"PATH": path})


def node_trouble(testbed: Testbed, node: str) -> str | None:
    """Return why a node takes no jobs, in Slurm's words."""
    words = inside(testbed, "scontrol", "show", "node", node, "--oneliner")
    code, output, errors = testbed.commands.outcome(words, timeout_s=15)
    if code != 0:
        return " ".join(errors.split())[:200]
    return node_state_trouble(node, output)


def node_state_trouble(node: str, text: str) -> str | None:
    """Return why a node takes no jobs, from `scontrol show node --oneliner`; IDLE, MIXED and ALLOCATED without a flag are well."""
    fields = dict(pair.split("=", 1) for pair in text.split() if "=" in pair)
    state = fields.get("State", "none")
    if state in {
        "IDLE",
        "MIXED",
        "ALLOCATED",
        "COMPLETING",
        "IDLE+COMPLETING",
        "MIXED+COMPLETING",
        "ALLOCATED+COMPLETING",
    }:
        return None
    why = text.partition(" Reason=")[2].strip()
    return f"node {node} is {state}" + (f", reason: {why[:150]}" if why else "")


def start_account(testbed: Testbed) -> None:
    """Create the account and let the site's user charge it."""
    add = ["sacctmgr", "--immediate", "--quiet", "add"]
    testbed.commands.outcome(
        inside(testbed, *add, "account", SLURM_ACCOUNT, "Description=testbed", "Organization=testbed")
    )
    testbed.commands.outcome(inside(testbed, *add, "user", testbed.layout.hpc_user, f"Account={SLURM_ACCOUNT}"))


def account_trouble(testbed: Testbed) -> str | None:
    """Return whether the site's user may charge the account, and sacct answers."""
    user = testbed.layout.hpc_user
    words = ["sacctmgr", "--noheader", "--parsable2", "show", "associations", f"user={user}", "format=account"]
    code, output, errors = testbed.commands.outcome(inside(testbed, *words), timeout_s=15)
    if code != 0 or SLURM_ACCOUNT not in output.split():
        return f"user {user} has no account: " + " ".join((errors or output).split())[:200]
    return ask(testbed, "sacct", "--allusers", "--noheader")


def parts(layout: Layout) -> list[Part]:
    """Return the HPC site's parts."""
    nodes = [
        Part(
            name=f"slurmd-{node}", needs=("slurmctld",), daemon=f"slurmd-{node}", port=port,
            trouble=partial(node_trouble, node=node), start=partial(start_node, node=node),
        )
        for node, port in zip(SLURM_NODES, layout.slurmd_ports, strict=True)
    ]  # fmt: skip
    return [
        Part(
            name="munge", needs=("sites",), daemon="munge", start=start_munge,
            trouble=lambda testbed: ask(testbed, "munge", "--no-input"),
        ),
        Part(
            name="database", needs=("sites",), daemon="database", start=start_database,
            trouble=lambda testbed: ask(testbed, "mariadb-admin", "ping"),
        ),
        Part(
            name="slurmdbd", needs=("munge", "database"), daemon="slurmdbd", port=6819, start=start_accounting,
            trouble=lambda testbed: ask(testbed, "sacctmgr", "--noheader", "show", "cluster"),
        ),
        Part(
            name="slurmctld", needs=("slurmdbd",), daemon="slurmctld", port=layout.slurmctld_port,
            start=start_controller, trouble=lambda testbed: ask(testbed, "scontrol", "ping"),
        ),
        *nodes,
        Part(name="account", needs=("slurmctld",), start=start_account, trouble=account_trouble),
    ]  # fmt: skip
