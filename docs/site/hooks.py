"""Hooks of mkdocs.yml: pages that live outside docs/, and links to files of the repository."""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
# Pages outside docs/: where they are in the repository, and on the site.
ELSEWHERE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "csrc/README.md": "csrc.md",
    "examples/README.md": "examples.md",
    "torchlayers/compiler/README.md": "compiler.md",
}
IN_REPOSITORY = {page: path for path, page in ELSEWHERE.items()}
FENCE = re.compile(r"^(```+|~~~+).*?^\1", re.MULTILINE | re.DOTALL)
DIRECTIVE = re.compile(r"  # doctest: \+\w+$", re.MULTILINE)  # for the tests
LINK = re.compile(r"(?<=\]\()(?P<target>[^()\s#]+)(?=[)#\s])")

# A heading of the page of errors, to which the reference's lists of errors link.
ERROR = re.compile(r"^## (\w+(?:Error|Warning))$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, page in ELSEWHERE.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to pages outside docs/ become links on the site, links to other files go to the URL.

    Doctest's directives are left out.
    """
    here = page.file.src_uri
    if here.startswith("reference/"):
        page.meta["search"] = {"boost": 50}  # who looks for a name wants its entry first
    if here == "errors.md":
        for name in ERROR.findall(markdown):
            for module in ("errors", "core.errors", "graph.errors"):
                config.plugins["autorefs"].register_anchor(
                    page=page, identifier=f"torchlayers.{module}.{name}", anchor=name.lower()
                )
    source = IN_REPOSITORY.get(here, f"docs/{here}")

    def linked(match: re.Match[str]) -> str:
        target = match["target"]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if ":" in target or path.startswith("..") or not (ROOT / path).exists():
            return target
        on_site = ELSEWHERE.get(path) or path.removeprefix("docs/")
        if files.get_file_from_path(on_site) and path != on_site:
            return posixpath.relpath(on_site, posixpath.dirname(here) or ".")
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{config.repo_url}/{kind}/main/{path}"

    # Links are rewritten in text, and not in code.
    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        code = DIRECTIVE.sub("", fence.group())
        parts += [LINK.sub(linked, markdown[end : fence.start()]), code]
        end = fence.end()
    return "".join([*parts, LINK.sub(linked, markdown[end:])])
