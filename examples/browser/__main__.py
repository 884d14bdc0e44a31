"""``python -m examples.browser`` builds the page in build/browser, and serves it."""

import functools
import http.server
from pathlib import Path

from examples.browser.models import build

if __name__ == "__main__":
    folder = Path(__file__).parents[2] / "build" / "browser"
    build(folder)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 8000), handler) as server:
        print("http://127.0.0.1:8000")
        server.serve_forever()
