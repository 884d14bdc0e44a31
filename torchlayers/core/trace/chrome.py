"""A trace in the format of chrome://tracing, which Perfetto reads too.

The format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

import gzip
import json
import os
from pathlib import Path
from typing import Any

from torchlayers.core.trace.calls import TracedCall, walk

PROCESS = "torchlayers"
BELOW_ALL = 1_000_000  # levels are smaller
COMPILED = BELOW_ALL - 1


def lane_of(call: TracedCall) -> tuple[int, str]:
    """The place of a call's lane from top to bottom, and its name."""
    if call.kind == "range":
        return 0, "ranges"
    if call.kind == "compiled":
        return COMPILED, "compiled"
    if call.layer is None:
        return BELOW_ALL, "kernels"
    return call.level, f"level {call.level}"


def write(
    calls: list[TracedCall], path: str | os.PathLike[str], profile: str | os.PathLike[str] | None
) -> None:
    content: dict[str, Any] = {"traceEvents": [], "displayTimeUnit": "ns"}
    if profile is not None:
        content = _profile(Path(profile))
    base = int(content.get("baseTimeNanoseconds", 0))
    content["traceEvents"].extend(_events(calls, base))
    Path(path).write_text(json.dumps(content))


def _profile(path: Path) -> dict[str, Any]:
    raw = path.read_bytes()
    try:
        content = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    except ValueError as error:
        raise ValueError(
            f"torchlayers: to_chrome: {path} is not JSON: profile= expects a trace that "
            "torch.profiler has written with export_chrome_trace."
        ) from error
    if not isinstance(content, dict) or not isinstance(content.get("traceEvents"), list):
        raise ValueError(
            f"torchlayers: to_chrome: {path} has no list of traceEvents: profile= expects a trace "
            "that torch.profiler has written with export_chrome_trace."
        )
    return content


def _events(calls: list[TracedCall], base: int) -> list[dict[str, Any]]:
    lanes: dict[tuple[int, int, str], int] = {}  # the number of each, by thread, place and name
    events = []
    for call in walk(calls):
        place, name = lane_of(call)
        lane = lanes.setdefault((call.thread, place, name), len(lanes))
        events.append(
            {
                "ph": "X",
                "pid": PROCESS,
                "tid": lane,
                "ts": (call.begin - base) / 1e3,
                "dur": call.nanoseconds / 1e3,
                "name": call.place if call.kind == "layer" else call.name,
                "cat": call.kind,
                "args": {
                    "lane": name,
                    "at": call.place,
                    "how": call.how,
                    "inputs": ", ".join(map(str, call.inputs)),
                    "outputs": ", ".join(map(str, call.outputs)),
                    "line": call.line,
                },
            }
        )
    has_threads = len({thread for thread, _, _ in lanes}) > 1
    for (thread, place, name), lane in lanes.items():
        about = {"pid": PROCESS, "tid": lane, "ph": "M"}
        shown = {"name": f"{name} (thread {thread})" if has_threads else name}
        events.append({**about, "name": "thread_name", "args": shown})
        events.append({**about, "name": "thread_sort_index", "args": {"sort_index": place}})
    return events
