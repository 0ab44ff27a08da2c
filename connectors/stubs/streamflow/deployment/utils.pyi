from types import ModuleType

from streamflow.config.config import WorkflowConfig
from streamflow.core.config import BindingConfig
from streamflow.core.deployment import ExecutionLocation

def get_binding_config(name: str, target_type: str, workflow_config: WorkflowConfig) -> BindingConfig: ...
def get_path_processor(location: ExecutionLocation) -> ModuleType: ...
