"""project.xml and resources.xml of COMPSs for the reachable workers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

ADAPTOR = "es.bsc.compss.nio.master.NIOAdaptor"
WORKER_PORTS = (
    43001,
    43002,
)  # COMPSs refuses a range of one port; every pod has its own network, so all use the same ports
REPLICAS_AT_ONCE = 1  # a replica trains with all cores of its worker; so as many replicas as workers use all of them


def build_project(workers: Sequence[str], *, install_dir: str, working_dir: str, app_dir: str, python_path: str) -> str:
    """Return project.xml: where the workers have COMPSs, the application and a work folder.

    Args:
        workers: host names, as the master dials them.
        install_dir, working_dir, app_dir, python_path: paths in the workers.
    """
    root = Element("Project")
    SubElement(root, "MasterNode")
    for name in workers:
        node = SubElement(root, "ComputeNode", Name=name)
        _texts(node, InstallDir=install_dir, WorkingDir=working_dir)
        _texts(SubElement(node, "Application"), AppDir=app_dir, Pythonpath=python_path)
    return _text(root)


def build_resources(workers: Sequence[str], *, ssh_port: int) -> str:
    """Return resources.xml: the computing units of the workers and the ports that reach them.

    Args:
        workers: host names, as the master dials them.
        ssh_port: of their sshd, through which the master starts them.
    """
    root = Element("ResourcesList")
    for name in workers:
        node = SubElement(root, "ComputeNode", Name=name)
        _texts(SubElement(node, "Processor", Name="cores"), ComputingUnits=str(REPLICAS_AT_ONCE))
        adaptor = SubElement(SubElement(node, "Adaptors"), "Adaptor", Name=ADAPTOR)
        SubElement(SubElement(adaptor, "SubmissionSystem"), "Interactive")
        low, high = WORKER_PORTS
        _texts(SubElement(adaptor, "Ports"), MinPort=str(low), MaxPort=str(high), SpawnerPort=str(ssh_port))
    return _text(root)


def _texts(parent: Element, **texts: str) -> None:
    for tag, text in texts.items():
        SubElement(parent, tag).text = text


def _text(root: Element) -> str:
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"
