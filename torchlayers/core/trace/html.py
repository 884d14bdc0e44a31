"""A trace as one page that needs no network: ``page.html`` with the calls in it."""

import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

from torchlayers.core.trace.calls import CompiledCode, TracedCall, walk
from torchlayers.core.trace.chrome import lane_of
from torchlayers.core.trace.summary import Summary
from torchlayers.core.trace.tree import describe_call

DATA = "/*DATA*/null"


def write(
    outermost: list[TracedCall], dropped: int, summary: Summary, path: str | os.PathLike[str]
) -> None:
    Path(path).write_text(page(outermost, dropped, summary), "utf-8")


def page(outermost: list[TracedCall], dropped: int, summary: Summary) -> str:
    template = resources.files("torchlayers.core.trace").joinpath("page.html").read_text("utf-8")
    data = json.dumps(_data(outermost, dropped, summary))
    data = data.replace("<", "\\u003c")  # a name may hold "</script>"
    return template.replace(DATA, data)


def _data(outermost: list[TracedCall], dropped: int, summary: Summary) -> dict[str, Any]:
    calls = [*walk(outermost)]
    numbers = {id(call): number for number, call in enumerate(calls)}
    codes = {id(call.code): call.code for call in calls if call.code is not None}
    graphs = {code: number for number, code in enumerate(codes)}
    start = min((call.begin for call in calls), default=0)
    threads = sorted({call.thread for call in calls})
    lanes = sorted({(threads.index(call.thread), *lane_of(call)) for call in calls})
    return {
        "seconds": summary.seconds,
        "dropped": dropped,
        "lanes": [
            name if len(threads) == 1 else f"{name}, thread {thread + 1}"
            for thread, _, name in lanes
        ],
        "calls": [
            {
                "text": describe_call(call),
                "name": call.short_name,
                "kind": call.how if call.layer is None and call.kind == "operator" else call.kind,
                "begin": call.begin - start,
                "length": call.nanoseconds,
                "own": call.own_nanoseconds,
                "parent": -1 if call.parent is None else numbers[id(call.parent)],
                "lane": lanes.index((threads.index(call.thread), *lane_of(call))),
                "line": call.line,
                "graph": -1 if call.code is None else graphs[id(call.code)],
                "mark": bool(call.iterations or call.is_copy or call.has_raised),
            }
            for call in calls
        ],
        "graphs": [_graph(code) for code in codes.values()],
        "shares": [
            ["kernels", summary.kernels],
            ["layers", summary.layers],
            ["Python inside transforms", summary.python],
        ],
        "loops": [list(loop) for loop in summary.loops],
        "summary": [list(row) for row in summary.rows],
    }


def _graph(code: CompiledCode) -> dict[str, Any]:
    """A captured graph after each stage. If it can't be captured again, the page says why."""
    try:
        stages = code.stages()
    except Exception as error:  # the function's own, or one of the state that it needs
        stages = [("not shown", f"Capturing it again failed: {error}")]
    return {"title": f"{code.name}({code.arguments})", "stages": stages}
