"""Transports of a parameter server: a module for each, under the name that selects it, with `open_transport`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Literal

from medweave_steps.runtime import environment
from medweave_steps.runtime.imports import require
from medweave_steps.training.distributed.group import RankGroup
from medweave_steps.training.distributed.transports import mpi
from medweave_steps.training.distributed.transports.messages import Transport

TransportName = Literal["gloo", "grpc", "mpi"]
_LIBRARIES: Mapping[TransportName, tuple[str, ...]] = {
    "gloo": (),
    "grpc": ("grpc", "cryptography.x509"),
    "mpi": ("mpi4py",),
}


def check_installed(name: TransportName) -> None:
    """Check that what a transport needs is installed.

    Raises:
        BackendMissingError: it is not.
    """
    environment.hush_grpc()
    for library in _LIBRARIES[name]:
        require(library, extra=name)
    if name == "mpi":
        mpi.check_programs()


def open_transport(name: TransportName, group: RankGroup) -> Transport:
    """Open the connections of this rank; every rank of the group must call it.

    Raises:
        BackendMissingError: a library is not installed.
        TryAgainError: server and worker cannot connect.
    """
    check_installed(name)
    transport: Transport = importlib.import_module(f"{__name__}.{name}").open_transport(group)
    return transport
