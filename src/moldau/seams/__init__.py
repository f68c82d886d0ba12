"""The four seams between Moldau and the world: time, randomness, disk, network.

Everything above reaches the world only through these, so a simulator can put virtual time, a seeded
random source, a disk that forgets unflushed writes and a lossy network under the same code.
"""

from moldau.seams.clock import Clock, SystemClock
from moldau.seams.disk import Disk, DiskFile, FileRegion, MappedFile, RealDisk
from moldau.seams.randomness import Random, SystemRandom

__all__ = [
    "Clock",
    "Disk",
    "DiskFile",
    "FileRegion",
    "MappedFile",
    "Random",
    "RealDisk",
    "SystemClock",
    "SystemRandom",
]
