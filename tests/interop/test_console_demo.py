"""Every screen over what the demo's shop left behind, in a real browser: each shows what is there, and axe finds no
fault at phone width in the dark (`test_console.py` has the other combinations)."""

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # it brings no types

from tests.interop.console_pictures import SCREENS, furnished, opened, shown
from tests.interop.peers.chromium import chromium

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
# What the demo, or whoever furnished its cluster, put there.
EXPECTED = {
    "overview": "billing",
    "topics": "orders",
    "topic": "orders",
    "messages": "c-",
    "message": "orders",
    "settings": "retention.ms",
    "groups": "billing",
    "group": "orders",
    "brokers": "127.0.0.1",
    "broker": "127.0.0.1",
    "acls": "User:eve",
    "users": "alice",
    "quotas": "alice",
    "dead-letters": "orders-dlt",
    "letters": "orders-dlt",
    "delays": "invoice-0",
    "trace": "handled",
    "pipelines": "revenue",
    "pipeline": "'amount' is no number",
    "schemas": "orders-value",
    "schema": "orders-value",
    "audit": "alice",
    "nothing": "nope",
}


def test_every_screen_shows_what_the_demo_left() -> None:
    missing, complaints = [], {}
    with furnished() as (client, _), chromium() as browser, opened(browser, client, "phone", "dark") as page:
        for name, path in SCREENS.items():
            shown(page, path)
            if EXPECTED.get(name, "") not in page.locator("main").inner_text():
                missing.append(name)
            found = Axe().run(page).response["violations"]
            if found:
                complaints[name] = [f"{each['id']}: {each['nodes'][0]['html'][:150]}" for each in found]
    assert not missing
    assert not complaints
