"""Who this node is: cluster id, node id and directory ids, written into every log dir on the first start.

A dir of another cluster or another node is refused: its logs would be mixed up with ours. A new dir of a known node
is adopted, so that a disk can be replaced; a dir with partitions but without identity is not.
"""

from __future__ import annotations

from moldau.log.checkpoints import META_PROPERTIES, MetaProperties, uuid_text, write_meta_properties
from moldau.log.log_dir import LogDir
from moldau.seams import Disk, Random


class WrongDirectory(Exception):
    """A log dir belongs to somebody else. The message says what to do."""


def identify(dirs: list[LogDir], node_id: int, disk: Disk, random: Random) -> str:
    """Check that all dirs are ours, give new ones an identity, and return the cluster id."""
    known = [(each.path, each.properties) for each in dirs if each.properties is not None]
    cluster_ids = {properties.cluster_id for _, properties in known}
    if len(cluster_ids) > 1:
        raise WrongDirectory(
            f"log.dirs belong to different clusters: {', '.join(sorted(cluster_ids))}. Give each cluster its own dirs"
        )
    for path, properties in known:
        if properties.node_id != node_id:
            raise WrongDirectory(
                f"{path} belongs to node {properties.node_id}, and this is node {node_id}: "
                f"set node.id={properties.node_id}, or use another log.dirs"
            )
    cluster_id = cluster_ids.pop() if cluster_ids else uuid_text(random.uuid())
    for each in dirs:
        if each.properties is None:
            if any(name[-1:].isdigit() and "-" in name for name in disk.list_dir(each.path)):
                raise WrongDirectory(
                    f"{each.path} holds partitions but no {META_PROPERTIES}: "
                    "restore that file, or move the dir away if it is no longer needed"
                )
            each.properties = MetaProperties(cluster_id, node_id, uuid_text(random.uuid()))
            write_meta_properties(disk, each.path, each.properties)
    return cluster_id
