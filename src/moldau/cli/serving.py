"""Running a broker in this process until it is told to stop: what `moldau serve` does once its arguments are known.

Nothing of the command-line library is loaded here. `plain_arguments` reads the usual arguments itself, so that a broker
is up before that library would be; whatever it does not recognise is left to `moldau.cli.serve`, which explains it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.broker.config import BrokerConfig
    from moldau.broker.node.node import Node
    from moldau.cli.console_beside import ConsoleBeside

DEFAULT_LISTEN = "127.0.0.1:9092"
DEFAULT_DATA_DIR = "moldau-data"
# Every system call gives the interpreter up. While a thread reads a long request, the loop has it back after this long;
# Python's own 5 ms, a dozen times for one write, would be felt.
_SWITCH_SECONDS = 0.0005
_NAMES = {
    "--config": "config",
    "-c": "config",
    "--data-dir": "data_dir",
    "-d": "data_dir",
    "--listen": "listen",
    "-l": "listen",
    "--metrics": "metrics",
    "--audit-log": "audit_log",
}


@dataclass(slots=True)
class ServeArguments:
    """As given; None where nothing was."""

    config: str | None = None
    data_dir: str | None = None
    listen: str | None = None
    metrics: str | None = None
    overrides: list[str] = field(default_factory=list)
    verbose: bool = False
    until_stdin_closes: bool = False
    audit_log: str | None = None
    console: str | None = None


def plain_arguments(arguments: list[str]) -> ServeArguments | None:
    """The arguments, if there is nothing unusual about them."""
    parsed = ServeArguments()
    rest = iter(arguments)
    for name in rest:
        if name in ("--verbose", "-v"):
            parsed.verbose = True
            continue
        if name == "--until-stdin-closes":
            parsed.until_stdin_closes = True
            continue
        value = next(rest, None)
        if value is None or value.startswith("-"):
            return None
        if name in ("--set", "-s"):
            parsed.overrides.append(value)
        elif name in _NAMES:
            setattr(parsed, _NAMES[name], value)
        else:
            return None
    return parsed


def serve(arguments: ServeArguments) -> int:
    """Run a broker; the exit status."""
    from moldau.broker.config import InvalidConfig
    from moldau.cli.data_folder import trouble

    try:
        loaded = _load(arguments)
        output = _set_up_log(loaded, is_verbose=arguments.verbose)
        if arguments.audit_log is not None:
            _write_audit_log(arguments.audit_log)
    except InvalidConfig as error:
        return _fail(error, 2)
    except OSError as error:
        return _fail(f"cannot open {error.filename or arguments.config}: {error.strerror}", 2)
    # Of several folders the node may do without one; not without the one that holds the metadata.
    unusable = trouble(loaded.metadata_log_dir)
    if unusable is not None:
        return _fail(unusable, 2)
    return _run(loaded, output, until_stdin_closes=arguments.until_stdin_closes, console=arguments.console)


def _set_up_log(config: BrokerConfig, *, is_verbose: bool) -> logging.Handler:
    from moldau.broker.node.log_output import set_up

    return set_up(
        level=logging.DEBUG if is_verbose else logging.WARNING,
        levels=config.get_list("moldau.log.levels"),
        is_json=config.get_str("moldau.log.format") == "json",
    )


def _write_audit_log(path: str) -> None:
    """All of the audit log goes there; only its owner can read it."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    audit = logging.getLogger("moldau.audit")
    audit.addHandler(handler)
    audit.setLevel(logging.INFO)
    audit.propagate = False


def _fail(reason: object, status: int) -> int:
    print(f"moldau: {reason}", file=sys.stderr)
    return status


def _halt(error: Exception) -> None:
    """The disk is gone, or something else that everything rests upon: no answer may leave that was made without it."""
    _fail(error, 1)
    sys.stderr.flush()
    os._exit(1)


def _load(arguments: ServeArguments) -> BrokerConfig:
    from moldau.broker.config import InvalidConfig, load_broker_config, read_properties

    config, listen = arguments.config, arguments.listen
    settings = read_properties(config) if config is not None else {}
    if listen is not None:
        host, _, port = listen.rpartition(":")
        if not host or not port.isdecimal():
            raise InvalidConfig(f"--listen {listen}: give HOST:PORT, for example {DEFAULT_LISTEN}")
        settings["listeners"] = f"PLAINTEXT://{host}:{port}"
    elif config is None:
        settings["listeners"] = f"PLAINTEXT://{DEFAULT_LISTEN}"
    if arguments.data_dir is not None or config is None:
        settings["log.dirs"] = arguments.data_dir or DEFAULT_DATA_DIR
    if arguments.metrics is not None:
        settings["moldau.http.listener"] = arguments.metrics
    return load_broker_config(settings, arguments.overrides)


def _run(config: BrokerConfig, output: logging.Handler, *, until_stdin_closes: bool, console: str | None = None) -> int:
    from moldau.log.open_segments import raise_descriptor_limit
    from moldau.net import new_event_loop

    raise_descriptor_limit()
    gc.disable()  # until the node is up, see below
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_serve(config, output, until_stdin_closes=until_stdin_closes, console=console))


async def _serve(
    config: BrokerConfig, output: logging.Handler, *, until_stdin_closes: bool, console: str | None = None
) -> int:
    from moldau.broker.config import InvalidConfig
    from moldau.broker.node.identity import WrongDirectory
    from moldau.broker.node.log_output import announce
    from moldau.broker.node.node import Node
    from moldau.broker.node.registration import RegistrationRefused
    from moldau.broker.node.systemd import Notifier
    from moldau.broker.quorum.errors import LostHistory
    from moldau.broker.quorum.recovery_point import CorruptMetadata
    from moldau.cli.collector import collect_in_time
    from moldau.log.errors import LogError
    from moldau.raft.election_state import CorruptQuorumState

    sys.setswitchinterval(_SWITCH_SECONDS)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():  # asked twice: at once, and the next start recovers
            os._exit(1)
        stop.set()

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, on_signal)
    if until_stdin_closes:
        loop.add_reader(sys.stdin.fileno(), _on_stdin, loop, stop)
    node = Node(config)
    node.on_failure = _halt
    systemd = Notifier()
    telling = loop.create_task(systemd.while_starting(lambda: node.phase)) if systemd.is_wanted else None
    starting = loop.create_task(node.start())
    stopping = loop.create_task(stop.wait())
    await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
    if telling is not None:
        telling.cancel()
    if not starting.done():  # it may wait for a quorum that does not come
        systemd.tell("STOPPING=1")
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return 0
    try:
        starting.result()
    except InvalidConfig as error:
        stopping.cancel()
        return _fail(error, 2)
    except (WrongDirectory, LostHistory, RegistrationRefused) as error:
        stopping.cancel()
        return _fail(error, 1)
    except (CorruptMetadata, CorruptQuorumState, LogError, OSError) as error:
        stopping.cancel()
        from moldau.cli.os_errors import reason

        return _fail(reason(error), 1)
    for key in config.ignored:
        logging.getLogger("moldau").warning("%s is accepted and has no effect in Moldau", key)
    for key in config.keys_without_use:
        told = "%s is set, but no listener speaks TLS: add one, for example listeners=SSL://:9093"
        logging.getLogger("moldau").warning(told, key)
    announce(output, _introduction(node))
    for host, port in node.client_addresses:
        print(f"ready {host}:{port}", flush=True)
    systemd.tell("READY=1", f"STATUS={_introduction(node)}")
    meanwhile = [loop.create_task(collect_in_time(loop)), loop.create_task(systemd.while_serving())]
    beside = _console(node, console) if console is not None else None
    await stopping
    systemd.tell("STOPPING=1")
    if beside is not None:
        await asyncio.to_thread(beside.stop)
    for task in meanwhile:
        task.cancel()
    await node.stop()
    return 0


def _console(node: Node, listen: str) -> ConsoleBeside:
    from moldau.cli.console_beside import ConsoleBeside

    return ConsoleBeside(",".join(f"{host}:{port}" for host, port in node.client_addresses), listen)


def _introduction(node: Node) -> str:
    """Who this is and where it keeps its data: the first line people look for when something is odd."""
    from moldau import __version__

    listeners = ", ".join(f"{name} {host}:{port}" for name, (host, port) in node.addresses.items())
    dirs = ", ".join(os.path.abspath(each) for each in node.config.log_dirs)
    name = f"node {node.config.node_id} of cluster {node.broker.cluster_id}"
    http = node.http_address
    watched = "" if http is None else f", metrics on http://{http[0]}:{http[1]}/metrics"
    return f"moldau {__version__}: {name}, data in {dirs}, listening on {listeners}{watched}"


def _on_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Whoever started this process holds the other end: its end is ours."""
    if not os.read(sys.stdin.fileno(), 1024):
        loop.remove_reader(sys.stdin.fileno())
        stop.set()
