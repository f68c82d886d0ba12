"""Stands in for test/service.py, which kafka-python's source distribution leaves out: all brokers here are external."""


class ExternalService:
    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def dump_logs(self) -> None:
        pass


class SpawnedService:
    def __init__(self, *arguments: object, **options: object) -> None:
        raise NotImplementedError("this suite runs against a broker that is already there: set KAFKA_URI")
