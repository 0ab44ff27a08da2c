"""A placement as text. Pure."""

from __future__ import annotations

from medweave_core.contracts.placement import Placement
from medweave_steps.runtime.tables import aligned_text
from medweave_steps.training.placement.problem import groups_of


def table_of(placement: Placement) -> str:
    """Return the loads, the devices and the bound of a placement as text for people."""
    unit = f" {placement.unit}" if placement.unit else ""
    shown = [f"{placement.makespan:.4g}{unit}", f"{placement.bound:.4g}{unit}"]
    last = (
        f"Makespan {shown[0]}; no placement is below {shown[1]}. {placement.cut_edges} edges between devices.\n"
        f"Speed-up over one device: at most {placement.speed_up_bound:.2f}."
    )
    return "\n\n".join([aligned_text(_partitions(placement, unit)), aligned_text(_devices(placement, unit)), last])


def _partitions(placement: Placement, unit: str) -> list[list[str]]:
    rows = [["partition", f"load{unit}", "seconds", "memory MiB", "device"]]
    for part, device in zip(placement.partitions, placement.assignment, strict=True):
        seconds = "" if part.seconds is None else f"{part.seconds:.3g}"
        rows.append([part.name, f"{part.load:.4g}", seconds, f"{part.memory_mib:.1f}", str(device)])
    return rows


def _devices(placement: Placement, unit: str) -> list[list[str]]:
    rows = [["device", "speed", f"load{unit}", "load/speed", "memory MiB", "of MiB", "partitions"]]
    groups = groups_of(placement.assignment, len(placement.devices))
    for number, (device, load) in enumerate(zip(placement.devices, placement.device_loads, strict=True)):
        memory = sum(placement.partitions[part].memory_mib for part in groups[number])
        capacity = "no limit" if device.memory_mib is None else f"{device.memory_mib:.1f}"
        rows.append(
            [str(number), f"{device.speed:g}", f"{load:.4g}", f"{load / device.speed:.4g}", f"{memory:.1f}", capacity,
             str(len(groups[number]))]
        )  # fmt: skip
    return rows
