"""The server's end of a connection: requests to the handler, responses back in their order, and nothing unbounded.

Reading stops ("mute") while any reason for it stands, and starts again when the last one is gone: too many requests in
flight, a peer that does not read its responses, a quota, a handler that asked for it, no memory for a large frame,
closing. Meanwhile TCP itself holds the peer back.

Invariants
- Responses leave in the order of the requests; a slot is completed once.
- The handler is never re-entered. Its `on_disconnect` follows its `on_connect` exactly once.
- Per connection, at most `max_in_flight` slots, one unfinished frame, and the responses to those slots are held.
- A timer looks after it: idle connections, half-sent requests, half-read responses all end.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

from moldau.net.channel import Channel
from moldau.net.inbound import BadFrame, FrameReader
from moldau.net.outbound import FrameWriter, RegionTooShort
from moldau.net.settings import NetCounters
from moldau.net.slot import ANSWERED, CLOSE, Slot
from moldau.seams.network import FrameHandler
from moldau.timers.wheel import TimerHandle

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.net.parts import Host, TakesIn
    from moldau.timers.turns import Turns

    class Needs(TakesIn, Protocol):
        """What of the reactor this file may touch."""

        reads: int  # of all connections, since the start

        @property
        def turns(self) -> Turns: ...
        @property
        def endings(self) -> Turns: ...
        @property
        def is_turn_full(self) -> bool: ...
        @property
        def is_stopping(self) -> bool: ...

        def fills_turn(self, now_ms: float) -> bool: ...
        def wait_for_memory(self, wake: Callable[[], None]) -> None: ...
        def warm(self, region: tuple[int, int, int], then: Callable[[], None]) -> None: ...
        def forget(self, connection: ServerConnection) -> None: ...


_log = logging.getLogger(__name__)

_FLUSH_BYTES = 64 * 1024  # answers to a burst of requests are sent together, but not more than about this
_POISON = b"\xdb"
# A connection's turn, after which others have theirs: whichever comes first.
_FRAMES_PER_TURN = 32
_TURN_MS = 1.0
_FULL_TURNS = 8  # so many may wait for one of that length
_LOOKS_EVERY = 7  # of eight reads, one looks whether the loop's turn is full (a mask)

# Why reading is muted: bits of ServerConnection._muted.
_IN_FLIGHT: Final = 1
_WRITE_BLOCKED: Final = 2
_THROTTLED: Final = 4
_PAUSED: Final = 8
_NO_MEMORY: Final = 16
_STOPPING: Final = 32
_CLOSING: Final = 64


class ServerConnection:
    """See `moldau.seams.network.Connection`."""

    __slots__ = (
        "_armed_fd",
        "_channel",
        "_close_reason",
        "_counters",
        "_flush_is_scheduled",
        "_frames_left",
        "_handler",
        "_is_in_turn",
        "_is_released",
        "_is_turn_over",
        "_is_unread",
        "_is_warming",
        "_is_writer_armed",
        "_last_active_ms",
        "_listener",
        "_muted",
        "_pauses",
        "_reactor",
        "_reader",
        "_resume_is_scheduled",
        "_slots",
        "_throttle",
        "_turn_ends_ms",
        "_watchdog",
        "_write_blocked_since_ms",
        "_writer",
        "context",
        "id",
        "peer_host",
        "peer_port",
        "since_ms",
        "tls_peer_name",
    )

    def __init__(
        self,
        reactor: Needs,
        listener: Host,
        channel: Channel,
        peer: tuple[str, int],
        tls_peer_name: str | None,
    ) -> None:
        self.id = reactor.new_id()
        self.context: Any = None  # the handler's own; only it knows the type
        self.peer_host, self.peer_port = peer
        self.tls_peer_name = tls_peer_name
        self._reactor = reactor
        self._listener = listener
        self._handler: FrameHandler = listener.handler
        self._counters: NetCounters = listener.counters
        self._channel = channel
        self._reader = FrameReader(reactor.memory, reactor.settings.max_frame_bytes)
        self._writer = FrameWriter()
        self._slots: deque[Slot] = deque()
        self._muted = 0
        self._pauses = 0  # those who asked for one and have not resumed
        self._armed_fd = -1  # the descriptor the loop watches for reading, or -1
        self._frames_left = 0
        self._turn_ends_ms = 0.0
        self._is_turn_over = False  # whole frames may be waiting, for the next one
        self._is_unread = False  # the socket has something, and it is not our turn
        self._is_in_turn = False  # frames are being dispatched: one flush follows
        self._flush_is_scheduled = False
        self._resume_is_scheduled = False
        self._is_released = False
        self._is_writer_armed = False
        self._is_warming = False  # a thread fetches what is to be sent next
        self._close_reason = ""
        self._throttle: TimerHandle | None = None
        self._write_blocked_since_ms: float | None = None
        self.since_ms = self._last_active_ms = reactor.clock.monotonic_ms()
        self._watchdog: TimerHandle | None = None

    # What the handler sees

    @property
    def listener_name(self) -> str:
        return self._listener.name

    @property
    def local_port(self) -> int:
        return self._listener.port

    @property
    def is_tls(self) -> bool:
        return self._listener.tls is not None

    @property
    def is_closed(self) -> bool:
        return bool(self._muted & _CLOSING)

    @property
    def in_flight(self) -> int:
        return len(self._slots)

    @property
    def last_active_ms(self) -> float:
        return self._last_active_ms

    def close(self, reason: str, *, flush: bool = False) -> None:
        if self._muted & _CLOSING:
            return
        self._muted |= _CLOSING
        self._close_reason = reason
        self._slots.clear()
        self._disarm_reading()
        if flush:
            self._flush()  # releases when all is sent, or waits for the socket
        else:
            self._release(linger=False)

    def distrust(self, max_frame_bytes: int) -> None:
        self._reader.max_frame_bytes = min(self._reactor.settings.max_frame_bytes, max_frame_bytes)
        self._listener.strangers[self.id] = self

    def trust(self) -> None:
        self._reader.max_frame_bytes = self._reactor.settings.max_frame_bytes
        self._listener.strangers.pop(self.id, None)

    def mute_until(self, deadline_ms: float) -> None:
        if self._muted & _CLOSING:
            return
        if self._throttle is not None:
            if self._throttle.deadline_ms >= deadline_ms:
                return
            self._throttle.cancel()
        self._throttle = self._reactor.wheel.add(deadline_ms, self._end_throttle)
        self._mute(_THROTTLED)

    def pause_dispatch(self) -> None:
        self._pauses += 1
        self._mute(_PAUSED)

    def hold_memory(self, held_bytes: int) -> None:
        self._reactor.memory.hold(held_bytes)

    def resume_dispatch(self) -> None:
        if not self._pauses:
            raise RuntimeError("a connection was resumed that nobody had paused")
        self._pauses -= 1
        if not self._pauses:
            self._unmute(_PAUSED)

    # Life

    def start(self) -> None:
        """Begin reading; the handler hears of the connection first."""
        self._watch()
        self._call_on_connect()
        if not self._muted:
            self._arm_reading()
            if self._channel.has_unread:  # the first request came with the handshake's last bytes
                self._reactor.loop.call_soon(self._on_readable)

    def stop_reading(self) -> None:
        """The reactor stops: take nothing more, answer what is in flight."""
        self._mute(_STOPPING)
        if not self._slots and self._writer.is_empty:
            self.close("the server stops", flush=True)

    def _call_on_connect(self) -> None:
        try:
            self._handler.on_connect(self)
        except Exception:
            self._handler_failed("on_connect")

    def _release(self, *, linger: bool) -> None:
        """Let go of everything. The handler is told from the loop, never from within its own call."""
        if self._is_released:
            return
        self._is_released = True
        self._muted |= _CLOSING
        reactor = self._reactor
        self._disarm_reading()
        self._disarm_writing()
        for timer in (self._watchdog, self._throttle):
            if timer is not None:
                timer.cancel()
        self._watchdog = self._throttle = None
        self._slots.clear()
        self._writer.clear()
        self._reader.discard()
        if linger:
            reactor.linger(self._channel)
        else:
            self._channel.close()
        self._listener.strangers.pop(self.id, None)
        reactor.forget(self)
        self._counters.connections_open -= 1
        self._counters.connections_closed += 1
        reactor.loop.call_soon(self._call_on_disconnect)

    def _call_on_disconnect(self) -> None:
        try:
            self._handler.on_disconnect(self, self._close_reason)
        except Exception:
            self._counters.handler_errors += 1
            _log.exception("on_disconnect failed for %s:%d", self.peer_host, self.peer_port)

    def _handler_failed(self, where: str) -> None:
        self._counters.handler_errors += 1
        _log.exception("%s failed; closing the connection of %s:%d", where, self.peer_host, self.peer_port)
        self.close(f"{where} failed", flush=True)

    # Reading

    def _on_readable(self) -> None:
        if self._muted or self._resume_is_scheduled:  # then whole frames may be waiting in the reader
            return
        reactor = self._reactor
        now_ms = reactor.now_ms()
        reactor.reads += 1
        if reactor.is_turn_full or (not reactor.reads & _LOOKS_EVERY and reactor.fills_turn(now_ms)):
            self._is_unread = self._is_turn_over = True
            self._disarm_reading()  # else the loop would tell of it again and again
            self._resume_later()
        else:
            self._read(now_ms)

    def _read(self, now_ms: float) -> None:
        self._begin_turn(now_ms)
        self._is_in_turn = True
        try:
            received = self._reader.receive(self._channel, self, now_ms)
        except BlockingIOError:
            self._is_in_turn = False
            self._after_turn()
            return
        except BadFrame as error:
            self._is_in_turn = False
            self._counters.bad_frames += 1
            self.close(str(error), flush=True)
            return
        except OSError as error:
            self._is_in_turn = False
            self.close(f"reading failed: {error}")
            return
        self._is_in_turn = False
        if received:
            self._last_active_ms = now_ms
            self._counters.bytes_in += received
            self._after_turn()
        else:
            self._close_in_turn("the peer closed the connection")

    def _close_in_turn(self, reason: str) -> None:
        """Letting go takes longer than noticing: of many peers that leave at once each is let go in its turn, and
        nobody who stays waits for that."""
        self._muted |= _CLOSING
        self._close_reason = reason
        self._slots.clear()
        self._disarm_reading()
        self._reactor.endings.add(self._end)

    def _end(self) -> bool:
        self._release(linger=False)
        return False

    def _begin_turn(self, now_ms: float) -> None:
        """The more connections wait for theirs, the shorter it is; one frame is taken in any case."""
        self._frames_left = _FRAMES_PER_TURN
        self._turn_ends_ms = now_ms + _TURN_MS / (1 + len(self._reactor.turns) // _FULL_TURNS)
        self._is_turn_over = False

    def take(self, frame: memoryview) -> bool:
        """One frame from the reader, to the handler. After a while others have their turn."""
        slot = Slot(self)
        self._slots.append(slot)
        self._counters.frames_in += 1
        try:
            self._handler.on_frame(self, frame, slot)
        except Exception:
            self._handler_failed("on_frame")
            return False
        reactor = self._reactor
        if reactor.settings.poison_frames:
            frame[:] = _POISON * len(frame)
        if len(self._slots) >= reactor.settings.max_in_flight:
            self._muted |= _IN_FLIGHT
        if self._writer.queued_bytes > _FLUSH_BYTES:
            self._flush()
        left = self._frames_left = self._frames_left - 1
        # Most turns have one frame: they need not look at the clock.
        if left <= 0 or (left < _FRAMES_PER_TURN - 1 and reactor.now_ms() >= self._turn_ends_ms):
            self._is_turn_over = True
            return False
        return not self._muted

    def _after_turn(self) -> None:
        """Frames were dispatched: send the answers, and see whether to go on reading."""
        if self._is_released:
            self._reader.discard()  # what was left over when the handler closed the connection
            return
        if self._write_blocked_since_ms is None and (not self._writer.is_empty or self._channel.has_unsent):
            self._flush()
        if self._reader.needs_memory and not self._muted & (_NO_MEMORY | _CLOSING):
            self._muted |= _NO_MEMORY
            self._reactor.wait_for_memory(self._end_no_memory)
        if self._muted:
            self._disarm_reading()
        elif self._is_turn_over:
            self._resume_later()  # whole frames are waiting in the reader
        elif self._channel.has_unread:
            self._reactor.loop.call_soon(self._on_readable)

    def _mute(self, bit: int) -> None:
        if not self._muted & _CLOSING:
            self._muted |= bit
            if not self._is_in_turn:
                self._disarm_reading()

    def _unmute(self, bit: int) -> None:
        if not self._muted & bit:
            return
        self._muted &= ~bit
        if not self._muted and not self._resume_is_scheduled:
            self._resume_later()

    def _resume_later(self) -> None:
        """Go on with what is in the reader, in turn with all other connections that have more than a turn's worth."""
        if not self._resume_is_scheduled:
            self._resume_is_scheduled = True
            self._reactor.turns.add(self._resume)

    def _resume(self) -> bool:
        self._resume_is_scheduled = False
        if not self._muted:
            self._counters.mutes += not self._is_turn_over
            if self._is_unread:
                self._is_unread = False
                self._read(self._reactor.now_ms())
                if not self._muted:
                    self._arm_reading()
            else:
                self._deliver_kept()
        return False  # if there is still more, it has queued up again, behind the others

    def _deliver_kept(self) -> None:
        now_ms = self._reactor.now_ms()
        self._last_active_ms = now_ms  # the time we did not listen does not count as silence
        self._begin_turn(now_ms)
        self._is_in_turn = True
        try:
            self._reader.deliver_kept(self, now_ms)
        except BadFrame as error:
            self._is_in_turn = False
            self._counters.bad_frames += 1
            self.close(str(error), flush=True)
            return
        self._is_in_turn = False
        self._after_turn()
        if not self._muted:
            self._arm_reading()

    def _end_throttle(self) -> None:
        self._throttle = None
        self._unmute(_THROTTLED)

    def _end_no_memory(self) -> None:
        self._unmute(_NO_MEMORY)

    def _arm_reading(self) -> None:
        if self._armed_fd < 0:
            self._armed_fd = self._channel.fileno()
            self._reactor.loop.add_reader(self._armed_fd, self._on_readable)

    def _disarm_reading(self) -> None:
        if self._armed_fd >= 0:
            self._reactor.loop.remove_reader(self._armed_fd)
            self._armed_fd = -1

    # Writing

    def slot_done(self, slot: Slot) -> None:
        slots = self._slots
        if not slots or slots[0] is not slot:  # empty: the connection closed meanwhile
            return
        writer = self._writer
        while slots and slots[0].state:
            done = slots.popleft()
            if done.state == ANSWERED:
                try:
                    writer.push(done.payload)
                except Exception as error:
                    # Without this response those behind it would be taken for their predecessors.
                    self.close(f"a response could not be sent: {error}")
                    raise
                self._counters.frames_out += 1
            elif done.state == CLOSE:
                self.close(done.reason, flush=True)
                return
        if self._muted & _IN_FLIGHT and len(slots) <= self._reactor.settings.max_in_flight // 2:
            self._unmute(_IN_FLIGHT)
        if self._is_in_turn:
            return
        self._last_active_ms = self._reactor.now_ms()
        if self._write_blocked_since_ms is not None:
            return
        if not slots:
            self._flush()
        elif not self._flush_is_scheduled:
            # Others are in flight and may complete in the same turn of the loop: send them together.
            self._flush_is_scheduled = True
            self._reactor.loop.call_soon(self._scheduled_flush)

    def _scheduled_flush(self) -> None:
        self._flush_is_scheduled = False
        if not self._is_released and self._write_blocked_since_ms is None:
            self._flush()

    def _flush(self) -> None:
        if self._is_warming:
            return
        writer = self._writer
        sent_before = writer.sent_bytes
        try:
            is_drained = writer.flush(self._channel)
        except (OSError, RegionTooShort) as error:
            self._muted |= _CLOSING
            self._close_reason = self._close_reason or f"writing failed: {error}"
            self._release(linger=False)
            return
        sent = writer.sent_bytes - sent_before
        self._counters.bytes_out += sent
        if not is_drained:
            self._wait_to_write(made_progress=sent > 0)
            return
        if self._write_blocked_since_ms is not None:
            self._disarm_writing()
            self._write_blocked_since_ms = None
            self._last_active_ms = self._reactor.now_ms()
            self._unmute(_WRITE_BLOCKED)
        if self._muted & _CLOSING:
            self._release(linger=True)
        elif self._reactor.is_stopping and not self._slots:
            self.close("the server stops", flush=True)

    def _wait_to_write(self, *, made_progress: bool) -> None:
        """Go on when the socket takes more, or when the next bytes were fetched from the disk."""
        if self._write_blocked_since_ms is None or made_progress:
            self._write_blocked_since_ms = self._reactor.now_ms()
        self._muted |= _WRITE_BLOCKED
        if not self._is_in_turn:
            self._disarm_reading()
        cold_region = self._writer.cold_region()
        if cold_region is not None:
            self._disarm_writing()
            self._counters.cold_reads += 1
            self._is_warming = True
            self._reactor.warm(cold_region, self._on_warm)
        elif not self._is_writer_armed:
            self._is_writer_armed = True
            self._reactor.loop.add_writer(self._channel.fileno(), self._flush)

    def _on_warm(self) -> None:
        self._is_warming = False
        if not self._is_released:
            self._flush()

    def _disarm_writing(self) -> None:
        if self._is_writer_armed:
            self._is_writer_armed = False
            self._reactor.loop.remove_writer(self._channel.fileno())

    # Timeouts

    def _watch(self) -> None:
        """Close if a deadline has passed; else look again at the next one.

        Deadlines are computed here, not kept as timers: a busy connection costs no timer operations. A condition that
        begins after this look has its deadline after the next one, since looks are no further apart than any timeout.
        """
        settings = self._reactor.settings
        now_ms = self._reactor.now_ms()
        next_ms = now_ms + min(settings.max_idle_ms, settings.max_stall_ms, settings.max_silence_ms)
        stall_ms = settings.max_stall_ms
        is_listening = not self._muted and not self._resume_is_scheduled
        stalled_since = None
        what = ""
        if self._write_blocked_since_ms is not None:
            stalled_since, what = self._write_blocked_since_ms, "a response"
        elif is_listening and self._reader.unfinished_since_ms is not None:
            stalled_since, what = self._reader.unfinished_since_ms, "a request"
        if stalled_since is not None:
            if now_ms >= stalled_since + stall_ms:
                self._counters.stalled_closed += 1
                self.abort(f"{what} was not finished within {stall_ms:.0f} ms")
                return
            next_ms = min(next_ms, stalled_since + stall_ms)
            if what == "a request":
                if now_ms >= self._last_active_ms + settings.max_silence_ms:
                    self._counters.stalled_closed += 1
                    self.abort(f"of a request under way nothing came for {settings.max_silence_ms:.0f} ms")
                    return
                next_ms = min(next_ms, self._last_active_ms + settings.max_silence_ms)
        elif is_listening and not self._slots:
            if now_ms >= self._last_active_ms + settings.max_idle_ms:
                self._counters.idle_closed += 1
                self.close(f"idle for {settings.max_idle_ms:.0f} ms (connections.max.idle.ms)", flush=True)
                return
            next_ms = min(next_ms, self._last_active_ms + settings.max_idle_ms)
        self._watchdog = self._reactor.wheel.add(next_ms, self._watch)

    def close_if_slow(self, now_ms: float) -> None:
        """Others wait for memory that a frame of this connection holds: it must come at a fair rate then."""
        if not self._muted and self._reader.is_slow(now_ms):
            self._counters.stalled_closed += 1
            self.abort("a request under way held memory that others needed, and hardly went on")

    def abort(self, reason: str) -> None:
        """Close even if a flushing close is under way and the peer does not read."""
        self._close_reason = self._close_reason or reason
        self._release(linger=False)
