"""The documentation site: its links are alive, it has every page and every public name.

`make docs` builds it with warnings as errors, as a test here does. Another looks at it in a
browser.
"""

import contextlib
import functools
import http.server
import importlib
import posixpath
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.repository.test_docs import PUBLIC
from tests.support.scripts import loaded

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = DOCS / "site"
PAGES = sorted(DOCS.rglob("*.md"))
# All Markdown of the repository but what is no documentation.
EVERYWHERE = [
    *PAGES,
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(ROOT / room / "README.md" for room in ("csrc", "examples", "torchlayers/compiler")),
]
FENCE = re.compile(r"^(```+).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"\]\((?P<target>[^()\s]+)\)")
ENTRY = re.compile(r"^::: (\S+)$", re.MULTILINE)
HEADING = re.compile(r"^#+ (.+?)(?: \{ *#(\S+) *\})?$", re.MULTILINE)


def prose(path):
    return FENCE.sub("", path.read_text("utf-8"))


def anchors(path):
    """The anchors of a page's headings, as GitHub and the site make them, and of its entries."""
    found = {*ENTRY.findall(path.read_text("utf-8"))}
    for title, given in HEADING.findall(prose(path)):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).replace("`", "").replace("\\", "")
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        found.add(given or slug)
    return found


def links():
    for path in EVERYWHERE:
        for target in LINK.findall(CODE.sub("", prose(path))):
            if "://" not in target:
                yield path, target


def is_dead(path, target):
    name, _, anchor = target.partition("#")
    file = path if not name else path.parent / name
    if anchor.startswith("only-"):  # of a picture, for one palette
        anchor = ""
    return not file.exists() or bool(anchor and anchor not in anchors(file))


def test_links_between_pages_are_alive():
    dead = [f"{path.relative_to(ROOT)}: {to}" for path, to in links() if is_dead(path, to)]
    assert dead == []


def test_a_dead_link_would_be_found():
    assert is_dead(DOCS / "guide.md", "no-such-page.md")
    assert is_dead(DOCS / "guide.md", "#no-such-heading")
    assert is_dead(DOCS / "guide.md", "random.md#no-such-heading")
    assert not is_dead(DOCS / "guide.md", "forward-mode.md#no_grad-and-detach")


def nav():
    """The pages that mkdocs.yml lists."""
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    listed = text.partition("\nnav:\n")[2].partition("\n\n")[0]
    return re.findall(r"([\w/.-]+\.md)$", listed, re.MULTILINE)


def test_the_navigation_has_every_page_once():
    elsewhere = re.findall(r'": "([\w-]+\.md)"', (SITE / "hooks.py").read_text("utf-8"))
    pages = [path.relative_to(DOCS).as_posix() for path in PAGES]
    pages.remove("images/README.md")
    assert sorted(nav()) == sorted([*pages, *elsewhere])


def entries():
    """The names with an entry in the reference, and the errors of docs/errors.md."""
    for path in (DOCS / "reference").glob("*.md"):
        text = path.read_text("utf-8")
        yield from ENTRY.findall(text)
        yield from re.findall(r"^## .* \{ #(\S+) \}$", text, re.MULTILINE)
    for name in re.findall(r"^## (\w+)$", (DOCS / "errors.md").read_text("utf-8"), re.MULTILINE):
        yield from ("torchlayers.errors", f"torchlayers.errors.{name}")
        yield f"torchlayers.graph.{name}"


def is_entered(name, entered):
    """Whether it, its class, or the same name in the package's root has an entry."""
    in_root = f"torchlayers.{name.rpartition('.')[2]}"
    return not entered.isdisjoint({name, name.rpartition(".")[0], in_root})


def public_names():
    import torchlayers

    yield from PUBLIC
    yield from (f"torchlayers.{name}" for name in torchlayers.__all__)
    for module in ("checkpoint_policies", "compiled", "memory", "tree"):
        for name in importlib.import_module(f"torchlayers.{module}").__all__:
            yield f"torchlayers.{module}.{name}"


def test_every_public_name_is_in_the_reference():
    entered = {*entries()}
    missing = {name for name in public_names() if not is_entered(name, entered)}
    assert missing == set()


def test_the_reference_has_each_name_once():
    listed = [
        name
        for path in (DOCS / "reference").glob("*.md")
        for name in ENTRY.findall(path.read_text("utf-8"))
    ]
    assert len(listed) == len({*listed})
    assert {*listed} <= {*public_names()} | MODULES


def test_the_index_of_the_reference_lists_all_entries():
    """python docs/site/reference_index.py writes the list."""
    index = loaded("docs/site/reference_index.py")
    text = index.INDEX.read_text("utf-8")
    assert index.written(text, index.configuration()) == text


MODULES = {
    f"torchlayers.{name}"
    for name in ("compiled", "errors", "implicit.solvers", "memory", "testing", "tree")
}


def test_pictures_of_the_stack_are_those_that_the_script_draws():
    """python docs/site/stack_picture.py draws them."""
    drawing = loaded("docs/site/stack_picture.py")
    for name, colours in drawing.PICTURES.items():
        assert (DOCS / "images" / name).read_text("utf-8") == drawing.picture(colours)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").split()) < 900


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The site, built with warnings as errors."""
    pytest.importorskip("mkdocs", reason="builds the site with mkdocs: pip install '.[docs]'")
    to = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", to],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    return to


@pytest.mark.full  # as make docs does
def test_the_site_builds_without_a_warning(site):
    assert (site / "index.html").exists()


@pytest.mark.full  # builds the site, as make docs does
def test_links_of_the_built_site_are_alive(site):
    """Those of rendered docstrings and of the theme, too: no page asks for what is not there."""
    ids = {}
    dead = []
    for path in site.rglob("*.html"):
        text = path.read_text("utf-8")
        ids[path] = {*re.findall(r'\bid="?([^"\s>]+)', text)}
    for path in ids:
        if path.name == "404.html":
            continue
        for target in re.findall(r'(?:href|src)="([^"]*)"', path.read_text("utf-8")):
            if re.match(r"[a-z]+:|//", target):
                continue
            name, _, anchor = target.partition("#")
            to = path if not name else Path(posixpath.normpath(path.parent / name.split("?")[0]))
            to = to / "index.html" if to.is_dir() else to
            if not to.exists() or (anchor and anchor not in ids.get(to, {anchor})):
                dead.append(f"{path.relative_to(site)}: {target}")
    assert dead == []


@pytest.mark.full  # builds the site, as make docs does
def test_pages_load_nothing_from_elsewhere(site):
    """Scripts, styles, fonts and pictures are the site's own."""
    asked = re.compile(
        r'<(?:script|img|link rel="?(?:stylesheet|preconnect)"?)[^>]*https?://[^>]*>'
    )
    for path in site.rglob("*.html"):
        assert asked.findall(path.read_text("utf-8")) == [], path


@contextlib.contextmanager
def served(folder):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    handler = functools.partial(Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@contextlib.contextmanager
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="drives chromium: playwright")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield chromium
        finally:
            chromium.close()


def opened(chromium, said, **context):
    """A tab whose console, errors, and requests that fail or leave this machine are noted."""
    tab = chromium.new_context(**context).new_page()
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on(
        "response",
        lambda response: response.status < 400 or said.append(f"{response.status}: {response}"),
    )
    tab.on("request", lambda request: "//127.0.0.1:" in request.url or said.append(request.url))
    return tab


@pytest.mark.full
@pytest.mark.skipif(not CHROMIUM, reason="looks at the site in chromium, which is not installed")
def test_pages_load_in_a_browser_without_a_word_in_its_console(site):
    said = []
    with served(site) as address, browser() as chromium:
        tab = opened(chromium, said)
        for path in nav():
            tab.goto(f"{address}/{path.removesuffix('.md').removesuffix('index')}")
            assert tab.locator("h1").first.is_visible(), path
        tab.goto(address, wait_until="networkidle")
    assert said == []


@pytest.mark.full
@pytest.mark.skipif(not CHROMIUM, reason="looks at the site in chromium, which is not installed")
@pytest.mark.parametrize(
    ("palette", "shown", "hidden"),
    [("light", "stack", "stack-dark"), ("dark", "stack-dark", "stack")],
)
def test_the_picture_of_the_stack_is_that_of_the_palette(site, palette, shown, hidden):
    said = []
    with served(site) as address, browser() as chromium:
        tab = opened(chromium, said, color_scheme=palette)
        tab.goto(address, wait_until="networkidle")
        picture = tab.locator(f'img[src*="/{shown}.svg"]')
        assert picture.is_visible()
        assert picture.evaluate("image => image.naturalWidth") > 0
        assert not tab.locator(f'img[src*="/{hidden}.svg"]').is_visible()
    assert said == []


@pytest.mark.full
@pytest.mark.skipif(not CHROMIUM, reason="looks at the site in chromium, which is not installed")
def test_search_finds_the_entry_of_the_hessian_first(site):
    said = []
    with served(site) as address, browser() as chromium:
        tab = opened(chromium, said, viewport={"width": 390, "height": 844})  # a phone
        tab.goto(address)
        assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        tab.locator('label[for="__search"].md-header__button').click()
        tab.locator("input.md-search__input").fill("hessian")
        first = tab.locator(".md-search-result__item a").first
        first.wait_for()
        assert "/reference/derivatives/" in first.get_attribute("href")
    assert said == []


@pytest.mark.full
@pytest.mark.skipif(not CHROMIUM, reason="looks at the site in chromium, which is not installed")
def test_a_session_is_copied_without_prompts_and_output(site):
    said = []
    with served(site) as address, browser() as chromium:
        tab = opened(chromium, said)
        tab.goto(address)
        copied = tab.locator(".language-pycon code").first.evaluate(
            "code => { code.setAttribute('data-md-copying', ''); return code.innerText }"
        )  # as the button does
    lines = copied.splitlines()
    assert lines[:2] == ["import torch", "import torchlayers as tl"]
    assert "    return ((x @ weights - y) ** 2).mean()" in lines
    assert not any("tensor(" in line or ">>>" in line for line in lines)
    assert said == []
