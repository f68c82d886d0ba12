"""Security settings as Kafka's Java clients name them, for our own sockets and for librdkafka alike.

Python and librdkafka read PEM files; Java key stores are refused with the command that converts them.
"""

import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from moldau.security.sasl.mechanism import OAUTHBEARER

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_JAAS_VALUE = r'\s*=\s*(?:"((?:[^"\\]|\\.)*)"|\'([^\']*)\'|([^\s;]+))'
_JAVA_ONLY_STORES = {"JKS", "PKCS12"}


class SettingError(ValueError):
    """A setting is missing or not valid: which, and what to write."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"setting '{name}' {problem}")
        self.name = name
        self.problem = problem


@dataclass(slots=True, frozen=True)
class Security:
    """How to reach a broker. Secrets are not shown."""

    tls: bool = False
    mechanism: str | None = None
    username: str = ""
    password: str = ""
    is_token: bool = False
    """The user is the id of a delegation token, the password its HMAC."""
    ca_file: str | None = None
    ca_pem: str | None = None
    certificate_file: str | None = None
    certificate_pem: str | None = None
    key_file: str | None = None
    key_pem: str | None = None
    key_password: str | None = None
    check_hostname: bool = True
    bearer_token: Callable[[], str] | None = None
    """Asked for one at each login with OAUTHBEARER."""

    def __repr__(self) -> str:
        return f"Security(tls={self.tls}, mechanism={self.mechanism}, username={self.username!r})"


def parse_security(kafka: Mapping[str, str], bearer_token: Callable[[], str] | None = None) -> Security:
    """What the settings say about TLS and SASL. OAUTHBEARER needs somebody who brings tokens."""
    protocol = kafka.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise SettingError("security.protocol", f"is '{protocol}': write one of {', '.join(_PROTOCOLS)}")
    tls = protocol.endswith("SSL")
    mechanism = username = password = None
    is_token = False
    if protocol.startswith("SASL"):
        mechanism, username, password = _parse_sasl(kafka, brings_tokens=bearer_token is not None)
        is_token = (_jaas_value(kafka.get("sasl.jaas.config", ""), "tokenauth") or "").lower() == "true"
    if not tls:
        return Security(
            mechanism=mechanism,
            username=username or "",
            password=password or "",
            is_token=is_token,
            bearer_token=bearer_token,
        )
    for side in ("truststore", "keystore"):
        _refuse_java_store(kafka, side)
    key_file = kafka.get("ssl.key.location")
    certificate_file = kafka.get("ssl.certificate.location")
    if key_file is None and certificate_file is None:
        certificate_file = kafka.get("ssl.keystore.location")  # PEM: key and certificates in one file
    return Security(
        tls=True,
        mechanism=mechanism,
        username=username or "",
        password=password or "",
        is_token=is_token,
        ca_file=kafka.get("ssl.ca.location") or kafka.get("ssl.truststore.location"),
        ca_pem=_pem(kafka.get("ssl.ca.pem") or kafka.get("ssl.truststore.certificates")),
        certificate_file=certificate_file,
        certificate_pem=_pem(kafka.get("ssl.certificate.pem") or kafka.get("ssl.keystore.certificate.chain")),
        key_file=key_file,
        key_pem=_pem(kafka.get("ssl.key.pem") or kafka.get("ssl.keystore.key")),
        key_password=kafka.get("ssl.key.password"),
        check_hostname=kafka.get("ssl.endpoint.identification.algorithm", "https").strip() not in {"", "none"},
        bearer_token=bearer_token,
    )


def _pem(text: str | None) -> str | None:
    """With the line ends PEM has: in a properties file, blanks may stand around them or instead of them."""
    if text is None:
        return None

    def block(found: re.Match[str]) -> str:
        begin, body, end = (each.strip() for each in found.groups())
        # `Proc-Type: 4,ENCRYPTED` is a line with a blank in it.
        lines = [line.strip() for line in body.splitlines()] if ":" in body else body.split()
        return "\n".join(["", begin, *lines, end, ""])

    return re.sub(r"(-----BEGIN [^-]+-----)(.*?)(-----END [^-]+-----)", block, text, flags=re.DOTALL)


def _parse_sasl(kafka: Mapping[str, str], *, brings_tokens: bool) -> tuple[str, str, str]:
    mechanism = (kafka.get("sasl.mechanism") or kafka.get("sasl.mechanisms") or "GSSAPI").upper()
    if mechanism == OAUTHBEARER and brings_tokens:
        return mechanism, "", ""
    if mechanism not in MECHANISMS:
        raise SettingError("sasl.mechanism", f"is '{mechanism}': supported are {', '.join(MECHANISMS)}")
    jaas = kafka.get("sasl.jaas.config", "")
    username = kafka.get("sasl.username") or _jaas_value(jaas, "username")
    password = kafka.get("sasl.password") or _jaas_value(jaas, "password")
    if username is None or password is None:
        missing = "sasl.username" if username is None else "sasl.password"
        raise SettingError(missing, "is missing: set sasl.username and sasl.password, or both in sasl.jaas.config")
    return mechanism, username, password


def _jaas_value(jaas: str, name: str) -> str | None:
    found = re.search(rf"\b{name}{_JAAS_VALUE}", jaas)
    if found is None:
        return None
    quoted, single, bare = found.groups()
    if quoted is not None:
        return re.sub(r"\\(.)", r"\1", quoted)
    return single if single is not None else bare


def _refuse_java_store(kafka: Mapping[str, str], side: str) -> None:
    kind = kafka.get(f"ssl.{side}.type", "PEM" if f"ssl.{side}.location" not in kafka else "")
    location = kafka.get(f"ssl.{side}.location", "")
    if not kind:
        kind = "JKS" if not location.lower().endswith((".pem", ".crt", ".cert", ".cer", ".key")) else "PEM"
    if kind.upper() in _JAVA_ONLY_STORES:
        target = "ca.pem" if side == "truststore" else "client.pem"
        store = location or "store.jks"
        advice = f"keytool -importkeystore -srckeystore {store} -destkeystore store.p12 -deststoretype pkcs12"
        raise SettingError(
            f"ssl.{side}.location",
            f"is a Java key store: convert it ({advice}; openssl pkcs12 -in store.p12 -out {target} -nodes) and set "
            f"ssl.{side}.type=PEM",
        )


def tls_context(security: Security) -> ssl.SSLContext:
    """For our own sockets."""
    import tempfile

    trusted = "ssl.truststore." + ("certificates" if security.ca_file is None else "location")
    with _usable(trusted, security.ca_file, "holds no certificate in PEM"):
        context = ssl.create_default_context(cafile=security.ca_file, cadata=security.ca_pem)
    context.check_hostname = security.check_hostname
    pair = "holds no key and certificate in PEM that belong together, or ssl.key.password does not open it"
    password = security.key_password or ""  # without any, OpenSSL would ask on the terminal
    if security.certificate_file is not None:
        with _usable("ssl.keystore.location", security.certificate_file, pair):
            context.load_cert_chain(security.certificate_file, security.key_file, password)
    elif security.certificate_pem is not None and security.key_pem is not None:
        # Python reads certificates from files only; this one is readable by its owner and gone at once.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as both:
            both.write(f"{security.key_pem}\n{security.certificate_pem}\n")
            both.flush()
            with _usable("ssl.keystore.key", None, pair):
                context.load_cert_chain(both.name, password=password)
    return context


@contextmanager
def _usable(setting: str, file: str | None, otherwise: str) -> Iterator[None]:
    """What is wrong with a file is not the broker's fault."""
    where = "" if file is None else f": {file}"
    try:
        yield
    except ssl.SSLError as error:
        raise SettingError(setting, f"{otherwise}{where}") from error
    except OSError as error:
        raise SettingError(setting, f"{where.removeprefix(': ')} cannot be read: {error.strerror}".strip()) from error


def librdkafka_security(kafka: Mapping[str, str]) -> dict[str, str]:
    """The same settings as librdkafka (confluent-kafka) takes them."""
    security = parse_security(kafka)
    if security.is_token:  # it would try for ever
        problem = "is of a delegation token: librdkafka cannot log in with one; use a password or a certificate"
        raise SettingError("sasl.jaas.config", problem)
    protocol = ("SASL_" if security.mechanism else "") + ("SSL" if security.tls else "PLAINTEXT")
    settings = {"security.protocol": protocol}
    if security.mechanism:
        settings |= {
            "sasl.mechanisms": security.mechanism,
            "sasl.username": security.username,
            "sasl.password": security.password,
        }
    if security.tls:
        certificate_file = security.certificate_file
        found = {
            "ssl.ca.location": security.ca_file,
            "ssl.ca.pem": security.ca_pem,
            "ssl.certificate.location": certificate_file,
            "ssl.certificate.pem": security.certificate_pem,
            "ssl.key.location": security.key_file or certificate_file,
            "ssl.key.pem": security.key_pem,
            "ssl.key.password": security.key_password,
        }
        settings |= {name: value for name, value in found.items() if value is not None}
        settings["ssl.endpoint.identification.algorithm"] = "https" if security.check_hostname else "none"
    return settings
