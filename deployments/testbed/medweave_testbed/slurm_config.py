"""The configuration files of Slurm and of its database, as text."""

from __future__ import annotations

from .layout import SLURM_NODES, Layout

CPUS_PER_NODE, MEMORY_PER_NODE_MiB, GPUS_PER_NODE = 2, 8000, 2


def slurm_conf(layout: Layout) -> str:
    """slurm.conf: two nodes of two CPUs and two fake GPUs, two partitions, real accounting.

    `config_overrides` lets the nodes claim what the machine has only once; jobs are not confined to their CPUs.
    """
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={name} NodeAddr={layout.address} Port={port} CPUs={CPUS_PER_NODE} "
        f"RealMemory={MEMORY_PER_NODE_MiB} Gres=gpu:{GPUS_PER_NODE} State=UNKNOWN"
        for name, port in zip(SLURM_NODES, layout.slurmd_ports, strict=True)
    )
    members = ",".join(SLURM_NODES)
    return f"""ClusterName=testbed
SlurmctldHost=login({layout.address})
SlurmctldPort={layout.slurmctld_port}
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/spool/slurmd-%n
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurmd-%n.pid
SlurmdParameters=config_overrides
MailProg=/bin/true
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=30
KillWait=5
MinJobAge=300
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog=/etc/slurm/task-prolog
PropagateResourceLimits=NONE
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=2000
GresTypes=gpu
OverTimeLimit=0
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
{nodes}
PartitionName=normal Nodes={members} Default=YES MaxTime=1-00:00:00 DefaultTime=01:00:00 PriorityTier=1 PreemptMode=CANCEL State=UP
PartitionName=urgent Nodes={members} MaxTime=1-00:00:00 DefaultTime=01:00:00 PriorityTier=100 PreemptMode=OFF State=UP
"""


def gres_conf() -> str:
    """gres.conf: devices that exist on every machine represent the GPUs; Slurm only counts and allocates them."""
    return f"NodeName={','.join(SLURM_NODES)} Name=gpu File=/dev/null,/dev/zero\n"


def slurmdbd_conf() -> str:
    """slurmdbd.conf: the database's own socket lets the user `slurm` in without a password."""
    return """AuthType=auth/munge
DbdHost=localhost
SlurmUser=slurm
PidFile=/run/slurm/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageLoc=slurm_acct_db
StorageUser=slurm
"""


def database_conf() -> str:
    """MariaDB's options: no network port, small, nothing synced to the disk."""
    return """[mariadbd]
user=mysql
datadir=/var/lib/mysql
socket=/run/mysqld/mysqld.sock
pid-file=/run/mysqld/mariadbd.pid
skip-networking
skip-name-resolve
innodb_buffer_pool_size=128M
innodb_log_file_size=64M
innodb_lock_wait_timeout=900
innodb_flush_log_at_trx_commit=0
innodb_doublewrite=0
"""


def database_statements() -> str:
    """SQL that makes the accounting database and its user, whom the socket identifies."""
    return """CREATE DATABASE IF NOT EXISTS slurm_acct_db;
CREATE USER IF NOT EXISTS 'slurm'@'localhost' IDENTIFIED VIA unix_socket;
GRANT ALL ON slurm_acct_db.* TO 'slurm'@'localhost';
"""


def task_prolog(layout: Layout) -> str:
    """Run before every task of a job: the worker environment comes first on the job's PATH."""
    return f'#!/bin/sh\necho "export PATH={layout.environment}/bin:$PATH"\n'
