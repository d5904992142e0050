"""The static site that docs/site.py writes: links, pictures, and how it looks in Chromium, where there is one."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import urlopen

import matplotlib.pyplot as plt
import pytest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from common import course

pytestmark = pytest.mark.full  # builds the whole site, and looks at it in a browser

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page(HTMLParser):
    """What a page refers to, and what can be referred to in it."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.silent: list[str] = []  # pictures without a text
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := found.get(name))}
        if tag == "a" and found.get("href"):
            self.links.append(str(found["href"]))
        if tag in ("img", "script") and found.get("src"):
            self.loaded.append(str(found["src"]))
        if tag == "link" and found.get("rel") in ("stylesheet", "icon"):
            self.loaded.append(str(found["href"]))
        if tag == "img" and not found.get("alt"):
            self.silent.append(str(found.get("src")))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run([sys.executable, ROOT / "docs" / "site.py", out], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def test_each_stage_has_a_slide(site: Path):
    """16:9, with a title and the figure of its notebook, on the page of slides."""
    shown = Page((site / "slides.html").read_text()).loaded
    for stage in course.names():
        picture = plt.imread(site / "slides" / f"{stage}.png")
        assert picture.shape[:2] == (1080, 1920) and f"slides/{stage}.png" in shown
        title, figure = picture[20:150, :, :3], picture[200:950, :, :3]
        assert title.min() < 0.1 and (figure < 0.9).any(axis=2).mean() > 0.01


def test_every_link_leads_somewhere_and_nothing_comes_from_another_server(site: Path):
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 40 and site / "notebooks" / "16_final.html" in pages
    wrong = []
    for path, page in pages.items():
        wrong += [f"{path.name}: a picture without a text, {source[:60]}" for source in page.silent]
        wrong += [f"{path.name} loads {source}" for source in page.loaded if urlsplit(source).netloc]
        for link in page.links + page.loaded:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                wrong.append(f"{path.name} links to {link}, which is not there")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                wrong.append(f"{path.name} links to {link}, a place that is not there")
    assert not wrong, "\n".join(sorted(set(wrong)))


def test_formulas_are_drawn_by_the_browser(site: Path):
    text = (site / "notebooks" / "12_flash_attention.html").read_text()
    assert text.count("<math") >= 3 and not re.findall(
        r"\$[^$<]+\$", re.sub(r"<(pre|code).*?</\1>", "", text, flags=re.S)
    )


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server of that folder."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with served(site) as found:
        yield found


@pytest.fixture
def chromium() -> str:
    """Where the browser is. Where BROWSER_EXPECTED is set, as in CI, there must be one."""
    if CHROMIUM is None:
        assert not os.environ.get("BROWSER_EXPECTED"), "BROWSER_EXPECTED is set, and there is no Chromium"
        pytest.skip("no Chromium")
    return CHROMIUM


@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_and_have_no_error_in_a_browser(site: Path, address: str, chromium: str, width: int, tmp_path: Path):
    """Every page at the width of a telephone; in a window the notebooks, and a few of every other kind."""
    pages = [str(path.relative_to(site)) for path in sorted(site.rglob("*.html"))]
    if width > 600:
        kinds: dict[str, list[str]] = {}
        for page in pages:
            kinds.setdefault(str(Path(page).parent) if page.startswith("docs") else page.partition("/")[0], []).append(
                page
            )
        pages = [page for kind, each in kinds.items() for page in (each if kind == "notebooks" else each[:4])]
        assert {"docs/appendix", "docs/interview", "kernels", "cudaemu", "index.html"} <= set(kinds)
    wrong = asked(chromium, address, pages, width, tmp_path)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "body, said",
    [
        ("<script>console.error('no such', 7)</script>", "no such 7"),
        ("<script>throw Error('thrown')</script>", "thrown"),
        ("<img src=missing.png>", "404"),
        ("<div style='width: 800px'>.</div>", "in a window of 390"),
        ("<script>console.log('all is well')</script>", ""),
    ],
)
def test_the_browser_s_complaints_are_heard(chromium: str, body: str, said: str, tmp_path: Path):
    (tmp_path / "page.html").write_text(
        f"<!DOCTYPE html><meta name=viewport content='width=device-width'><link rel=icon href=data:,>{body}"
    )
    with served(tmp_path) as address:
        wrong = asked(chromium, address, ["page.html"], 390, tmp_path / "profile")
    assert len(wrong) == bool(said) and all(said in each for each in wrong)


def asked(chromium: str, address: str, pages: list[str], width: int, profile: Path) -> list[str]:
    """What a browser says is wrong with pages."""
    command = [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
    browser = subprocess.Popen(
        [*command, f"--user-data-dir={profile}", "about:blank"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert browser.stderr is not None
        line = next(line for line in browser.stderr if "DevTools listening on" in line)
        port = urlsplit(line.split()[-1]).port
        (tab, *_) = (t for t in json.load(urlopen(f"http://127.0.0.1:{port}/json")) if t["type"] == "page")
        return asyncio.run(_look(tab["webSocketDebuggerUrl"], address, pages, width))
    finally:
        browser.kill()
        browser.wait()


async def _look(debugger: str, address: str, pages: list[str], width: int) -> list[str]:
    """What is wrong with pages at that width, by the browser's own account."""
    connection = await websocket_connect(debugger, max_message_size=1 << 26)
    wrong: list[str] = []
    loaded = asyncio.Event()
    answers: dict[int, asyncio.Future] = {}
    page = ""

    async def listen() -> None:
        while (text := await connection.read_message()) is not None:
            said = json.loads(text)
            if said.get("id") in answers:
                answers.pop(said["id"]).set_result(said)
            elif said.get("method") == "Page.loadEventFired":
                loaded.set()
            elif said.get("method") == "Runtime.exceptionThrown":
                details = said["params"]["exceptionDetails"]
                wrong.append(f"{page}: {details.get('exception', {}).get('description', details['text'])}")
            elif said.get("method") == "Runtime.consoleAPICalled" and said["params"]["type"] in ("error", "assert"):
                words = [str(each.get("value", each.get("description", ""))) for each in said["params"]["args"]]
                wrong.append(f"{page}: {' '.join(words)}")
            elif said.get("method") == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
                wrong.append(f"{page}: {said['params']['entry']['text']} {said['params']['entry'].get('url', '')}")

    listening = asyncio.create_task(listen())
    numbers = iter(range(1, 1 << 30))

    async def ask(method: str, **params: object) -> dict:
        number = next(numbers)
        answers[number] = asyncio.get_running_loop().create_future()
        await _send(connection, {"id": number, "method": method, "params": params})
        return await asyncio.wait_for(answers[number], 30)

    for domain in ("Page", "Runtime", "Log"):
        await ask(f"{domain}.enable")
    await ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
    for page in pages:  # noqa: B007
        loaded.clear()
        await ask("Page.navigate", url=f"{address}/{page}")
        await asyncio.wait_for(loaded.wait(), 60)
        found = await ask("Runtime.evaluate", expression="document.documentElement.scrollWidth")
        wide = found["result"]["result"]["value"]
        if wide > width:
            wrong.append(f"{page} is {wide} pixels wide, in a window of {width}")
    listening.cancel()
    return wrong


async def _send(connection: WebSocketClientConnection, message: dict) -> None:
    await connection.write_message(json.dumps(message))
