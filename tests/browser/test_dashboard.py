"""The page in a real browser: every page opens, every button does what it says, changes are seen."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys

from dibs import Dibs, NewJob
from dibs.app.dibs import SyncDibs
from dibs.dashboard import Dashboard, TokenLogin
from tests.browser.conftest import TOKEN, PageTab, barriers, page_of
from tests.support.proxy import FaultProxy
from tests.support.web_apps import PLACES, on_a_port

TWO = pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
ONE = pytest.mark.parametrize("engine", ["sqlite"])
PAGES = {
    "": ("overview", "in the paused queue mail"),
    "jobs": ("jobs", "greet"),
    "queues": ("queues", "mail"),
    "trains": ("trains", "north"),
    "slots": ("slots", "csv"),
    "pipelines": ("pipelines", "year end"),
    "schedules": ("schedules", "nightly"),
    "workers": ("workers", "pod-a"),
    "outbox": ("outbox", ""),
    "health": ("health", "is paused"),
}


def fill(store: SyncDibs) -> tuple[UUID, UUID]:
    """Enqueue a bit of everything; return the failed job and the pipeline."""
    failing, *_ = store.enqueue(
        NewJob("break", args={"order_id": 1}, max_attempts=1),
        *(NewJob("greet", args={"n": n}, queue="mail") for n in range(3)),
        *(NewJob("deploy", train="north", on_failed="hold", max_attempts=1) for _ in range(3)),
        NewJob("import", slot=("csv", 7)),
        NewJob("import", slot=("csv", 7)),
        NewJob("later", delay=3600),
    )
    pipeline = store.pipeline("year end")
    first = pipeline.add(NewJob("extract"))
    pipeline.add(NewJob("load"), after=[first])
    pipeline.enqueue()
    for claim in store.claim(kinds=["break", "deploy"], limit=2, worker="pod-a"):
        claim.fail("<b>disk full</b> on node-7")
    [running] = store.claim(kinds=["import"], worker="pod-a")
    running.progress(0.4, "row 40 of 100")
    store.schedules.put("nightly", "0 3 * * *", NewJob("report"))
    store.pause("mail")
    return failing.id, pipeline.id


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb", "redis"])
def test_every_page_opens_with_its_data_and_without_an_error(tab: PageTab, store: SyncDibs) -> None:
    failed, pipeline = fill(store)
    pages = {
        **PAGES,
        f"jobs/{failed}": ("job", "<b>disk full</b>"),
        f"pipelines/{pipeline}": ("pipeline", "year end"),
    }

    for path, (name, says) in pages.items():
        tab.open(path)

        assert tab.page == name
        assert says in tab.text
        assert tab.complaints() == []


HOSTILE = "<script>document.title = 'hit'</script>\"'><img src=x onerror=alert(1)>javascript:alert(1)"
TURNED = "\x1b[31m\u202egnp.exe\u200b"


@ONE
def test_hostile_text_is_shown_as_text_on_every_page(tab: PageTab, store: SyncDibs) -> None:
    about = {
        "queue": HOSTILE,
        "tags": [HOSTILE],
        "args": {HOSTILE: [HOSTILE, TURNED]},
        "meta": {"m": HOSTILE},
    }
    pipeline = store.pipeline(HOSTILE)
    pipeline.add(NewJob(HOSTILE, **about))
    pipeline.enqueue()
    running, failed, _, _ = store.enqueue(
        NewJob(HOSTILE, slot=HOSTILE, **about),
        NewJob(HOSTILE, train=HOSTILE, max_attempts=1, on_failed="hold", **about),
        NewJob(HOSTILE, train=HOSTILE, **about),
        NewJob(HOSTILE, unique=HOSTILE, delay=60, **about),
    )
    claims = {job.id: store.claim_job(job.id, worker=HOSTILE) for job in (running, failed)}
    claims[running.id].progress(0.5, TURNED + HOSTILE)  # type: ignore[union-attr]
    claims[failed.id].fail(TURNED + HOSTILE + "x" * 1_000_000)  # type: ignore[union-attr]
    store.schedules.put(HOSTILE, "0 3 * * *", NewJob(HOSTILE, **about))

    for path in (*PAGES, *(f"jobs/{id}" for id in claims), f"pipelines/{pipeline.id}", f"jobs?q={HOSTILE}"):
        tab.open(path)

        assert tab.browser.title != "hit"
        assert not tab.all("main script, img, main a[href^='javascript']")
        assert not {"\x1b", "\u202e", "\u200b"} & set(tab.find("html").get_attribute("textContent") or "")
        assert path in ("outbox", "health") or HOSTILE in tab.text
        assert tab.complaints() == []


@ONE
def test_no_page_keeps_people_out(tab: PageTab, store: SyncDibs, axe: str) -> None:
    failed, pipeline = fill(store)

    for scheme in ("light", "dark"):
        tab.prefer(scheme)
        for path in [
            *PAGES,
            f"jobs/{failed}",
            f"pipelines/{pipeline}",
            "jobs?q=kind:g*",
            "jobs/nothing",
            "login",
        ]:
            tab.open(path)
            assert barriers(tab, axe) == [], (path, scheme)
    tab.prefer("")


@TWO
def test_a_job_is_cancelled_by_one_click(tab: PageTab, store: SyncDibs) -> None:
    [job, other] = store.enqueue(NewJob("greet"), NewJob("greet"))
    tab.open("jobs")

    tab.press("cancel", f'[data-job="{job.id}"]')

    tab.until(lambda: tab.find(f'[data-job="{job.id}"]').get_attribute("data-state") == "cancelled")
    assert "greet is cancelled" in tab.find("[data-said]").text
    assert store.counts()["ready"] == 1
    assert tab.find(f'[data-job="{other.id}"]').get_attribute("data-state") == "ready"


@TWO
def test_a_held_train_is_released(tab: PageTab, store: SyncDibs) -> None:
    head, behind = store.enqueue(*(NewJob("deploy", train="north", on_cancelled="hold") for _ in range(2)))
    store.cancel(head.id)
    tab.open("trains")

    tab.press("release")

    tab.until(lambda: "goes on" in tab.find("[data-said]").text)
    assert store.why(behind.id).code != "train"


@TWO
def test_a_queue_is_paused_and_goes_on(tab: PageTab, store: SyncDibs) -> None:
    store.enqueue(NewJob("greet", queue="mail"))
    tab.open("queues")

    tab.press("pause", '[data-queue="mail"]')
    tab.until(lambda: tab.all('[data-queue="mail"] [data-act="resume"]'))
    assert store.claim(queues=["mail"]) == []

    tab.press("resume", '[data-queue="mail"]')
    tab.until(lambda: tab.all('[data-queue="mail"] [data-act="pause"]'))


@TWO
def test_progress_and_the_end_of_a_running_job_are_seen_live(tab: PageTab, store: SyncDibs) -> None:
    [job] = store.enqueue(NewJob("build"))
    tab.open(f"jobs/{job.id}")
    assert tab.find("[data-why]").text.startswith("it has been ready")

    [claim] = store.claim(worker="pod-a")
    claim.progress(0.4, "row 40 of 100")
    tab.until(lambda: "40 %" in tab.text and "row 40 of 100" in tab.text)
    claim.succeed({"rows": 100})

    tab.until(lambda: "it succeeded" in tab.find("[data-why]").text)
    assert '"rows": 100' in tab.text
    assert tab.complaints() == []


@contextmanager
def worker(store: SyncDibs, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """A worker in a process of its own, which can be killed."""
    code = (
        "import sys, time; from dibs import Dibs, Worker; import asyncio\n"
        "app = Dibs(sys.argv[1])\n"
        "@app.job(lease=1)\n"
        "def build(): time.sleep(float(sys.argv[2]))\n"
        "asyncio.run(Worker(app).run())\n"
    )
    words = [sys.executable, "-c", code, store._core.settings.url, str(seconds)]
    process = subprocess.Popen(words, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@TWO
def test_the_job_of_a_killed_worker_is_seen_to_come_back(tab: PageTab, store: SyncDibs) -> None:
    [job] = store.enqueue(NewJob("build"))
    tab.open(f"jobs/{job.id}")
    with worker(store, 60):
        tab.until(lambda: "it has been running" in tab.find("[data-why]").text)

    with worker(store, 0):
        tab.until(lambda: "it succeeded" in tab.find("[data-why]").text)

    assert "worker died" in tab.text


@contextmanager
def claim_by_hand(store: SyncDibs) -> Iterator[subprocess.Popen[str]]:
    """A process that has claimed the job and settles it at once: as soon as it goes on after this."""
    code = (
        "import sys; from dibs import Dibs\n"
        "[claim] = Dibs(sys.argv[1]).sync.claim(worker='frozen', lease=1)\n"
        "print('claimed', flush=True)\n"
        "sys.stdin.readline()\n"
        "claim.succeed('late')\n"
    )
    words = [sys.executable, "-c", code, store._core.settings.url]
    with subprocess.Popen(
        words, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "claimed\n"
        process.send_signal(signal.SIGSTOP)
        print(file=process.stdin, flush=True)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)


@TWO
def test_what_a_frozen_worker_writes_too_late_is_seen_where_it_was_refused(
    tab: PageTab, store: SyncDibs
) -> None:
    [job] = store.enqueue(NewJob("build"))
    tab.open(f"jobs/{job.id}")
    with claim_by_hand(store) as frozen, worker(store, 0):
        tab.until(lambda: "it succeeded" in tab.find("[data-why]").text)

        frozen.send_signal(signal.SIGCONT)

        tab.until(lambda: tab.all('[data-mark="refused"]'))
    lanes = tab.find("svg.lanes").get_attribute("aria-label") or ""
    assert re.search(r"frozen: attempt 1, lost.* a success with token \d+ was refused.* succeeded", lanes)
    assert "A late write changes nothing" in tab.text
    assert store.get(job.id).result is None  # type: ignore[union-attr]


@TWO
def test_typing_and_a_switch_hold_changes_back(tab: PageTab, store: SyncDibs) -> None:
    store.enqueue(NewJob("first", queue="mail"))
    tab.open("queues")
    tab.find('input[name="limit"]').send_keys("7")
    store.enqueue(NewJob("second", queue="other"))
    tab.until(lambda: "new data" in tab.find("#live").text)
    assert not tab.all('[data-queue="other"]')

    tab.find('input[name="limit"]').send_keys(Keys.ESCAPE)
    tab.until(lambda: tab.all('[data-queue="other"]'))

    tab.find("#live").click()
    store.enqueue(NewJob("third", queue="third"))
    time.sleep(3)
    assert not tab.all('[data-queue="third"]')
    tab.find("#live").click()
    tab.until(lambda: tab.all('[data-queue="third"]'))


@ONE
def test_rows_stay_below_a_pointer_that_moves_over_them(tab: PageTab, store: SyncDibs) -> None:
    store.enqueue(NewJob("greet"))
    tab.open("jobs")
    move = (
        "document.querySelector('tbody tr').dispatchEvent(new PointerEvent('pointermove', {bubbles: true}))"
    )
    moving = tab.browser.execute_script(f"return setInterval(() => {move}, 100)")
    store.enqueue(NewJob("another"))
    tab.until(lambda: "new data" in tab.find("#live").text)
    assert len(tab.all("[data-job]")) == 1

    tab.browser.execute_script("clearInterval(arguments[0])", moving)

    tab.until(lambda: len(tab.all("[data-job]")) == 2)


@ONE
def test_what_an_act_has_done_stays_while_rows_change(tab: PageTab, store: SyncDibs) -> None:
    store.enqueue(NewJob("greet"))
    tab.open("jobs")
    tab.press("cancel")
    tab.until(lambda: "greet is cancelled" in tab.find("[data-said]").text)

    store.enqueue(NewJob("another"))

    tab.until(lambda: len(tab.all("[data-job]")) == 2)
    assert "greet is cancelled" in tab.find("[data-said]").text


@TWO
def test_lists_search_and_acts_need_no_script(tab: PageTab, store: SyncDibs) -> None:
    [job, _] = store.enqueue(NewJob("greet"), NewJob("other"))
    tab.without_scripts()
    tab.open("jobs")
    assert len(tab.all("[data-job]")) == 2

    tab.find("input[name=q]").send_keys("kind:greet", Keys.ENTER)
    tab.until(lambda: len(tab.all("[data-job]")) == 1)
    tab.press("cancel")

    tab.until(lambda: "greet is cancelled" in tab.find("[data-said]").text)
    assert store.get(job.id).state == "cancelled"  # type: ignore[union-attr]


@ONE
@pytest.mark.parametrize(("place", "prefix"), PLACES.items())
def test_the_page_is_the_same_wherever_it_is_mounted(
    chromium: Chrome, store: SyncDibs, place: Callable[[Dashboard], Any], prefix: str
) -> None:
    [job] = store.enqueue(NewJob("greet"))
    page = Dashboard(Dibs(store._core.settings.url), authorize=TokenLogin(token=TOKEN))
    with on_a_port(place(page), timeout_graceful_shutdown=1) as port:
        tab = PageTab(chromium, f"http://127.0.0.1:{port}{prefix}")
        tab.log_in()
        tab.open(f"jobs/{job.id}")

        tab.press("cancel")

        tab.until(lambda: "greet is cancelled" in tab.find("[data-said]").text)
        store.retry(job.id)
        tab.until(lambda: tab.find("[data-job]").get_attribute("data-state") == "ready")
        tab.find("nav a[href$=queues]").click()
        tab.until(lambda: tab.page == "queues")
        assert tab.complaints() == []
        chromium.get("about:blank")


@pytest.mark.parametrize("engine", ["postgresql"])
def test_a_store_that_is_away_is_said_and_the_page_recovers(chromium: Chrome, store: SyncDibs) -> None:
    place = urlsplit(store._core.settings.url)
    with FaultProxy(place.port or 0) as proxy:
        url = place._replace(netloc=f"{place.username}@127.0.0.1:{proxy.port}").geturl()
        with page_of(chromium, url) as tab:
            tab.open("queues")
            proxy.refuse()
            proxy.cut()
            tab.until(lambda: "can’t be reached" in tab.find("#away").text)

            store.enqueue(NewJob("greet", queue="mail"))
            proxy.heal()

            tab.until(lambda: tab.all('[data-queue="mail"]'))
            assert not tab.find("#away").is_displayed()


@ONE
def test_keys_move_search_and_help(tab: PageTab, store: SyncDibs) -> None:
    jobs = store.enqueue(*(NewJob("greet") for _ in range(3)))
    tab.open("jobs")
    body = tab.find("body")

    body.send_keys("?")
    tab.until(lambda: tab.find("#help").is_displayed())
    tab.find("#help button").click()
    body.send_keys("/")
    assert tab.browser.switch_to.active_element.get_attribute("name") == "q"
    tab.browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    body.send_keys("jj")
    tab.browser.switch_to.active_element.send_keys(Keys.ENTER)

    tab.until(lambda: tab.page == "job")
    assert tab.find("[data-job]").get_attribute("data-job") == str(jobs[1].id)


@TWO
def test_a_schedule_is_run_now_and_paused(tab: PageTab, store: SyncDibs) -> None:
    store.schedules.put("nightly", "0 3 * * *", NewJob("report", args={"year": 2026}))
    tab.open("schedules")
    assert "At 03:00 every day" in tab.text

    tab.press("run", '[data-schedule="nightly"]')
    tab.until(lambda: "report was enqueued" in tab.find("[data-said]").text)
    assert [job.args for job in store.find(kind="report")] == [{"year": 2026}]

    tab.press("pause", '[data-schedule="nightly"]')
    tab.until(lambda: tab.all('[data-schedule="nightly"] [data-act="resume"]'))


@TWO
def test_all_that_a_search_found_are_retried(tab: PageTab, store: SyncDibs) -> None:
    jobs = store.enqueue(*(NewJob("greet", max_attempts=1) for _ in range(4)))
    for job in jobs[:3]:
        store.claim_job(job.id).fail("Timeout: no answer")  # type: ignore[union-attr]
    tab.find("input[name=q]").send_keys("error:Timeout", Keys.ENTER)
    tab.until(lambda: len(tab.all("[data-job]")) == 3)
    assert tab.find('[data-act="retry-all"]').get_attribute("data-count") == "3"

    tab.press("retry-all")

    tab.until(lambda: "3 of 3 run again" in tab.find("[data-said]").text)
    assert store.counts()["ready"] == 4


@TWO
def test_above_a_hundred_the_number_is_typed_first(tab: PageTab, store: SyncDibs) -> None:
    store.enqueue(*(NewJob("greet", max_attempts=1) for _ in range(120)))
    for claim in store.claim(limit=120):
        claim.fail("Timeout: no answer")
    tab.open("jobs?q=error:Timeout")

    tab.press("retry-all")
    assert store.counts()["failed"] == 120
    tab.find('form:has([data-act="retry-all"]) input[name="confirm"]').send_keys("120")
    tab.press("retry-all")

    tab.until(lambda: "120 of 120 run again" in tab.find("[data-said]").text)
    assert store.counts()["ready"] == 120
    assert tab.complaints() == []


@ONE
def test_the_page_proves_what_dibs_promises(tab: PageTab, store: SyncDibs) -> None:
    tab.open("health")

    tab.press("verify")

    tab.until(lambda: "double claims = 0" in tab.find("#verdict").text)
