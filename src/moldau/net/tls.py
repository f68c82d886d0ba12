"""TLS between the socket and the frames, through memory buffers, behind the same interface as a plain socket.

What is held back stays bounded: ciphertext is fetched only when OpenSSL asks for it, and new plaintext is accepted only
when the ciphertext of the former is gone.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Mapping, Sequence

from moldau.seams.disk import Buffer, DiskFile

_ENCRYPT_BYTES_MAX = 256 * 1024
# Short names as RFC 2253 and Java's X500Principal write them; OpenSSL gives the long ones.
_SHORT_NAMES = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}


class TlsChannel:
    __slots__ = ("_cipher_in", "_cipher_out", "_is_established", "_scratch", "_socket", "_tls", "_unsent", "peer_name")

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        scratch: memoryview,
        *,
        server_side: bool,
        server_hostname: str | None = None,
        received: bytes = b"",
    ) -> None:
        """`received`: ciphertext that was read from the socket before."""
        self._socket = sock
        self._scratch = scratch  # shared by all: ciphertext passes through it within one call
        self._cipher_in = ssl.MemoryBIO()
        self._cipher_out = ssl.MemoryBIO()
        if received:
            self._cipher_in.write(received)
        self._tls = context.wrap_bio(
            self._cipher_in, self._cipher_out, server_side=server_side, server_hostname=server_hostname
        )
        self._unsent = b""
        self._is_established = False
        self.peer_name: str | None = None

    def handshake(self) -> None:
        """Go on with the handshake; returns when it is done. Raises BlockingIOError (call again), ssl.SSLError."""
        while not self._is_established:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._push_quietly()
                self._fetch()
                continue
            except ssl.SSLError:
                self._push_quietly()  # the alert that tells the peer why
                raise
            self._is_established = True
            self.peer_name = subject_name(self._tls.getpeercert())
            self._push_quietly()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent) or self._cipher_out.pending > 0

    @property
    def has_unread(self) -> bool:
        return self._tls.pending() > 0 or self._cipher_in.pending > 0

    def recv_into(self, view: memoryview, /) -> int:
        """As many records as there are: when it returns fewer bytes than asked for, nothing is left unread."""
        received = 0
        while received < len(view):
            try:
                # An int when it is given a buffer, whatever its declared type says.
                step = int(self._tls.read(len(view) - received, view[received:]))
            except ssl.SSLWantReadError:
                self._push_quietly()
                if received:
                    break
                self._fetch()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                break  # told again on the next read, if there is something to deliver first
            else:
                if step == 0:
                    break
                received += step
        return received

    def send(self, data: Buffer, /) -> int:
        self.flush()
        piece = memoryview(data)[:_ENCRYPT_BYTES_MAX]
        sent = self._tls.write(piece) if piece else 0
        self._push_quietly()
        return sent

    def send_many(self, buffers: Sequence[Buffer], *, more_follows: bool) -> int:
        return self.send(b"".join(buffers))

    def send_file(self, file: DiskFile, position: int, length: int) -> int:
        self.flush()  # before reading: the read would be for nothing
        return self.send(file.read(position, min(length, _ENCRYPT_BYTES_MAX)))

    def flush(self) -> None:
        while True:
            if not self._unsent:
                self._unsent = self._cipher_out.read()
                if not self._unsent:
                    return
            sent = self._socket.send(self._unsent)
            self._unsent = self._unsent[sent:]

    def fileno(self) -> int:
        return self._socket.fileno()

    def end_sending(self) -> None:
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()  # makes our close_notify; waiting for the peer's is not required (RFC 8446, 6.1)
        with contextlib.suppress(OSError):
            self.flush()  # not if the socket is full: frames have lengths, so nobody mistakes a cut for an end
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def discard(self, view: memoryview, /) -> int:
        return self._socket.recv_into(view)

    def close(self) -> None:
        self._socket.close()

    def _push_quietly(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.flush()

    def _fetch(self) -> None:
        received = self._socket.recv_into(self._scratch)
        if received:
            self._cipher_in.write(self._scratch[:received])
        else:
            self._cipher_in.write_eof()


def subject_name(certificate: Mapping[str, object] | None) -> str | None:
    """The certificate's subject in the form Kafka's principals have: most specific part first, RFC 2253."""
    if not certificate:
        return None
    subject = certificate.get("subject")
    if not isinstance(subject, tuple) or not subject:
        return None
    return ",".join("+".join(_attribute(*attribute) for attribute in rdn) for rdn in reversed(subject))


def _attribute(name: str, value: str) -> str:
    if name == "emailAddress":  # RFC 2253 has no short name for it, so Java writes the encoded form
        raw = value.encode("ascii", "replace")
        return f"1.2.840.113549.1.9.1=#16{len(raw):02x}{raw.hex()}"
    escaped = "".join("\\" + c if c in ',+"\\<>;' else c for c in value)
    if escaped.startswith((" ", "#")):
        escaped = "\\" + escaped
    if len(escaped) > 1 and escaped.endswith(" "):
        escaped = escaped[:-1] + "\\ "
    return f"{_SHORT_NAMES.get(name, name)}={escaped}"
