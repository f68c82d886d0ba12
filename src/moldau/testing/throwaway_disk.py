"""A disk for data that is deleted when the test ends: the real one, without waiting for anything to be durable."""

from moldau.seams.disk import RealDisk


class ThrowawayDisk(RealDisk):
    """Nothing here needs to survive a power loss, and an fsync takes longer than most tests."""

    def write_file_atomically(self, path: str, data: bytes, *, flush: bool = True) -> None:
        super().write_file_atomically(path, data, flush=False)

    def flush_file(self, path: str) -> None:
        """Not needed."""

    def flush_dir(self, path: str) -> None:
        """Not needed."""

    def flush_volume(self, path: str) -> None:
        """Not needed."""
