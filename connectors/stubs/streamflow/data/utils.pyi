from streamflow.core.context import StreamFlowContext
from streamflow.core.scheduling import AvailableLocation

async def get_mount_point(context: StreamFlowContext, location: AvailableLocation, path: str) -> str: ...
