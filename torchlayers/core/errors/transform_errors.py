"""Errors of transforms in general, with their base class."""


class TransformError(RuntimeError):
    """A function can't be transformed, or a transform was called with invalid arguments.

    Example:
        >>> torchlayers.vmap(torch.sin, randomness="never")
        Traceback (most recent call last):
        torchlayers.errors.TransformError: torchlayers: vmap: randomness must be 'error', 'same',
        'different' or 'keyed', got 'never'.
    """


class NotScalarError(TransformError):
    """grad's function returned something other than a real scalar tensor (no dimensions).

    Example:
        >>> torchlayers.grad(torch.sin)(torch.ones(3))
        Traceback (most recent call last):
        torchlayers.errors.NotScalarError: torchlayers: grad: sin must return a scalar tensor
        (no dimensions), got shape (3,). Sum or average it, or use vjp or jacrev.
    """


class TapError(TransformError):
    """A function has no value, or several, with a name that was passed to a transform.

    Example:
        >>> torchlayers.intermediates(lambda x: torchlayers.tap(x.sin(), "a"), "b")(torch.ones(3))
        Traceback (most recent call last):
        torchlayers.errors.TapError: torchlayers: intermediates: no value is named 'b'; found
        'a'.
    """


class OutputError(TransformError):
    """A transformed function returned a value that the transform does not support.

    Example:
        >>> torchlayers.grad(torch.sum, has_aux=True)(torch.ones(3))
        Traceback (most recent call last):
        torchlayers.errors.OutputError: torchlayers: grad: the function's result should be a
        tuple: (output, aux) if has_aux is True, but it is Tensor.
    """


class ArgnumsError(TransformError):
    """argnums does not match the positional arguments, or names one twice.

    Example:
        >>> torchlayers.grad(torch.sum, argnums=1)(torch.ones(3))
        Traceback (most recent call last):
        torchlayers.errors.ArgnumsError: torchlayers: grad: argnums=1 names argument 1, but the
        call has 1 positional argument (keyword arguments can't be chosen).
    """


class StructureError(TransformError):
    """Two pytrees have to match, and do not.

    Example:
        >>> torchlayers.jvp(torch.sin, (torch.ones(3),), (torch.ones(3), torch.ones(3)))
        Traceback (most recent call last):
        torchlayers.errors.StructureError: torchlayers: jvp: tangents must have the structure of
        the primals: got (*, *) for (*,) (* is a leaf).
    """


class CallError(TransformError, TypeError):
    """A transform, or a function that it returned, was called with arguments it does not accept.

    Example:
        >>> output, vjp_fn = torchlayers.vjp(torch.sin, torch.ones(3))
        >>> vjp_fn(torch.ones(3), torch.ones(3))
        Traceback (most recent call last):
        torchlayers.errors.CallError: torchlayers: vjp: retain_graph must be a bool or None, got
        Tensor. vjp_fn takes one pytree of cotangents: where the function returned a tuple, pass a
        tuple, vjp_fn((a, b)).
    """


class DataDependentError(TransformError):
    """A function that is captured as one graph needs a value that depends on tensor data.

    Example:
        >>> absolute = torchlayers.compile(lambda x: x if x > 0 else -x, fullgraph=True)
        >>> absolute(torch.tensor(1.0))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        torchlayers.errors.DataDependentError: torchlayers: compile: <lambda> asks for the value of
        a tensor (aten._local_scalar_dense.default), but a compiled function is captured before its
        tensors have values. In ...,
        `absolute = torchlayers.compile(lambda x: x if x > 0 else -x, fullgraph=True)`.
        Use torch.where or torch.cond instead of a branch, list an argument that decides the branch
        in static_argnums, or leave that part outside.
    """


class InPlaceError(TransformError):
    """An in-place operator writes to a tensor from outside, which the transform can't follow.

    Example:
        >>> total = torch.zeros(())
        >>> torchlayers.vmap(lambda x: total.add_(x))(torch.ones(3))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        torchlayers.errors.InPlaceError: torchlayers: vmap (level 1) can't write a batched value
        into a tensor from outside the function that is not batched (aten::add_.Tensor): it is
        `total`, of shape (), which <lambda> captured, and has room for one sample, not for 3. Make
        a tensor inside the function (a clone of it, torch.zeros) and write to that, or use the
        out-of-place operator. In ...,
        `torchlayers.vmap(lambda x: total.add_(x))(torch.ones(3))...`.
    """


class EscapedTensorError(TransformError):
    """A tensor from inside a transform was used after the transform had ended, or outside it.

    Example:
        >>> kept = []
        >>> _ = torchlayers.vmap(lambda x: kept.append(x) or x)(torch.ones(3))
        >>> kept[0] + 1  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        torchlayers.errors.EscapedTensorError: torchlayers: a tensor batched by vmap (level 1) was
        used by aten::add.Tensor outside that transform, which has ended or is another thread's.
        Return it from the function instead of keeping it. In ..., `kept[0] + 1...`.
    """


class MemoryBudgetError(TransformError):
    """A function can't be differentiated within a memory budget; the minimum is `least` bytes.

    Example:
        >>> def f(x):
        ...     return x.sin().exp().sum()
        >>> torchlayers.grad(f, memory_budget=100)(torch.ones(100))
        Traceback (most recent call last):
        torchlayers.errors.MemoryBudgetError: torchlayers: grad: memory_budget=100 allows 100 of the
        400 bytes that f would save for its gradient, but at least 400 are needed.
    """

    def __init__(self, message: str, least: int) -> None:
        super().__init__(message)
        self.least = least


class DtypeError(TransformError, ValueError):
    """A dtype is neither floating-point nor complex, or a tangent's does not match its primal's.

    Example:
        >>> torchlayers.grad(torch.sum)(torch.arange(3))
        Traceback (most recent call last):
        torchlayers.errors.DtypeError: torchlayers: grad: can't differentiate with respect to
        argument 0, of dtype torch.int64: only floating-point and complex tensors have gradients.
        Convert it, or leave it out of argnums.
    """


class FunctionError(TransformError):
    """An autograd.Function lacks a method that a transform needs, or one returned an invalid value.

    Example:
        >>> class Double(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(x):
        ...         return 2 * x
        ...
        ...     @staticmethod
        ...     def setup_context(ctx, inputs, output):
        ...         pass
        >>> torchlayers.vmap(Double.apply)(torch.ones(3))
        Traceback (most recent call last):
        torchlayers.errors.FunctionError: torchlayers: vmap does not know how to batch Double. If
        its methods use only torch operators, set Double.generate_vmap_rule = True; otherwise define
        a vmap staticmethod.
    """


class MissingDerivativeError(FunctionError, NotImplementedError):
    """An autograd.Function has no backward, or no jvp, and one was needed.

    Example:
        >>> class Double(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(x):
        ...         return 2 * x
        ...
        ...     @staticmethod
        ...     def setup_context(ctx, inputs, output):
        ...         pass
        >>> torchlayers.grad(Double.apply)(torch.tensor(1.0))
        Traceback (most recent call last):
        torchlayers.errors.MissingDerivativeError: torchlayers: Double has no backward
        staticmethod, which reverse mode needs. Define one, or call it on x.detach() if its
        gradient is not needed.
    """


class NanError(TransformError, FloatingPointError):
    """An operator or a derivative made a nan of numbers inside torchlayers.debug.nans.

    Example:
        >>> def entropy(p):
        ...     return -(p * p.log()).sum()
        >>> with torchlayers.debug.nans():
        ...     entropy(torch.tensor([1.0, 0.0]))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        torchlayers.errors.NanError: torchlayers: debug.nans: aten::mul.Tensor made 1 nan of
        numbers, in a result of shape (2,), at (1,), where its arguments are 0.0, -inf. In ...,
        `return -(p * p.log()).sum()`.
    """


class CheckError(TransformError, AssertionError):
    """A predicate of torchlayers.debug.check is false.

    Example:
        >>> from torchlayers import debug
        >>> def root(x):
        ...     debug.check(x >= 0, "a root of {x}", x=x)
        ...     return x.sqrt()
        >>> torchlayers.vmap(root)(torch.tensor([4.0, -1.0, 9.0]))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        torchlayers.errors.CheckError: torchlayers: debug.check: 1 of 3 samples failed: sample 1: a
        root of -1. In ..., `debug.check(x >= 0, "a root of {x}", x=x)`.
    """


class RecomputationError(TransformError):
    """A checkpointed function behaved differently when it was recomputed.

    Example:
        >>> calls = []
        >>> def fickle(x):
        ...     calls.append(x)
        ...     return x.sin().sum() if len(calls) == 1 else x.sum()
        >>> torchlayers.grad(torchlayers.checkpoint(fickle))(torch.ones(3))
        Traceback (most recent call last):
        torchlayers.errors.RecomputationError: torchlayers: checkpoint: fickle saved 1 tensors for
        its gradient, but 0 when it was recomputed. It must behave the same each time.
    """


class RuleError(TransformError, ValueError):
    """A rule can't be registered for this operator.

    Example:
        >>> torchlayers.extend.jvp_rule(torch.sin)
        Traceback (most recent call last):
        torchlayers.errors.RuleError: torchlayers: jvp_rule takes an operator
        (torch.ops.mylib.name, or the result of torch.library.custom_op), got
        builtin_function_or_method.
    """


class NotTensorError(TransformError, ValueError, TypeError):
    """A differentiated or batched argument, a tangent or a cotangent is not a tensor.

    Example:
        >>> torchlayers.grad(torch.sin)(1.0)
        Traceback (most recent call last):
        torchlayers.errors.NotTensorError: torchlayers: grad: argument 0 must be a tensor to be
        differentiated, got float (1.0). Convert it to a tensor, or leave it out of argnums.
    """


class TorchVersionError(TransformError, ImportError):
    """What was called needs a private name, or an operator, that the installed torch lacks.

    Example:
        >>> from torchlayers.core.private_names import lookup
        >>> lookup("torch._C._gone")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        torchlayers.errors.TorchVersionError: torchlayers: lookup needs torch._C._gone, which torch
        2... does not have. Use torch 2.11 to 2.15.
    """
