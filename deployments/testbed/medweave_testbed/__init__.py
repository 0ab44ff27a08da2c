"""The testbed: a real Slurm, a real Kubernetes and a laptop's user, as three walled-off sites on one Debian machine.

`layout` says where everything lies, `walls` makes the sites' namespaces, one module per site's parts starts and judges them,
`bring_up`, `status` and `take_down` are the three commands. Nothing outside this folder imports this package.
"""
