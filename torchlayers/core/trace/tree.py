"""A trace as an indented tree."""

from torchlayers.core.trace.calls import TracedCall


def text(calls: list[TracedCall], dropped: int, *, times: bool, lines: bool) -> str:
    """The calls, a line each, with their times and the user's lines if asked for."""
    tree = [f"({dropped} earlier calls were dropped)"] if dropped else []
    has_threads = len({call.thread for call in calls}) > 1
    waiting = [(call, 0) for call in reversed(calls)]
    while waiting:
        call, depth = waiting.pop()
        parts = ["  " * depth + describe_call(call)]
        if times:
            parts.append(f"{call.nanoseconds / 1e3:.1f} us")
        if has_threads and depth == 0:
            parts.append(f"(thread {call.thread})")
        if lines and call.line:
            parts.append(f"# {call.line}")
        tree.append("  ".join(parts))
        waiting.extend((child, depth + 1) for child in reversed(call.children))
    return "\n".join(tree)


def describe_call(call: TracedCall) -> str:
    """``mul(f32[2]@0, f32[]) -> f32[2]@0  vmap (level 1), rule``, and the like."""
    if call.kind == "layer":
        samples = "" if call.samples is None else f" of {call.samples} samples"
        return f"{call.place}{samples}"
    if call.kind == "compiled":
        return _describe_compiled(call)
    if call.kind == "range":
        return call.name
    if call.steps and call.steps[0].step == "pull_back":
        return f"backward pass of {call.place}, by {call.name}"
    inputs = ", ".join(map(str, call.inputs))
    outputs = ", ".join(map(str, call.outputs))
    what = f"{call.short_name}({inputs})" + (f" -> {outputs}" if outputs else "")
    notes = [call.place] if call.layer is None else [call.place, call.how]
    if call.iterations:
        notes.append(f"loops over {call.iterations} samples")
    if call.is_copy:
        notes.append("copies")
    if call.has_raised:
        notes.append("raised")
    return f"{what}  {', '.join(notes)}"


def _describe_compiled(call: TracedCall) -> str:
    notes = [call.place]
    if call.is_captured:
        why = call.code.why if call.code is not None else ""
        notes.append(f"captured again because {why}" if why else "captured")
    notes.append("raised" if call.has_raised else call.how)
    arguments = call.code.arguments if call.code is not None else ""
    return f"{call.name}({arguments})  {', '.join(notes)}"
