"""Registration of user-defined jvp and vjp rules for operators, written in Python."""

from collections.abc import Callable
from typing import Any, TypeVar

from torchlayers import _C
from torchlayers.core.errors import RuleError
from torchlayers.core.operator_rules import custom_rule_checks
from torchlayers.core.operator_schema import schema_of
from torchlayers.core.torch_private import CustomOpDef, OpOverload, OpOverloadPacket

__all__ = ["jvp_rule", "vjp_rule"]

Rule = TypeVar("Rule", bound=Callable[..., Any])


def jvp_rule(
    op: OpOverload | OpOverloadPacket | Any, *, replace: bool = False
) -> Callable[[Rule], Rule]:
    """Decorator that registers the forward-mode rule of an operator.

    jvp, jacfwd, hessian, hvp and linearize use the rule from then on, on every thread;
    torch.func does not. The rule calls ordinary operators, so it nests with every other
    transform.

    Args:
        op: an operator, such as ``torch.ops.mylib.scale`` or ``torch.ops.aten.sin.default``,
            or the result of ``torch.library.custom_op``. If it has several overloads, name one.
        replace: replace an existing rule.
    Returns:
        A decorator of ``rule(primals, tangents, **kwargs)``. primals has the operator's
        positional arguments, tensors or not, and tangents has one entry for each: its tangent,
        or None if it has none (a list of these for a list of tensors). kwargs are the operator's
        keyword-only arguments. The rule returns ``(results, tangents)``: the operator's result
        (a tuple if there are several) and its tangent, of the same shape, or None for zeros.
    Raises:
        RuleError: op is not an operator, has several overloads, writes to its arguments, takes or
            returns a dict or nested list of tensors, or has a rule already.
    Example:
        >>> import torch, torchlayers
        >>> @torch.library.custom_op("mylib::cube", mutates_args=())
        ... def cube(x: torch.Tensor) -> torch.Tensor:
        ...     return x**3
        >>> @torchlayers.extend.jvp_rule(cube)
        ... def cube_jvp(primals, tangents):
        ...     (x,), (t,) = primals, tangents
        ...     return cube(x), 3 * x**2 * t
        >>> torchlayers.jvp(cube, (torch.tensor(2.0),), (torch.tensor(1.0),))
        (tensor(8.), tensor(12.))

    Source: the convention of jax.custom_jvp, with None for zeros.
    """
    return _decorator("jvp_rule", op, replace)


def vjp_rule(
    op: OpOverload | OpOverloadPacket | Any, *, replace: bool = False
) -> Callable[[Rule], Rule]:
    """Decorator that registers the reverse-mode rule of an operator.

    grad, vjp, jacrev and the transforms built on them use the rule from then on, on every thread,
    instead of autograd's formula; plain autograd and torch.func do not. The rule calls ordinary
    operators, so it nests with every other transform.

    Args:
        op: an operator without side effects that returns no views, as for :func:`jvp_rule`.
        replace: replace an existing rule.
    Returns:
        A decorator of ``rule(cotangents, primals, results, **kwargs)``. primals has the
        operator's positional arguments, tensors or not, and results its results. The cotangents
        have the structure of the results: a tensor, or a tuple if there are several (a list for a
        list of tensors), with None for zeros. kwargs are the operator's keyword-only arguments.
        The rule returns a tuple with one entry for each of primals: its gradient, of the same
        shape, or None for zeros (a list of these for a list of tensors). For an operator with one
        argument the tuple may be omitted.
    Raises:
        RuleError: op is not an operator, has several overloads, writes to its arguments or returns
            views of them, takes or returns a dict or nested list of tensors, or has a rule
            already.
    Example:
        >>> import torch, torchlayers
        >>> @torch.library.custom_op("mylib::quartic", mutates_args=())
        ... def quartic(x: torch.Tensor) -> torch.Tensor:
        ...     return x**4
        >>> @torchlayers.extend.vjp_rule(quartic)
        ... def quartic_vjp(g, primals, result):
        ...     return 4 * primals[0] ** 3 * g
        >>> torchlayers.grad(quartic)(torch.tensor(2.0))
        tensor(32.)

    Source: the convention of jax.custom_vjp, with None for zeros.
    """
    return _decorator("vjp_rule", op, replace)


def _decorator(api: str, op: Any, replace: bool) -> Callable[[Rule], Rule]:
    overload = overload_of(api, op)
    schema = schema_of(overload)
    if schema.is_mutable:
        follows = (
            ": an in-place operator uses the rule of its out-of-place form"
            if api == "jvp_rule"
            else ""
        )
        raise RuleError(
            f"torchlayers: {api}: {overload} writes to its arguments. Register the rule for the "
            f"out-of-place operator{follows}."
        )
    if api == "vjp_rule" and any(argument.alias_info for argument in schema.arguments):
        raise RuleError(
            f"torchlayers: vjp_rule: {overload} returns a view of an argument, which only autograd "
            "can track. Register the rule for an operator that returns a new tensor."
        )
    name = schema.name, schema.overload_name
    if hidden := _C.hidden_tensors(*name):
        raise RuleError(
            f"torchlayers: {api}: {overload} may hold tensors where PyTorch's dispatcher does not "
            f"look: {hidden}. Register the rule for an operator with Tensor and Tensor[] arguments "
            "and results, and call that one from this one, registered as CompositeImplicitAutograd."
        )
    has_rule = _C.has_jvp_rule if api == "jvp_rule" else _C.has_vjp_rule
    if has_rule(*name) and not replace:
        raise RuleError(
            f"torchlayers: {api}: {overload} already has a rule. Pass replace=True to replace it."
        )

    def register(rule: Rule) -> Rule:
        if api == "jvp_rule":
            call = custom_rule_checks.jvp_call(schema.name, len(schema.returns), rule)
            _C.register_jvp_rule(*name, call)
        else:
            positional = sum(not argument.kwarg_only for argument in schema.arguments)
            _C.register_vjp_rule(*name, custom_rule_checks.vjp_call(schema.name, positional, rule))
        return rule

    return register


def overload_of(api: str, op: Any) -> OpOverload:
    """The one overload of an operator; RuleError, in the words of a public function, for others."""
    if isinstance(op, CustomOpDef):
        return op._opoverload
    if isinstance(op, OpOverload):
        return op
    if isinstance(op, OpOverloadPacket):
        overloads: list[str] = op.overloads()  # type: ignore[no-untyped-call]
        if len(overloads) == 1:
            only: OpOverload = getattr(op, overloads[0])
            return only
        raise RuleError(
            f"torchlayers: {api}: {op} has several overloads: {', '.join(overloads)}. Name one: "
            f"torch.ops.{op!s}.{overloads[0]}."
        )
    raise RuleError(
        f"torchlayers: {api} takes an operator (torch.ops.mylib.name, or the result of "
        f"torch.library.custom_op), got {type(op).__name__}."
    )
