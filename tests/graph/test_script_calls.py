"""TorchScript functions called under layers: right in every nest, on first and later calls."""

import pytest
import torch
from torch import Tensor, nn

import torchlayers as tl

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Converting a tensor:torch.jit.TracerWarning"),
]

X = torch.tensor([0.3, 0.5, -0.7], dtype=torch.float64)
PLACES = torch.tensor([0, 2, 0])


def cube(x: Tensor) -> Tensor:
    return x * x * x


def branches(x: Tensor) -> Tensor:
    y = x
    for i in range(x.dim() + 1):
        y = y * x + i
    k = 0
    while k < 2:
        k += 1
        y = y.sin() * x if k == 1 else y * y
    return y


def constants(x: Tensor) -> Tensor:
    t = torch.tensor([1.0, 2.0, float(x.dim())], dtype=x.dtype)
    return x.pow(3) * t + torch.as_tensor([0.5, float(x.dim()), 2.0]) + torch.tensor(2.0)


def forked(x: Tensor) -> Tensor:
    future = torch.jit.fork(cube, x)
    return x.exp() * torch.jit.wait(future)


def written(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[0] = x[1] * x[1]
    y[1:].add_(x[:2] ** 3)
    return y.mul_(x)


def picked(x):
    return x[PLACES] ** 3 * torch.cat([x[:1], x[1:]])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
        self.register_buffer("places", PLACES)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[self.places] * self.cubed(x)

    @torch.jit.export
    def cubed(self, x: Tensor) -> Tensor:
        return x * x * x


@torch.jit.interface
class Part(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        pass


class OfAnInterface(nn.Module):
    part: Part

    def __init__(self) -> None:
        super().__init__()
        self.part = torch.jit.script(Net())

    def forward(self, x: Tensor) -> Tensor:
        return self.part.forward(x) * x


def net():
    torch.manual_seed(0)
    return Net()


def of_an_interface():
    torch.manual_seed(0)
    return OfAnInterface()


def frozen(module):
    return torch.jit.freeze(torch.jit.script(module.eval()))


# Each makes a scripted program and the equivalent Python function.
PROGRAMS = {
    "scripted": lambda: (torch.jit.script(cube), cube),
    "control flow": lambda: (torch.jit.script(branches), branches),
    "constants": lambda: (torch.jit.script(constants), constants),
    "forked": lambda: (torch.jit.script(forked), lambda x: x.exp() * x**3),
    "written": lambda: (torch.jit.script(written), written),
    "traced": lambda: (torch.jit.trace(picked, (X,)), picked),
    "scripted module": lambda: (torch.jit.script(net()), net()),
    "scripted method": lambda: (torch.jit.script(net()).cubed, cube),
    "traced module": lambda: (torch.jit.trace(net(), (X,)), net()),
    "frozen module": lambda: (frozen(net()), net()),
    "interface": lambda: (torch.jit.script(of_an_interface()), of_an_interface()),
}


def scalar(f):
    return lambda x: (f(x).cos() * 2).sum()


def squared_gradient(f):
    return lambda x: tl.grad(scalar(f))(x).square().sum()


NESTS = {
    "grad": lambda f: tl.grad(scalar(f))(X),
    "jvp": lambda f: tl.jvp(f, (X,), (X.cos(),)),
    "vmap": lambda f: tl.vmap(f)(torch.stack([X, X.sin()])),
    "functionalize": lambda f: tl.functionalize(f)(X),
    "jacrev": lambda f: tl.jacrev(f)(X),
    "jacfwd": lambda f: tl.jacfwd(f)(X),
    "hessian": lambda f: tl.hessian(f)(X),
    "linearize": lambda f: tl.linearize(f, X)[1](X.cos()),
    "grad(grad)": lambda f: tl.grad(squared_gradient(f))(X),
    "jvp(grad)": lambda f: tl.jvp(tl.grad(scalar(f)), (X,), (X.sin(),)),
    "grad(jvp)": lambda f: tl.grad(lambda x: tl.jvp(f, (x,), (x.sin(),))[1].sum())(X),
    "jvp(jvp)": lambda f: tl.jvp(lambda x: tl.jvp(f, (x,), (x.sin(),))[1], (X,), (X.cos(),)),
    "vmap(grad)": lambda f: tl.vmap(tl.grad(scalar(f)))(torch.stack([X, X.sin()])),
    "grad(vmap)": lambda f: tl.grad(scalar(tl.vmap(f)))(torch.stack([X, X.sin()])),
    "functionalize(grad)": lambda f: tl.functionalize(tl.grad(scalar(f)))(X),
    "grad(functionalize)": lambda f: tl.grad(scalar(tl.functionalize(f)))(X),
    "jacrev(jacrev)": lambda f: tl.jacrev(tl.jacrev(f))(X),
    "autograd of vmap(grad)": lambda f: torch.autograd.functional.jacobian(
        lambda x: tl.vmap(tl.grad(scalar(f)))(torch.stack([x, x.sin()])), X
    ),
}


@pytest.fixture(params=PROGRAMS)
def program(request):
    return PROGRAMS[request.param]()


@pytest.mark.sweep
@pytest.mark.parametrize("nest", NESTS)
def test_script_equals_its_function_from_the_first_call_on(program, nest):
    scripted, function = program
    expected = NESTS[nest](function)
    for _ in range(5):
        torch.testing.assert_close(NESTS[nest](scripted), expected)


def test_script_equals_its_function_after_torch_optimises_it(program):
    """From the second call on, torch differentiates parts of the graph itself."""
    scripted, function = program
    for _ in range(3):
        x = X.clone().requires_grad_()
        torch.autograd.grad(scripted(x).sum(), x)
    for nest in NESTS.values():
        torch.testing.assert_close(nest(scripted), nest(function))
    x = X.clone().requires_grad_()
    (found,) = torch.autograd.grad(scripted(x).sum(), x)
    torch.testing.assert_close(found, tl.grad(lambda x: function(x).sum())(X))


@pytest.mark.parametrize("optimized", [True, False])
def test_optimized_execution_does_not_matter(optimized):
    scripted = torch.jit.CompilationUnit("def f(x):\n  return x * x * x\n").f
    with torch.jit.optimized_execution(optimized):
        for _ in range(4):
            torch.testing.assert_close(tl.hessian(scripted)(X), tl.hessian(cube)(X))


def test_calls_outside_of_layers_are_torchs():
    scripted = torch.jit.CompilationUnit("def f(x):\n  return x * x * x\n").f
    tl.grad(lambda x: scripted(x).sum())(X)
    for _ in range(3):
        x = X.clone().requires_grad_()
        y = scripted(x)
    assert "DifferentiableGraph" in y.grad_fn.name()


def test_keywords_and_defaults_are_bound_as_torch_binds_them():
    unit = torch.jit.CompilationUnit("def f(x, y, n: int = 2):\n  return x * y ** n\n")
    found = tl.grad(lambda x: unit.f(y=x, x=x).sum())(X)
    torch.testing.assert_close(found, 3 * X**2)
    with pytest.raises(RuntimeError, match="missing value for argument 'y'"):
        tl.grad(lambda x: unit.f(x).sum())(X)


def test_compiled_function_calls_a_script(program):
    scripted, function = program
    compiled = tl.compile(tl.grad(scalar(scripted)), backend="replay")
    for _ in range(3):
        torch.testing.assert_close(compiled(X), tl.grad(scalar(function))(X))


class Cubed(nn.Module):
    @torch.jit.export
    def cube(self, x: Tensor) -> Tensor:
        return x * x * x


@pytest.mark.parametrize("kind", ["ScriptFunction", "ScriptMethod"])
def test_patched_script_calls_still_work(kind, monkeypatch):
    """torch.testing patches them at import."""
    owner = getattr(torch._C, kind)
    before, calls = owner.__call__, []

    def patched(*args, **kwargs):
        calls.append(kind)
        return before(*args, **kwargs)

    monkeypatch.setattr(owner, "__call__", patched)
    scripted = torch.jit.script(cube)
    if kind == "ScriptMethod":
        module = torch.jit.script(Cubed())
        scripted = module.cube
    for _ in range(3):
        torch.testing.assert_close(tl.hessian(lambda x: scripted(x).sum())(X), (6 * X).diag())
    assert len(calls) == 3


def test_the_error_for_a_compiled_script_that_branches_on_a_tensor():
    def chosen(x, k):
        if torch.all(k < 0):
            return x.tanh()
        return x

    script = torch.jit.script(chosen)
    with pytest.raises(tl.errors.DataDependentError, match="asks for the value of a tensor"):
        tl.compile(script, backend="replay", fullgraph=True)(torch.ones(3), torch.ones(3))
    compiled = tl.compile(script, backend="replay")
    for k in (1.0, -1.0, 1.0):
        torch.testing.assert_close(compiled(X, k * X.abs()), chosen(X, k * X.abs()))
