"""An extension of griffe: docstrings, which are written to be read in a terminal, as Markdown."""

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

from griffe import (
    Alias,
    Extension,
    Function,
    GriffeLoader,
    Module,
    Object,
    Parameter,
    ParameterKind,
)

REFERENCE = Path(__file__).parents[1] / "reference"
SECTIONS = "Args|Returns|Yields|Raises|Warns|Example|Examples|Attributes"
# griffe takes a section for one only after an empty line.
SECTION = re.compile(rf"(?<=\S)\n(?=(?:{SECTIONS}):\n)")
SOURCE = re.compile(r"^(?P<word>Sources?): (?P<text>.+(?:\n    .+)*)", re.MULTILINE)
ROLE = re.compile(r":(?:func|class|mod|meth|attr|data|obj|exc):`(?P<short>~?)(?P<name>[^`]+)`")
# A line of a Raises section that names no error.
OTHERS = re.compile(
    r"^Raises:\n(?P<errors>(?:    .+\n)*?)    (?P<text>The errors of .+(?:\n     +.+)*)", re.M
)
# What is returned is a text; griffe would read each line of it as a value of a tuple.
RETURNS = re.compile(r"^(?P<word>Returns|Yields):\n(?P<text>(?:    .*\n?|\n(?=    ))+)", re.M)
PAGE = re.compile(r"(?<![\w/`])docs/(?P<page>[\w/-]+)\.md")
# The declared options of transforms/jacobian/options.py, by the annotation that unpacks them.
UNPACKED = {f"Unpack[{name}]": name for name in ("JacobianOptions", "ForwardOptions")}
CODE = re.compile(r"``([^`]+)``")


def names_in_reference() -> dict[str, str]:
    """The full name of each entry, by its last part; the one with the fewest parts wins."""
    entries = [
        name
        for page in sorted(REFERENCE.glob("*.md"))
        for name in re.findall(r"^::: (\S+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    entries.sort(key=lambda name: -name.count("."))
    return {name.rpartition(".")[2]: name for name in entries}


NAMES = names_in_reference()


class Docstrings(Extension):
    """Rewrites each docstring when griffe has read the whole package."""

    def on_package(self, *, pkg: Module, loader: GriffeLoader, **_: Any) -> None:
        prefer_functions(pkg)
        for module in modules(pkg):
            make_errors_known(module, pkg)
            show_options(module, pkg)

    def on_object(self, *, obj: Object, **_: Any) -> None:
        convert(obj)


def prefer_functions(module: Module) -> None:
    """Where a package exports what its submodule of the same name defines, the name means that.

    griffe takes `torchlayers.cond` and `torchlayers.control_flow.cond` for the file cond.py.
    """
    for name, member in [*module.members.items()]:
        if isinstance(member, Alias):
            target = member.target if member.resolved else None
            if isinstance(target, Module) and is_shadowed(target):
                of_same_name = target.members[target.name]
                module.members[name] = Alias(name, target=of_same_name, parent=module)
        elif isinstance(member, Module):
            prefer_functions(member)
            if is_shadowed(member):
                of_same_name = member.members[name]
                convert(of_same_name)  # griffe visits no alias
                module.members[name] = Alias(name, target=of_same_name, parent=module)


def modules(module: Module) -> Iterator[Module]:
    yield module
    for member in module.members.values():
        if isinstance(member, Module):
            yield from modules(member)


def make_errors_known(module: Module, package: Module) -> None:
    """Docstrings name errors that their own module has not imported; links to these work, too."""
    errors = package["core.errors"]
    for name in errors.exports:
        if name not in module.members:
            module.members[name] = Alias(name, target=errors[name], parent=module)


def show_options(module: Module, package: Module) -> None:
    """Lists the options of jacrev and the like in their signatures, in place of ``**options``."""
    declared = package["transforms.jacobian.options"]
    batching = package["transforms.batching_options.BatchingOptions"]
    defaults = {**batching.attributes, **declared["JacobianSettings"].attributes}
    for function in module.functions.values():
        unpacked = [p for p in function.parameters if str(p.annotation) in UNPACKED]
        for parameter in unpacked:
            options = declared[UNPACKED[str(parameter.annotation)]].all_members
            del function.parameters[parameter.name]
            for name in (name for name in defaults if name in options):
                value = defaults[name].value
                function.parameters.add(
                    Parameter(name, kind=ParameterKind.keyword_only, default=value)
                )


def convert(obj: Object) -> None:
    if isinstance(obj, Function) and "others" in obj.parameters:
        del obj.parameters["others"]  # torchlayers/core/jax_names.py: for errors alone
    if obj.docstring:
        obj.docstring.value = in_markdown(obj.docstring.value, obj)


def is_shadowed(module: Module) -> bool:
    path = f"{module.path}.{module.name}"
    return module.parent is not None and module.parent.imports.get(module.name) == path


def in_markdown(text: str, obj: Object) -> str:
    def source(match: re.Match[str]) -> str:
        joined = " ".join(line.strip() for line in match["text"].splitlines())
        return f"*{match['word']}:* {joined}"

    def others(match: re.Match[str]) -> str:
        joined = " ".join(line.strip() for line in match["text"].splitlines())
        text = f"*Raises:* {joined[0].lower()}{joined[1:]}\n\n"
        return text + (f"Raises:\n{match['errors']}" if match["errors"] else "")

    text = SECTION.sub("\n\n", text).replace("Example:\n", "Examples:\n")
    text = OTHERS.sub(others, SOURCE.sub(source, text))
    text = RETURNS.sub(lambda match: f"**{match['word']}:**\n\n{dedent(match['text'])}\n", text)
    text = ROLE.sub(lambda match: link(match["name"], bool(match["short"]), obj), text)
    text = PAGE.sub(r"[docs/\g<page>.md](../\g<page>.md)", text)
    return CODE.sub(r"`\1`", text)


def link(name: str, short: bool, obj: Object) -> str:
    """A cross-reference; just code, if the reference has no such name."""
    shown = name.rpartition(".")[2] if short else name
    first, *rest = name.removeprefix("torchlayers.").split(".")
    if name in NAMES.values():
        return f"[`{shown}`][{name}]"
    if first in NAMES:  # a function, or a method of a class
        return f"[`{shown}`][{'.'.join([NAMES[first], *rest])}]"
    if obj.parent is not None and obj.parent.is_class and first in obj.parent.members:
        return f"[`{shown}`][{NAMES.get(obj.parent.name, obj.parent.path)}.{name}]"
    return f"`{shown}`"
