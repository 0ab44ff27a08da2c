"""Modelled times of Parallel SGD on ordinary machines: constants that reproduce the order of the published times.

Source: "A parallel and distributed stochastic gradient descent implementation using commodity clusters", J Big Data 6, 2019; the
constants are medweave's own fit to tables 1 and 2. They say nothing about other machines.
"""

from __future__ import annotations

from collections.abc import Sequence

NODES = (1, 2, 4, 8, 16)
ROWS = (2_240, 6_720, 12_320, 29_120, 57_120, 113_120, 561_120, 1_121_120, 1_681_120, 2_241_120)
"""Rows of the ten training sets, of the ratios 1:1 to 1:2000."""
LEAST_S, START_S, NODE_S, ROW_S = 22.4, 2.4, 4.29, 1.5e-3
"""Shortest training, start of a training, exchange of each node, and training of a row, s."""


def modelled_seconds(nodes: int, rows: int) -> float:
    """Return the modelled time of a training, s: a constant start and exchange, then the rows of one node."""
    return max(LEAST_S, START_S + NODE_S * nodes) + ROW_S * rows / nodes


def fastest_nodes(rows: int, choices: Sequence[int] = NODES) -> int:
    """Return the number of nodes with the shortest modelled time."""
    return min(choices, key=lambda nodes: modelled_seconds(nodes, rows))


def bytes_per_epoch(nodes: int, parameters: int) -> int:
    """Return the bytes that an epoch moves: float32 weights to every node and back, whatever the number of rows."""
    return 2 * nodes * 4 * parameters


def time_table() -> str:
    """Return the modelled times as a Markdown table: a row for each training set, a column for each number of nodes."""
    heads = " | ".join(f"{nodes} node{'' if nodes == 1 else 's'}, s" for nodes in NODES)
    lines = [
        f"| rows | {heads} | fastest |",
        f"|---:|{'---:|' * (len(NODES) + 1)}",
    ]
    for rows in ROWS:
        times = " | ".join(f"{modelled_seconds(nodes, rows):,.1f}" for nodes in NODES)
        lines.append(f"| {rows:,} | {times} | {fastest_nodes(rows)} |")
    return "\n".join(lines) + "\n"
