"""custom_function_call, a higher-order operator: user-registered rules, and direct calls."""

import functools

import pytest
import torch
import torch.func
from torch._C import DispatchKey
from torch._C._functorch import TransformType, _unwrap_for_grad, _wrap_for_grad
from torch._functorch.autograd_function import custom_function_call as torch_funcs
from torch._functorch.autograd_function import custom_function_call_grad
from torch._functorch.vmap import unwrap_batched
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import torchlayers as tl
from tests.autograd_function.corpus import Batchable, Square
from tests.autograd_function.test_corpus import old_style
from tests.support.calls import ambient
from torchlayers.autograd_function import CustomFunctionHigherOrderOperator, custom_function_call
from torchlayers.errors import CallError

X = torch.tensor([0.5, 1.0, 2.0])
ONES = torch.ones_like(X)


class Scale(Batchable):
    @staticmethod
    def forward(x, scale=3.0):
        return x * scale

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.scale = inputs[1]

    @staticmethod
    def backward(ctx, g):
        return g * ctx.scale, None

    @staticmethod
    def jvp(ctx, t, _):
        return t * ctx.scale


TRANSFORMS = {
    "plain": lambda f: f(X),
    "grad": lambda f: tl.grad(lambda x: f(x).sum())(X),
    "jvp": lambda f: tl.jvp(f, (X,), (ONES,)),
    "vmap": lambda f: tl.vmap(f)(X),
    "functionalize": lambda f: tl.functionalize(f)(X),
    "vmap(grad)": lambda f: tl.vmap(tl.grad(f))(X),
    "torch.func's grad": lambda f: torch.func.grad(lambda x: f(x).sum())(X),
    "torch.func's vmap in grad": lambda f: tl.grad(lambda x: torch.func.vmap(f)(x).sum())(X),
}
under_each = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)


@under_each
def test_called_directly_with_keywords_and_defaults(transform):
    for function, options in ((Scale, {}), (Scale, {"scale": 2.0})):
        scale = options.get("scale", 3.0)
        result = transform(lambda x, f=function, o=options: custom_function_call(f, x, **o))
        torch.testing.assert_close(result, transform(lambda x, scale=scale: x * scale))


def test_called_directly_with_an_old_style_function():
    function = old_style(Square)
    for name, transform in TRANSFORMS.items():
        if "torch.func" not in name:
            torch.testing.assert_close(
                transform(lambda x: custom_function_call(function, x)), transform(torch.square)
            )


class ByKeyword(Batchable):
    @staticmethod
    def forward(x, *, scale=2.0):
        return x * scale


MISTAKES = {
    "missing": (
        lambda: custom_function_call(Scale),
        "Scale.forward does not take these operands: missing a required argument: 'x'.",
    ),
    "unknown keyword": (
        lambda: custom_function_call(Scale, X, by=2.0),
        "Scale.forward does not take these operands: got an unexpected keyword argument 'by'.",
    ),
    "old-style": (
        lambda: custom_function_call(old_style(Scale), X, scale=2.0),
        "Scale.forward takes ctx, so its operands must be positional. Pass scale by position.",
    ),
    "by keyword alone": (
        lambda: custom_function_call(ByKeyword, X),
        "ByKeyword.forward takes scale as keyword-only arguments, but the operands of an "
        "autograd.Function are positional. Remove the * from its signature.",
    ),
    "by keyword alone, applied": (
        lambda: tl.vmap(ByKeyword.apply)(X),
        "ByKeyword.forward takes scale as keyword-only arguments, but the operands of an "
        "autograd.Function are positional. Remove the * from its signature.",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_operands_that_forward_does_not_take(name):
    call, message = MISTAKES[name]
    before = ambient()
    with pytest.raises(CallError) as caught:
        call()
    assert str(caught.value) == f"torchlayers: {message}"
    assert ambient() == before


def test_operand_of_an_ended_layer_is_its_value():
    dead = []
    tl.grad(lambda x: dead.append(x) or x.sum())(X)
    (dead,) = dead
    for result in (custom_function_call(Square, dead), Square.apply(dead)):
        assert not result.requires_grad
        torch.testing.assert_close(result, X**2)
    gradient = tl.grad(lambda x: (custom_function_call(Square, dead) * x).sum())(X)
    torch.testing.assert_close(gradient, X**2)


# Function.apply, which leaves out torch's binding and dispatch where they change nothing


def wrapped(forward):
    """The forward as decorators leave it: its own signature takes anything."""

    @functools.wraps(forward)
    def call(*args, **kwargs):
        return forward(*args, **kwargs)

    return staticmethod(call)


class Decorated(Scale):
    forward = wrapped(Scale.forward)


class Scales(Batchable):
    @staticmethod
    def forward(x, *scales):
        return x * sum(scales)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.scale, ctx.count = sum(inputs[1:]), len(inputs)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.scale, *(None,) * (ctx.count - 1)

    @staticmethod
    def jvp(ctx, t, *_):
        return t * ctx.scale


class InDict(Scale):
    @staticmethod
    def forward(x, options):
        return x * options["scale"]

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.scale = inputs[1]["scale"]


APPLIED = {
    "by position": (lambda x: Scale.apply(x, 2.0), 2.0),
    "a default": (lambda x: Scale.apply(x), 3.0),
    "by keyword": (lambda x: Scale.apply(x, scale=4.0), 4.0),
    "all by keyword": (lambda x: Scale.apply(scale=4.0, x=x), 4.0),
    "a decorated forward": (lambda x: Decorated.apply(x), 3.0),
    "any number": (lambda x: Scales.apply(x, 1.0, 4.0), 5.0),
    "in a dict": (lambda x: InDict.apply(x, {"scale": 2.0}), 2.0),
    "a parameter": (lambda x: x * Scale.apply(torch.nn.Parameter(X[2]), 1.0), 2.0),
}


@under_each
@pytest.mark.parametrize("name", APPLIED)
def test_apply_binds_its_operands(transform, name):
    apply, scale = APPLIED[name]
    torch.testing.assert_close(transform(apply), transform(lambda x: x * scale))


class Calls(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("transform", [tl.grad, torch.func.grad], ids=["ours", "torch.func's"])
def test_a_function_mode_sees_the_call_of_a_function(transform):
    def f(x):
        with Calls() as calls:
            result = Square.apply(x).sum()
        assert "custom_function_call" in calls.names
        return result

    torch.testing.assert_close(transform(f)(X), 2 * X)


class Subclass(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") == "custom_function_call":
            return args[1].as_subclass(torch.Tensor) * 10
        return super().__torch_function__(func, types, args, kwargs)


@pytest.mark.parametrize("transform", [tl.grad, torch.func.grad], ids=["ours", "torch.func's"])
def test_a_subclass_handles_the_call_of_a_function(transform):
    result = transform(lambda x: (Square.apply(X.as_subclass(Subclass)) * x).sum())(X)
    torch.testing.assert_close(result, 10 * X)


class First(Batchable):
    """Returns its first operand."""

    @staticmethod
    def forward(x, y):
        return x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g, 2 * g


@pytest.mark.parametrize("transform", [tl, torch.func], ids=["ours", "torch.func's"])
def test_a_function_that_returns_an_operand(transform):
    f = transform.grad(lambda x, y: First.apply(x, y).sum(), argnums=(0, 1))
    for gradients in (f(X, ONES), transform.vmap(f)(X, ONES)):
        torch.testing.assert_close(gradients[0], ONES)


# Rules for layers


@pytest.fixture
def unregistered(monkeypatch):
    """Removes the rules that a test registers."""
    op = custom_function_call
    for table in ("functorch_table", "py_kernels", "python_key_table", "_dispatch_cache"):
        monkeypatch.setattr(op, table, dict(getattr(op, table)))
    for field in ("non_fallthrough_keys", "_has_rules_below"):
        monkeypatch.setattr(op, field, getattr(op, field))


KINDS = {
    TransformType.Grad: TRANSFORMS["grad"],
    TransformType.Jvp: TRANSFORMS["jvp"],
    TransformType.Vmap: TRANSFORMS["vmap"],
    TransformType.Functionalize: TRANSFORMS["functionalize"],
}
for_each_kind = pytest.mark.parametrize(
    ("kind", "transform"), KINDS.items(), ids=lambda value: getattr(value, "name", "")
)


def test_every_kind_of_layer_has_a_rule_on_the_operator():
    assert isinstance(custom_function_call, torch._ops.HigherOrderOperator)
    assert set(custom_function_call.functorch_table) == set(KINDS)


@for_each_kind
@pytest.mark.usefixtures("unregistered")
def test_a_users_rule_runs_instead_of_ours(kind, transform):
    ours, seen = custom_function_call.functorch_table[kind], []

    @custom_function_call.py_impl(kind)
    def rule(interpreter, function, *operands):
        seen.append((interpreter.key(), interpreter.level(), function, len(operands)))
        return ours(interpreter, function, *operands)

    expected = transform(torch.square)
    torch.testing.assert_close(transform(Square.apply), expected)
    torch.testing.assert_close(transform(lambda x: custom_function_call(Square, x)), expected)
    assert seen == [(kind, 1, Square, 1)] * 2


@for_each_kind
@pytest.mark.usefixtures("unregistered")
def test_rule_assigned_to_the_table_runs(kind, transform):
    custom_function_call.functorch_table[kind] = lambda interpreter, function, x: x * 5
    torch.testing.assert_close(transform(Square.apply), transform(lambda x: x * 5))


@for_each_kind
@pytest.mark.usefixtures("unregistered")
def test_a_second_rule_for_a_layer_is_refused(kind, transform):
    custom_function_call.py_impl(kind)(lambda interpreter, function, x: x)
    with pytest.raises(AssertionError, match="already registered"):
        custom_function_call.py_impl(kind)(lambda interpreter, function, x: x)


@for_each_kind
def test_the_operators_own_dispatch_reaches_the_rules(kind, transform):
    """torch dispatches by torch.func's key, with torch.func's interpreters."""
    key = DispatchKey.FuncTorchDynamicLayerFrontMode
    result = transform(lambda x: custom_function_call.dispatch(key, Square, x))
    torch.testing.assert_close(result, transform(torch.square))


# Rules as written for torch.func: they lower, and call the operator again.


def vmap_rule(interpreter, function, *operands):
    values, dims = unwrap_batched(operands, interpreter.level())
    with interpreter.lower():
        assert (interpreter.batch_size(), interpreter.randomness()) == (3, "error")
        result = custom_function_call(function, *values)
    return torch._C._functorch._add_batch_dim(result, dims[0], interpreter.level())


def torch_funcs_rule(interpreter, function, *operands):
    return custom_function_call_grad(interpreter, function, *operands)


def grad_rule(interpreter, function, x):
    """Runs the Function below the layer, and torch.square on the layer, for its derivative."""
    with interpreter.lower():
        value = custom_function_call(function, _unwrap_for_grad(x, interpreter.level()))
    wrapped = tree_map_only(torch.Tensor, lambda y: _wrap_for_grad(y, interpreter.level()), value)
    recorded = torch.square(x) - torch.square(x).detach()
    return tree_map_only(torch.Tensor, lambda y: y.detach() + recorded, wrapped)


@pytest.mark.usefixtures("unregistered")
@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (TransformType.Vmap, vmap_rule),
        (TransformType.Grad, torch_funcs_rule),
        (TransformType.Jvp, torch_funcs_rule),
        (TransformType.Grad, grad_rule),
        (TransformType.Jvp, grad_rule),
    ],
)
def test_rule_that_lowers_and_calls_again(kind, rule):
    custom_function_call.py_impl(kind)(rule)
    before = ambient()
    transform = KINDS[kind]
    torch.testing.assert_close(transform(Square.apply), transform(torch.square))
    nested = tl.grad(lambda x: tl.vmap(tl.grad(Square.apply))(x).sum())(X)
    torch.testing.assert_close(nested, torch.full_like(X, 2.0))
    assert ambient() == before


@pytest.mark.usefixtures("unregistered")
def test_users_rule_runs_on_torch_funcs_layers_for_direct_calls():
    custom_function_call.py_impl(TransformType.Vmap)(lambda interpreter, function, x: x * 5)
    torch.testing.assert_close(torch.func.vmap(lambda x: custom_function_call(Square, x))(X), 5 * X)
    torch.testing.assert_close(torch.func.vmap(Square.apply)(X), X**2)
    assert TransformType.Vmap in torch_funcs.functorch_table


# Rules below the last layer


class Doubling(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Other(Doubling):
    pass


@under_each
@pytest.mark.usefixtures("unregistered")
def test_a_rule_for_a_mode_runs_below_the_layers(transform, request):
    if "torch.func" in request.node.name:
        return  # its operator has no rules of ours

    @custom_function_call.py_impl(Doubling)
    def rule(mode, function, *operands):
        assert isinstance(mode, Doubling)
        outputs = custom_function_call(function, *operands)
        return tree_map_only(torch.Tensor, lambda y: y * 2, outputs)

    def call(x):
        return custom_function_call(Scale, x)

    expected = transform(lambda x: x * 3)
    torch.testing.assert_close(transform(call), expected)
    with Other():
        torch.testing.assert_close(transform(call), expected)
    seen = []

    def outputs(x):
        seen.append(call(x))
        return seen[-1]

    with Doubling():
        transform(outputs)
    value = seen[0]
    while torch._C._functorch.is_functorch_wrapped_tensor(value):
        value = torch._C._functorch.get_unwrapped(value)
    if torch._is_functional_tensor(value):
        value = torch._from_functional_tensor(value)
    torch.testing.assert_close(value.detach(), X * 6)


@pytest.mark.usefixtures("unregistered")
@pytest.mark.parametrize(
    "key", [DispatchKey.CPU, DispatchKey.CompositeExplicitAutograd, DispatchKey.AutogradCPU]
)
def test_a_rule_for_a_dispatch_key_runs_below_the_layers(key):
    custom_function_call.py_impl(key)(lambda function, x: x * 7)
    torch.testing.assert_close(custom_function_call(Square, X), X * 7)
    torch.testing.assert_close(tl.vjp(Square.apply, X)[0], X * 7)
    assert custom_function_call(Square, X.to_sparse()).is_sparse


@pytest.mark.usefixtures("unregistered")
def test_a_rule_for_autograd_runs_where_something_requires_grad():
    custom_function_call.py_autograd_impl(lambda function, x: x * 7)
    x = X.clone().requires_grad_()
    torch.testing.assert_close(custom_function_call(Square, x), x * 7)
    torch.testing.assert_close(custom_function_call(Square, X), X**2)


def test_new_operator_has_separate_rules():
    """The class may be instantiated again, as torch's; the new operator has no rules."""
    assert CustomFunctionHigherOrderOperator().functorch_table == {}
    torch._ops._higher_order_ops["torchlayers_custom_function_call"] = custom_function_call
