"""Programs that once failed, each by what was wrong.

To keep one, paste the Case that a failing test prints here, and leave out of it what is not needed.
"""

from tests.programs.case import Case, Level
from tests.programs.values import Value

KEPT = {
    "functionalize's copy has a derivative by what it overwrites": Case(
        levels=(Level("grad"), Level("functionalize"), Level("jvp")),
        x=Value(()),
        constant=Value(()),
        program=("t0 = x3.sin()", "t0.sin_()", "return t0"),
    ),
    "a row written under functionalize has a second derivative": Case(
        levels=(Level("grad"), Level("jacfwd"), Level("functionalize")),
        x=Value((3, 1)),
        constant=Value(()),
        program=("t0 = x3 @ x3.mT", "t0[2].mul_((x0 * x3).sum(-1))", "return t0.sum()"),
    ),
    "a view written in a gradient under functionalize has a second derivative": Case(
        levels=(Level("grad"), Level("functionalize"), Level("grad")),
        x=Value(()),
        constant=Value(()),
        program=("t0 = x3.sin()", "t1 = t0.unsqueeze(-1)", "t1.sin_()", "return t1"),
    ),
    "a slice without an end is written under functionalize": Case(
        levels=(Level("jacfwd"), Level("functionalize")),
        x=Value((3,)),
        constant=Value(()),
        program=("t0 = x2.sin()", "t0[1:].mul_(x2[1:])", "return t0"),
    ),
    "the imaginary part of a conjugate is batched": Case(
        levels=(Level("vmap"), Level("grad")),
        x=Value((2, 3)),
        constant=Value(()),
        program=("t0 = torch.complex(x2, -x2).conj().imag", "return t0.sin()"),
    ),
    "a Function of what a functionalize further out tracks": Case(
        levels=(Level("functionalize"), Level("vmap"), Level("functionalize")),
        x=Value((2,)),
        constant=Value(()),
        program=("t0 = Old.apply(x1)", "return t0 * x3"),
    ),
}
