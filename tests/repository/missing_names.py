"""Takes a private name of torch away, imports the package, and runs README's examples.

``python -m tests.repository.missing_names`` does it for every name and writes the table in
docs/versions.md; with names as arguments, it prints what happens without each. The process imports
torch, and each name is taken away in a process forked from it, a second or two of CPU time each.
"""

import contextlib
import importlib
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from tests.repository import private_torch

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "versions.md"
BEGIN, END = "<!-- missing names: begin -->", "<!-- missing names: end -->"
STEPS = ("import", "eager", "compiled")
WORKS, REFUSES, BROKE, IN_TORCH = "works", "refuses", "broke", "broke in torch"
# Imported before the forks, as they take most of the time; the lookup hides parts of them too.
_SLOW = ("torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.tensor", "sympy")


def names() -> list[str]:
    """The names that are taken away: the dotted ones, without modules of Python's own."""
    return [line for line in private_torch.read_list().lines if line[0] not in ".@"]


def examples() -> dict[str, str]:
    """README's two examples, as one program: the second uses the first's names."""
    eager, compiled, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    return {"eager": eager, "compiled": compiled}


def outcomes(chosen: list[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """What happens without each name: for each step WORKS, REFUSES, or BROKE and the error."""
    for module in _SLOW:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    for name in chosen:
        is_deleted = _in_a_fork(_torch_alone_works_without, name) == "true"
        said = _in_a_fork(_steps_as_json, name, is_deleted)
        if is_deleted and IN_TORCH in said:  # torch can't do without it, after all
            said = _in_a_fork(_steps_as_json, name, False)
        yield name, json.loads(said) if said else {"import": f"{BROKE}: the process has died"}


def _in_a_fork(work: Callable[..., str], *args: Any) -> str:
    """Returns what a forked process returns; an empty string if it dies."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()  # so that what it starts can be ended with it
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        with contextlib.suppress(BaseException):
            os.write(write, work(*args).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        return pipe.read()


def _torch_alone_works_without(name: str) -> str:
    """Whether torch itself can do without the name, which is then deleted for real."""
    delete(name)
    x = torch.ones(3, requires_grad=True)
    (x.sin() * x).sum().backward()
    torch.func.vmap(torch.func.grad(lambda x: x.sin().sum()))(torch.ones(2, 3))
    repr(x)
    return "true"


def delete(name: str) -> None:
    """Deletes an attribute of a module, or of a class in one."""
    owner, _, attribute = name.rpartition(".")
    found = private_torch.find(owner)
    if found is not None and hasattr(found[0], attribute):
        delattr(found[0], attribute)


def _steps_as_json(name: str, is_deleted: bool) -> str:
    return json.dumps(_steps(name, is_deleted))


def _steps(name: str, is_deleted: bool) -> dict[str, str]:
    os.environ["TORCHLAYERS_WITHOUT"] = name
    if is_deleted:
        delete(name)
    done: dict[str, str] = {}
    program: dict[str, Any] = {}
    for step in STEPS:
        try:
            if step == "import":
                importlib.import_module("torchlayers")
            else:
                exec(examples()[step], program)
        except BaseException as error:
            done[step] = _judged(error, name)
            break
        done[step] = WORKS
    return done


def _judged(error: BaseException | None, name: str) -> str:
    """REFUSES, if the error or one that caused it is a TorchVersionError that names the name."""
    text = f"{type(error).__name__}: {error}"
    last = traceback.extract_tb(error.__traceback__)[-1].filename if error else ""
    broke = IN_TORCH if os.path.dirname(torch.__file__) in last else BROKE
    while error is not None:
        if type(error).__name__ == "TorchVersionError" and name in str(error):
            return REFUSES
        error = error.__cause__ or error.__context__
    return f"{broke}: {text.splitlines()[0][:200]}"


def table(results: dict[str, dict[str, str]]) -> str:
    """How many names, by what happens without them; and those without which an example stops."""
    kinds: dict[str, list[str]] = {}
    for name, steps in results.items():
        step, result = list(steps.items())[-1]
        kind = "all works" if result == WORKS else f"{result.partition(':')[0]} {step}"
        kinds.setdefault(kind, []).append(name)
    said = {
        "all works": "all of README works: by a fallback, or something else needs the name",
        "refuses compiled": "the eager example works; `compile` refuses in words",
        "refuses eager": "the package imports; the eager example refuses in words",
        "refuses import": "the import refuses in words",
    }
    order = [*said, *sorted(kinds.keys() - said.keys())]
    rows = [f"| {said.get(kind, kind)} | {len(kinds[kind])} |" for kind in order if kind in kinds]
    lists = [
        f"\n{said.get(kind, kind)[0].upper()}{said.get(kind, kind)[1:]}, without one of: "
        + ", ".join(f"`{name.removeprefix('torch.')}`" for name in kinds[kind])
        + "."
        for kind in order
        if kind in kinds and kind != "all works"
    ]
    return "\n".join(["| without the name | names |", "|---|--:|", *rows, *lists])


def main(chosen: list[str]) -> None:
    results = {}
    for name, steps in outcomes(chosen or names()):
        results[name] = steps
        print(name, json.dumps(steps), flush=True)
    if not chosen:
        text = "\n".join([BEGIN, table(results), END])
        page = PAGE.read_text(encoding="utf-8")
        page = re.sub(f"{BEGIN}.*{END}", lambda _: text, page, flags=re.S)
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
