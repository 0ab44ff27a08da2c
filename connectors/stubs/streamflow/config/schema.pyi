from streamflow.core.config import Schema

class SfSchema(Schema):
    def __init__(self) -> None: ...
