"""argnums: which arguments grad and grad_and_value differentiate by."""

import torch
import torch.func

from tests.errors.programs import X, loss
from tests.errors.table import Misuse, MisuseTests
from torchlayers.errors import ArgnumsError

BEYOND = "but the call has 2 positional arguments (keyword arguments can't be chosen)."
ARGNUMS = [
    Misuse(
        name,
        lambda tf, argnums=argnums: tf.grad(loss, argnums=argnums)(X, X),
        ArgnumsError,
        f"torchlayers: grad: {message}",
    )
    for name, argnums, message in (
        ("beyond the last", 2, f"argnums=2 names argument 2, {BEYOND}"),
        ("before the first", -3, f"argnums=-3 names argument -3, {BEYOND}"),
        (
            "one of a tuple beyond the last",
            (0, 5),
            f"argnums=(0, 5) names argument 5, {BEYOND}",
        ),
        ("twice", (0, 0), "argnums=(0, 0) must be unique, but names an argument twice."),
        (
            "twice, counted from both ends",
            (1, -1),
            "argnums=(1, -1) must be unique, but names an argument twice.",
        ),
        ("empty", (), "argnums must name at least one argument, got ()."),
        ("a list", [0], "argnums must be an int or a tuple of ints, got list."),
        ("a name", "x", "argnums must be an int or a tuple of ints, got str."),
        ("a float", 0.0, "argnums must be an int or a tuple of ints, got float."),
        ("None", None, "argnums must be an int or a tuple of ints, got NoneType."),
        ("a tuple with a name", (0, "y"), "argnums must be made of ints, got 'y' in (0, 'y')."),
        ("a tuple with None", (None,), "argnums must be made of ints, got None in (None,)."),
    )
] + [
    Misuse(
        "an argument of the function",
        lambda tf: tf.grad(torch.sum, X)(X),
        ArgnumsError,
        "torchlayers: argnums must be an int or a tuple of ints, got Tensor. A transform returns "
        "a function: pass the arguments to that, grad(f)(x).",
    ),
    Misuse(
        "one argument only",
        lambda tf: tf.grad_and_value(torch.sum, argnums=1)(X),
        ArgnumsError,
        "torchlayers: grad_and_value: argnums=1 names argument 1, but the call has 1 positional "
        "argument (keyword arguments can't be chosen).",
    ),
    Misuse(
        "no arguments",
        lambda tf: tf.grad(torch.sum)(),
        ArgnumsError,
        "torchlayers: grad: argnums=0 names argument 0, but the call has no positional arguments "
        "(keyword arguments can't be chosen).",
    ),
    Misuse(
        "keyword arguments only",
        lambda tf: tf.grad(torch.sum)(input=X),
        ArgnumsError,
        "torchlayers: grad: argnums=0 names argument 0, but the call has no positional arguments "
        "(keyword arguments can't be chosen).",
    ),
]


class TestArgnums(MisuseTests):
    table = ARGNUMS
