"""What a node says: levels by room, JSON, and not the same line for ever."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from moldau.broker.config import InvalidConfig
from moldau.broker.node.log_output import RateLimit, announce, set_up
from moldau.security.audit import Audit
from moldau.security.principal import Principal


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in ("moldau.groups", "moldau.broker.replicas"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def test_levels_by_room() -> None:
    stream = io.StringIO()
    set_up(level=logging.WARNING, levels=["groups=DEBUG", "moldau.broker.replicas=error"], stream=stream)
    logging.getLogger("moldau.groups.shard").debug("heard %d", 1)
    logging.getLogger("moldau.log.segment").info("not heard")
    logging.getLogger("moldau.broker.replicas.manager").warning("not heard either")
    logging.getLogger("moldau.net").warning("heard, too")
    assert [line.partition(": ")[2] for line in stream.getvalue().splitlines()] == ["heard 1", "heard, too"]


def test_root_is_everything() -> None:
    set_up(level=logging.WARNING, levels=["root=INFO"], stream=io.StringIO())
    assert logging.getLogger().level == logging.INFO


@pytest.mark.parametrize("wrong", ["groups", "groups=LOUD", "nowhere=INFO", "=INFO", "groups.nowhere=INFO"])
def test_what_is_not_known_is_refused_with_what_is(wrong: str) -> None:
    with pytest.raises(InvalidConfig, match=r"ROOM=LEVEL|rooms are"):
        set_up(level=logging.WARNING, levels=[wrong], stream=io.StringIO())


def test_json_lines() -> None:
    stream = io.StringIO()
    handler = set_up(level=logging.INFO, is_json=True, stream=stream)
    logging.getLogger("moldau.net").warning('%s "quoted"\nand more', "text")
    try:
        raise ValueError("on purpose")
    except ValueError:
        logging.getLogger("moldau.log").exception("it failed")
    announce(handler, "moldau is here")
    first, second, third = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["level"], first["logger"], first["message"]) == ("WARN", "moldau.net", 'text "quoted"\nand more')
    assert first["time"].endswith("Z")
    assert second["error"].endswith("ValueError: on purpose")
    assert (third["level"], third["message"]) == ("INFO", "moldau is here")


def test_a_line_that_comes_again_and_again_is_counted() -> None:
    moment = 0.0
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(RateLimit(3, lambda: moment))
    logger = logging.Logger("moldau.test")
    logger.addHandler(handler)
    for each in range(10):
        logger.warning("disk %d is slow", each)
    logger.warning("something else")
    moment = 11.0
    logger.warning("disk %d is slow", 10)
    logger.warning("disk %d is slow", 11)
    assert stream.getvalue().splitlines() == [
        "disk 0 is slow",
        "disk 1 is slow",
        "disk 2 is slow [more of these within 10 s are only counted]",
        "something else",
        "disk 10 is slow [7 more of these were not said]",
        "disk 11 is slow",
    ]


def test_the_memory_of_the_limit_is_limited() -> None:
    limit = RateLimit(1, lambda: 0.0)
    for each in range(5_000):
        assert limit.filter(logging.LogRecord("moldau", logging.INFO, "", 0, f"kind {each}", None, None))
    assert len(limit._kinds) == 1_000


def test_no_name_makes_a_second_line() -> None:
    stream = io.StringIO()
    set_up(level=logging.WARNING, stream=stream)
    logging.getLogger("moldau.net").warning("a group is named %s", "g\n2026-01-01 ERROR forged\r\x1b[2J\u2028")
    (line,) = stream.getvalue().splitlines()
    assert line.endswith("a group is named g\\x0a2026-01-01 ERROR forged\\x0d\\x1b[2J\\x2028")
    try:
        raise ValueError("on purpose")
    except ValueError:
        logging.getLogger("moldau.net").exception("failed")
    assert "\nTraceback" in stream.getvalue()


def test_failed_logins_hide_no_other_line_of_the_audit_log() -> None:
    stream = io.StringIO()
    set_up(level=logging.WARNING, stream=stream)
    audit = Audit(lambda: 0.0)
    for _ in range(100):
        audit.authentication_failed("eve", address="a", listener="l", mechanism="PLAIN", reason="r")
    audit.denied(Principal.user("eve"), address="a", operation="READ", resource="Topic:LITERAL:t", api="Fetch")
    assert "authorization" in stream.getvalue().splitlines()[-1]
