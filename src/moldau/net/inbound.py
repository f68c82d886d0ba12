"""Bytes in, frames out: cuts a stream into frames without copying the common ones.

Invariants
- A frame's length is checked before anything is allocated for it.
- Between two reads a connection holds nothing, or the unfinished rest (`_kept`, at most the shared buffer's size), or
  one large frame under way (`_large`), which takes a small multiple of what has arrived of it. Whole frames stay in
  `_kept` only while the sink takes no more.
- What is held beyond a few KiB is charged to the budget of all connections (`_charged_bytes`).
- Frames are handed to the sink in order, each exactly once, as writable views valid during the call.
"""

from __future__ import annotations

from struct import Struct
from typing import Protocol

from moldau.net.buffers import SHARED_BYTES, UNCHARGED_BYTES, LargeBuffer, ReadMemory
from moldau.net.channel import Channel

_LENGTH = Struct(">i")
_unpack_length = _LENGTH.unpack_from
_READ_BYTES_PER_TURN = 1024 * 1024  # then other connections have their turn
# How much room a large frame gets, as a multiple of what is there of it: more if the peer sent one as long before.
_ROOM_UNPROVEN = 2
_ROOM_PROVEN = 16
_SLOW_AFTER_MS = 5_000
_SLOW_BYTES = 64 * 1024


class BadFrame(Exception):
    """The peer sent a length that cannot be: it does not speak this protocol, or means harm."""


class FrameSink(Protocol):
    def take(self, frame: memoryview) -> bool:
        """Handle one frame. False: take no more for now."""


class FrameReader:
    __slots__ = (
        "_charged_bytes",
        "_have_bytes",
        "_is_charged",
        "_kept",
        "_large",
        "_mark",
        "_memory",
        "_need_bytes",
        "_proven_bytes",
        "max_frame_bytes",
        "needs_memory",
        "unfinished_since_ms",
    )

    def __init__(self, memory: ReadMemory, max_frame_bytes: int, *, is_charged: bool = True) -> None:
        """`is_charged`: large frames count against the budget of `memory`, and wait for it."""
        self._memory = memory
        self._is_charged = is_charged
        self.max_frame_bytes = max_frame_bytes
        self._kept: bytearray | None = None
        self._large: LargeBuffer | None = None
        self._charged_bytes = 0
        self._mark = (0.0, 0)  # when somebody last looked how far the large frame is, and how far it was
        self._have_bytes = 0
        self._need_bytes = 0
        self._proven_bytes = 0  # the longest frame this peer announced and really sent
        self.needs_memory = False
        """A large frame waits for the budget: call `deliver_kept` when there is some again."""
        self.unfinished_since_ms: float | None = None
        """When the frame under way began, for the watchdog; None if there is none."""

    @property
    def large_frame_bytes(self) -> int:
        """Memory held for a frame under way."""
        return len(self._large) if self._large is not None else 0

    @property
    def held_bytes(self) -> int:
        """What this reader has of the budget."""
        return self._charged_bytes

    def is_slow(self, now_ms: float) -> bool:
        """Asked from time to time while others wait for memory: whether the frame under way has come nearly to a halt
        since the last look."""
        if not self._charged_bytes:
            return False
        have = self._have_bytes if self._large is not None else self._charged_bytes
        marked_ms, marked_bytes = self._mark
        if not marked_ms or have < marked_bytes:
            self._mark = (now_ms, have)
            return False
        if now_ms - marked_ms < _SLOW_AFTER_MS:
            return False
        self._mark = (now_ms, have)
        return have - marked_bytes < _SLOW_BYTES

    def receive(self, channel: Channel, sink: FrameSink, now_ms: float) -> int:
        """Read once and hand over what is complete. Returns the bytes read, 0 at the end of the stream.

        Raises BadFrame, and whatever the channel raises (BlockingIOError: nothing there).
        """
        if self._large is not None:
            return self._receive_large(channel, sink)
        shared = self._memory.shared
        kept = self._kept
        if kept is None:
            received = end = channel.recv_into(shared)
        else:
            # A frame that fits the shared buffer is finished there; larger ones are in `_large`.
            have = len(kept)
            received = channel.recv_into(shared[have:])
            shared[:have] = kept
            self._kept = None
            if self._charged_bytes:
                self._uncharge()
            end = have + received
        if received:
            position = self._deliver(shared, end, sink)
            if position < end:
                self._keep(shared[position:end])
                if position or kept is None:
                    self.unfinished_since_ms = now_ms
            else:
                self.unfinished_since_ms = None
        return received

    def deliver_kept(self, sink: FrameSink, now_ms: float) -> None:
        """The sink takes frames again: hand over those that waited."""
        self.needs_memory = False
        kept = self._kept
        if kept is not None:
            view = memoryview(kept)
            self._kept = None
            if self._charged_bytes:
                self._uncharge()
            position = self._deliver(view, len(kept), sink)
            if position < len(kept):
                self._keep(view[position:])
        if self.unfinished_since_ms is not None:
            waits = self._kept is not None or self._large is not None
            self.unfinished_since_ms = now_ms if waits else None

    def detach(self) -> bool:
        """From within `take`: the frame's memory now belongs to the sink. False if it is shared and must be copied."""
        if self._large is None:
            return False
        self._large = None
        return True

    def discard(self) -> None:
        """The connection is closing: give everything back."""
        self._kept = None
        self.unfinished_since_ms = None
        if self._large is not None:
            self._drop_large()
        elif self._charged_bytes:
            self._uncharge()

    def _deliver(self, view: memoryview, end: int, sink: FrameSink) -> int:
        """Hand over the whole frames in view[:end]; returns where the rest begins."""
        position = 0
        while end - position >= 4:
            (length,) = _unpack_length(view, position)
            if not 0 <= length <= self.max_frame_bytes:
                raise BadFrame(
                    f"a frame of {length} bytes was announced; at most {self.max_frame_bytes} are accepted "
                    "(socket.request.max.bytes), or the peer does not speak Kafka's protocol or speaks TLS"
                )
            start = position + 4
            if length > end - start:
                break
            position = start + length
            if not sink.take(view[start:position]):
                break
        return position

    def _keep(self, rest: memoryview) -> None:
        """Keep an unfinished frame, or frames the sink does not take now."""
        if len(rest) >= 4:
            need = _unpack_length(rest)[0] + 4
            if need > SHARED_BYTES:
                room = len(rest) * (_ROOM_PROVEN if need <= self._proven_bytes else _ROOM_UNPROVEN)
                size = self._reserve(min(need, room))
                if size:
                    self._large = large = self._memory.take(size)
                    with memoryview(large) as view:
                        view[: len(rest)] = rest
                    self._have_bytes = len(rest)
                    self._need_bytes = need
                    return
        self._kept = bytearray(rest)
        if len(rest) > UNCHARGED_BYTES and not self._charge(len(rest)):
            self.needs_memory = True

    def _reserve(self, size_bytes: int) -> int:
        """How large a buffer may be taken for that, charged to the budget; 0, and `needs_memory`, if none may."""
        size = self._memory.size_of(size_bytes)
        if self._charge(size):
            return size
        self.needs_memory = True
        return 0

    def _charge(self, held_bytes: int) -> bool:
        """From now on this reader holds so much."""
        if self._is_charged:
            if not self._memory.reserve(self, held_bytes - self._charged_bytes):
                return False
            self._charged_bytes = held_bytes
        return True

    def _uncharge(self) -> None:
        held, self._charged_bytes = self._charged_bytes, 0
        self._mark = (0.0, 0)
        self._memory.release(self, held)

    def _receive_large(self, channel: Channel, sink: FrameSink) -> int:
        large = self._large
        assert large is not None
        received = 0
        while received < _READ_BYTES_PER_TURN:
            if self._have_bytes == len(large):
                size = self._reserve(min(self._need_bytes, 2 * len(large)))
                if not size:
                    if received:
                        return received
                    raise BlockingIOError
                self._large = large = self._memory.grow(large, self._have_bytes, size)
            try:
                # No view may be left when it grows.
                with memoryview(large) as whole, whole[self._have_bytes : min(self._need_bytes, len(large))] as room:
                    step = channel.recv_into(room)
            except BlockingIOError:
                if received:
                    return received
                raise
            if step == 0:
                return received  # if 0, the caller sees the end of the stream now, else on the next read
            received += step
            self._have_bytes += step
            if self._have_bytes == self._need_bytes:
                self.unfinished_since_ms = None
                self._proven_bytes = max(self._proven_bytes, self._need_bytes)
                sink.take(memoryview(large)[4 : self._need_bytes])
                self._drop_large()
                break
        return received

    def _drop_large(self) -> None:
        large = self._large
        self._large = None
        self._need_bytes = 0
        if large is not None:  # else the sink took it
            self._memory.give_back(large)
        if self._charged_bytes:
            self._uncharge()
