"""A server of Spark Connect as a process, to be killed and started again on its port."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from moldau.testing.ports import free_ports
from tests.interop.apache_kafka import QUICK_JVM

_START_SECONDS = 180
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "768m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.warehouse.dir": "warehouse",
}


class ConnectServer:
    """`spark-submit` of Spark's own server class, with a task that may fail three times; it knows nothing of tests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (self.port,) = free_ports(1)
        self.url = f"sc://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        import pyspark

        from moldau.spark.java import find_java_home

        settings = _SETTINGS | {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
        }
        command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2,4]"]
        for key, value in settings.items():
            command += ["--conf", f"{key}={value}"]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        environment = os.environ | {
            "JAVA_HOME": find_java_home(),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JDK_JAVA_OPTIONS": " ".join(QUICK_JVM),
        }
        with (self._folder / "server.txt").open("ab") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment, cwd=self._folder, start_new_session=True
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._listens():
            assert self._process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.1)  # another process tells nobody that it listens

    def _listens(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def said(self) -> str:
        return (self._folder / "server.txt").read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        """At once, and the JVM only: its Python processes find out."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
