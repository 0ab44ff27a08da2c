from streamflow.core.workflow import Job, Port

class JobPort(Port):
    async def get_job(self, consumer: str) -> Job | None: ...
