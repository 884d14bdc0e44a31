"""The page of examples/browser in headless chromium: its numbers are Python's."""

import functools
import http.server
import json
import shutil
import threading

import pytest
import torch

from examples.browser.models import at_point, build

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Prints nothing."""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The address of the page, and its network."""
    folder = tmp_path_factory.mktemp("browser")
    network = build(folder)
    handler = functools.partial(Silent, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", network
        server.shutdown()


@pytest.mark.full  # installs onnxruntime-web, and starts a browser
@pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed")
@pytest.mark.skipif(not shutil.which("npm"), reason="npm is not installed")
def test_numbers_follow_the_mouse_as_in_python(page):
    playwright = pytest.importorskip("playwright.sync_api", reason="drives chromium: playwright")
    pytest.importorskip("onnxscript")
    address, network = page
    messages, points = [], []
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = chromium.new_page()
        tab.on("console", lambda message: messages.append(message.text))
        tab.on("pageerror", lambda error: messages.append(str(error)))
        tab.goto(address)
        tab.wait_for_function("document.getElementById('numbers').textContent.startsWith('{')")
        for x, y in [(100, 50), (240, 240), (400, 333)]:
            before = tab.text_content("#numbers")
            tab.locator("#plane").hover(position={"x": x, "y": y})
            tab.wait_for_function(
                "old => document.getElementById('numbers').textContent !== old", arg=before
            )
            points.append(json.loads(tab.text_content("#numbers")))
        picture = tab.locator("#plane").screenshot()
        chromium.close()
    assert messages == []
    assert len(picture) > 2000
    for shown in points:
        expected = at_point(network)(torch.tensor([shown["x"], shown["y"]], dtype=torch.float32))
        for name in ("value", "slope", "curvature"):
            got = torch.tensor(shown[name], dtype=torch.float32).reshape(expected[name].shape)
            torch.testing.assert_close(got, expected[name], rtol=1e-4, atol=1e-5)
