"""One request on its way through the broker: where it came from, what it is, and how it is answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from moldau.seams.network import Connection, Payload, ResponseSlot
from moldau.security.principal import ANONYMOUS, Principal
from moldau.wire import Api, Message, encode
from moldau.wire.headers import encode_response_header

if TYPE_CHECKING:
    from moldau.broker.request_times import RequestTimes
    from moldau.controller.context import Rehearsal
    from moldau.security.sasl.authenticator import SaslAuthenticator
    from moldau.timers.wheel import TimerHandle

PLAINTEXT = "PLAINTEXT"


@dataclass(slots=True)
class Session:
    """What the broker remembers about a connection: who it belongs to, and where it came in."""

    principal: Principal = ANONYMOUS
    client_address: str = ""
    listener_name: str = ""
    security_protocol: str = PLAINTEXT
    is_forwarded: bool = False
    """It stands for a client of another broker (Envelope), and that broker has looked at the connection."""
    sasl: SaslAuthenticator | None = None
    """How far it is with proving who it is; None on listeners without SASL."""
    login_deadline: TimerHandle | None = None
    topic_access: object = None
    """What the client may read and write, once it was asked (`requests/topic_access.py`)."""
    has_quota: tuple[object, str | None, Principal, bool] | None = None
    """Whether this client id of this user has a limit under these quotas, once it was asked (`quotas/meter.py`)."""
    client_software_name: str = "unknown"
    client_software_version: str = "unknown"


class Meter(Protocol):
    """What one request costs its client: `moldau.broker.quotas.meter`."""

    def returned(self) -> None: ...
    def produced(self, call: Call, size_bytes: int) -> None: ...
    def fetch_bytes_max(self) -> float | None: ...
    def fetched(self, call: Call, size_bytes: int) -> int: ...
    def rehearse(self, call: Call, *, is_strict: bool) -> Rehearsal: ...
    def throttle(self, call: Call, response: Message | None = None) -> int: ...


class Call:
    """Answered exactly once, with `respond` or `respond_payload`, now or later."""

    __slots__ = (
        "api",
        "client_id",
        "connection",
        "correlation_id",
        "meter",
        "slot",
        "times",
        "version",
    )

    def __init__(
        self,
        api: Api,
        version: int,
        correlation_id: int,
        client_id: str | None,
        connection: Connection,
        slot: ResponseSlot,
        times: RequestTimes | None = None,
    ) -> None:
        """`times`: where this request is counted; None for one that stands in another's place."""
        self.api = api
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.connection = connection
        self.slot = slot
        # While any client has a quota: what this request costs its client.
        self.meter: Meter | None = None
        self.times = times

    def waits_since(self, now_ms: float) -> None:
        """The handler leaves the answer to somebody else: such requests are always measured."""
        if self.times is not None:
            self.times.waits(self, now_ms)

    def failed(self, code: int) -> None:
        """Count an error of an answer that is written by hand."""
        if self.times is not None:
            self.times.failed(code)

    @property
    def session(self) -> Session:
        session = self.connection.context
        assert isinstance(session, Session)
        return session

    @property
    def principal(self) -> Principal:
        return self.session.principal

    @property
    def client_host(self) -> str:
        """As Kafka writes it into group metadata and audit logs."""
        return "/" + self.session.client_address

    def throttle(self) -> int:
        """What to tell the client as `throttle_time_ms`; for answers that are written by hand."""
        return 0 if self.meter is None else self.meter.throttle(self)

    def respond(self, response: Message) -> None:
        self.judge(response)
        self.respond_payload([encode(response, self.version)])

    def judge(self, response: Message) -> None:
        """Before an answer is encoded, here or by a thread: count its errors, and tell the client how long to be
        silent."""
        if self.times is not None:
            self.times.count_errors(response)
        if self.meter is not None:
            self.meter.throttle(self, response)

    def respond_payload(self, body: Payload) -> None:
        """Answer with a body that is already bytes."""
        header_version = self.api.response_header_version(self.version)
        self.slot.complete([encode_response_header(self.correlation_id, header_version=header_version), *body])

    def respond_nothing(self) -> None:
        """The request wants no answer."""
        self.slot.complete_nothing()

    def respond_frame(self, frame: bytes) -> None:
        """Answer with what another node answered, header and all."""
        self.slot.complete([frame])

    def __repr__(self) -> str:
        return f"{self.api.name} v{self.version} from {self.client_id!r} at {self.connection.peer_host}"
