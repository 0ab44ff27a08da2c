from collections.abc import MutableMapping

from streamflow.core.deployment import Connector

connector_classes: MutableMapping[str, type[Connector]]
