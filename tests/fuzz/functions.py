"""Functions that programs call, as source: autograd.Functions of every style, and TorchScript.

Each is smooth, preserves the shape of its tensor, and has derivatives of every order.
"""

import torch

import torchlayers

_SAVES_INPUT = """
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])
"""

FUNCTIONS = {
    # generate_vmap_rule
    "Cube": f"""
class Cube(torch.autograd.Function):
    generate_vmap_rule = True
    @staticmethod
    def forward(x):
        return x**3
{_SAVES_INPUT}
    @staticmethod
    def backward(ctx, g):
        return 3 * ctx.saved_tensors[0] ** 2 * g
    @staticmethod
    def jvp(ctx, t):
        return 3 * ctx.saved_tensors[0] ** 2 * t
""",
    # Saves its output.
    "Tanh": """
class Tanh(torch.autograd.Function):
    generate_vmap_rule = True
    @staticmethod
    def forward(x):
        return x.tanh()
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)
    @staticmethod
    def backward(ctx, g):
        y, = ctx.saved_tensors
        return g * (1 - y * y)
    @staticmethod
    def jvp(ctx, t):
        y, = ctx.saved_tensors
        return t * (1 - y * y)
""",
    # A vmap staticmethod, and an attribute on ctx.
    "Scaled": """
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(x, factor):
        return x * factor
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]
    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor, None
    @staticmethod
    def jvp(ctx, t, _):
        return t * ctx.factor
    @staticmethod
    def vmap(info, in_dims, x, factor):
        return Scaled.apply(x, factor), in_dims[0]
""",
    # Two operands; either may be unbatched or not differentiated.
    "Product": """
class Product(torch.autograd.Function):
    generate_vmap_rule = True
    @staticmethod
    def forward(x, y):
        return x * y
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)
    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        of_x, of_y = g * y.conj(), g * x.conj()
        # The gradient of a real tensor is real.
        return of_x if x.is_complex() else of_x.real, of_y if y.is_complex() else of_y.real
    @staticmethod
    def jvp(ctx, t, u):
        x, y = ctx.saved_tensors
        # An integer has no tangent.
        return sum(a * b for a, b in ((t, y), (u, x)) if a is not None)
""",
    # Applies transforms around its saved tensor.
    "SineInside": f"""
class SineInside(torch.autograd.Function):
    generate_vmap_rule = True
    @staticmethod
    def forward(x):
        return x.sin()
{_SAVES_INPUT}
    @staticmethod
    def backward(ctx, g):
        return tl.grad(lambda y: (y * ctx.saved_tensors[0].cos()).sum())(g) * g
    @staticmethod
    def jvp(ctx, t):
        return tl.jvp(lambda y: y * ctx.saved_tensors[0].cos(), (t,), (t,))[1]
""",
    "VmapInside": f"""
class VmapInside(torch.autograd.Function):
    generate_vmap_rule = True
    @staticmethod
    def forward(x):
        return x.sin()
{_SAVES_INPUT}
    @staticmethod
    def backward(ctx, g):
        halves = torch.stack((g, g)) / 2
        return tl.vmap(lambda g: g * ctx.saved_tensors[0].cos())(halves).sum(0)
    @staticmethod
    def jvp(ctx, t):
        halves = torch.stack((t, t)) / 2
        return tl.vmap(lambda t: t * ctx.saved_tensors[0].cos())(halves).sum(0)
""",
    "Old": """
class Old(torch.autograd.Function):
    generate_vmap_rule = True
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return x.sin()
    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()
    @staticmethod
    def jvp(ctx, t):
        return t * ctx.saved_tensors[0].cos()
""",
    "OldWithVmap": """
class OldWithVmap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        ctx.save_for_forward(y)
        return y
    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]
    @staticmethod
    def jvp(ctx, t):
        return t * ctx.saved_tensors[0]
    @staticmethod
    def vmap(info, in_dims, x):
        return OldWithVmap.apply(x), in_dims[0]
""",
    # Calls another Function in its backward.
    "FunctionInside": f"""
class InnerSquare(torch.autograd.Function):
    generate_vmap_rule = True
    @staticmethod
    def forward(x):
        return x**2
{_SAVES_INPUT}
    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g
    @staticmethod
    def jvp(ctx, t):
        return 2 * ctx.saved_tensors[0] * t

class FunctionInside(torch.autograd.Function):
    generate_vmap_rule = True
    @staticmethod
    def forward(x):
        return x**3
{_SAVES_INPUT}
    @staticmethod
    def backward(ctx, g):
        return 3 * g * InnerSquare.apply(ctx.saved_tensors[0])
    @staticmethod
    def jvp(ctx, t):
        return 3 * t * InnerSquare.apply(ctx.saved_tensors[0])
""",
    # A constant stored in an object, either created at the call or captured, and written after it
    # was viewed.
    "Weighted": """
class Table:
    def __init__(self, weight):
        total = weight.to(torch.float64).mean() + torch.arange(2.0).sum()
        self.weight = total.view(())
        total.mul_(0.5)

class Weighted(torch.autograd.Function):
    generate_vmap_rule = True
    @staticmethod
    def forward(x, table):
        return x * table.weight
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.table = inputs[1]
    @staticmethod
    def backward(ctx, g):
        return g * ctx.table.weight, None
    @staticmethod
    def jvp(ctx, t, _):
        return t * ctx.table.weight
""",
    # TorchScript reads a function's source file, which these lack.
    "scripted": """
scripted = torch.jit.CompilationUnit(
    "def scripted(x):\\n"
    "    y = x * x * x\\n"
    "    if x.dim() > 0:\\n"
    "        y = y.sin() + 0.5 * x\\n"
    "    return y\\n"
).scripted
""",
    "traced": """
class Wave(torch.nn.Module):
    def forward(self, x):
        return x.sin() * x + 0.5 * x

traced = torch.jit.trace(Wave(), torch.ones(2, dtype=torch.float64))
""",
    "frozen": """
class Sines(torch.nn.Module):
    def forward(self, x):
        return x.sin() * x.cos() - 0.25 * x

frozen = torch.jit.freeze(torch.jit.trace(Sines().eval(), torch.ones(2, dtype=torch.float64)))
""",
}


def is_called(name: str, program: str) -> bool:
    return f"{name}.apply(" in program or f"{name}(" in program


def made(name: str) -> type[torch.autograd.Function]:
    """The class itself."""
    names = {"torch": torch, "tl": torchlayers}
    exec(FUNCTIONS[name], names)
    return names[name]  # type: ignore[return-value]
