"""Arguments and pytrees: functions to flatten, pick and match them, shared by all transforms."""

import collections
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from torchlayers.core.errors import ArgnumsError, OutputError
from torchlayers.core.private_names import lookup
from torchlayers.core.torch_private import torch_pytree

if TYPE_CHECKING:
    from torch.utils._pytree import TreeSpec, tree_flatten, tree_flatten_with_path
else:
    # There are no transforms without it.
    tree_flatten = lookup("torch.utils._pytree.tree_flatten")
    TreeSpec = type(tree_flatten(())[1])

    def tree_flatten_with_path(tree: Any) -> Any:
        return torch_pytree.tree_flatten_with_path(tree)


__all__ = [
    "TreeSpec",
    "as_tuple",
    "broadcast",
    "check_outputs",
    "describe",
    "flatten",
    "keystr",
    "leaf_name",
    "leaves",
    "map_all_tensors",
    "map_leaves",
    "map_outputs",
    "map_tensors",
    "name_of",
    "paths",
    "pick",
    "positions",
    "split_aux",
    "tree_flatten",
    "tree_flatten_with_path",
    "unflatten",
]

_CONTAINERS = (tuple, list, dict)

# The common trees, a tensor and a short tuple of tensors, skip the pytree machinery.
_LEAF = tree_flatten(0)[1]
_TUPLES = tuple(tree_flatten((0,) * size)[1] for size in range(9))


def flatten(tree: Any) -> tuple[list[Any], TreeSpec]:
    """Returns the leaves of a pytree in order, and its structure.

    Example:
        >>> flatten({"a": 1, "b": (2, None)})[0]
        [1, 2, None]

    Source: tree_flatten of torch.utils._pytree.
    """
    if isinstance(tree, Tensor):
        return [tree], _LEAF
    if _is_flat(tree):
        return list(tree), _TUPLES[len(tree)]
    return tree_flatten(tree)


def leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """The leaves of a pytree, in order.

    Args:
        is_leaf: says of a container whether it is a leaf as a whole.
    """
    return tree_flatten(tree, is_leaf)[0] if is_leaf else flatten(tree)[0]


def map_leaves(
    func: Callable[..., Any],
    tree: Any,
    *rest: Any,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """A pytree of func's results for each leaf, and what the rest have in its place."""
    flat, spec = tree_flatten(tree, is_leaf)
    return spec.unflatten(map(func, flat, *(spec.flatten_up_to(other) for other in rest)))


def keystr(path: Sequence[Any]) -> str:
    """A path of keys in a pytree as it is written in Python: ``['a'][0]``."""
    return "".join(map(str, path))


class _Star:
    def __repr__(self) -> str:
        return "*"


def describe(spec: TreeSpec) -> str:
    """The structure as a pytree with a star for each leaf: ``(*, [*])``."""
    return repr(unflatten([_Star()] * spec.num_leaves, spec))


def unflatten(leaves: Sequence[Any], spec: TreeSpec) -> Any:
    """Returns the pytree of the given leaves and structure: the inverse of :func:`flatten`.

    Example:
        >>> leaves, spec = flatten({"a": 1, "b": (2, 3)})
        >>> unflatten([10 * leaf for leaf in leaves], spec)
        {'a': 10, 'b': (20, 30)}

    Source: tree_unflatten of torch.utils._pytree, with the leaves first.
    """
    if len(leaves) == spec.num_leaves:
        if spec is _LEAF:
            return leaves[0]
        if spec is _TUPLES[min(len(leaves), len(_TUPLES) - 1)]:
            return tuple(leaves)
    return spec.unflatten(leaves)


def _is_flat(tree: Any) -> bool:
    if type(tree) is not tuple or len(tree) >= len(_TUPLES):
        return False
    return all([isinstance(leaf, Tensor) for leaf in tree])


class TensorLeaves:
    """The tensors of a pytree; all other leaves are constants.

    Attributes:
        tensors: in the order of the leaves.
        constants: by their positions among the leaves.
    """

    def __init__(self, tree: Any) -> None:
        leaves, self.spec = flatten(tree)
        self._is_tensor = [isinstance(leaf, Tensor) for leaf in leaves]
        self.tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self.constants = {i: leaf for i, leaf in enumerate(leaves) if not self._is_tensor[i]}

    def put_in(self, tensors: Iterable[Tensor]) -> Any:
        """Returns the pytree with other tensors."""
        remaining = iter(tensors)
        leaves = [
            next(remaining) if is_tensor else self.constants[i]
            for i, is_tensor in enumerate(self._is_tensor)
        ]
        return unflatten(leaves, self.spec)


def map_tensors(change: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Returns the tree with change applied to every tensor; other leaves stay as they are.

    Example:
        >>> map_tensors(torch.neg, (torch.tensor(1.0), "name"))
        (tensor(-1.), 'name')
    """
    if isinstance(tree, Tensor):
        return change(tree)
    if _is_flat(tree):
        return tuple([change(leaf) for leaf in tree])
    return map_leaves(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def map_all_tensors(change: Callable[[Tensor], Tensor], values: Sequence[Any]) -> list[Any]:
    """Returns the values with change applied to every tensor, including those in containers."""
    return [
        change(value)
        if isinstance(value, Tensor)
        else map_tensors(change, value)
        if isinstance(value, _CONTAINERS)
        else value
        for value in values
    ]


def map_outputs(
    change: Callable[..., Tensor],
    outputs: Any,
    values: Sequence[Any],
    operands: Sequence[Any],
    *rest: Sequence[Any],
) -> Any:
    """Applies change to the outputs of a Function that was called with values for operands.

    An output that is one of the values is replaced by the corresponding operand. Each sequence in
    rest has an entry for each leaf of the outputs, which is passed to change as well.
    """
    pairs = list(zip(_flat(values), _flat(operands), strict=True))

    def changed(leaf: Any, *others: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        for value, operand in reversed(pairs):
            if value is leaf:
                return operand
        return change(leaf, *others)

    if isinstance(outputs, Tensor):
        return changed(outputs, *(only for (only,) in rest))
    flat, spec = flatten(outputs)
    return unflatten([*map(changed, flat, *rest)], spec)


def _flat(values: Sequence[Any]) -> Sequence[Any]:
    """Returns the leaves, without the pytree machinery if there are no containers."""
    return leaves(values) if any(isinstance(value, _CONTAINERS) for value in values) else values


def broadcast(prefix: Any, spec: TreeSpec) -> list[Any] | None:
    """Broadcasts a prefix tree to one value per leaf of spec; returns None if it doesn't match.

    vmap's in_dims and out_dims are such prefixes: ``0`` for all leaves, or a tree of ints.

    Example:
        >>> broadcast((0, None), flatten(({"a": 1, "b": 2}, 3))[1])
        [0, 0, None]
    """
    if prefix is None or type(prefix) is int:
        return [prefix] * spec.num_leaves
    is_flat = type(prefix) is tuple and spec is _TUPLES[min(len(prefix), len(_TUPLES) - 1)]
    if is_flat and all(entry is None or type(entry) is int for entry in prefix):
        return list(prefix)
    values, prefix_spec = tree_flatten(prefix)
    return _broadcast_leaves(prefix_spec, values, spec)


def _broadcast_leaves(prefix: TreeSpec, values: list[Any], spec: TreeSpec) -> list[Any] | None:
    """broadcast from the prefix's spec and leaves; does not construct the user's containers."""
    if prefix.is_leaf():
        return values * spec.num_leaves
    ends = itertools.accumulate(child.num_leaves for child in prefix.children())
    parts = [
        (child, values[end - child.num_leaves : end])
        for child, end in zip(prefix.children(), ends, strict=True)
    ]
    keys, prefix_keys = _keys(spec), _keys(prefix)
    if keys is not None and prefix_keys is not None:  # in any order
        if set(keys) != set(prefix_keys):
            return None
        parts = [parts[prefix_keys.index(key)] for key in keys]
    elif (prefix.type, prefix.num_children) != (spec.type, spec.num_children) or (
        prefix.context != spec.context and spec.type is not collections.deque
    ):
        return None
    spread = []
    for (child, its_values), subspec in zip(parts, spec.children(), strict=True):
        below = _broadcast_leaves(child, its_values, subspec)
        if below is None:
            return None
        spread += below
    return spread


def _keys(spec: TreeSpec) -> list[Any] | None:
    """Returns the keys of a standard-library dict in the order of its leaves; else None."""
    if spec.type in (dict, collections.OrderedDict):
        return list(spec.context)
    return list(spec.context[1]) if spec.type is collections.defaultdict else None


def positions(api: str, argnums: int | tuple[int, ...], count: int) -> tuple[int, ...]:
    """Returns argnums as a tuple of positions among `count` arguments, all non-negative.

    Raises:
        ArgnumsError: an entry is out of range, repeated, or not an int; or there is none.
    """
    if not isinstance(argnums, (int, tuple)):
        raise ArgnumsError(
            f"torchlayers: {api}: argnums must be an int or a tuple of ints, got "
            f"{type(argnums).__name__}."
        )
    chosen = (argnums,) if isinstance(argnums, int) else argnums
    if not chosen:
        raise ArgnumsError(f"torchlayers: {api}: argnums must name at least one argument, got ().")
    places = []
    for argnum in chosen:
        if not isinstance(argnum, int):
            raise ArgnumsError(
                f"torchlayers: {api}: argnums must be made of ints, got {argnum!r} in {argnums}."
            )
        if not -count <= argnum < count:
            arguments = f"{count or 'no'} positional argument{'' if count == 1 else 's'}"
            raise ArgnumsError(
                f"torchlayers: {api}: argnums={argnums} names argument {argnum}, but the call has "
                f"{arguments} (keyword arguments can't be chosen)."
            )
        places.append(argnum % count)
    if len(set(places)) != len(places):
        raise ArgnumsError(
            f"torchlayers: {api}: argnums={argnums} must be unique, but names an argument twice."
        )
    return tuple(places)


def as_tuple(outputs: Any) -> tuple[Any, ...]:
    """Returns a Function method's outputs as a tuple; a single output may come without one."""
    return outputs if isinstance(outputs, tuple) else (outputs,)


def pick(args: Sequence[Any], places: Sequence[int]) -> tuple[Any, ...]:
    return tuple(args[i] for i in places)


def split_aux(api: str, output: Any) -> tuple[Any, Any]:
    """Returns the output and aux of a function with has_aux=True.

    Raises:
        OutputError: it did not return a pair.
    """
    if not (isinstance(output, tuple) and len(output) == 2):
        got = f"a tuple of {len(output)}" if isinstance(output, tuple) else type(output).__name__
        raise OutputError(
            f"torchlayers: {api}: the function's result should be a tuple: (output, aux) if "
            f"has_aux is True, but it is {got}."
        )
    return output


def check_outputs(api: str, outputs: list[Any]) -> None:
    """Raises OutputError unless there are outputs, and all of them are tensors."""
    if not outputs:
        raise OutputError(f"torchlayers: {api}: the function returned nothing to differentiate.")
    for output in outputs:
        if not isinstance(output, Tensor):
            raise OutputError(
                f"torchlayers: {api}: the function must return only tensors, got "
                f"{type(output).__name__}. With has_aux=True it may return (tensors, anything)."
            )


def leaf_name(
    kind: str, args: Sequence[Any], index: int, places: Sequence[int] | None = None
) -> str:
    """Returns a leaf's name for error messages: ``argument 0``, ``argument 1, ['b'][0]``.

    index is that of the leaf among the leaves of args, or of args[place] for each of places.
    """
    for place in range(len(args)) if places is None else places:
        count = len(leaves(args[place]))
        if index < count:
            break
        index -= count
    try:
        path = keystr(tree_flatten_with_path(args[place])[0][index][0])
    except ValueError:  # a class that was registered without flatten_with_keys
        path = f"leaf {index}"
    return f"{kind} {place}, {path}" if path else f"{kind} {place}"


def paths(tree: Any) -> list[str]:
    """Returns the path of each leaf, as it is written in Python, in the order of :func:`leaves`.

    They are empty if the tree has a class that was registered without names for its children.

    Example:
        >>> paths({"layers": [1, 2], "scale": 3})
        ["['layers'][0]", "['layers'][1]", "['scale']"]

    Source: jax.tree.leaves_with_path, jax.tree_util.keystr.
    """
    return [path for path, _ in leaves_by_path(tree)]


def leaves_by_path(value: Any) -> list[tuple[str, Any]]:
    """Returns the leaves, each with its path: ``['b'][0]``."""
    try:
        return [(keystr(path), leaf) for path, leaf in tree_flatten_with_path(value)[0]]
    except ValueError:  # a class that was registered without flatten_with_keys
        return [("", leaf) for leaf in leaves(value)]


def name_of(func: Callable[..., Any]) -> str:
    """Returns a function's name for error messages; partials and modules have no ``__name__``."""
    if hasattr(func, "__name__"):
        return str(func.__name__)
    if isinstance(func, functools.partial):
        return f"functools.partial({name_of(func.func)}, ...)"
    described_by: object = type(func).__repr__
    if described_by is object.__repr__:  # it contains an address, which differs between ranks
        return type(func).__qualname__
    return repr(func)
