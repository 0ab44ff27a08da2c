"""Node groups: one command, started once per node or pod, with its rank in the environment.

Connectors set these variables; `medweave_steps.runtime.environment` alone reads them. Pure.
"""

from __future__ import annotations

from typing import Literal

Engine = Literal["compss", "ddp", "in-order"]
NODE_RANK, NUM_NODES, RENDEZVOUS = "MEDWEAVE_NODE_RANK", "MEDWEAVE_NUM_NODES", "MEDWEAVE_RENDEZVOUS"
ENGINE = "MEDWEAVE_ENGINE"
FIRST_PORT, NUM_PORTS = 20000, 12000  # below the ports that Linux gives to outgoing connections (32768 and up)
LOSS_DEADLINE_S = 60.0  # one rank lost: all ended within this


def node_environment(*, node_rank: int, num_nodes: int, rendezvous: str) -> dict[str, str]:
    """Return the environment variables of one node of a group.

    Args:
        node_rank: 0 … num_nodes - 1; only node 0 writes outputs.
        rendezvous: `host:port` of node 0, as every node reaches it.
    """
    assert 0 <= node_rank < num_nodes, (node_rank, num_nodes)
    host, colon, port = rendezvous.rpartition(":")
    assert all((host, colon, port.isdecimal())), rendezvous
    return {NODE_RANK: str(node_rank), NUM_NODES: str(num_nodes), RENDEZVOUS: rendezvous}
