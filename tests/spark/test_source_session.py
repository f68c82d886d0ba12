"""The session: which Java, which settings, and what is registered."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from moldau.spark.java import JavaNotFound, find_java_home, java_version, shimmed
from moldau.spark.session import default_config, register, session


def fake_java(folder: Path, version: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return java


def test_java_home_comes_first_then_the_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "home", "21.0.1")
    on_path = fake_java(tmp_path / "path", "17.0.15")
    path = str(on_path.parent)
    assert find_java_home({"JAVA_HOME": str(tmp_path / "home"), "PATH": path}) == str(tmp_path / "home")
    assert find_java_home({"PATH": path}) == str(tmp_path / "path")


def test_a_java_home_that_is_no_good_is_said(tmp_path: Path) -> None:
    fake_java(tmp_path / "old", "1.8.0_402")
    with pytest.raises(JavaNotFound, match=r"holds Java 1\. Spark needs Java 17 or newer: pip install"):
        find_java_home({"JAVA_HOME": str(tmp_path / "old")})
    with pytest.raises(JavaNotFound, match="holds no Java that runs"):
        find_java_home({"JAVA_HOME": str(tmp_path / "none")})


def test_without_any_java_the_runtime_from_pypi_takes_sparks_options(tmp_path: Path) -> None:
    """It lacks a module Spark asks for: the shim drops that option and keeps every other as it was."""
    home = Path(find_java_home({"PATH": str(tmp_path)}))
    java = home / "bin" / "java"
    assert java_version(java) >= 17
    said = subprocess.run(
        [java, "--add-modules=jdk.incubator.vector", "-Dword=two words", "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "word = two words" in said.stderr


def test_the_shim_is_private_and_made_once(tmp_path: Path) -> None:
    home = Path(shimmed(tmp_path / "java", tmp_path / "cache"))
    before = (home / "bin" / "java").stat()
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert shimmed(tmp_path / "java", tmp_path / "cache") == str(home)
    assert (home / "bin" / "java").stat().st_ino == before.st_ino


def test_local_sessions_listen_on_loopback_only() -> None:
    assert default_config("local[*]")["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.driver.bindAddress" not in default_config("spark://master:7077")


def test_importing_does_not_load_pyspark() -> None:
    code = "import sys, moldau.spark; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_pyspark_the_error_says_what_to_install() -> None:
    code = (
        "import importlib.util as u; found = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'pyspark' else found(name, *a)\n"
        "try: import moldau.spark\n"
        "except ImportError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'moldau[spark]'" in said


def test_a_session_is_ready(spark: SparkSession) -> None:
    assert spark.range(10).count() == 10
    assert os.environ["PYSPARK_PYTHON"]
    assert session() is spark or session().sparkContext is spark.sparkContext
    register(spark)
    register(spark)
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_what_spark_calls_normal_does_not_spoil_the_view(spark: SparkSession) -> None:
    """Spark 4.3 has a logger for each store of state, with a name of its own."""
    classic: Any = spark
    log4j = classic._jvm.org.apache.logging.log4j
    appender = log4j.LogManager.getContext(False).getConfiguration().getAppender("stderr")

    def is_left_out(text: str) -> bool:
        event = log4j.core.impl.Log4jLogEvent.newBuilder().setLevel(log4j.Level.WARN)
        told: bool = appender.isFiltered(event.setMessage(log4j.message.SimpleMessage(text)).build())
        return told

    assert is_left_out("The state for version 2 doesn't exist in loadedMaps. Reading snapshot file and delta files")
    assert not is_left_out("The disk is full")
    assert not log4j.LogManager.getLogger("org.apache.spark.sql.execution.CacheManager").isWarnEnabled()
