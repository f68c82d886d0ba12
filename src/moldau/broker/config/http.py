"""Where metrics and health are served: the value of `moldau.http.listener`."""

from moldau.broker.config.errors import InvalidConfig

_LOOPBACK = "127.0.0.1"


def http_address(text: str) -> tuple[str, int] | None:
    """Where `moldau.http.listener` says to listen; None: nowhere. A port alone is one of this machine's own."""
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise InvalidConfig.for_value("moldau.http.listener", text, "give HOST:PORT, or a port of 127.0.0.1 alone")
    return (host.strip("[]") or _LOOPBACK), int(port)
