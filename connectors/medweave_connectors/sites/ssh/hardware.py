"""Hardware of a machine, queried with one command. Pure.

StreamFlow's connector treats the KiB of `free` as MiB, and opens another connection for the query.
"""

from __future__ import annotations

from streamflow.core.scheduling import Hardware, Storage
from streamflow.deployment.connector.base import FS_TYPES_TO_SKIP

# The mount point is alone on its line, because it may contain blanks.
_DISKS = "df -akTP 2>/dev/null | awk 'NR > 1 {print $2, $5; $1=$2=$3=$4=$5=$6=\"\"; print substr($0, 7)}'"
# nproc honors the OpenMP variables of a profile (OMP_NUM_THREADS=1 is usual on login nodes).
PROBE = f"export LC_ALL=C; (unset OMP_NUM_THREADS OMP_THREAD_LIMIT; nproc) && free -k | awk '/^Mem/ {{print $2}}' && {_DISKS}"


def parse_hardware(text: str) -> Hardware:
    """Return cores, memory in MiB and free storage by mount point in MiB, from the output of `PROBE`.

    Raises:
        ValueError: the text is not the output of `PROBE`.
    """
    cores, memory_kib, *disks = text.strip().splitlines()
    hardware = Hardware(float(cores), float(memory_kib) / 1024)
    for kind_size, mount_point in zip(disks[::2], disks[1::2], strict=False):
        kind, size_kib = kind_size.split()
        if size_kib.isdigit() and (mount_point == "/" or kind not in FS_TYPES_TO_SKIP):
            hardware.storage[mount_point] = Storage(mount_point=mount_point, size=float(size_kib) / 1024)
    return hardware
