"""Frames out: a queue of buffers and file regions, sent with as few system calls as they allow.

Small pieces are gathered into one `sendmsg`, small regions read into it; large regions leave through `sendfile`, their
headers marked so that the kernel fills the packet. One call of `flush` sends a bounded amount, and none from regions
that are not in memory, so that one fast reader of large or old data does not hold up the loop.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from struct import Struct

from moldau.net import cold
from moldau.net.channel import Channel
from moldau.seams.disk import Buffer, FileRegion
from moldau.seams.network import Payload

_pack_length = Struct(">i").pack
_FRAME_BYTES_MAX = 2**31 - 1
_JOIN_BYTES_MAX = 16 * 1024  # a copy of this size is cheaper than more buffers in a system call
_INLINE_REGION_BYTES_MAX = 16 * 1024  # a read of this size is cheaper than a sendfile of its own
_GATHER_PIECES_MAX = 64
_GATHER_BYTES_MAX = 256 * 1024
_SEND_FILE_BYTES_MAX = 512 * 1024
_SEND_BYTES_PER_TURN = 1024 * 1024


class RegionTooShort(Exception):
    """A file ended before the region that was promised from it (truncated meanwhile): the frame cannot be finished."""


class _HeadIsCold(Exception):
    pass


class FrameWriter:
    """`queued_bytes` counts memory waiting to be sent, not file regions."""

    __slots__ = ("_head_is_cold", "_pieces", "_region_sent_bytes", "_region_warm_bytes", "queued_bytes", "sent_bytes")

    def __init__(self) -> None:
        self._pieces: deque[Buffer | FileRegion] = deque()
        self._head_is_cold = False  # the last flush stopped because of it
        self._region_sent_bytes = 0  # of the region at the head
        self._region_warm_bytes = 0  # of it, how far somebody already brought it into memory
        self.queued_bytes = 0
        self.sent_bytes = 0

    @property
    def is_empty(self) -> bool:
        return not self._pieces

    def push(self, payload: Payload) -> None:
        """Queue one frame; its length is put in front."""
        if len(payload) == 1:
            piece = payload[0]
            if type(piece) is bytes and len(piece) <= _JOIN_BYTES_MAX:
                self._pieces.append(_pack_length(len(piece)) + piece)
                self.queued_bytes += len(piece) + 4
                return
        frame_bytes = region_bytes = 0
        for piece in payload:
            if isinstance(piece, FileRegion):
                region_bytes += piece.length
            else:
                frame_bytes += len(piece)
        if frame_bytes + region_bytes > _FRAME_BYTES_MAX:
            raise ValueError(f"a frame of {frame_bytes + region_bytes} bytes is longer than the protocol can say")
        self.queued_bytes += frame_bytes + 4
        prefix = _pack_length(frame_bytes + region_bytes)
        if frame_bytes <= _JOIN_BYTES_MAX and not region_bytes:
            self._pieces.append(b"".join((prefix, *(p for p in payload if not isinstance(p, FileRegion)))))
        else:
            self._pieces.append(prefix)
            self._pieces.extend(payload)

    def flush(self, channel: Channel) -> bool:
        """Send what goes now. True: all is gone. False: call again when the socket is writable, or if `cold_region`
        gives one, when that is in memory.

        Raises RegionTooShort and OSErrors other than BlockingIOError.
        """
        pieces = self._pieces
        try:
            if channel.has_unsent:
                channel.flush()
            budget = _SEND_BYTES_PER_TURN
            while pieces:
                if budget <= 0:
                    return False
                head = pieces[0]
                if type(head) is bytes and len(pieces) == 1:
                    sent = channel.send(head)
                    if sent == len(head):
                        pieces.clear()
                        self.queued_bytes = 0
                    else:
                        self._pop_sent(sent)
                elif isinstance(head, FileRegion) and (
                    head.length > _INLINE_REGION_BYTES_MAX or self._region_sent_bytes
                ):
                    sent = self._send_region(channel, head)
                else:
                    sent = self._send_gathered(channel)
                self.sent_bytes += sent
                budget -= sent
        except BlockingIOError:
            return False
        except _HeadIsCold:
            self._head_is_cold = True
            return False
        return not channel.has_unsent

    def clear(self) -> None:
        self._pieces.clear()
        self._head_is_cold = False
        self._region_sent_bytes = self._region_warm_bytes = 0
        self.queued_bytes = 0

    def cold_region(self) -> tuple[int, int, int] | None:
        """What must be brought into memory before the next bytes can leave: descriptor, position, length.

        It is given once: after that it counts as warm, even if memory is so short that it was evicted again.
        """
        if not self._head_is_cold:
            return None
        self._head_is_cold = False
        head = self._pieces[0]
        assert isinstance(head, FileRegion)
        fd = head.file.fileno()
        assert fd is not None
        done = self._region_sent_bytes
        length = min(head.length - done, cold.WARM_BYTES)
        self._region_warm_bytes = done + length
        return fd, head.position + done, length

    def _send_region(self, channel: Channel, region: FileRegion) -> int:
        done = self._region_sent_bytes
        left = region.length - done
        step = min(left, _SEND_FILE_BYTES_MAX)
        if done >= self._region_warm_bytes:
            fd = region.file.fileno()
            if fd is not None and cold.is_cold(fd, region.position + done, step):
                raise _HeadIsCold
        sent = channel.send_file(region.file, region.position + done, step)
        if sent == 0:
            raise RegionTooShort(_too_short(left))
        if sent == left:
            self._pieces.popleft()
            self._region_sent_bytes = self._region_warm_bytes = 0
        else:
            self._region_sent_bytes = done + sent
        return sent

    def _send_gathered(self, channel: Channel) -> int:
        buffers: list[Buffer] = []
        gathered = 0
        region_follows = False
        for piece in islice(self._pieces, _GATHER_PIECES_MAX):
            if gathered >= _GATHER_BYTES_MAX:
                break
            if isinstance(piece, FileRegion):
                if piece.length > _INLINE_REGION_BYTES_MAX:
                    region_follows = True
                    break
                data: Buffer | None
                if not buffers and self._region_warm_bytes:
                    data = piece.read()
                else:
                    data = cold.read_if_warm(piece)
                    if data is None:
                        if not buffers:
                            raise _HeadIsCold
                        break  # it is looked after when it is at the head
                if len(data) < piece.length:
                    raise RegionTooShort(_too_short(piece.length - len(data)))
            else:
                data = piece
            buffers.append(data)
            gathered += len(data)
        if gathered <= _JOIN_BYTES_MAX and not region_follows:
            sent = channel.send(b"".join(buffers))
        else:
            sent = channel.send_many(buffers, more_follows=region_follows)
        if sent == gathered and len(buffers) == len(self._pieces):
            self.clear()
        else:
            self._pop_sent(sent)
        return sent

    def _pop_sent(self, sent: int) -> None:
        """Drop `sent` bytes from the head; only the first regions, small ones, may be among them."""
        pieces = self._pieces
        while pieces:
            head = pieces[0]
            if isinstance(head, FileRegion):
                if sent < head.length:
                    self._region_sent_bytes = sent  # the rest leaves through sendfile
                    return
                size = head.length
                self._region_warm_bytes = 0
            else:
                size = len(head)
                if sent < size:
                    if sent:
                        pieces[0] = memoryview(head)[sent:]
                        self.queued_bytes -= sent
                    return
                self.queued_bytes -= size
            sent -= size
            pieces.popleft()


def _too_short(missing_bytes: int) -> str:
    return f"a file ended {missing_bytes} bytes before the end of a region promised from it"
