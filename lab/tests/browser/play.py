"""`layernorm play` in a headless Chromium: `make play-test`. Pictures of the pages are left in build/play.

Not part of `make test`: it needs Chromium, its driver and the package selenium.
"""

import os
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from lab_support.runs import write_drawing_runs

SECONDS = 120  # that a page may take on a busy machine
PICTURES = Path(__file__).parents[3] / "build" / "play"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The process and its port."""
    runs = write_drawing_runs(tmp_path_factory.mktemp("runs"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "layernorm_lab", "play", *map(str, runs), "--port", str(port)]
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}  # NiceGUI looks for it
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout.readline() == f"open http://127.0.0.1:{port} in a browser; Ctrl-C ends\n"
        yield process, port, runs
        process.send_signal(2)
        assert process.wait(SECONDS) == 0, "Ctrl-C is the way to end it"


class Pages:
    """A browser with the pages open."""

    def __init__(self, port, width=1280, dark=False):
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or shutil.which("chromium-browser") or ""
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
            options.add_argument(argument)
        service = webdriver.ChromeService(shutil.which("chromedriver"))  # else Selenium asks the network for one
        self.driver, self.width = webdriver.Chrome(options, service), width
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        self.resize(900)
        self.driver.get(f"http://127.0.0.1:{port}/")
        self.until(lambda: len(self.all("canvas")) == 5)

    def resize(self, height):
        size = {"width": self.width, "height": height, "deviceScaleFactor": 1, "mobile": self.width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def until(self, holds):
        again = [StaleElementReferenceException]  # an element was replaced while it was looked at
        return WebDriverWait(self.driver, SECONDS, ignored_exceptions=again).until(lambda _: holds())

    def all(self, css):
        return [item for item in self.driver.find_elements(By.CSS_SELECTOR, css) if item.is_displayed()]

    def text(self):
        return self.driver.find_element(By.TAG_NAME, "body").text

    def sees(self, text):
        self.until(lambda: text in self.text())

    def press(self, text):
        """Presses a button or a tab, also one that must be scrolled to."""
        pressed = """
            const found = [...document.querySelectorAll("button, .q-tab")]
            const named = found.filter(item => item.textContent.trim() == arguments[0] && !item.disabled)
            named.forEach(item => item.click())
            return named.length"""
        self.until(lambda: self.driver.execute_script(pressed, text) == 1)

    def type(self, name, text):
        (field,) = self.until(lambda: self.all(f'input[aria-label="{name}"]'))
        field.send_keys(Keys.CONTROL + "a")
        field.send_keys(text or Keys.DELETE)

    def slide(self, name, keys):
        (slider,) = self.all(f'[role=slider][aria-label="{name}"]')
        self.driver.execute_script("arguments[0].querySelector('[tabindex]').focus()", slider)
        ActionChains(self.driver).send_keys(*keys).perform()

    def drawn(self):
        """The kinds of the pictures on the page, once all of them are there: their sizes in pixels are known."""
        found = self.driver.execute_script(
            "return [...document.querySelectorAll('img.drawn')].map(i => [i.src.slice(0, 20), i.naturalWidth])"
        )
        return [start.partition("/")[2].partition(";")[0].partition("+")[0] for start, width in found if width > 1]

    def photograph(self, name):
        height = self.driver.execute_script("return document.documentElement.scrollHeight")
        self.resize(min(height, 4000))
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.driver.save_screenshot(str(PICTURES / f"{name}.png"))
        assert self.driver.execute_script("return document.documentElement.scrollWidth") <= self.width
        self.resize(900)


@pytest.fixture
def pages(server):
    found = Pages(server[1])
    yield found
    found.driver.quit()


def test_table_1_under_the_keys(pages):
    pages.sees("batch norm: stays (")
    pages.sees("weight norm: changes (")
    pages.press("put all back")
    pages.sees("layer norm: not moved")
    pages.slide("weight matrix re-centring", [Keys.ARROW_RIGHT] * 5)
    for text in (
        "shift +0.5",
        "layer norm: stays (",
        "Table 1: invariant",
        "batch norm: changes (",
        "no norm: changes",
    ):
        pages.sees(text)
    pages.press("put all back")
    pages.sees("no norm: not moved")
    pages.slide("single case re-scaling", [Keys.ARROW_LEFT] * 4)
    for text in ("layer norm: stays (", "RMS norm: stays (", "weight norm: changes ("):
        pages.sees(text)


def test_networks_are_trained_in_two_browsers_at_once(pages, server):
    assert pages.driver.title == "Table 1 - layernorm play"
    other = Pages(server[1], 380)
    try:
        for browser in (pages, other):
            browser.press("Training")
            browser.until(lambda browser=browser: browser.driver.title == "Training - layernorm play")
            browser.press("train")
        other.sees("waits for another page")
        pages.sees("At a learning rate of 0.0025: no norm")
        other.sees("update 10 of 200")
    finally:
        other.driver.quit()  # its training ends, and the next has its place
    pages.slide("learning rate", [Keys.ARROW_RIGHT] * 2)
    pages.sees("learning rate 0.01")
    pages.press("train")
    pages.sees("Best of 2 learning rates: no norm")
    pages.press("train")
    pages.sees("update 10 of 200")
    pages.press("stop")
    pages.sees("Best of 2 learning rates: no norm")


def test_a_text_is_written_and_bad_input_refused(pages, server):
    pages.press("handwriting: handwriting-layer-s0")
    pages.type("points", "60")
    pages.type("bias", "1")
    pages.type("text", "Layer norm")
    pages.press("draw")
    pages.until(lambda: pages.drawn() == ["svg", "svg"])
    pages.sees('"Layer norm", bias 1, seed 0, ')
    for name, text, message in (
        ("text", "norm é", "text has the unknown character 'é'; printable ASCII is known"),
        ("text", "", "text must not be empty"),
        ("text", "ab" * 101, "text must have at most 200 characters, got 202"),
        ("text", "ok", None),
        ("seed", "x", "seed must be a whole number, got 'x'"),
        ("seed", "1", None),
        ("bias", "-1", "bias must be a finite number, at least 0, got -1"),
        ("bias", "0", None),
    ):
        pages.type(name, text)
        pages.press("draw")
        if message:
            pages.sees(message)
            assert not pages.drawn()
        else:
            pages.until(lambda: pages.drawn() == ["svg", "svg"])
    checkpoint = server[2][0] / "checkpoint.safetensors"
    away = checkpoint.rename(checkpoint.with_suffix(".away"))
    pages.press("draw")
    pages.sees("has no checkpoint yet")
    away.rename(checkpoint)
    pages.press("draw")
    pages.until(lambda: pages.drawn() == ["svg", "svg"])


def test_digits_are_drawn(pages):
    pages.press("draw: draw-layer-s0")
    pages.type("count", "7")
    pages.press("draw")
    pages.until(lambda: pages.drawn() == ["gif", "png"])
    pages.sees("The canvas over 3 glimpses")
    pages.type("count", "0")
    pages.press("draw")
    pages.sees("count must be at least 1, got 0")


def test_nothing_is_served_or_fetched_outside_this_machine(pages, server):
    process, port, _ = server
    addresses = pages.driver.execute_script("return performance.getEntriesByType('resource').map(item => item.name)")
    assert len(addresses) > 5
    assert {urlsplit(address).netloc for address in addresses if not address.startswith("data:")} == {
        f"127.0.0.1:{port}"
    }
    connections = [c for p in (process.pid, *children(process.pid)) for c in psutil.Process(p).net_connections("inet")]
    assert [c.laddr for c in connections if c.status == psutil.CONN_LISTEN] == [("127.0.0.1", port)]
    assert {c.raddr.ip for c in connections if c.raddr} <= {"127.0.0.1"}
    for address in outside():
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, port), timeout=5)
    rebound = urllib.request.Request(f"http://127.0.0.1:{port}/", headers={"Host": f"a-page-elsewhere.example:{port}"})
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(rebound)


def children(pid):
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def outside():
    """This machine's own addresses in other networks."""
    every = [
        item.address for items in psutil.net_if_addrs().values() for item in items if item.family == socket.AF_INET
    ]
    return [address for address in every if not address.startswith("127.")]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [380, 1280])
def test_the_pages_fit(server, width, dark):
    pages = Pages(server[1], width, dark)
    try:
        assert bool(pages.all(".body--dark")) == dark
        pages.slide("weight vector re-scaling", [Keys.ARROW_RIGHT] * 6)
        pages.sees("weight norm: stays (")
        name = f"{width}-{'dark' if dark else 'light'}"
        pages.photograph(f"table-1-{name}")
        pages.press("Training")
        pages.press("train")
        pages.sees("At a learning rate of 0.0025: no norm")
        pages.photograph(f"training-{name}")
        pages.press("handwriting: handwriting-layer-s0")
        pages.type("text", "Layer norm")
        pages.press("draw")
        pages.until(lambda: pages.drawn() == ["svg", "svg"])
        pages.photograph(f"handwriting-{name}")
        pages.press("draw: draw-layer-s0")
        pages.until(lambda: pages.all('input[aria-label="count"]'))
        pages.press("draw")
        pages.until(lambda: sorted(pages.drawn()) == ["gif", "png"])
        pages.photograph(f"draw-{name}")
    finally:
        pages.driver.quit()
