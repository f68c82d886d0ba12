"""The folder of a cluster on this machine: a properties file and a data folder for each node.

Nodes that found the cluster are its voters, and their number is fixed; those that were added later are brokers only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from moldau.cli.failure import misused

HOST = "127.0.0.1"
CONTROLLERS_AT = 100  # their ports, that far above the brokers'
NODES_MAX = 100
DEFAULT = Path("moldau-cluster")
DEFAULT_PORT = 9092


def properties_file(folder: Path, number: int) -> Path:
    return folder / f"node-{number}.properties"


def node_numbers(folder: Path) -> list[int]:
    """Of the nodes that have data or settings there."""
    found = set()
    for each in folder.glob("node-*"):
        name = each.name.removeprefix("node-").removesuffix(".properties")
        if name.isdigit() and (each.is_dir() or each.suffix == ".properties"):
            found.add(int(name))
    return sorted(found)


def read_settings(folder: Path, number: int) -> dict[str, str]:
    from moldau.broker.config import InvalidConfig, read_properties

    try:
        return read_properties(str(properties_file(folder, number)))
    except InvalidConfig:
        return {}


def is_voter(folder: Path, number: int) -> bool:
    """Whoever has no settings any more is taken for one: rather refuse than rewrite."""
    settings = read_settings(folder, number)
    return "controller" in settings.get("process.roles", "controller")


def address_of(folder: Path, number: int) -> str:
    listener = read_settings(folder, number).get("listeners", "").split(",")[0]
    return listener.partition("://")[2]


def bootstrap_servers(folder: Path) -> str:
    numbers = node_numbers(folder)
    if not numbers:
        misused(f"there is no cluster in {folder}: moldau cluster start -d {folder} makes one")
    return ",".join(filter(None, (address_of(folder, each) for each in numbers)))


def voters_to_run(folder: Path, wanted: int | None) -> int:
    """How many voters the cluster has, or shall have; refused if that would change."""
    there = [each for each in node_numbers(folder) if is_voter(folder, each)]
    if not there:
        return wanted or 3
    if wanted is not None and wanted != len(there):
        misused(
            f"{folder} holds a cluster of {len(there)} nodes, all of them voters, and voters cannot be added or left "
            f"out like that: use --nodes {len(there)}, or another --data-dir. `moldau cluster add` adds a broker"
        )
    return len(there)


def is_secure(folder: Path) -> bool:
    """Once secure, always: who forgets --secure gets what is there."""
    return (folder / "security").is_dir()


def client_properties(folder: Path) -> Path:
    return folder / "client.properties"


def write_settings(folder: Path, number: int, settings: Mapping[str, str]) -> Path:
    """Readable by its owner only: of a secure cluster, passwords are in it."""
    from moldau.security.certificates import write_secret

    file = properties_file(folder, number)
    write_secret(file, "".join(f"{key}={value}\n" for key, value in settings.items()))
    return file


def make_settings(
    folder: Path, voters: int, base_port: int, overrides: Mapping[str, str], *, secure: bool
) -> dict[int, Path]:
    """Settings of all nodes, checked and written: the voters', and those of brokers that were added."""
    from moldau.broker.config import load_broker_config
    from moldau.broker.config.cluster import NodePorts, cluster_settings
    from moldau.cli.secure_folder import SecureFolder

    folder.mkdir(parents=True, exist_ok=True)
    security = SecureFolder(folder.resolve()) if secure or is_secure(folder) else None
    listener = "PLAINTEXT" if security is None else security.listener
    more = {} if security is None else security.settings()
    added = [each for each in node_numbers(folder) if each > voters]
    ports = [NodePorts(base_port + place, base_port + CONTROLLERS_AT + place) for place in range(voters)]
    every = dict(enumerate(cluster_settings(HOST, ports, str(folder.resolve()), listener=listener), start=1))
    for number in added:
        every[number] = broker_settings(every[1], folder, number, base_port)
    files = {}
    for number, settings in every.items():
        complete = settings | more | with_own_http_port(overrides, number)
        loaded = load_broker_config(complete)
        if security is not None and number not in added:
            security.format(loaded)
        files[number] = write_settings(folder, number, complete)
    if security is not None:
        security.write_client_properties(bootstrap_servers(folder))
    return files


def broker_settings(first: Mapping[str, str], folder: Path, number: int, base_port: int) -> dict[str, str]:
    """Of a node that is a broker only, beside the voters."""
    listener = first["listeners"].partition("://")[0]
    return {
        **with_own_http_port(first, number),
        "node.id": str(number),
        "process.roles": "broker",
        "listeners": f"{listener}://{HOST}:{base_port + number - 1}",
        "log.dirs": f"{folder.resolve()}/node-{number}",
    }


def with_own_http_port(firsts: Mapping[str, str], number: int) -> dict[str, str]:
    """The first node's settings for another one: its metrics are as many ports higher as its clients are."""
    from moldau.broker.config.http import http_address

    key = "moldau.http.listener"
    address = http_address(firsts.get(key, ""))
    if address is None or not address[1]:
        return dict(firsts)
    host, port = address
    own = f"{f'[{host}]' if ':' in host else host}:{port + number - 1}"
    http_address(own)  # there may be no such port
    return {**firsts, key: own}
