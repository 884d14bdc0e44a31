"""Programs that once failed, named by the cause.

To add one, paste the Case that a failing test prints, and remove what is not needed.
"""

from tests.fuzz.case import Case, Level
from tests.fuzz.values import Value

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
    "a tensor created in two functionalize with a vmap in between": Case(
        levels=(Level("functionalize"), Level("vmap"), Level("functionalize")),
        x=Value((2,)),
        constant=Value(()),
        program=("t0 = torch.ones((), dtype=torch.float64)", "t0.add_(K)", "return x3 * t0"),
    ),
    "a view written in a gradient under functionalize is batched": Case(
        levels=(Level("hessian"), Level("functionalize"), Level("grad")),
        x=Value((1,)),
        constant=Value(()),
        program=("t0 = x3[0].sin()", "t1 = t0.unsqueeze(-1)", "t1.sin_()", "return t1 + t0"),
    ),
    "the logarithm of a sum of nothing has no derivative": Case(
        levels=(Level("grad"),),
        x=Value((1, 3), special=True),
        constant=Value((), special=True),
        program=("return x1.logsumexp(0)",),
    ),
    "under vmap the largest is amax's, at nan too": Case(
        levels=(Level("grad"), Level("vmap")),
        x=Value((1, 1), special=True),
        constant=Value((), special=True),
        program=("return x2.max()",),
    ),
    "differences of a mean of none are nan": Case(
        levels=(Level("jvp"),),
        x=Value((0,)),
        constant=Value(()),
        program=("return x1.mean()",),
    ),
    "differences say nothing where a condition turns": Case(
        levels=(Level("grad"), Level("grad")),
        x=Value((130,)),
        constant=Value(()),
        program=(
            "t0 = x2.sin().sin().sin()",
            "return t0.masked_fill(t0 > 0.0826, 0.9).sin()",
        ),
    ),
    "differences say nothing of waves as short as their steps": Case(
        levels=(Level("grad"), Level("vmap")),
        x=Value((1,)),
        constant=Value(()),
        program=("return ((4 * (4 * x2).sin()) ** 3).sin()",),
    ),
    "torch.func's vmap around ours does not take our field of ctx for the user's": Case(
        levels=(Level("grad"), Level("vmap", "func"), Level("vmap")),
        x=Value((1, 1)),
        constant=Value(()),
        program=("return Cube.apply(x3)",),
    ),
    "a Function under two vmaps of torch.func's with one of ours in between": Case(
        levels=(Level("vmap", "func"), Level("vmap"), Level("grad"), Level("vmap", "func")),
        x=Value((1, 1, 1)),
        constant=Value(()),
        program=("return Cube.apply(x4)",),
    ),
    "an empty Jacobian by rows has the argument's dtype": Case(
        levels=(Level("jacrev"),),
        x=Value((0,), "float32"),
        constant=Value((0,)),
        program=("return K + x1.sum()",),
    ),
    "a function of booleans is compared in double as well": Case(
        levels=(Level("vjp"),),
        x=Value((1, 2, 1), "complex64"),
        constant=Value((1, 2, 1), "bool"),
        program=("return torch.view_as_real(x1) @ K.sin()",),
    ),
    "the norm of no elements has second derivatives": Case(
        levels=(Level("jvp"), Level("jvp")),
        x=Value((0,), special=True),
        constant=Value((), special=True),
        program=("return x2.norm()",),
    ),
    "the second derivative of elu at nan is nan": Case(
        levels=(Level("grad"), Level("grad")),
        x=Value((), special=True),
        constant=Value((), special=True),
        program=("return torch.nn.functional.elu(x2)",),
    ),
    "the second derivative of logaddexp at infinities is the limit": Case(
        levels=(Level("grad"), Level("grad")),
        x=Value((3,), special=True),
        constant=Value((3,), start=1, special=True),
        program=("return torch.logaddexp(x2, K)",),
    ),
    "a slope that is constant adds no term to the second derivative": Case(
        levels=(Level("grad"), Level("grad")),
        x=Value((), special=True),
        constant=Value((), special=True),
        program=("return torch.xlogy(x2, x0).abs()",),
    ),
    "the derivatives of cumulative products do not divide": Case(
        levels=(Level("vjp"), Level("grad")),
        x=Value((2,), special=True),
        constant=Value((), special=True),
        program=("return x2.cumprod(0)",),
    ),
    "products that no cumulative product contains have no derivative": Case(
        levels=(Level("grad"), Level("grad")),
        x=Value((3,), start=9, special=True),
        constant=Value((), special=True),
        program=("return x2.cumprod(0)",),
    ),
    "the largest of nan has a masked tangent": Case(
        levels=(Level("jvp"), Level("jvp")),
        x=Value((1,), special=True),
        constant=Value((), special=True),
        program=("return x2.sqrt().norm(float('inf'), 0)",),
    ),
    "samples that draw the same numbers do so in a keyed vmap too": Case(
        levels=(Level("vmap", randomness="keyed"), Level("vmap", randomness="same")),
        x=Value((1, 2)),
        constant=Value(()),
        program=("return x2 * torch.rand((), dtype=torch.float64)",),
    ),
    "the linear map draws what the value drew, the same for all samples": Case(
        levels=(Level("linearize"), Level("grad"), Level("vmap", randomness="same")),
        x=Value((1,)),
        constant=Value(()),
        program=("return x3 + torch.normal(x3.contiguous(), 0.5)",),
    ),
    "torch.normal has no derivative by its mean where it draws by a key": Case(
        levels=(Level("grad"), Level("vmap", randomness="keyed"), Level("grad")),
        x=Value((2,)),
        constant=Value(()),
        program=("return x3 + torch.normal(x3.contiguous(), 0.5)",),
    ),
    "a tangent has the conjugate bit of its primal": Case(
        levels=(Level("jvp"), Level("grad")),
        x=Value((3,)),
        constant=Value(()),
        program=("return torch.complex(x2, -x2).conj().imag.sin().sum()",),
    ),
    "a tangent that torch.func batches, of a negative": Case(
        levels=(Level("jacfwd", "func"), Level("grad"), Level("jvp")),
        x=Value((), layout="negative"),
        constant=Value(()),
        program=("return x3",),
    ),
    "a saved view of what was written under functionalize": Case(
        levels=(Level("hessian"), Level("functionalize"), Level("checkpoint"), Level("vjp")),
        x=Value(()),
        constant=Value(()),
        program=("t0 = x4.sin()", "t1 = t0.unsqueeze(-1)", "t1[0] += x4", "return t0.sin() + t1"),
    ),
    "a checkpoint of a write and a Function under functionalize": Case(
        levels=(Level("functionalize"), Level("grad"), Level("torch_checkpoint")),
        x=Value((2,)),
        constant=Value(()),
        program=("t0 = x3.sin()", "t0.mul_(x3)", "return Old.apply(t0)"),
    ),
    "a checkpoint in two vmaps of what each sample writes": Case(
        levels=(Level("grad"), Level("vmap"), Level("vmap"), Level("torch_checkpoint")),
        x=Value((2, 1, 3)),
        constant=Value(()),
        program=("t0 = torch.ones(3, dtype=torch.float64)", "t0.mul_(x3)", "return t0 * x4.sin()"),
    ),
    "slopes of rrelu that are drawn under functionalize": Case(
        levels=(Level("grad"), Level("functionalize"), Level("vjp")),
        x=Value(()),
        constant=Value(()),
        program=("return torch.nn.functional.rrelu((-1 - x3 * x3).contiguous(), training=True)",),
    ),
    "slopes of rrelu that a checkpoint draws again under functionalize": Case(
        levels=(Level("functionalize"), Level("grad"), Level("checkpoint")),
        x=Value(()),
        constant=Value(()),
        program=(
            "return torch.nn.functional.rrelu((-1 - x3 * x3).contiguous(), training=True) * x3",
        ),
    ),
    "a draw with a key after a Function whose jvp calls another": Case(
        levels=(Level("vmap", randomness="keyed"), Level("jvp"), Level("functionalize")),
        x=Value((1,)),
        constant=Value(()),
        program=("t0 = FunctionInside.apply(x3)", "return t0 * torch.rand((), dtype=x3.dtype)"),
    ),
    "a tangent of a zero tensor": Case(
        levels=(
            Level("jvp"),
            Level("grad", library="func"),
            Level("vmap", in_dim=1),
            Level("jacfwd", library="func"),
        ),
        x=Value((1, 2)),
        constant=Value((1,)),
        program=("return x4.sin() @ x4",),
    ),
    "draws in place that differ in two vmaps": Case(
        levels=(Level("vmap", randomness="same"), Level("vmap", randomness="different")),
        x=Value((1, 1)),
        constant=Value(()),
        program=("return x2.sin() * torch.zeros_like(x2).bernoulli_(0.4)",),
    ),
    "a Function in a checkpoint that reads a tensor of a layer in Python": Case(
        levels=(Level("grad"), Level("layer"), Level("torch_checkpoint")),
        x=Value(()),
        constant=Value(()),
        program=("return Cube.apply(x3) * x2.cos()",),
    ),
    "a view in a checkpoint that is written to has a tangent at two levels": Case(
        levels=(Level("hessian"), Level("grad"), Level("checkpoint")),
        x=Value(()),
        constant=Value(()),
        program=(
            "t0 = torch.zeros_like(x3)",
            "t1 = t0.unsqueeze(-1)",
            "t1[0].mul_(x3)",
            "return t1.sin() + t0.sum()",
        ),
    ),
    "a constant of functionalize that a Function in a checkpoint holds": Case(
        levels=(Level("checkpoint"), Level("jacrev"), Level("grad"), Level("functionalize")),
        x=Value(()),
        constant=Value(()),
        program=("return Weighted.apply(x3, Table(torch.ones(2)))",),
    ),
    "a constant of an ended functionalize that a Function under another one holds": Case(
        levels=(Level("jvp"), Level("functionalize"), Level("grad"), Level("functionalize")),
        x=Value(()),
        constant=Value(()),
        program=("return Weighted.apply(x4.sin(), Table(K))",),
    ),
    "a constant of an ended functionalize inside an ended gradient that a Function holds": Case(
        levels=(Level("grad"), Level("grad"), Level("functionalize"), Level("vjp")),
        x=Value(()),
        constant=Value(()),
        program=("return Weighted.apply(x4, Table(K))",),
    ),
    "a view of an ended functionalize that a Function in a gradient below a layer holds": Case(
        levels=(Level("jet"), Level("grad"), Level("functionalize")),
        x=Value(()),
        constant=Value(()),
        program=("return Weighted.apply(x3.sin(), Table(K))",),
    ),
    "contexts that draw again in a recording": Case(
        levels=(
            Level("linearize"),
            Level("vmap", randomness="keyed"),
            Level("torch_checkpoint"),
        ),
        x=Value((1,)),
        constant=Value(()),
        program=("return x3.sin()",),
    ),
    "a quotient by a number in a Laplacian that is linearized": Case(
        levels=(Level("linearize"), Level("laplacian"), Level("grad")),
        x=Value(()),
        constant=Value(()),
        program=("return x3.sin() / 2",),
    ),
    "a power whose exponent is zero": Case(
        levels=(Level("grad"), Level("grad"), Level("grad"), Level("grad")),
        x=Value((1,)),
        constant=Value((1,)),
        program=("t0 = x4 - x2", "return (2 + t0.sin()) ** t0.tanh()"),
    ),
    "a tangent of what torch.func's vmap has interleaved": Case(
        levels=(Level("vmap", "func", in_dim=1), Level("jvp"), Level("jacfwd")),
        x=Value((1, 2)),
        constant=Value((1,)),
        program=(
            "t0 = x2.expand(2, *x2.shape).sin()",
            "t0.transpose(0, -1).copy_(x3.sin())",
            "return t0.sum()",
        ),
    ),
}

# Compiled programs.
KEPT_COMPILED = {
    "pairs of no numbers": Case(
        levels=(Level("grad"),),
        x=Value((0,), dtype="complex64"),
        constant=Value((0,), dtype="float32"),
        program=("return torch.view_as_real((x1.sin()).resolve_conj()).sum(-1)",),
    ),
    # torch gives the first product strides that differ from its fake tensors'.
    "a view of what lies otherwise than recorded": Case(
        levels=(Level("hessian"),),
        x=Value((1, 2)),
        constant=Value(()),
        program=(
            "t1 = torch.einsum('...ij,...ik->...jk', x1, x1)",
            "t5 = OldWithVmap.apply(t1.tanh())",
            "return t5 @ t5",
        ),
    ),
    "a Function under two functionalize that a Jacobian keeps apart": Case(
        levels=(Level("functionalize"), Level("jacfwd"), Level("functionalize")),
        x=Value((2, 3)),
        constant=Value(()),
        program=("return x3 + Old.apply(x0) + OldWithVmap.apply(K.tanh())",),
    ),
    "a compressed sparse matrix that is transposed twice": Case(
        levels=(Level("grad"), Level("grad")),
        x=Value((1,)),
        constant=Value(()),
        program=("return CSR[1] @ x2",),
    ),
}
