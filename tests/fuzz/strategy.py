"""A Hypothesis strategy for Cases."""

import dataclasses

from hypothesis import strategies as st

from tests.fuzz.case import FORWARD, IDENTITIES, JACOBIANS, KINDS, LAYERS, Case, Level
from tests.fuzz.generator import Writer
from tests.fuzz.rules import (
    AT_SPECIAL_VALUES,
    CALLS,
    CASTS,
    DRAWS,
    FAMILIES,
    OLD_CALLS,
    OUR_CALLS,
    READS,
    SCRIPT_CALLS,
    SPARSE_PRODUCTS,
)
from tests.fuzz.values import Value, layouts

REAL = ("float32", "float64", "bfloat16")
DTYPES = (*REAL, "complex64", "complex128")
CONSTANT_DTYPES = (*DTYPES, "int64", "bool")
RANDOMNESS = ("same", "different", "keyed")


@st.composite
def cases(
    draw: st.DrawFn,
    depth: int,
    libraries: tuple[str, ...],
    kinds: tuple[str, ...] | None = None,
    mixed: bool = False,
    special: bool = False,
    draws: bool = False,
    layer: bool = False,
) -> Case:
    """Cases of `depth` levels, of these libraries and of these kinds, or of any kind.

    The dtype is float64, or any with casts if mixed. special: at special values. draws: with random
    operators, under any randomness. layer: one level is a layer in Python.
    """
    dtype = draw(st.sampled_from(DTYPES)) if mixed else "float64"
    constant_dtype = draw(st.sampled_from(CONSTANT_DTYPES)) if mixed else "float64"
    if kinds is None:
        # Jacobians are for real numbers, and spread an infinity in one row as nan to all others.
        without_jacobians = special or dtype.startswith("complex")
        fitting = ("grad", "vjp", "jvp", "vmap") if without_jacobians else KINDS
        if "func" in libraries:
            # torch.func can't differentiate the writes that functionalize removes, or gets it
            # wrong; it rejects checkpoints, and linearize inside other transforms.
            fitting = tuple(kind for kind in fitting if kind not in (*IDENTITIES, "linearize"))
        if draws:
            # Jacobians reject random draws, as a vmap without randomness does.
            fitting = tuple(kind for kind in fitting if kind not in JACOBIANS)
        kinds = draw(nests(depth, fitting, LAYERS if layer else ()))
    levels = [
        Level(
            kind,
            draw(st.sampled_from(libraries)),
            remove_views=kind == "functionalize" and draw(st.booleans()),
            randomness=draw(st.sampled_from(RANDOMNESS)) if draws and kind == "vmap" else "error",
        )
        for kind in kinds
    ]
    shapes = draw(shapes_of_variables(levels))
    inner = shapes[-1]

    strict = not mixed and not special and not any(0 in shape for shape in shapes)
    variables = [
        Value(shape, dtype, start=3 * special * i, special=special)
        for i, shape in enumerate(shapes)
    ]
    variables[0] = draw(laid_out(variables[0]))
    constant_shape = draw(st.sampled_from([inner, inner, inner[1:], ()]))
    constant = draw(laid_out(Value(constant_shape, constant_dtype, start=1, special=special)))

    families = [*FAMILIES]
    if mixed:
        families += [CASTS, CASTS]
    if special:
        families = AT_SPECIAL_VALUES
    elif draws:
        # Functions with a vmap staticmethod can't draw by keys.
        families += [OUR_CALLS, SCRIPT_CALLS, DRAWS, DRAWS, DRAWS]
    elif "func" not in libraries:
        families += [CALLS, OLD_CALLS, OUR_CALLS, SCRIPT_CALLS]
        families += [] if mixed else [SPARSE_PRODUCTS, READS]
    elif not any(level.library == "func" and level.kind in FORWARD for level in levels):
        # torch.func treats the result of a Function's jvp as a constant.
        families += [CALLS]
    batches = [sum(level.kind == "vmap" for level in levels[:i]) for i in range(depth + 1)]
    writer = Writer(draw, variables, constant, batches, families, strict)
    for _ in range(draw(st.integers(1, 3 if special else 10))):
        writer.add_lines()

    # The ranks of the results, innermost first: a vmap adds a dimension.
    rank = writer.add_return().dim()
    for i in reversed(range(depth)):
        if levels[i].kind == "vmap":
            # Otherwise torch.func is wrong for a result that does not depend on the batch.
            if levels[i].library != "func" and not special:
                out_dim = draw(st.integers(-rank - 1, rank))
                levels[i] = dataclasses.replace(levels[i], out_dim=out_dim)
            rank += 1
        elif levels[i].kind == "jvp":
            rank += special
        elif levels[i].kind not in ("linearize", *IDENTITIES, *LAYERS):
            rank = len(shapes[i])
    return Case(tuple(levels), variables[0], constant, tuple(writer.lines))


@st.composite
def nests(
    draw: st.DrawFn, depth: int, kinds: tuple[str, ...], layers: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """A list of `depth` transforms, outermost first, with at most two Jacobians; a Hessian counts
    as two, and so do jet and laplacian. One of them is of `layers`, if there are any."""
    drawn: list[str] = []
    place = draw(st.integers(0, depth - 1)) if layers else None
    layer = draw(st.sampled_from(layers)) if layers else ""
    while len(drawn) < depth:
        if len(drawn) == place:
            drawn.append(layer)
            continue
        is_ahead = place is not None and place > len(drawn)
        left = 2 - orders_of_jacobians([*drawn, layer] if is_ahead else drawn)
        fitting = [kind for kind in kinds if orders_of_jacobians([kind]) <= left]
        # linearize is not a level either, where it re-runs what can't be captured.
        around = [k for k in drawn if "checkpoint" not in k and k != "linearize"]
        if around and around[-1] == "functionalize" and "functionalize" in fitting:
            fitting.remove("functionalize")  # it isn't applied directly inside itself
        drawn.append(draw(st.sampled_from(fitting)))
    return tuple(drawn)


def orders_of_jacobians(kinds: list[str]) -> int:
    of_second_order = ("hessian", "jet", "laplacian")
    return sum(2 if kind in of_second_order else kind in JACOBIANS for kind in kinds)


@st.composite
def shapes_of_variables(draw: st.DrawFn, levels: list[Level]) -> list[tuple[int, ...]]:
    """The variables' shapes, outermost first: every vmap adds a dimension further out.

    Also draws the vmaps' in_dims.
    """
    orders = orders_of_jacobians([level.kind for level in levels])
    # Few elements where Jacobians of Jacobians are compared with loops; sometimes none; and
    # sometimes more than the 256 up to which operators are computed in one pass.
    sizes = (1, 2, 3) if orders < 2 else (1, 2)
    ranks = 3 if orders == 0 else 2 if orders + len(levels) < 5 else 1
    shape = draw(st.lists(st.sampled_from(sizes), max_size=ranks))
    if shape and draw(st.integers(0, 7)) == 0:
        shape[draw(st.integers(0, len(shape) - 1))] = draw(st.sampled_from((0, 130 >> 3 * orders)))
    shapes = [tuple(shape)]
    for i in reversed(range(len(levels))):
        shape = list(shapes[0])
        if levels[i].kind == "vmap":
            in_dim = draw(st.integers(-len(shape) - 1, len(shape)))
            levels[i] = dataclasses.replace(levels[i], in_dim=in_dim)
            # With more samples a loop draws other numbers for each than the batch has.
            batch_sizes = (1,) if levels[i].randomness == "different" else sizes
            shape.insert(in_dim % (len(shape) + 1), draw(st.sampled_from(batch_sizes)))
        shapes.insert(0, tuple(shape))
    return shapes


@st.composite
def laid_out(draw: st.DrawFn, value: Value) -> Value:
    if draw(st.booleans()):
        return value
    return dataclasses.replace(
        value, layout=draw(st.sampled_from(layouts(value.shape, value.dtype)))
    )
