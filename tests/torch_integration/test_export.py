"""torch.export of programs that use our transforms."""

import itertools
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import torchlayers as tl
from tests.support.calls import by_vjp

X = torch.linspace(0.2, 1.2, 6).reshape(3, 2)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def f(x):
    return x.sin() * x


class Own(tl.Layer):
    """A layer that only passes operators on."""


@Own.rule("pointwise")
def _pointwise(layer, op, *args):
    return layer.tensor(layer.send_down(op, args, {}), None)


# Each gives a function that preserves the tensor's shape, so that they nest.
TRANSFORMS = {
    "grad": lambda g: tl.grad(lambda x: g(x).sum()),
    "grad_and_value": lambda g: lambda x: tl.grad_and_value(lambda x: g(x).sum())(x)[0],
    "grad with aux": lambda g: lambda x: tl.grad(lambda x: (g(x).sum(), x), has_aux=True)(x)[0],
    "vjp": by_vjp,
    "jvp": lambda g: lambda x: tl.jvp(g, (x,), (torch.ones_like(x),))[1],
    "vmap": lambda g: tl.vmap(g),
    "hvp": lambda g: lambda x: tl.hvp(lambda x: g(x).sum(), (x,), (torch.ones_like(x),))[0],
    "functionalize": lambda g: tl.functionalize(g),
    "linearize": lambda g: lambda x: tl.linearize(g, x)[1](torch.ones_like(x)),
}
JACOBIANS = {
    "jacrev": lambda g: tl.jacrev(g),
    "jacfwd": lambda g: tl.jacfwd(g),
    "hessian": lambda g: tl.hessian(g),
    "jacrev in chunks": lambda g: tl.jacrev(g, chunk_size=2),
    "vmap in chunks": lambda g: tl.vmap(g, chunk_size=2),
}
IN_PYTHON = {
    "jet": lambda g: lambda x: tl.jet(g, (x,), ([torch.ones_like(x), torch.ones_like(x)],))[1][1],
    "laplacian": lambda g: lambda x: x * tl.laplacian(lambda x: g(x).sum())(x),
    "a layer of one's own": lambda g: Own()(g),
}
ALL = {**TRANSFORMS, **JACOBIANS}
# Dynamo traces these transforms as torch.func's, whose gradients come out as constants (torch
# 2.13).
WITHOUT_GRADIENTS = ["jvp", "vmap", "functionalize", "linearize", "vmap in chunks"]


class Module(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.tensor([0.5, 2.0]))

    def forward(self, x):
        return self.function(x * self.scale)


def exported(function, strict=False, dynamic=False):
    shapes = ({0: torch.export.Dim("rows")},) if dynamic else None
    module = Module(function)
    program = torch.export.export(module, (X,), strict=strict, dynamic_shapes=shapes)
    return program.module(), module


def assert_exports(function, strict=False, dynamic=False):
    program, module = exported(function, strict, dynamic)
    given = torch.linspace(-1, 1, 10).reshape(5, 2) if dynamic else -2 * X
    torch.testing.assert_close(program(given), module(given))
    assert tl.current_stack() == ()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_program_with_a_transform_exports(name, dynamic):
    assert_exports(TRANSFORMS[name](f), dynamic=dynamic)


@pytest.mark.parametrize("name", IN_PYTHON)
def test_layers_in_python(name):
    assert_exports(IN_PYTHON[name](f))


def _apply_by_hand(g, x):
    with Own() as layer:
        return layer.apply(g, layer.tensor(x)).value


class Watch(tl.Layer):
    """A layer that sees every operator."""

    def process(self, op, args, kwargs):
        return super().process(op, args, kwargs)


def _watched(g, x):
    with Watch():
        y = g(x)
    return y + g(x)


@pytest.mark.parametrize("call", [_apply_by_hand, _watched])
def test_layers_entered_by_hand(call):
    assert_exports(lambda x: call(f, x.cos()), dynamic=True)
    assert_exports(tl.vmap(lambda x: call(f, x.cos())))
    assert_exports(lambda x: call(tl.vmap(f), x.cos()))


def test_a_layer_is_left_when_its_block_raises_in_export():
    def raising(x):
        with Watch():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        exported(raising)
    assert tl.current_stack() == ()


def test_forward_mode_has_operators_that_consumers_of_exports_know():
    program = torch.export.export(Module(tl.vmap(tl.hessian(lambda x: f(x).sum()))), (X,))
    called = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not [name for name in called if name.startswith("aten._new")]


FIRST_VMAP = """
import torch
import torchlayers as tl

class Module(torch.nn.Module):
    def forward(self, x):
        return tl.vmap(tl.hessian(lambda x: (x.sin() * x).sum()))(x)

program = torch.export.export(Module(), (torch.ones(3, 2),))
targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
print([str(target) for target in targets if not isinstance(target, torch._ops.OpOverload)])
"""


def test_first_vmap_of_a_process_exports_operators_alone():
    """torch loads its batching rules then."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_VMAP], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# The number of rows decides which operators are called, so it can't be dynamic.
@pytest.mark.parametrize("name", JACOBIANS)
def test_jacobians_and_chunks(name):
    assert_exports(JACOBIANS[name](f))


PAIRS = list(itertools.permutations(["grad", "vjp", "jvp", "vmap"], 2))


@pytest.mark.parametrize(("outer", "inner"), PAIRS)
def test_nests_of_two(outer, inner):
    g = (lambda x: f(x).sum()) if inner == "grad" and outer == "vmap" else f
    assert_exports(TRANSFORMS[outer](TRANSFORMS[inner](g)), dynamic=True)


@pytest.mark.parametrize("name", WITHOUT_GRADIENTS)
def test_strict_export_of_a_transform(name):
    assert_exports(ALL[name](f), strict=True)


class Reads(nn.Module):
    """The transformed function reads a parameter, and so does one nested in it."""

    def __init__(self, call):
        super().__init__()
        self.call = call
        self.w, self.v = nn.Parameter(torch.tensor([0.5, 2.0])), nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.call(lambda a: a * self.w, lambda a: (a * self.v).sin(), x)


READS = {
    "vmap": lambda f, g, x: tl.vmap(f)(x),
    "jvp": lambda f, g, x: tl.jvp(f, (x,), (x,))[1],
    "linearize": lambda f, g, x: tl.linearize(f, x)[1](x),
    "functionalize": lambda f, g, x: tl.functionalize(f)(x),
    "vmap of vmap": lambda f, g, x: tl.vmap(lambda a: f(a) + tl.vmap(f)(a[None])[0])(x),
    "jvp of vmap": lambda f, g, x: tl.jvp(tl.vmap(lambda a: f(g(a))), (x,), (x,))[1],
}


@pytest.mark.sweep
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("call", READS.values(), ids=READS)
def test_strict_export_of_a_function_that_reads_a_parameter(call, frozen):
    """torch.func's transforms fail here: Dynamo copies the parameter inside the layer."""
    module = Reads(call).requires_grad_(not frozen)
    program = torch.export.export(module, (X,), strict=True).module()
    torch.testing.assert_close(program(2 * X), module(2 * X))
    parameters = dict(program.named_parameters())
    assert "w" in parameters
    for name, given in parameters.items():
        own = module.get_parameter(name)
        assert torch.equal(given, own) and given.requires_grad == own.requires_grad


def test_strict_export_rejects_jvp_inside_other_transforms():
    """torch's own jvp ends in an error and does not leave its levels."""
    with pytest.raises(Exception, match=r"jvp inside another transform.* strict=False"):
        exported(tl.vmap(lambda a: tl.jvp(torch.sin, (a,), (a,))[1]), strict=True)
    assert tl.current_stack() == ()


@pytest.mark.parametrize("name", [name for name in ALL if name not in WITHOUT_GRADIENTS])
def test_strict_export_rejects_gradients(name):
    with pytest.raises(Exception, match="strict=False"):
        exported(ALL[name](f), strict=True)


def test_parameters_of_the_module_are_differentiated_by():
    class Trained(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 3)

        def forward(self, x):
            def loss(parameters):
                return tl.functional_call(self.linear, parameters, (x,)).square().sum()

            return tl.grad(loss)(dict(self.linear.named_parameters()))

    module = Trained()
    program = torch.export.export(module, (X,), strict=False).module()
    torch.testing.assert_close(program(X + 1), module(X + 1))


def test_exported_graph_has_the_transformed_operators():
    module, _ = exported(tl.vmap(tl.grad(lambda x: x.sin().sum())))
    names = [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
    assert "aten.cos.default" in names
    assert not any("functorch" in name for name in names)


def test_a_function_that_fails_leaves_nothing_behind():
    def fails(x):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        exported(tl.vmap(tl.grad(fails)))
    assert tl.current_stack() == ()
    assert_exports(TRANSFORMS["grad"](f))


@pytest.mark.parametrize("name", ALL)
def test_make_fx_above_the_dispatcher(name):
    function = ALL[name](f)
    recorded = make_fx(function, pre_dispatch=True)(X)
    torch.testing.assert_close(recorded(2 * X), function(2 * X))
