"""Errors of vmap: batched values and operators, randomness, dimensions and named axes."""

from torchlayers.core.errors.transform_errors import TransformError


class BatchedValueError(TransformError):
    """A function under vmap asked for the Python number of a tensor that differs between samples.

    By ``x.item()``, ``if x > 0``, ``while``, ``int(x)`` and the like.

    Example:
        >>> def absolute(x):
        ...     return x if x > 0 else -x
        >>> torchlayers.vmap(absolute)(torch.ones(3))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        torchlayers.errors.BatchedValueError: torchlayers: vmap (level 1) can't convert a batched
        tensor to one Python number: it has 3 values. ...
        Use torchlayers.cond, torchlayers.while_loop or torch.where instead of if and while; or
        return the value and read it after vmap; or pass fallback='loop' to vmap, which runs one
        sample at a time. In ..., `return x if x > 0 else -x`.
    """


class BatchedOperatorError(TransformError):
    """An operator can't run on a batch.

    It has no batching rule and no other way to be batched, its results would differ in size between
    samples, or the arguments of a sample do not suit it.

    Example:
        >>> torchlayers.vmap(torch.nonzero)(torch.ones(2, 3))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        torchlayers.errors.BatchedOperatorError: torchlayers: vmap (level 1) can't run
        aten::nonzero: the results of different samples would differ in size. Use
        torch.where(mask, x, 0), call it outside vmap, or pass fallback='loop' to vmap, which runs
        one sample at a time. In ...,
        `torchlayers.vmap(torch.nonzero)(torch.ones(2, 3))...`.
    """


class RandomnessError(TransformError):
    """A random operator ran under vmap without a choice of randomness.

    Example:
        >>> torchlayers.vmap(lambda x: x + torch.rand(2))(torch.ones(3))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        torchlayers.errors.RandomnessError: vmap: called random operation while in randomness error
        mode. torchlayers: vmap (level 1) called the random operator aten::rand with
        randomness='error'. Pass randomness='different' to vmap for different numbers in each
        sample, or 'same' for the same numbers in all. In ...,
        `torchlayers.vmap(lambda x: x + torch.rand(2))(torch.ones(3))...`.
    """


class AxisError(TransformError, NameError):
    """No axis with this name is bound, or a collective can't run along it.

    Example:
        >>> torchlayers.vmap(lambda x: torchlayers.distributed.psum(x, "i"))(torch.ones(3))
        Traceback (most recent call last):
        torchlayers.errors.AxisError: torchlayers: psum: no axis named 'i' is bound here. Bound
        axes: none. Name the samples with vmap(..., axis_name='i'), or a mesh's dimension in a
        `with mesh:` block.
    """


class DimensionError(ValueError):
    """vmap's in_dims, out_dims or batch sizes do not match the tensors.

    Example:
        >>> torchlayers.vmap(torch.add)(torch.ones(2), torch.ones(3))
        Traceback (most recent call last):
        torchlayers.errors.DimensionError: torchlayers: vmap(add, in_dims=0): Expected all tensors
        to have the same size in the mapped dimension, but argument 0 has 2 in dim 0 and argument 1
        has 3 in dim 0. Give None in in_dims to an argument that all samples share: in_dims=(None,
        0).
    """


class OutDimError(DimensionError, IndexError):
    """vmap's out_dims contain a dimension that a result does not have.

    Example:
        >>> torchlayers.vmap(torch.sin, out_dims=2)(torch.ones(3))
        Traceback (most recent call last):
        torchlayers.errors.OutDimError: torchlayers: vmap(sin, out_dims=2): out_dim 2 is out of
        range for a result that has 1 dimensions including the batch dimension: it must lie in
        [-1, 0].
    """
