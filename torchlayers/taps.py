"""Taps: values inside a function by name, and derivatives by them.

A function names its intermediate values itself, by :func:`tap`, or its modules do, by their paths.
Whoever wants some of them listens while the function runs (`_Listener`), and each value that has a
name goes by all who listen, the innermost first. A listener is at the level of its transform; a
value is of an inner level where there are transforms between (csrc/layers/inner_levels.h).
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules

from torchlayers import _C, torch_compile, tree
from torchlayers.errors import TapError, TransformError
from torchlayers.stack import current_stack, transformed
from torchlayers.tapped_loops import Loop, Steps, thread

__all__ = ["intermediates", "tap"]

_torch: Any = torch  # what it keeps for its own use has no types
_level_on_top: Any = _torch._C._functorch.maybe_current_level

Names: TypeAlias = str | Iterable[str]


def tap(value: Any, name: str) -> Any:
    """Names a value inside a function, for transforms to look at and to differentiate by.

    Args:
        value: a tensor or a pytree of tensors.
        name: what the transforms that use it call it.
    Returns:
        The value. Gradients by the tap are those by what is returned: go on with that.
    Raises:
        TapError: a transform that listens for the name meets it twice, other than in the steps of
            one loop.
    Example:
        >>> def loss(x):
        ...     hidden = tap(x.sin(), "hidden")
        ...     return (hidden**2).sum()
        >>> x = torch.zeros(2)
        >>> intermediates(loss)(x)
        {'hidden': tensor([0., 0.])}
        >>> torchlayers.grad(loss, taps="hidden")(x + 1)
        (tensor([0.9093, 0.9093]), {'hidden': tensor([1.6829, 1.6829])})

    Source: Flax's Module.sow and Module.perturb.
    """
    return _passed_by(value, name) if thread.listeners else value


def intermediates(func: Callable[..., Any], names: Names | None = None) -> Callable[..., Any]:
    """The values that a function names by :func:`tap`, or its modules by their paths.

    Args:
        func: any function of tensors, transforms inside and around included.
        names: which values: names of taps, and paths of modules, as ``named_modules()`` of the
            outermost module that is called has them, for what the module returns. None for all
            taps.
    Returns:
        A function with func's arguments that returns a dict of the values by name, in the order in
        which func met them. Where func uses vmap, a value has the dimension of its samples in
        front; where it uses scan, map or fori_loop, that of the steps.
    Raises:
        TapError: there is no value of that name, or two.
    Example:
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh())
        >>> intermediates(net, ["0"])(torch.ones(5, 3))["0"].shape
        torch.Size([5, 2])
        >>> torchlayers.vmap(intermediates(net, "0"))(torch.ones(5, 3))["0"].shape
        torch.Size([5, 2])

    Source: Flax's capture_intermediates.
    """

    def wrapper(*args: Any, **kwargs: Any) -> dict[str, Any]:
        _refuse_tracing("intermediates")
        listener = _Values("intermediates", names)
        with listener.listening():
            func(*args, **kwargs)
        return listener.wholes()

    return transformed(func, wrapper)


def with_taps(
    api: str,
    transform: Callable[[Any], Any],
    func: Callable[..., Any],
    names: Names,
    has_more: bool,
) -> Callable[..., Any]:
    """transform(func), one of grad's kind, with the gradients by taps beside the others.

    has_more: it returns something else behind the gradients.
    """

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        _refuse_tracing(api)
        listener = _Gradients(api, names)

        def tapped(*args: Any, **kwargs: Any) -> Any:
            with listener.listening():
                return func(*args, **kwargs)

        result = transform(tapped)(*args, **kwargs)
        if not has_more:
            return result, listener.gradients()
        gradients, more = result
        return (gradients, listener.gradients()), more

    return transformed(func, wrapper)


def with_values(
    api: str, func: Callable[..., Any], has_aux: bool, names: Names
) -> Callable[..., Any]:
    """The function that returns ``(output, {name: value})``."""

    def tapped(*args: Any) -> Any:
        _refuse_tracing(api)
        listener = _Values(api, names)
        with listener.listening():
            result = func(*args)
        if not has_aux:
            return result, listener.wholes()
        output, aux = tree.split_aux(api, result)
        return (output, listener.wholes()), aux

    return transformed(func, tapped)


def with_tangents(
    api: str, func: Callable[..., Any], tangents: Mapping[str, Any]
) -> Callable[..., Any]:
    """The function, for a jvp: taps have these tangents besides those that they have anyway."""

    def tapped(*args: Any) -> Any:
        _refuse_tracing(api)
        with _Tangents(api, tangents).listening():
            return func(*args)

    return transformed(func, tapped)


def _refuse_tracing(api: str) -> None:
    if torch_compile.is_tracing():
        raise TransformError(
            f"torchlayers: {api}: taps are not known to torch.compile. Take them outside the "
            "compiled function, or return the values."
        )


class _Thread(threading.local):
    def __init__(self) -> None:
        self.calls: list[_Call] = []  # of modules that run, where anyone listens to them


_thread = _Thread()


def _passed_by(value: Any, name: str) -> Any:
    for listener in reversed(thread.listeners):
        value = listener.meet(name, value, is_module=False)
    return value


def _as_names(api: str, names: Names) -> tuple[str, ...]:
    chosen = (names,) if isinstance(names, str) else tuple(names)
    for name in chosen:
        if not isinstance(name, str):
            raise TapError(
                f"torchlayers: {api}: taps are called by strings, got {type(name).__name__}."
            )
        if chosen.count(name) > 1:
            raise TapError(f"torchlayers: {api}: {name!r} is among the taps twice.")
    return chosen


def _pass() -> tuple[int, int]:
    """The reverse pass that runs on this thread, whoever runs it."""
    return _C.number_of_pass(), _torch._C._current_graph_task_id()


class _Listener:
    """Takes the values of some names while a function runs."""

    def __init__(self, api: str, names: Names | None) -> None:
        self.api = api
        self.names = None if names is None else _as_names(api, names)
        self.met: dict[str, None] = {}
        self.paths: dict[str, None] = {}
        self.level = 0
        self.pass_ = (0, 0)
        self.calls = self.loops = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        self.level, self.pass_ = _level_on_top() or 0, _pass()
        self.calls, self.loops = len(_thread.calls), len(thread.loops)
        self.start()
        outer = thread.listeners
        thread.listeners = (*outer, self)
        try:
            with _calls_of_modules() if self.names else nullcontext():
                yield
        finally:
            thread.listeners = outer
            del _thread.calls[self.calls :]
        for name in self.names or ():
            if name not in self.taken:
                self._refuse_unknown(name)

    def start(self) -> None:
        """What is to be done at the level of the transform."""

    def wants(self, name: str, is_module: bool) -> bool:
        return not is_module if self.names is None else name in self.names

    def meet(self, name: str, value: Any, is_module: bool) -> Any:
        if _pass() != self.pass_:  # a function that is recomputed, or that a hook calls
            return value
        (self.paths if is_module else self.met).setdefault(name)
        if not self.wants(name, is_module):
            return value
        loops = thread.loops[self.loops :]
        if name in self.taken and not (loops and isinstance(self.taken[name], Steps)):
            self._refuse_another(name)
        leaves, spec = tree.flatten(value)
        if not any(isinstance(leaf, Tensor) for leaf in leaves):
            raise TapError(
                f"torchlayers: {self.api}: what is called {name!r} holds no tensor, it is a "
                f"{type(value).__name__}."
            )
        results, taken = [], []
        for i, leaf in enumerate(leaves):
            is_tensor = isinstance(leaf, Tensor)
            result, found = self.take(name, i, leaf, loops) if is_tensor else (leaf, leaf)
            results.append(result)
            taken.append(found)
        value = tree.unflatten(taken, spec)
        if not loops:
            self.taken[name] = value
        elif not self.taken.setdefault(name, Steps(loops, self.level)).put(loops, value):
            self._refuse_another(name)
        return tree.unflatten(results, spec)

    def whole(self, name: str, value: Any) -> Any:
        """The value, of all steps if it is of a loop's."""
        if not isinstance(value, Steps):
            return value
        if (whole := value.whole()) is None:
            raise TapError(
                f"torchlayers: {self.api}: some steps of {value.loops[0].api} have no value called "
                f"{name!r}, and others have. Name one in each step."
            )
        return whole

    @property
    def taken(self) -> dict[str, Any]:
        raise NotImplementedError

    def take(self, name: str, i: int, tensor: Tensor, loops: Sequence[Loop]) -> tuple[Tensor, Any]:
        """What the function goes on with, and what is kept of leaf i of a value."""
        raise NotImplementedError

    def _refuse_another(self, name: str) -> NoReturn:
        raise TapError(
            f"torchlayers: {self.api}: two values are called {name!r}. Give each a name of its "
            "own; a loop whose steps each have one is to be a scan, map or fori_loop, which put "
            "them together."
        )

    def _refuse_unknown(self, name: str) -> None:
        taps = [*self.met]
        paths = [path for path in self.paths if path]
        there = ", ".join(map(repr, taps)) or "no tap"
        if paths:
            shown = ", ".join(map(repr, paths[:20])) + (", …" if len(paths) > 20 else "")
            there += f", and modules {shown}"
        raise TapError(f"torchlayers: {self.api}: no value is called {name!r}: there is {there}.")


class _Values(_Listener):
    """Keeps the values."""

    def __init__(self, api: str, names: Names | None) -> None:
        super().__init__(api, names)
        self.values: dict[str, Any] = {}

    def wholes(self) -> dict[str, Any]:
        return {name: self.whole(name, value) for name, value in self.values.items()}

    @property
    def taken(self) -> dict[str, Any]:
        return self.values

    def take(self, name: str, i: int, tensor: Tensor, loops: Sequence[Loop]) -> tuple[Tensor, Any]:
        return tensor, _C.seen_from(tensor, self.level)


class _Gradients(_Listener):
    """Keeps the gradients that a pass of its level has brought to the values."""

    def __init__(self, api: str, names: Names) -> None:
        super().__init__(api, names)
        self.found: dict[str, Any] = {}

    @property
    def taken(self) -> dict[str, Any]:
        return self.found

    def gradients(self) -> dict[str, Any]:
        for value in self.found.values():
            if isinstance(value, Steps):
                value.found = {place: _completed(each) for place, each in value.found.items()}
        found = {
            name: value if isinstance(value, Steps) else _completed(value)
            for name, value in self.found.items()
        }
        return {name: self.whole(name, value) for name, value in found.items()}

    def take(self, name: str, i: int, tensor: Tensor, loops: Sequence[Loop]) -> tuple[Tensor, Any]:
        dims = _C.held_at(tensor, self.level)[1]
        if -1 not in dims:
            tensor = tensor.view_as(tensor)
        elif all(layer.kind == "vmap" for layer in current_stack()[self.level :]):
            tensor = _C.sample_of(_C.seen_from(tensor, self.level), self.level)
        else:
            raise TapError(
                f"torchlayers: {self.api}: {name!r} is the same for all samples of a vmap, and "
                "inside another derivative: there is no gradient for each sample."
            )
        return tensor, _Gradient(tensor, self.level)


class _Tangents(_Listener):
    """Gives values of a jvp's level tangents."""

    def __init__(self, api: str, tangents: Mapping[str, Any]) -> None:
        if not isinstance(tangents, Mapping):
            raise TapError(
                f"torchlayers: {api}: taps must be a dict of tangents by name, got "
                f"{type(tangents).__name__}."
            )
        super().__init__(api, [*tangents])
        self.tangents = tangents
        self.duals: dict[str, list[Any]] = {}
        self.given: dict[str, Any] = {}

    def start(self) -> None:
        self.duals = {
            name: [_dual(leaf) if isinstance(leaf, Tensor) else leaf for leaf in tree.leaves(value)]
            for name, value in self.tangents.items()
        }

    @property
    def taken(self) -> dict[str, Any]:
        return self.given

    def take(self, name: str, i: int, tensor: Tensor, loops: Sequence[Loop]) -> tuple[Tensor, Any]:
        duals = self.duals[name]
        dual = duals[i] if i < len(duals) else None
        for loop in loops:
            dual = self._of_step(name, dual, loop)
        like = _C.seen_from(tensor.detach(), self.level)
        if not isinstance(dual, Tensor) or (dual.shape, dual.dtype) != (like.shape, like.dtype):
            got = (
                f"one of shape {tuple(dual.shape)} and {dual.dtype}"
                if isinstance(dual, Tensor)
                else type(dual).__name__
            )
            raise TapError(
                f"torchlayers: {self.api}: the tangent at {name!r} must be a tensor like the "
                f"value, of shape {tuple(like.shape)} and {like.dtype}, got {got}."
            )
        return tensor + _C.sample_of(dual, self.level), None

    def _of_step(self, name: str, dual: Any, loop: Loop) -> Any:
        dim = loop.dim(self.level)
        if not isinstance(dual, Tensor):
            return dual
        if dual.dim() <= dim or dual.size(dim) != loop.length:
            raise TapError(
                f"torchlayers: {self.api}: the tangent at {name!r} must have dimension {dim} for "
                f"{loop.api}, of size {loop.length}, got shape {tuple(dual.shape)}."
            )
        return _C.at_level(self.level, lambda: loop.step_of(dual, self.level))


def _completed(gradients: Any) -> Any:
    leaves, spec = tree.flatten(gradients)
    return tree.unflatten(
        [leaf.complete() if isinstance(leaf, _Gradient) else leaf for leaf in leaves], spec
    )


def _dual(tangent: Tensor) -> Tensor:
    """What is added to a value to give it a tangent, and leaves it as it is, a zero's sign too."""
    nothing = torch.full_like(tangent, -0.0)
    dual: Tensor = _torch._make_dual(nothing, tangent, level=0)
    return dual


class _Gradient:
    """The gradient by one tensor, when the pass has been there; until then zeros like it."""

    def __init__(self, tensor: Tensor, level: int) -> None:
        held, self.dims = _C.held_at(tensor, level)
        self.level = level
        self.shape, self.dtype, self.device = held.shape, held.dtype, held.device
        self.sum: Tensor | None = None
        if held.requires_grad:
            held.register_hook(self.add)  # type: ignore[no-untyped-call]

    def add(self, g: Tensor | None) -> None:
        if g is None:
            return
        g = _C.unwrap(g, self.level)
        self.sum = g if self.sum is None else self.sum + g

    def complete(self) -> Tensor:
        gradient = self.sum
        if gradient is None:
            gradient = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        for place, dim in enumerate(self.dims):
            gradient = gradient.movedim(place + dim, place)
        return gradient


class _Call:
    """A module's call."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._paths: dict[int, list[str]] | None = None

    def paths_of(self, module: nn.Module) -> list[str]:
        """Where the module is in this one: in several places, if it is shared."""
        if self._paths is None:
            self._paths = {}
            for path, each in self.module.named_modules(remove_duplicate=False):
                self._paths.setdefault(id(each), []).append(path)
        return self._paths.get(id(module), [])


class _Watching:
    """How many listen to modules, of all threads: torch's hooks for all modules are theirs."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.handles: tuple[Any, ...] = ()


_watching = _Watching()


@contextmanager
def _calls_of_modules() -> Iterator[None]:
    """While it lasts, what modules return goes by those who listen."""
    with _watching.lock:
        _watching.count += 1
        if _watching.count == 1:
            _watching.handles = (
                modules.register_module_forward_pre_hook(_begin),
                modules.register_module_forward_hook(_end, always_call=True),
            )
    try:
        yield
    finally:
        with _watching.lock:
            _watching.count -= 1
            if _watching.count == 0:
                for handle in _watching.handles:
                    handle.remove()


def _begin(module: nn.Module, args: Any) -> None:
    if thread.listeners:
        _thread.calls.append(_Call(module))


def _end(module: nn.Module, args: Any, output: Any) -> Any:
    calls = _thread.calls
    if not calls or calls[-1].module is not module:
        return None
    for listener in reversed(thread.listeners):
        if output is not None and listener.calls < len(calls):
            for path in calls[listener.calls].paths_of(module):
                output = listener.meet(path, output, is_module=True)
    calls.pop()
    return output
