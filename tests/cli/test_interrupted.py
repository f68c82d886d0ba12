"""Awkward moments of a start: Ctrl-C before anything is loaded or while Java starts, and no Java at all."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from moldau.testing import Broker

SECONDS = 60


def test_nothing_is_loaded_before_a_ctrl_c_is_kept_quiet() -> None:
    """What `moldau.cli` loads by itself is a stretch of time in which Ctrl-C shows a traceback."""
    code = "import sys; before = set(sys.modules); import moldau.cli; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, env=_with_source())
    assert done.stdout.split() == ["moldau", "moldau.cli"], done.stderr


def test_sigterm_sends_what_was_read_and_says_so() -> None:
    """A service manager ends a pipe into a topic with it; what came out of the pipe before is not lost in silence."""
    with Broker(topics=["lines"]) as broker:
        command = [sys.executable, "-m", "moldau", "produce", "lines", "-b", broker.bootstrap_servers]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)
        assert process.stdin is not None
        process.stdin.write("first\nsecond\n")
        assert [each.value for each in broker.read("lines", 2)] == [b"first", b"second"]
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=SECONDS)
    assert said == "2 records to lines\n"
    assert process.returncode == -signal.SIGTERM, "as if nobody had handled it"


def test_javas_start_ends_with_us(tmp_path: Path) -> None:
    """PySpark leaves its Java process alone then, which prints a stack trace seconds later."""
    started = tmp_path / "pid"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "spark-submit").write_text(
        f"#!/bin/sh\necho $$ > {started}.new\nmv {started}.new {started}\nexec sleep 600\n"
    )
    (tmp_path / "bin" / "spark-submit").chmod(0o755)
    with Broker(topics=["metrics"]) as broker:
        command = [sys.executable, "-m", "moldau", "pipeline", "run", "metrics", "-b", broker.bootstrap_servers]
        process = subprocess.Popen(
            command,
            env={**os.environ, "SPARK_HOME": str(tmp_path)},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        end = time.monotonic() + SECONDS
        while not started.exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)  # a process that starts another tells nobody
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 130
    java = int(started.read_text())
    try:
        assert not _is_running(java)
    finally:
        if _is_running(java):
            os.kill(java, signal.SIGKILL)
    assert "Traceback" not in said


def test_no_java_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("name: p\nsources: {ticks: {rate: 1}}\nsinks: [{console: 1}]\n")
    command = [sys.executable, "-m", "moldau", "pipeline", "run", str(tmp_path / "p.yaml")]
    done = subprocess.run(
        command,
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, last[:36]) == (2, f"moldau: JAVA_HOME={tmp_path} holds"[:36]), done.stderr
    assert "pip install 'moldau[java]'" in last
    assert "--debug" not in last


def _with_source() -> dict[str, str]:
    import moldau

    return {**os.environ, "PYTHONPATH": str(Path(moldau.__file__).parent.parent)}


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
