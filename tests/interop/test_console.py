"""The console in a real Chromium, over a live cluster of three; and its questions, put to Apache Kafka."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # it brings no types
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from playwright.sync_api import Browser, Page, expect

from moldau.testing import Cluster
from tests.console.support import (
    SCREENS,
    Client,
    commit_orders,
    console,
    eventually,
    fragment,
    post,
    send_letters,
)
from tests.interop.apache_kafka import ApacheKafka
from tests.interop.peers.chromium import chromium

# A busy machine is slow: what is expected may take as long as what is done.
_PATIENCE_MS = 20_000
expect.set_options(timeout=_PATIENCE_MS)

SHOWN = (*SCREENS, "/topics/orders/messages/0/1", "/group?name=billing", "/topics/nope")
WIDE, PHONE = {"width": 1360, "height": 850}, {"width": 390, "height": 844}


def fill(address: str, replicas: int) -> None:
    """A shop: orders, somebody who bills them, letters that died, and what a hostile producer would send."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    topics = {"orders": 3, "clicks": 2, "orders-dlt": 1, "hostile": 1, "doomed": 1}
    for made in admin.create_topics([NewTopic(name, count, replicas) for name, count in topics.items()]).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": address, "log_level": 0, "message.max.bytes": 20_000_000})
    for number in range(300):
        order = {"id": f"o-{number}", "total": number * 1.5, "items": [{"sku": "rope", "count": number % 5}]}
        producer.produce("orders", json.dumps(order), f"c-{number % 10}", headers=[("trace-id", b"%x" % number)])
    reasons = [b"LookupError" if number % 3 else b"ConnectionError" for number in range(9)]
    send_letters(producer, reasons, b"out of stock")
    hostile: list[bytes | None] = [
        b"<script>window.broken = 1</script><img src=x onerror='window.broken = 2'>",
        b'{"a": "</span></pre><script>window.broken = 3</script>", "b": "<div hx-get=/topics hx-trigger=load>"}',
        "\u202egnp.exe \u2066 turned around".encode(),
        b"\xff\xfe\x00\x01 no text",
        None,
        b"<b>" * 300_000,
    ]
    for value in hostile:
        producer.produce(
            "hostile",
            value,
            b"<i onclick=window.broken=6>key</i>",
            headers=[("<svg onload=window.broken=4>", b"javascript:window.broken=5")],
        )
    producer.flush(30)
    commit_orders(address, "billing", 20)


@dataclass
class Stage:
    cluster: Cluster
    client: Client
    browser: Browser
    complaints: list[str] = field(default_factory=list)

    @contextmanager
    def page(self, *, size: dict[str, int] | None = None, colours: str = "light") -> Iterator[Page]:
        """A tab; what its console complains about fails the test."""
        context = self.browser.new_context(
            viewport=size or WIDE,  # type: ignore[arg-type]  # a TypedDict of the same keys
            color_scheme=colours,  # type: ignore[arg-type]  # light or dark
            base_url=self.client.origin,
            timezone_id="Asia/Tokyo",
            locale="en-GB",
        )
        context.set_default_timeout(_PATIENCE_MS)
        page = context.new_page()
        seen: list[str] = []
        page.on("console", lambda message: seen.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("dialog", lambda dialog: seen.append(f"a dialog: {dialog.message}"))
        yield page
        context.close()
        # A refusal that a test asks for is a line in Chromium's console as well.
        assert [text for text in seen if "Failed to load resource" not in text] == []


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Cluster(nodes=3, settings={"message.max.bytes": "20000000", "default.replication.factor": "3"}) as cluster:
        fill(cluster.bootstrap_servers, 3)
        with console(cluster.bootstrap_servers, refresh_s=0.5) as client, chromium() as browser:
            eventually(lambda: "billing" in client.house.snapshot.groups, "the console sees the group")
            yield Stage(cluster, client, browser)


def show(page: Page, path: str) -> None:
    page.goto(path)
    expect(page.locator(".asking")).to_have_count(0)


def _broken(page: Page) -> list[str]:
    results = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]})
    return [f"{each['id']}: {each['nodes'][0]['html'][:150]}" for each in results.response["violations"]]


@pytest.mark.parametrize(("size", "colours"), [(WIDE, "light"), (PHONE, "dark")], ids=["wide", "phone"])
def test_every_screen_fits_and_makes_the_browser_complain_of_nothing(
    stage: Stage, size: dict[str, int], colours: str
) -> None:
    with stage.page(size=size, colours=colours) as page:
        for path in SHOWN:
            show(page, path)
            assert not page.evaluate("document.documentElement.scrollWidth > innerWidth"), f"{path} scrolls sideways"


@pytest.mark.parametrize("path", ["/", "/topics/orders", "/topics/orders/messages", "/group?name=billing"])
def test_the_screens_people_use_most_are_accessible(stage: Stage, path: str) -> None:
    with stage.page() as page:
        show(page, path)
        assert _broken(page) == []


@pytest.mark.long
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_every_screen_is_accessible(stage: Stage, size: dict[str, int], colours: str) -> None:
    with stage.page(size=size, colours=colours) as page:
        found = {}
        for path in SHOWN:
            show(page, path)
            found[path] = _broken(page)
    assert {path: broken for path, broken in found.items() if broken} == {}


def test_hostile_content_stays_text(stage: Stage) -> None:
    with stage.page() as page:
        show(page, "/topics/hostile/messages")
        rows = page.locator("#rows .messages tbody tr")
        expect(rows).to_have_count(6)
        for number in range(6):
            rows.nth(number).locator("a").click()
            expect(page.locator("#detail h2")).to_contain_text(f"offset {5 - number}")
        for offset in range(6):
            show(page, f"/topics/hostile/messages/0/{offset}")
        assert page.evaluate("window.broken") is None
        assert (
            page.locator("main script, main img, main i[onclick], main [hx-trigger='load'] [hx-get='/topics']").count()
            == 0
        )
        show(page, "/topics/hostile/messages/0/2")
        assert "⟨U+202E⟩" in page.locator("pre.content").last.inner_text()


def test_ten_megabytes_of_tags_are_text_too(stage: Stage) -> None:
    settings = {"bootstrap.servers": stage.cluster.bootstrap_servers, "message.max.bytes": 20_000_000}
    producer = Producer(settings | {"log_level": 0})
    producer.produce("huge", b"<script>window.broken = 7</script>" * 300_000)
    assert producer.flush(60) == 0
    eventually(lambda: "huge" in stage.client.house.snapshot.topics, "the console sees the topic")
    with stage.page() as page:
        for path in ("/topics/huge/messages", "/topics/huge/messages/0/0"):
            show(page, path)
            expect(page.locator("main")).to_contain_text("<script>window.broken = 7</script>")
        assert page.evaluate("window.broken") is None


def test_letters_are_chosen_by_ticking_them(stage: Stage) -> None:
    producer = Producer({"bootstrap.servers": stage.cluster.bootstrap_servers, "log_level": 0})
    producer.produce("parcels", b"{}")
    send_letters(producer, [b"LookupError"] * 9, b"nobody at home", topic="parcels")
    assert producer.flush(30) == 0
    eventually(lambda: "parcels-dlt" in stage.client.house.snapshot.topics, "the console sees the letters")
    with stage.page() as page:
        show(page, "/dead-letters/parcels-dlt")
        boxes, every = page.locator("[data-choose]"), page.get_by_label("Choose all letters shown")
        redrive = page.get_by_role("button", name="Redrive chosen")
        expect(boxes).to_have_count(9)
        expect(redrive).to_be_disabled()
        every.check()
        expect(redrive).to_have_text("Redrive chosen (9)")
        for number in range(7):
            boxes.nth(number).uncheck()
        expect(redrive).to_have_text("Redrive chosen (2)")
        assert every.evaluate("box => box.indeterminate")
        redrive.click()
        expect(page.locator("main")).to_contain_text("2 sent back, 0 were before, 7 left.")
        show(page, "/dead-letters/parcels-dlt")
        expect(boxes).to_have_count(7)
        expect(page.locator(".pill", has_text="sent back")).to_have_count(2)


def test_the_live_tail_keeps_pace_with_load(stage: Stage) -> None:
    over = threading.Event()

    def produce() -> None:
        producer = Producer({"bootstrap.servers": stage.cluster.bootstrap_servers, "log_level": 0})
        number = 0
        while not over.wait(0.05):
            for _ in range(200):
                number += 1
                producer.produce("clicks", json.dumps({"n": number}), str(number))
            producer.poll(0)
        producer.flush(10)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        with stage.page() as page:
            show(page, "/topics/clicks/messages")
            page.get_by_role("button", name="Live").click()
            expect(page.locator("#tail-rows tr").nth(100)).to_be_visible()
            expect(page.locator("#tailing")).to_contain_text("shown")
            page.locator("#tail-rows tr").first.locator("a").click()
            expect(page.locator("#detail h2")).to_contain_text("offset")
            page.get_by_role("button", name="Live").click()
            assert page.locator("#tail-rows tr").count() <= 500
            expect(page.locator("#tailing")).to_be_hidden()
    finally:
        over.set()
        thread.join()
    eventually(lambda: len(stage.client.house.tails) == 0, "the tail has ended")


def test_filters_pages_and_links(stage: Stage) -> None:
    with stage.page() as page:
        show(page, "/topics/orders/messages?start=oldest")
        expect(page.locator("#rows .messages tbody tr")).to_have_count(50)
        page.get_by_label("Filter", exact=True).fill("value.total > 440 and value.items[0].count = 4")
        page.get_by_role("button", name="Read").click()
        expect(page.locator("#rows .messages tbody tr")).to_have_count(2)
        assert "filter=value.total" in page.url
        page.reload()
        expect(page.locator("#rows .messages tbody tr")).to_have_count(2)
        page.get_by_label("Filter", exact=True).fill("value.total >")
        page.get_by_role("button", name="Read").click()
        expect(page.locator("#rows .failure")).to_contain_text("compared with")
        page.get_by_label("Filter", exact=True).fill("")
        page.get_by_role("button", name="Read").click()
        page.get_by_role("link", name="Newer").click()
        page.wait_for_url("**start=after**")
        expect(page.locator("#rows .messages tbody tr")).to_have_count(50)
        page.go_back()
        expect(page.locator("#rows .messages tbody tr")).to_have_count(50)


def test_the_keyboard_leads_everywhere(stage: Stage) -> None:
    with stage.page() as page:
        show(page, "/")
        page.keyboard.press("g")
        page.keyboard.press("t")
        page.wait_for_url("**/topics")
        page.keyboard.press("/")
        page.keyboard.type("ord dlt")
        expect(page.locator("#live tbody tr")).to_have_count(1)
        page.locator("main").focus()
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_url("**/topics/orders-dlt")
        page.keyboard.press("Control+k")
        page.keyboard.type("bill")
        expect(page.locator("#palette-found a.chosen")).to_contain_text("billing")
        page.keyboard.press("Enter")
        page.wait_for_url("**/group?name=billing")
        page.keyboard.press("c")
        page.keyboard.press("c")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        page.keyboard.press("?")
        expect(page.locator("#keys")).to_be_visible()


def test_times_are_in_the_readers_zone(stage: Stage) -> None:
    with stage.page() as page:
        show(page, "/topics/orders/messages/0/1")
        shown = page.locator("dl.facts time").first
        told = page.evaluate(
            "ms => new Intl.DateTimeFormat('en-GB', {dateStyle: 'medium', timeStyle: 'medium', timeZone: 'Asia/Tokyo'})"
            ".format(new Date(ms))",
            int(shown.get_attribute("data-ms") or "0"),
        )
        assert shown.inner_text() == told


def test_a_time_that_is_chosen_is_the_readers_too(stage: Stage) -> None:
    """Of two orders an hour apart, reading from a time between them shows one; and so does its address, later on."""
    producer = Producer({"bootstrap.servers": stage.cluster.bootstrap_servers, "log_level": 0})
    late = 1_767_226_800_000  # 2026-01-01 00:20 UTC is 09:20 in Tokyo
    for at, name in ((late - 3_600_000, "early"), (late, "late")):
        producer.produce("by-time", name, name, timestamp=at)
    assert producer.flush(30) == 0
    commit_orders(stage.cluster.bootstrap_servers, "timed", 1, "by-time", 1)
    eventually(lambda: "timed" in stage.client.house.snapshot.groups, "the console sees the group")
    with stage.page() as page:
        show(page, "/topics/by-time/messages")
        rows = page.locator("#rows .messages tbody tr")
        expect(rows).to_have_count(2)
        page.get_by_label("Show").select_option("time")
        page.get_by_label("Time, in your zone").fill("2026-01-01T09:00:30")
        page.get_by_role("button", name="Read").click()
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("late")
        assert "start=time&at=2026-01-01T00%3A00%3A30.000Z" in page.url
        page.reload()
        expect(rows).to_have_count(1)
        expect(page.get_by_label("Time, in your zone")).to_have_value("2026-01-01T09:00:30")
        show(page, "/group?name=timed")
        page.locator("#to").select_option("time")
        page.get_by_label("Time, in your zone").fill("2026-01-01T08:00:00")
        page.get_by_role("button", name="Show what would change").click()
        expect(page.locator("main tbody tr")).to_contain_text("-1")


def test_sending_changing_and_deleting_with_a_typed_name(stage: Stage) -> None:
    with stage.page() as page:
        show(page, "/topics/doomed")
        page.get_by_role("button", name="Send a message").click()
        page.locator("#send [name=value]").fill('{"hello": "<world>"}')
        page.locator("#send [name=value_as]").select_option("json")
        page.get_by_role("button", name="Send", exact=True).click()
        page.wait_for_url("**/messages/0/0")
        expect(page.locator("pre.content").last).to_contain_text('"hello": "<world>"')
        show(page, "/topics/doomed/settings")
        page.get_by_label("Search settings").fill("retention.ms")
        page.get_by_role("button", name="Change retention.ms", exact=True).click()
        page.locator("#edit-setting [name=setting_value]").fill("2h")
        page.keyboard.press("Enter")
        expect(page.locator(".flash")).to_contain_text("retention.ms of doomed is now 7200000")
        show(page, "/topics/doomed")
        page.get_by_role("button", name="Delete the topic").first.click()
        button = page.locator("#delete-topic .danger")
        expect(button).to_be_disabled()
        page.locator("#delete-topic [name=confirm]").fill("doomed")
        button.click()
        page.wait_for_url("**/topics")
        expect(page.locator(".flash")).to_contain_text("Topic doomed was deleted")


def test_what_is_chosen_in_a_row_is_destroyed_only_by_its_name(stage: Stage) -> None:
    """One dialog for all rows: it opens empty, and takes the name of the row it was opened for."""
    for name in ("ivan", "olga"):
        assert post(stage.client, "/users", name=name, password="long enough", mechanism="2").status_code == 303
    eventually(lambda: "olga" in fragment(stage.client, "/users"), "the users are there")
    with stage.page() as page:
        show(page, "/users")
        dialog = page.locator("#drop-user")
        for name, typed in (("ivan", "olga"), ("olga", "olga")):
            page.locator("tbody tr", has_text=name).get_by_role("button", name="Delete").click()
            expect(dialog.locator(".danger")).to_be_disabled()
            dialog.locator("[name=confirm]").fill(typed)
            if name != typed:
                expect(dialog.locator(".danger")).to_be_disabled()
                dialog.get_by_role("button", name="Leave it").click()
        dialog.locator(".danger").click()
        expect(page.locator(".flash")).to_contain_text("olga cannot log in")


def test_dialogs_and_live_tails_have_addresses(stage: Stage) -> None:
    with stage.page() as page:
        show(page, "/topics#new-topic")
        expect(page.locator("#new-topic")).to_be_visible()
        show(page, "/users#drop-user")  # which is of a row, and nothing without it
        expect(page.locator("#drop-user")).to_be_hidden()
        page.goto("/topics/orders/messages#live")
        expect(page.locator("#tailing")).to_be_visible()
        page.get_by_role("button", name="Live").click()
        expect(page.locator("#tailing")).to_be_hidden()
        assert "#" not in page.url


def test_plots_are_drawn_and_redrawn(stage: Stage) -> None:
    with stage.page() as page:
        show(page, "/brokers")
        expect(page.locator(".plot canvas")).to_have_count(3)
        expect(page.locator(".plot .u-legend").first).to_contain_text("broker 1")


def test_a_broker_that_dies_while_one_looks(stage: Stage) -> None:
    """Last in this file: nothing is reloaded, the page says what happened, and again when the broker is back."""
    address: dict[str, str | int | float | bool] = {
        "bootstrap.servers": stage.cluster.bootstrap_servers,
        "log_level": 0,
    }
    admin = AdminClient(address)
    admin.create_topics([NewTopic("alone", 3, 1)])["alone"].result(30)
    producer = Producer(address)
    for number in range(30):
        producer.produce("alone", str(number), partition=number % 3)
    assert producer.flush(30) == 0
    eventually(lambda: "alone" in stage.client.house.snapshot.topics, "the console sees the topic")
    with stage.page() as page:
        show(page, "/")
        expect(page.locator(".alerts")).not_to_contain_text("Broker 3 is away")
        stage.cluster.crash(3)
        expect(page.locator(".alerts")).to_contain_text("Broker 3 is away", timeout=30_000)
        expect(page.locator(".happened").first).to_contain_text("broker 3 is away")
        show(page, "/topics/orders/messages")
        expect(page.locator("#rows .messages tbody tr")).to_have_count(50)
        # What only the broker had cannot be read, and what others have can.
        show(page, "/topics/alone/messages")
        expect(page.locator("#rows .note")).to_contain_text("Nobody leads partition")
        expect(page.locator("#rows .messages tbody tr").first).to_be_visible()
        show(page, "/brokers/3/settings")
        expect(page.locator("main")).to_contain_text("The broker is away")
        show(page, "/")
        stage.cluster.start_node(3)
        expect(page.locator(".happened").first).to_contain_text("broker 3 is back", timeout=30_000)


def test_the_console_on_apache_kafka(apache_kafka: ApacheKafka) -> None:
    address = apache_kafka.bootstrap_servers
    fill(address, 1)
    with console(address) as client:
        group = eventually(lambda: client.house.snapshot.groups.get("billing"), "the console sees the group")
        assert group.lag == 240
        topic = client.house.snapshot.topics["orders"]
        assert (topic.records, topic.lag, len(topic.partitions)) == (300, 240, 3)
        assert client.house.snapshot.problems == ()
        assert client.house.snapshot.quorum is not None
        for path in SHOWN[:-1]:
            assert client.get(path).status_code == 200, path
        assert "retention.ms" in fragment(client, "/topics/orders/settings", "settings")
        assert "SECURITY_DISABLED" in fragment(client, "/acls")
        assert fragment(client, "/topics/hostile/messages").count("<tr>") == 7
        assert "LookupError" in fragment(client, "/dead-letters/orders-dlt", "letters")
        for path, target in (
            ("/users", "rows"),
            ("/quotas", "rows"),
            ("/transactions", "rows"),
            ("/reassignments", "moving"),
        ):
            assert "failure" not in fragment(client, path, target)
        moved = post(client, "/group/reset", name="billing", to="latest", step="apply", confirm="billing")
        assert moved.status_code == 303, moved.text
        eventually(lambda: client.house.snapshot.groups["billing"].lag == 0, "the group was moved")
        made = post(client, "/topics", name="made-here", partitions="2", settings="retention.ms=100000")
        assert made.headers["location"] == "/topics/made-here"
        sent = post(client, "/topics/made-here/produce", value="drop")
        assert sent.status_code == 303
        assert post(client, "/topics/made-here/delete", confirm="made-here").status_code == 303
