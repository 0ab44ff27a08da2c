"""The sole reader of environment variables and machine facts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import resource
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from medweave_core.errors import UsageError

_REPORTED = (
    "numpy", "scipy", "pydicom", "highdicom", "nibabel", "torch", "monai", "openvino", "nncf", "onnx",
    "onnxruntime", "matplotlib",
)  # fmt: skip
_SIOCGIFADDR = 0x8915  # linux/sockios.h: the IPv4 address of an interface


def available_cpus() -> int:
    """Return the number of processors this process may use: its affinity mask, capped by the cgroup's CPU quota; at least 1."""
    cpus = len(os.sched_getaffinity(0))
    for quota_file, period_file in (
        ("/sys/fs/cgroup/cpu.max", None),
        ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
    ):
        try:
            words = Path(quota_file).read_text(encoding="ascii").split()
            period = words[1] if period_file is None else Path(period_file).read_text(encoding="ascii")
            if words[0] not in ("max", "-1"):
                cpus = min(cpus, max(1, int(words[0]) // int(period)))
        except (OSError, ValueError, IndexError):
            continue
    return cpus


def limit_threads(num_threads: int) -> None:
    """Limit the threads of numerical libraries that read the environment when they load, and how long they spin while they wait.

    GNU OpenMP, which PyTorch uses, spins 300,000 times before a waiting thread sleeps, but only 1,000 times if its own process has
    more threads than processors. It does not see other processes. Training ecg-resnet for 20 steps with 2 threads on 2 processors
    that 25 other processes used took 93 s of CPU time and 326 s with the first number, 11 s and 50 s with the second, to the same
    weights; on free processors 6 s and 7 s. The user's own setting is respected.
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(num_threads)
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


@contextlib.contextmanager
def on_cpus(num_cpus: int) -> Iterator[None]:
    """Pin the calling thread, and threads that it starts, to a number of its processors, for libraries without such an option."""
    before = sorted(os.sched_getaffinity(0))
    # Steps that share a machine should not all choose the first processors.
    first = os.getpid() % len(before)
    os.sched_setaffinity(0, (before[first:] + before[:first])[: max(num_cpus, 1)])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """The nodes that run the same command line, and the rank of this one; a single node by default.

    Attributes:
        node_rank: 0 … num_nodes - 1; only node 0 writes outputs.
        rendezvous: host and port of node 0, as every node reaches it; None for a single node without one.
    """

    node_rank: int = 0
    num_nodes: int = 1
    rendezvous: tuple[str, int] | None = None


def node_group() -> NodeGroup:
    """Return the node group of this process, from the variables that medweave's connectors set.

    Raises:
        UsageError: the three variables contradict each other.
    """
    names = ("MEDWEAVE_NODE_RANK", "MEDWEAVE_NUM_NODES", "MEDWEAVE_RENDEZVOUS")
    rank, number, rendezvous = (os.environ.get(name, "") for name in names)
    if not (rank or number or rendezvous):
        return NodeGroup()
    host, _, port = rendezvous.rpartition(":")
    reachable = bool(host) and port.isdecimal() and 0 < int(port) < 65536
    if rank.isdecimal() and number.isdecimal() and int(rank) < int(number) and (reachable or int(number) == 1):
        address = (host.strip("[]"), int(port)) if reachable else None
        return NodeGroup(node_rank=int(rank), num_nodes=int(number), rendezvous=address)
    raise UsageError(
        "invalid node-group environment variables.",
        seen=", ".join(f"{name}={os.environ.get(name)!r}" for name in names),
        expected="a node rank from 0 to the number of nodes - 1, and the host:port of node 0",
        do="start the step through a medweave connector, set all three variables, or set none for a single node",
    )


def node_group_engine() -> str | None:
    """Return the engine that the deployment selects for replicas (MEDWEAVE_ENGINE), None by default."""
    return os.environ.get("MEDWEAVE_ENGINE") or None


def resume_from() -> Path | None:
    """Return the checkpoint folder of an earlier attempt at this command (MEDWEAVE_RESUME_FROM), None for the first one."""
    folder = os.environ.get("MEDWEAVE_RESUME_FROM")
    return Path(folder) if folder else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """The rank that torch's launcher gave this process.

    Attributes:
        rank: place among all processes of the training.
        local_rank: place among those of this node; picks the GPU.
        world_size: number of processes.
        store: host and port where the processes meet.
    """

    rank: int
    local_rank: int
    world_size: int
    store: tuple[str, int]


def rank_place() -> RankPlace:
    """Return the rank of a process that torch's launcher has started."""
    rank, local_rank, world_size, port = (
        int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT")
    )
    return RankPlace(rank=rank, local_rank=local_rank, world_size=world_size, store=(os.environ["MASTER_ADDR"], port))


def set_rank_place(place: RankPlace) -> None:
    """Set the variables of this process that `rank_place` and torch read, where torch's launcher has not started it."""
    os.environ.update(
        RANK=str(place.rank), LOCAL_RANK=str(place.local_rank), WORLD_SIZE=str(place.world_size),
        MASTER_ADDR=place.store[0], MASTER_PORT=str(place.store[1]),
        # The launching process of node 0 keeps the store.
        TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0",
    )  # fmt: skip


def prefer_interface_towards(host: str) -> None:
    """Make gloo use the network interface over which a host is reached, unless GLOO_SOCKET_IFNAME says which.

    Left alone it takes the address that the machine's own name has, which on many Linux systems is 127.0.1.1.
    """
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # no packet is sent: the kernel only chooses a route
        own = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))
                if answer[20:24] == own:
                    os.environ["GLOO_SOCKET_IFNAME"] = name
                    return


def hush_torch() -> None:
    """Keep torch's C++ code from printing stacks about lost connections; call it before torch is imported."""
    if not wants_traceback():
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")


def hush_grpc() -> None:
    """Keep gRPC's C code from logging failed connections, which medweave reports; call it before grpc is imported."""
    if not wants_traceback():
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def join_open_mpi(name_server: str) -> None:
    """Configure Open MPI, before its start, for a process that connects to others through a name server.

    A job step of Slurm or another launcher has variables by which Open MPI would take this process for one of its own.

    Args:
        name_server: address that `ompi-server` reports.
    """
    for name in [name for name in os.environ if name.startswith(("SLURM_", "PMI_", "PMIX_"))]:
        del os.environ[name]
    os.environ |= {"OMPI_MCA_pmix_server_uri": name_server}


def of_trial(*, in_node_group: bool) -> dict[str, str]:
    """Return the environment of a training that a step starts as a child process, and whose progress it reads.

    Args:
        in_node_group: the training is this node's part of one on all nodes of the group; else it runs on this node only.
    """
    own = (
        "MEDWEAVE_RESUME_FROM",
        *(() if in_node_group else ("MEDWEAVE_NODE_RANK", "MEDWEAVE_NUM_NODES", "MEDWEAVE_RENDEZVOUS")),
    )
    return {name: value for name, value in os.environ.items() if name not in own} | {"MEDWEAVE_PROGRESS": "json"}


def keep_ray_at_home(token: str) -> None:
    """Configure Ray, before its import: this machine only, a token for each connection, no usage data, trials at this priority."""
    os.environ |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        # Despite the name it applies here: without a cluster Ray listens on the loopback interface only.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_CHDIR_TO_TRIAL_DIR": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # Ray starts its workers at nice 15: on a busy machine the trials would get almost no processor time.
        "RAY_worker_niceness": "0",
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        "TUNE_DISABLE_SIGINT_HANDLER": "1",
        "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
        "RAY_AIR_NEW_OUTPUT": "0",
    }


def machine() -> str:
    """Return an id of the machine, equal in all pods under one kernel; not for reports."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return host_name()


def host_name() -> str:
    """Return the name of the machine or pod."""
    return socket.gethostname()


def wants_json_progress() -> bool:
    """Return whether the caller wants machine-readable progress lines."""
    return os.environ.get("MEDWEAVE_PROGRESS") == "json"


def wants_traceback() -> bool:
    """Return whether internal errors show their traceback."""
    return os.environ.get("MEDWEAVE_DEBUG", "") not in ("", "0")


def cpu_model() -> str:
    """Return the processor's model name from the kernel."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def computes_in_bfloat16() -> bool:
    """Return whether the processor multiplies bfloat16 in hardware (AVX-512 BF16, AMX, or Arm's BF16)."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags)


def peak_memory_mib() -> tuple[float, float]:
    """Return the largest resident set of this process, and of the largest child it waited for, MiB."""
    own, children = (
        resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    # rusage begins with the memory of whatever started this program; the high-water mark is the program's own.
    with contextlib.suppress(OSError, IndexError, ValueError):
        status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
        own = int(status.partition("VmHWM:")[2].split()[0]) / 1024
    return round(own, 1), round(children, 1)


def available_memory_bytes() -> int:
    """Return the memory that this process may still use: what the kernel calls available, capped by the limits of its cgroups."""
    available = _kib(Path("/proc/meminfo"), "MemAvailable:") * 1024
    for folder in _memory_cgroups():
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            with contextlib.suppress(OSError, ValueError):  # another version of cgroups, or no limit ("max")
                limit, used = (int((folder / name).read_text(encoding="ascii")) for name in (limit_name, used_name))
                available = min(available, max(limit - used, 0))
    return available


def _memory_cgroups() -> list[Path]:
    """Return the folders of this process's cgroup and of those around it; a scheduler's limit is on any of them."""
    root, folders = Path("/sys/fs/cgroup"), []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or "memory" in controllers.split(","):
                own = root / ("memory" if controllers else "") / path.strip("/")
                folders += [own, *(parent for parent in own.parents if parent.is_relative_to(root))]
    return folders


def _kib(path: Path, name: str) -> int:
    """Return a number of a file of /proc with lines such as `MemAvailable: 123 kB`."""
    return int(path.read_text(encoding="ascii", errors="replace").partition(name)[2].split()[0])


def library_versions() -> Mapping[str, str]:
    """Return the versions of Python and of the reported libraries that this process has imported."""
    versions = {"python": platform.python_version()}
    for name in _REPORTED:
        if name in sys.modules:
            try:
                versions[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
    return versions
