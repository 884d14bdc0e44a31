"""custom_jvp and custom_vjp: functions with derivatives of their own, written as in JAX.

A call is an autograd.Function, whose operands are the tensors among the arguments. What the
Function's methods have to know besides is in a `_Call`.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchlayers import _C
from torchlayers.core import pytree, tracing_state
from torchlayers.core.errors import CallError, FunctionError, MissingDerivativeError
from torchlayers.transforms.grad import vjp
from torchlayers.transforms.jvp import jvp

_torch: Any = torch  # its private names have no type stubs
_functorch: Any = _torch._C._functorch


class _Custom:
    """A function, which of its arguments are not differentiated, and how it is called."""

    api = ""

    def __init__(
        self, fun: Callable[..., Any] | None = None, nondiff_argnums: int | tuple[int, ...] = ()
    ) -> None:
        self.nondiff_argnums = nondiff_argnums
        if fun is not None:
            self._take(fun)

    def _take(self, fun: Callable[..., Any]) -> None:
        if not callable(fun):
            raise CallError(
                f"torchlayers: {self.api} decorates a function, but was given one of type "
                f"{type(fun).__name__}. Pass nondiff_argnums by its name."
            )
        self.fun = fun
        functools.update_wrapper(self, fun)

    @property
    def _name(self) -> str:
        return pytree.name_of(self.fun)

    @tracing_state.skipped_while_tracing
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if "fun" not in vars(self):  # @custom_jvp(nondiff_argnums=...)
            self._take(*args, **kwargs)
            return self
        return self._call(_bound(self.api, self.fun, args, kwargs))

    def _call(self, args: tuple[Any, ...]) -> Any:
        raise NotImplementedError

    def _arguments(self, args: tuple[Any, ...]) -> "_Arguments":
        places: Sequence[int] = ()
        if self.nondiff_argnums != ():
            places = sorted(pytree.positions(self.api, self.nondiff_argnums, len(args)))
        return _Arguments(args, places)


class _Arguments:
    """A call's arguments, without the tensors that are differentiated.

    Attributes:
        nondiff: the arguments that are not differentiated.
    """

    def __init__(self, args: tuple[Any, ...], places: Sequence[int]) -> None:
        self.nondiff = pytree.pick(args, places)
        self._nondiff_by_place = dict(zip(places, self.nondiff, strict=True))
        self._count = len(args)
        others = tuple(arg for i, arg in enumerate(args) if i not in places)
        self._others = pytree.TensorLeaves(others)

    def take_tensors(self) -> list[Tensor]:
        """Returns the tensors, and forgets them."""
        tensors, self._others.tensors = self._others.tensors, []
        return tensors

    def differentiated(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """The differentiated arguments, with these tensors."""
        return self._others.put_in(tensors)  # type: ignore[no-any-return]

    def all(self, tensors: Sequence[Tensor]) -> list[Any]:
        rest = iter(self.differentiated(tensors))
        known = self._nondiff_by_place
        return [known[i] if i in known else next(rest) for i in range(self._count)]


def _bound(
    api: str, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Returns all arguments by position, with defaults."""
    try:
        signature = inspect.signature(fun)
    except (TypeError, ValueError):  # a builtin without a signature
        if kwargs:
            raise CallError(
                f"torchlayers: {api}: {pytree.name_of(fun)} has no signature, so its arguments "
                "must be positional."
            ) from None
        return args
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise CallError(
            f"torchlayers: {api}: {pytree.name_of(fun)} does not take these arguments: {error}."
        ) from error
    bound.apply_defaults()
    if bound.kwargs:
        raise CallError(
            f"torchlayers: {api}: {pytree.name_of(fun)} takes {', '.join(bound.kwargs)} by keyword "
            "only, but the rules of a derivative take all arguments by position."
        )
    return bound.args


class custom_jvp(_Custom):
    """A function with its own derivative, given as a rule for tangents.

    Reverse mode transposes the rule, so it serves every transform, to any order. The rule is made
    of differentiable operators, and is linear in the tangents.

    Args:
        fun: takes and returns tensors and pytrees of tensors. Tensors that it captures are
            constants to the rule: pass them as arguments, if they are to be differentiated.
        nondiff_argnums: positions of arguments that are not differentiated, such as functions. The
            rule takes them first.
    Raises:
        MissingDerivativeError: there is no rule when the function is called.
        FunctionError: the rule returned something other than a pair, or tangents that do not match.
        CallError: the arguments do not match the function's signature, or are by keyword only.
        ArgnumsError: nondiff_argnums does not match the arguments.
    Example:
        >>> @torchlayers.custom_jvp
        ... def log1pexp(x):
        ...     return torch.log(1 + torch.exp(x))
        >>> @log1pexp.defjvp
        ... def log1pexp_jvp(primals, tangents):
        ...     (x,), (t,) = primals, tangents
        ...     return log1pexp(x), t * torch.sigmoid(x)
        >>> torchlayers.grad(log1pexp)(torch.tensor(100.0))
        tensor(1.)

    Source: jax.custom_jvp.
    """

    api = "custom_jvp"
    _rule: Callable[..., Any] | None = None

    def defjvp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Sets the rule, and returns it.

        Args:
            rule: ``rule(*nondiff_args, primals, tangents)`` returns ``(output, output_tangent)``.
                primals and tangents are tuples with one entry for each differentiated argument.
                The tangent of an integer tensor is a tensor of zeros.
        Example:
            >>> @torchlayers.custom_jvp(nondiff_argnums=0)
            ... def apply(f, x):
            ...     return f(x)
            >>> @apply.defjvp
            ... def apply_jvp(f, primals, tangents):
            ...     return f(*primals), 10 * tangents[0]
            >>> torchlayers.grad(apply, argnums=1)(torch.sin, torch.tensor(0.0))
            tensor(10.)
        """
        self._rule = rule
        return rule

    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        """Sets a rule for each argument; the output's tangent is the sum of theirs.

        Args:
            jvps: ``jvp(tangent, output, *primals)`` returns the output's tangent; None for an
                argument on which the output does not depend.
        Raises:
            CallError: there are nondiff_argnums: use defjvp.
        Example:
            >>> @torchlayers.custom_jvp
            ... def product(x, y):
            ...     return x * y
            >>> product.defjvps(lambda t, out, x, y: t * y, lambda t, out, x, y: x * t)
            >>> torchlayers.grad(product, (0, 1))(torch.tensor(2.0), torch.tensor(3.0))
            (tensor(3.), tensor(2.))
        """
        if self.nondiff_argnums != ():
            raise CallError(
                "torchlayers: custom_jvp: defjvps does not work with nondiff_argnums. Use defjvp."
            )

        def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
            if len(jvps) != len(primals):
                raise FunctionError(
                    f"torchlayers: custom_jvp: defjvps of {self._name} has {len(jvps)} rules for "
                    f"{len(primals)} arguments. Give one for each, or None."
                )
            output = self(*primals)
            total = pytree.map_tensors(torch.zeros_like, output)
            for each, tangent in zip(jvps, tangents, strict=True):
                if each is not None:
                    spec = pytree.flatten(output)[1]
                    more = pytree.leaves(each(tangent, output, *primals))
                    both = zip(pytree.leaves(total), more, strict=True)
                    total = pytree.unflatten([a + b for a, b in both], spec)
            return output, total

        self._rule = rule

    def _call(self, args: tuple[Any, ...]) -> Any:
        if self._rule is None:
            raise MissingDerivativeError(
                f"torchlayers: custom_jvp: {self._name} has no rule. Define one with "
                f"@{self._name}.defjvp."
            )
        given = self._arguments(args)
        tensors = given.take_tensors()
        call = _JvpCall(self, given)
        results = _apply_jvp(call, *tensors)
        return call.output.put_in(results)


class _Output:
    """The structure of what a function returned, without its tensors."""

    def __init__(self, tree: Any) -> None:
        leaves = pytree.TensorLeaves(tree)
        self.tensors = tuple(leaves.tensors)
        self.is_float = [is_float(x) for x in self.tensors]
        leaves.tensors = []
        self._leaves = leaves

    def forget(self) -> tuple[Tensor, ...]:
        tensors, self.tensors = self.tensors, ()
        return tensors

    def put_in(self, tensors: Sequence[Tensor]) -> Any:
        return self._leaves.put_in(tensors)


def is_float(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


class _JvpCall:
    output: _Output

    def __init__(self, custom: custom_jvp, given: _Arguments) -> None:
        self._custom = custom
        self._given = given

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        self.output = _Output(self._custom.fun(*self._given.all(tensors)))
        return self.output.forget()

    def push(self, tensors: Sequence[Tensor], tangents: Sequence[Tensor]) -> list[Tensor]:
        """Returns the tangents of all outputs."""
        name, rule = self._custom._name, self._custom._rule
        assert rule is not None
        given = self._given
        pair = rule(*given.nondiff, given.differentiated(tensors), given.differentiated(tangents))
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2):
            raise FunctionError(
                f"torchlayers: custom_jvp: the rule of {name} must return (output, "
                f"output_tangent), got {type(pair).__name__}."
            )
        outputs, found = (pytree.leaves(each) for each in pair)
        if len(found) != len(outputs):
            raise FunctionError(
                f"torchlayers: custom_jvp: the rule of {name} returned {len(found)} tangents for "
                f"{len(outputs)} outputs. Return them in the same structure."
            )
        pairs = [(x, t) for x, t in zip(outputs, found, strict=True) if isinstance(x, Tensor)]
        for x, t in pairs:
            if is_float(x) and not (isinstance(t, Tensor) and t.shape == x.shape):
                got = f"shape {tuple(t.shape)}" if isinstance(t, Tensor) else type(t).__name__
                raise FunctionError(
                    f"torchlayers: custom_jvp: the rule of {name} returned a tangent of {got} for "
                    f"an output of shape {tuple(x.shape)}."
                )
        return [t for _, t in pairs]


class _JvpFunction(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(call: _JvpCall, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(_not_input(x, tensors) for x in call.run(tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.call, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(x for x in output if not is_float(x)))
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Any) -> Any:
        primals = ctx.saved_tensors
        pushed = ctx.call.push(primals, _or_zeros(tangents, primals))
        return tuple(
            t if each else None for t, each in zip(pushed, ctx.call.output.is_float, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        primals, are_float = ctx.saved_tensors, ctx.call.output.is_float
        zeros = [torch.zeros_like(x) for x in primals]
        places = [i for i, x in enumerate(primals) if is_float(x) and ctx.needs_input_grad[i + 1]]

        def push(*some: Tensor) -> list[Tensor]:
            tangents = [*zeros]
            for i, t in zip(places, some, strict=True):
                tangents[i] = t
            pushed = ctx.call.push(primals, tangents)
            return [
                t
                for t, each, g in zip(pushed, are_float, cotangents, strict=True)
                if each and g is not None
            ]

        gradients: dict[int, Any] = {}
        given = [g for g in cotangents if g is not None]
        if places and given:
            _, pull = vjp(push, *(zeros[i] for i in places))
            gradients = dict(zip(places, pull(given), strict=True))
        return None, *(gradients.get(i) for i in range(len(primals)))


def _not_input(x: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """A Function's output that is an input would not get the rule."""
    return x.clone() if any(x is each for each in inputs) else x


def _or_zeros(derivatives: Sequence[Any], like: Sequence[Tensor]) -> list[Tensor]:
    pairs = zip(derivatives, like, strict=True)
    return [torch.zeros_like(x) if each is None else each for each, x in pairs]


class custom_vjp(_Custom):
    """A function with its own derivative for reverse mode, given as two rules.

    Forward mode raises an error: use :class:`custom_jvp`, which serves both.

    Args:
        fun: takes and returns tensors and pytrees of tensors. Tensors that it captures get no
            gradient: pass them as arguments.
        nondiff_argnums: positions of arguments that are not differentiated, such as functions.
    Raises:
        MissingDerivativeError: there are no rules when the function is called; or forward mode.
        FunctionError: fwd returned something other than a pair, or bwd cotangents that do not match
            the arguments.
        CallError: the arguments do not match the function's signature, or are by keyword only.
        ArgnumsError: nondiff_argnums does not match the arguments.
    Example:
        >>> @torchlayers.custom_vjp
        ... def clipped(x):  # the identity, with a gradient of at most 1
        ...     return x
        >>> clipped.defvjp(lambda x: (x, None), lambda res, g: (g.clamp(-1, 1),))
        >>> torchlayers.grad(lambda x: 5 * clipped(x))(torch.tensor(3.0))
        tensor(1.)

    Source: jax.custom_vjp.
    """

    api = "custom_vjp"
    _fwd: Callable[..., Any] | None = None
    _bwd: Callable[..., Any]

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Sets both rules.

        Args:
            fwd: takes fun's arguments; returns ``(output, residuals)``, residuals any pytree. It is
                called instead of fun where a derivative may be taken, and again for a second
                derivative, which differentiates both rules.
            bwd: ``bwd(*nondiff_args, residuals, cotangents)`` returns a tuple with the cotangent of
                each differentiated argument; None stands for zero. cotangents have the structure of
                the output.
        Example:
            >>> @torchlayers.custom_vjp
            ... def product(x, y):
            ...     return x * y
            >>> def product_fwd(x, y):
            ...     return x * y, (x, y)
            >>> product.defvjp(product_fwd, lambda res, g: (g * res[1], g * res[0]))
            >>> torchlayers.grad(product, (0, 1))(torch.tensor(2.0), torch.tensor(3.0))
            (tensor(3.), tensor(2.))
        """
        self._fwd, self._bwd = fwd, bwd

    def _call(self, args: tuple[Any, ...]) -> Any:
        if self._fwd is None:
            raise MissingDerivativeError(
                f"torchlayers: custom_vjp: {self._name} has no rules. Define them with "
                f"{self._name}.defvjp(fwd, bwd)."
            )
        given = self._arguments(args)
        tensors = given.take_tensors()
        if not may_be_differentiated(tensors):
            return self.fun(*args)
        call = _VjpCall(self, given)
        results = _apply_vjp(call, *tensors)
        return call.output.put_in(results[: len(call.output.is_float)])


def may_be_differentiated(tensors: Sequence[Tensor]) -> bool:
    """Whether a derivative may be taken, at any level, of results computed from these tensors."""
    layers = _C.current_stack()
    if any(layer is None or layer[0] not in ("vmap", "grad") for layer in layers):
        return True
    if forward_ad._current_level >= 0:
        return True
    return torch.is_grad_enabled() and any(map(_requires_grad, tensors))


def _requires_grad(x: Tensor) -> bool:
    """Whether x is tracked at some level."""
    while not x.requires_grad:
        if _functorch.maybe_get_level(x) <= 0:
            return False
        x = _functorch.get_unwrapped(x)
    return True


class _VjpCall:
    """A call of a custom_vjp.

    Attributes:
        output: the structure of the output.
        residuals: that of the residuals; each of their tensors is an operand, an output, or one
            more result of the Function. `sources` says which.
        are_float: which of the Function's results can have derivatives.
        is_below_grad: whether jvps around the call differentiate a grad of it.
    """

    output: _Output
    residuals: _Output
    sources: list[tuple[str, int]]
    are_float: list[bool]

    def __init__(self, custom: custom_vjp, given: _Arguments) -> None:
        self.name = custom._name
        kinds = [layer[0] for layer in _C.current_stack() if layer is not None]
        differentiating = [kind for kind in kinds if kind in ("grad", "jvp")]
        self.is_below_grad = differentiating[-1:] == ["grad"]
        self._custom = custom
        self._given = given

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Runs fwd; returns the tensors of the output, and those of the residuals that are none."""
        output, residuals = self._forward(tensors)
        self.output, self.residuals = _Output(output), _Output(residuals)
        results = [_not_input(x, tensors) for x in self.output.forget()]
        known = {id(x): ("operand", i) for i, x in enumerate(tensors)}
        known |= {id(x): ("result", i) for i, x in enumerate(results)}
        self.sources = []
        for x in self.residuals.forget():
            if id(x) not in known:
                known[id(x)] = "result", len(results)
                results.append(x)
            self.sources.append(known[id(x)])
        self.are_float = [is_float(x) for x in results]
        return tuple(results)

    def results_again(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Runs fwd once more; returns the results that have derivatives."""
        output, residuals = map(pytree.leaves, self._forward(tensors))
        found = [x for x in output if isinstance(x, Tensor)]
        given = [x for x in residuals if isinstance(x, Tensor)]
        for x, (kind, i) in zip(given, self.sources, strict=True):
            if kind == "result" and i == len(found):
                found.append(x)
        return [x for x in found if is_float(x)]

    def _forward(self, tensors: Sequence[Tensor]) -> tuple[Any, Any]:
        assert self._custom._fwd is not None
        pair = self._custom._fwd(*self._given.all(tensors))
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2):
            raise FunctionError(
                f"torchlayers: custom_vjp: fwd of {self._custom._name} must return (output, "
                f"residuals), got {type(pair).__name__}."
            )
        return pair[0], pair[1]

    def pull(
        self, tensors: Sequence[Tensor], results: Sequence[Tensor], cotangents: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """Returns the cotangents of the tensors."""
        if may_be_differentiated(tensors):
            results = _apply_residuals(self, len(results), *results, *tensors)
        places = {"operand": tensors, "result": results}
        residuals = self.residuals.put_in([places[kind][i] for kind, i in self.sources])
        args = self._given.differentiated(tensors)
        found = self._custom._bwd(*self._given.nondiff, residuals, self.output.put_in(cotangents))
        name = f"torchlayers: custom_vjp: bwd of {self._custom._name}"
        if not isinstance(found, (tuple, list)) or len(found) != len(args):
            got = len(found) if isinstance(found, (tuple, list)) else type(found).__name__
            raise FunctionError(
                f"{name} must return a tuple of {len(args)}, one cotangent for each argument, got "
                f"{got}."
            )
        gradients: list[Tensor | None] = []
        for i, (arg, given) in enumerate(zip(args, found, strict=True)):
            leaves = pytree.leaves(arg)
            own = [None] * len(leaves) if given is None else pytree.leaves(given)
            if len(own) != len(leaves):
                raise FunctionError(
                    f"{name} returned {len(own)} cotangents for argument {i}, which has "
                    f"{len(leaves)} leaves. Return them in the same structure."
                )
            for leaf, g in zip(leaves, own, strict=True):
                if isinstance(leaf, Tensor):
                    if isinstance(g, Tensor) and g.shape != leaf.shape:
                        raise FunctionError(
                            f"{name} returned a cotangent of shape {tuple(g.shape)} for argument "
                            f"{i}, of shape {tuple(leaf.shape)}."
                        )
                    gradients.append(g if isinstance(g, Tensor) and is_float(leaf) else None)
        return gradients


class _VjpFunction(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(call: _VjpCall, *tensors: Tensor) -> tuple[Tensor, ...]:
        return call.run(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.call, *tensors = inputs
        ctx.count, ctx.outputs = len(tensors), len(ctx.call.output.is_float)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *(x for i, x in enumerate(output) if i >= ctx.outputs or not is_float(x))
        )
        ctx.save_for_backward(*tensors, *output)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Any) -> Any:
        """Only below a grad, which has applied bwd: differentiates fwd."""
        if not ctx.call.is_below_grad:
            raise MissingDerivativeError(
                f"torchlayers: custom_vjp: {ctx.call.name} has no jvp rule, so it works in reverse "
                "mode only. Use custom_jvp, which works in both, or reverse mode (vjp, jacrev, or "
                "jacrev(jacrev(f)) for hessian(f))."
            )
        pushed = _pushed(ctx.call, ctx.saved_tensors, tangents)
        # The tangents of residuals are taken by _ResidualFunction.
        return tuple(t if i < ctx.outputs else None for i, t in enumerate(pushed))

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        tensors, results = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        given = _or_zeros(cotangents[: ctx.outputs], results[: ctx.outputs])
        return None, *ctx.call.pull(tensors, results, given)


class _ResidualFunction(torch.autograd.Function):
    """Takes a _VjpCall, the number of its results, the results, and the tensors of which they were
    computed; returns the results.

    They are constants of the first derivative, and have been computed. A further derivative is that
    of fwd, which runs once more if one is taken.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(call: _VjpCall, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.view_as(x) for x in tensors[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.call, ctx.results, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(x for x in output if not is_float(x)))
        ctx.save_for_backward(*tensors[ctx.results :])
        ctx.save_for_forward(*tensors[ctx.results :])

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        tensors = ctx.saved_tensors
        places = [i for i, x in enumerate(tensors) if is_float(x)]
        wanted = [i for i, g in enumerate(cotangents) if g is not None]
        order = [i for i, each in enumerate(ctx.call.are_float) if each]

        def again(*some: Tensor) -> list[Tensor]:
            by_place = dict(zip(order, _again(ctx.call, tensors, places, some), strict=True))
            return [by_place[i] for i in wanted]

        _, pull = vjp(again, *(tensors[i] for i in places))
        gradients = dict(zip(places, pull([cotangents[i] for i in wanted]), strict=True))
        return *[None] * (2 + ctx.results), *(gradients.get(i) for i in range(len(tensors)))

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, *tangents: Any) -> Any:
        return tuple(_pushed(ctx.call, ctx.saved_tensors, tangents[ctx.results :]))


def _pushed(
    call: _VjpCall, tensors: Sequence[Tensor], tangents: Sequence[Any]
) -> list[Tensor | None]:
    """Returns the tangents of all results of fwd, None for those that can't have one."""
    places = [i for i, x in enumerate(tensors) if is_float(x) and tangents[i] is not None]
    _, pushed = jvp(
        lambda *some: _again(call, tensors, places, some),
        tuple(tensors[i] for i in places),
        tuple(tangents[i] for i in places),
    )
    rest = iter(pushed)
    return [next(rest) if each else None for each in call.are_float]


def _again(
    call: _VjpCall, tensors: Sequence[Tensor], places: Sequence[int], some: Sequence[Tensor]
) -> list[Tensor]:
    changed = [*tensors]
    for i, x in zip(places, some, strict=True):
        changed[i] = x
    return call.results_again(changed)


_apply_jvp: Any = _JvpFunction.apply
_apply_vjp: Any = _VjpFunction.apply
_apply_residuals: Any = _ResidualFunction.apply
