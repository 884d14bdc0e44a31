"""functional_call: calls a module with the given tensors, and restores its own afterwards."""

import collections
import copy
import gc
import signal
import threading
import weakref

import pytest
import torch
import torch.func
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import parametrizations, parametrize

import torchlayers as tl

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Affine(nn.Module):
    """A parameter and a buffer on top of a layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.rand(4))
        self.register_buffer("shift", torch.rand(4))
        self.plain = torch.ones(4)

    def forward(self, x, times=1):
        return self.layer(x) * self.scale * times + self.shift * self.plain


def held(module):
    """All its tensors, by name and by identity."""
    named = [*module.named_parameters(remove_duplicate=False)]
    return {name: id(t) for name, t in [*named, *module.named_buffers(remove_duplicate=False)]}


def ones_of(module):
    return {name: torch.ones_like(t) for name, t in module.state_dict().items()}


@pytest.fixture
def net():
    torch.manual_seed(0)
    module = Affine()
    before = held(module)
    yield module
    assert held(module) == before


def by_state(module, given, x, **kwargs):
    """The output of a copy of the module into which the tensors were loaded."""
    other = copy.deepcopy(module)
    other.load_state_dict(given, strict=False)
    return other(x, **kwargs)


# Arguments


@pytest.mark.parametrize("names", [[], ["scale"], ["shift"], ["layer.weight", "shift"], None])
def test_named_tensors_are_replaced_and_others_stay(net, names):
    given = {name: 2 * t for name, t in ones_of(net).items() if names is None or name in names}
    torch.testing.assert_close(tl.functional_call(net, given, (X,)), by_state(net, given, X))


def test_arguments(net):
    given = ones_of(net)
    expected = by_state(net, given, X, times=3)
    torch.testing.assert_close(tl.functional_call(net, given, (X, 3)), expected)
    torch.testing.assert_close(tl.functional_call(net, given, X, {"times": 3}), expected)
    torch.testing.assert_close(
        tl.functional_call(net, given, kwargs={"x": X, "times": 3}), expected
    )
    pair = nn.Identity()
    assert tl.functional_call(pair, {}, [X]) == [X]  # not a tuple, so it is the single argument


def test_several_dicts(net):
    given = ones_of(net)
    parts = {"scale": given.pop("scale")}, given
    together = parts[0] | parts[1]
    expected = by_state(net, together, X)
    torch.testing.assert_close(tl.functional_call(net, parts, (X,)), expected)
    torch.testing.assert_close(tl.functional_call(net, [*parts], (X,)), expected)
    torch.testing.assert_close(tl.functional_call(net, net.state_dict(), (X,)), net(X))


def test_a_name_in_two_dicts_is_refused(net):
    with pytest.raises(ValueError, match=r"\['scale'\] appeared in multiple dictionaries"):
        tl.functional_call(net, ({"scale": X[0]}, {"scale": X[0]}), (X,))


@pytest.mark.parametrize("wrong", [3, "scale", [("scale", X[0])], None])
def test_non_dict_is_rejected(net, wrong):
    with pytest.raises(ValueError, match="Expected"):
        tl.functional_call(net, wrong, (X,))


@pytest.mark.parametrize("name", ["scale", "shift", "plain"])
def test_non_tensor_value_is_rejected(net, name):
    with pytest.raises(TypeError, match=r"not an instance of torch\.Tensor"):
        tl.functional_call(net, {"layer.bias": X[0], name: 3.0}, (X,))


def test_keys_are_names(net):
    with pytest.raises(TypeError, match="got a key of type int: 3"):
        tl.functional_call(net, {3: X[0]}, (X,))
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\): '3'"):
        tl.functional_call(net, {**ones_of(net), 3: X[0]}, (X,), strict=True)


@pytest.mark.parametrize("wrong", [[1], "ab", 3])
def test_keyword_arguments_are_a_mapping(net, wrong):
    given = ones_of(net)
    with pytest.raises(TypeError, match="kwargs must be a dict"):
        tl.functional_call(net, given, (X,), wrong)
    expected = by_state(net, given, X, times=3)
    for kwargs in ({"times": 3}, collections.UserDict(times=3)):
        torch.testing.assert_close(tl.functional_call(net, given, (X,), kwargs), expected)


def test_non_module_is_rejected():
    with pytest.raises(TypeError, match=r"must be an nn\.Module, got function"):
        tl.functional_call(by_state, {}, (X,))


def test_none_and_tensors_replace_each_other():
    layer = nn.Linear(4, 2)
    torch.testing.assert_close(tl.functional_call(layer, {"bias": None}, (X,)), X @ layer.weight.T)
    without = nn.Linear(4, 2, bias=False)
    expected = without(X) + 1
    torch.testing.assert_close(tl.functional_call(without, {"bias": torch.ones(2)}, (X,)), expected)
    assert without.bias is None


def test_other_shapes_and_dtypes_may_be_given():
    layer = nn.Linear(4, 2)
    given = {"weight": torch.ones(5, 4).double(), "bias": torch.zeros(5).double()}
    assert tl.functional_call(layer, given, (X.double(),)).shape == (3, 5)


class Tagged(torch.Tensor):
    pass


def test_tensor_subclasses_and_parameters(net):
    given = {"scale": torch.ones(4).as_subclass(Tagged), "shift": nn.Parameter(torch.ones(4))}
    out = tl.functional_call(net, given, (X,))
    assert isinstance(out, Tagged)
    torch.testing.assert_close(torch.Tensor(out), by_state(net, given, X))


# strict


@pytest.mark.parametrize("tie_weights", [True, False])
def test_strict_names_what_is_missing_and_what_is_unexpected(net, tie_weights):
    given = ones_of(net)
    tl.functional_call(net, given, (X,), strict=True, tie_weights=tie_weights)
    del given["layer.bias"], given["shift"]
    given["foo"] = X[0]
    for wrong in (given, (given,)):
        with pytest.raises(RuntimeError) as info:
            tl.functional_call(net, wrong, (X,), strict=True, tie_weights=tie_weights)
        assert "Unexpected key(s): 'foo'." in str(info.value)
        assert "Missing key(s): 'shift', 'layer.bias'." in str(info.value)


def test_strict_does_not_require_names_of_none():
    layer = nn.Linear(4, 2, bias=False)
    tl.functional_call(layer, {"weight": layer.weight}, (X,), strict=True)
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\): 'bias'"):
        tl.functional_call(layer, dict(weight=layer.weight, bias=X[0]), (X,), strict=True)


# Tied and shared tensors


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other, self.third = (nn.Linear(4, 4, bias=False) for _ in range(3))
        self.other.weight = self.third.weight = self.one.weight
        self.register_buffer("seen", self.one.weight.detach())
        self.register_buffer("again", self.seen)

    def forward(self, x):
        return self.third(self.other(self.one(x))) @ self.seen @ self.again


@pytest.mark.parametrize("name", ["one.weight", "other.weight", "third.weight"])
def test_tied_tensors_are_replaced_together(name):
    net, w = Tied(), torch.rand(4, 4)
    expected = X @ w.T @ w.T @ w.T @ net.seen @ net.seen
    before = held(net)
    torch.testing.assert_close(tl.functional_call(net, {name: w}, (X,)), expected)
    both = {"one.weight": w, "third.weight": w}
    torch.testing.assert_close(tl.functional_call(net, both, (X,)), expected)
    assert held(net) == before


def test_tied_tensors_need_one_name_where_it_is_strict():
    net = Tied()
    named = {"other.weight": X[0].diag(), "again": X[1].diag()}
    tl.functional_call(net, named, (X,), strict=True)
    missing = r"Missing key\(s\): 'seen', 'one.weight', 'third.weight'"
    with pytest.raises(RuntimeError, match=missing):
        tl.functional_call(net, named, (X,), strict=True, tie_weights=False)


def test_two_values_for_tied_tensors_are_refused():
    net = Tied()
    given = {"one.weight": torch.rand(4, 4), "other.weight": torch.rand(4, 4)}
    before = held(net)
    with pytest.raises(ValueError, match=r"'one.weight', 'other.weight'.*tie_weights=False"):
        tl.functional_call(net, given, (X,))
    assert held(net) == before
    a, b, c = given["one.weight"], given["other.weight"], net.third.weight
    expected = X @ a.T @ b.T @ c.T @ net.seen @ net.seen
    result = tl.functional_call(net, given, (X,), tie_weights=False)
    torch.testing.assert_close(result, expected)


def test_module_registered_twice_gets_its_tensors_back():
    """torch.func's version leaves the given tensors in it."""
    layer = nn.Linear(4, 4)
    net = nn.Sequential(layer, nn.Tanh(), layer)
    before = held(net)
    w, b = torch.rand(4, 4), torch.rand(4)
    expected = (X @ w.T + b).tanh() @ w.T + b
    for given in (
        {"0.weight": w, "0.bias": b},
        {"2.weight": w, "2.bias": b},
        {"0.weight": w, "2.weight": w, "2.bias": b},
    ):
        for tie_weights in (True, False):
            result = tl.functional_call(net, given, (X,), tie_weights=tie_weights)
            torch.testing.assert_close(result, expected)
            assert held(net) == before
            assert isinstance(layer.weight, nn.Parameter)


@pytest.mark.parametrize("tie_weights", [True, False])
def test_module_registered_twice_takes_one_value(tie_weights):
    layer = nn.Linear(4, 4)
    net = nn.Sequential(layer, layer)
    given = {"0.weight": torch.rand(4, 4), "1.weight": torch.rand(4, 4)}
    with pytest.raises(ValueError, match=r"'0.weight', '1.weight'.*one tensor of a module"):
        tl.functional_call(net, given, (X,), tie_weights=tie_weights)


def test_modules_that_hold_each_other(net):
    """named_parameters(remove_duplicate=False) does not terminate for them."""
    net.layer.__dict__["_modules"]["parent"] = net
    given = {"layer.parent.layer.weight": torch.eye(4), "layer.bias": torch.zeros(4)}
    given |= {"layer.parent.scale": torch.ones(4), "shift": torch.zeros(4)}
    torch.testing.assert_close(tl.functional_call(net, given, (X,)), X)
    del net.layer.parent


def test_modules_that_are_too_deep():
    net = nn.Linear(4, 4)
    for _ in range(20_000):
        net, inner = nn.Module(), net
        net.inner = inner
    with pytest.raises(RecursionError, match="in a tree of modules"):
        tl.functional_call(net, {}, (X,))
    while hasattr(net, "inner"):  # otherwise Python deallocates it recursively
        net = net._modules.pop("inner")


# Restoring after errors


class Interrupting(nn.Module):
    def __init__(self, error):
        super().__init__()
        self.layer, self.error = nn.Linear(4, 4), error

    def forward(self, x):
        self.layer(x)
        raise self.error


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit, StopIteration])
def test_the_tensors_are_back_after_an_exception(error):
    net = Interrupting(error)
    before = held(net)
    for run in (tl.functional_call, tl.grad(tl.functional_call, argnums=1)):
        with pytest.raises(error):
            run(net, {"layer.weight": torch.eye(4), "layer.bias": X[0]}, (X,))
        assert held(net) == before


def test_ctrl_c_may_come_at_any_moment(net):
    before, given = held(net), ones_of(net)
    theirs = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for microseconds in range(100, 2100, 10):
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, microseconds / 1e6)
                while True:
                    tl.functional_call(net, given, (X,))
            assert held(net) == before
    finally:
        signal.signal(signal.SIGALRM, theirs)


def test_an_exception_between_attributes_puts_all_back(net):
    given = {"plain": torch.zeros(4), "scale": X[0], "layer.nothing.weight": X[0]}
    with pytest.raises(AttributeError, match="nothing"):
        tl.functional_call(net, given, (X,))
    assert torch.equal(net.plain, torch.ones(4))
    with pytest.raises(RuntimeError):
        tl.functional_call(net, {"plain": torch.zeros(5)}, (X,))
    assert torch.equal(net.plain, torch.ones(4))


class Counting(nn.Module):
    """Assigns to one buffer and writes to another."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("written", torch.zeros(()))
        self.plain = torch.zeros(())
        self.last = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        self.seen = self.seen + x
        self.written += x
        self.plain = self.plain + x
        self.last = nn.Parameter(x)
        if x < 0:
            raise ZeroDivisionError
        return self.seen


@pytest.mark.parametrize("value", [2.0, -2.0])
def test_assignments_of_the_module_update_the_given_dict(value):
    net = Counting()
    given = {name: torch.ones(()) for name in ("seen", "written", "plain", "last")}
    written, before = given["written"], held(net)
    try:
        tl.functional_call(net, given, torch.tensor(value))
    except ZeroDivisionError:
        assert value < 0
    assert held(net) == before
    assert net.seen == net.written == net.plain == net.last == 0
    assert given["seen"] == given["written"] == given["plain"] == 1 + value
    assert given["written"] is written
    assert given["last"] == value


def test_assignments_of_the_module_do_not_update_several_dicts():
    net, given = Counting(), {"seen": torch.ones(())}
    assert tl.functional_call(net, (given, {}), torch.tensor(2.0)) == 3
    assert given["seen"] == 1


def test_assignments_to_names_not_given_stay_on_the_module():
    net = Counting()
    tl.functional_call(net, {"written": torch.zeros(())}, torch.tensor(2.0))
    assert net.seen == 2
    assert net.written == 0


class Recursive(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.other = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(7.0))

    def forward(self, depth, call):
        if not depth:
            return [self.w.item() * 10 + self.other.item()]
        deeper = call(self, {"w": torch.tensor(float(depth))}, (depth - 1, call))
        return [*deeper, self.w.item() * 10 + self.other.item()]


def test_a_module_that_calls_itself_with_other_tensors():
    net = Recursive()
    before = held(net)
    for call in (tl.functional_call, torch.func.functional_call):  # torch's own for the inner call
        assert tl.functional_call(net, {"w": torch.tensor(5.0)}, (3, call)) == [17, 27, 37, 57]
        assert held(net) == before


def test_a_call_within_a_call_ties_what_the_module_ties():
    """Independently of whether two names are given one tensor."""
    net, same = Recursive(), torch.tensor(5.0)
    given = {"w": same, "other": same}
    assert tl.functional_call(net, given, (1, tl.functional_call)) == [15, 55]


class Yielding(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        try:
            while True:
                x = yield x * self.w
        except ValueError:
            yield self.w
        return self.w * 2


def test_each_step_of_a_generator_has_the_given_tensors():
    net = Yielding()
    before = held(net)
    steps = tl.functional_call(net, {"w": torch.tensor(5.0)}, (1,))
    others = tl.functional_call(net, {"w": torch.tensor(7.0)}, (1,))
    assert (next(steps), next(others)) == (5, 7)
    assert net.w == 2
    assert (steps.send(3), others.send(3)) == (15, 21)
    assert held(net) == before
    assert steps.throw(ValueError) == 5
    with pytest.raises(StopIteration) as info:
        next(steps)
    assert info.value.value == 10
    others.close()
    assert held(net) == before


def test_a_coroutine_is_refused():
    class Later(nn.Linear):
        async def forward(self, x):
            return super().forward(x)

    with pytest.raises(TypeError, match="Later returns a coroutine"):
        tl.functional_call(Later(4, 2), {}, (X,))


# Modules that change


def changes():
    def replaced(net):
        net.layer = nn.Linear(4, 4)

    def parameter_replaced(net):
        net.scale = nn.Parameter(torch.zeros(4))

    def added(net):
        net.layer.register_parameter("extra", nn.Parameter(torch.ones(4)))
        net.layer.forward = lambda x: x * net.layer.extra + net.layer.weight[0]

    def to_buffer(net):
        del net.scale
        net.register_buffer("scale", torch.rand(4))

    def tied(net):
        net.layer.bias = net.scale

    def wrapped(net):
        net.layer = nn.Sequential(net.layer)

    def moved(net):
        net.to(torch.float64)
        net.plain = net.plain.double()

    def in_the_dict(net):
        net._parameters = dict(reversed(net._parameters.items()))

    def none(net):
        net.layer.bias = None

    return [replaced, parameter_replaced, added, to_buffer, tied, wrapped, moved, in_the_dict, none]


@pytest.mark.parametrize("change", changes(), ids=lambda change: change.__name__)
def test_changes_of_the_module_are_detected(change):
    net = Affine()
    tl.functional_call(net, ones_of(net), (X,), strict=True)
    change(net)
    x = X.to(net.scale.dtype)
    given = {name: 2 * t for name, t in ones_of(net).items()}
    if change.__name__ == "tied":
        del given["layer.bias"]
        expected = by_state(net, given, x)
    elif change.__name__ == "added":
        expected = (x * 2 + 2) * 2 + 2
    else:
        expected = by_state(net, given, x)
    before = held(net)
    for _ in range(2):
        torch.testing.assert_close(tl.functional_call(net, given, (x,), strict=True), expected)
        assert held(net) == before


@pytest.mark.sweep
def test_the_plan_holds_no_module():
    net = Affine()
    net.layer.__dict__["_modules"]["parent"] = net
    tl.functional_call(net, ones_of(Affine()), (X,))
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None


def test_modules_that_come_and_go():
    for size in range(1, 300):
        layer = nn.Linear(4, size, bias=size % 2 == 0)
        assert tl.functional_call(
            layer, {"weight": torch.ones(7, 4), "bias": None}, (X,)
        ).shape == (3, 7)


def test_a_module_can_be_copied_after_a_call(net):
    tl.functional_call(net, ones_of(net), (X,))
    torch.testing.assert_close(copy.deepcopy(net)(X), net(X))


# Threads


def test_a_module_that_another_thread_calls_is_refused():
    inside, go_on, seen = threading.Event(), threading.Event(), []

    class Waiting(nn.Linear):
        def forward(self, x):
            inside.set()
            assert go_on.wait(20)
            return super().forward(x)

    layer = Waiting(4, 4, bias=False)
    parent, stranger = nn.Sequential(layer), nn.Linear(4, 4, bias=False)
    given = {"weight": torch.eye(4)}
    thread = threading.Thread(target=lambda: seen.append(tl.functional_call(layer, given, (X,))))
    thread.start()
    assert inside.wait(20)
    own = -torch.eye(4)
    for module, tensors in ((layer, {"weight": own}), (parent, {"0.weight": own}), (layer, {})):
        with pytest.raises(RuntimeError, match="another thread is calling this module"):
            tl.functional_call(module, tensors, (X,))
    tl.functional_call(stranger, given, (X,))
    go_on.set()
    thread.join()
    assert torch.equal(seen[0], X)
    assert torch.equal(tl.functional_call(layer, {"weight": -torch.eye(4)}, (X,)), -X)


def test_module_only_read_by_two_threads_is_shared():
    meet = threading.Barrier(2)

    class Meeting(nn.Identity):
        def forward(self, x):
            meet.wait(20)
            return x

    frozen, seen = nn.Linear(4, 4), {}
    nets = [nn.Sequential(frozen, Meeting(), nn.Linear(4, 4, bias=False)) for _ in range(2)]

    def call(i):
        seen[i] = tl.functional_call(nets[i], {"2.weight": torch.eye(4) * i}, (X,))

    threads = [threading.Thread(target=call, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(2):
        torch.testing.assert_close(seen[i], frozen(X) * i)


def test_many_threads_never_see_anothers_tensors():
    layer, wrong, refused = nn.Linear(4, 4, bias=False), [], []

    def work(i):
        for _ in range(200):
            try:
                result = tl.functional_call(layer, {"weight": torch.eye(4) * i}, (X,))
            except RuntimeError:
                refused.append(i)
            else:
                wrong.extend([] if torch.equal(result, X * i) else [i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# Attributes, parametrizations, and modules that store tensors elsewhere


@pytest.mark.parametrize("value", [torch.zeros(4), nn.Parameter(torch.zeros(4))])
def test_a_plain_attribute_may_be_named(net, value):
    before = net.plain
    expected = net(X) - net.shift
    torch.testing.assert_close(tl.functional_call(net, {"plain": value}, (X,)), expected)
    assert net.plain is before
    assert "plain" not in net._parameters


def test_an_attribute_that_is_not_there_is_there_for_the_call(net):
    tl.functional_call(net, {"layer.new": torch.ones(4)}, (X,))
    assert not hasattr(net.layer, "new")


class Computed(nn.Module):
    __slots__ = ("_slot",)

    def __init__(self):
        super().__init__()
        self.inner = nn.Parameter(torch.ones(4))
        object.__setattr__(self, "_slot", torch.ones(4))
        self.stored = torch.ones(4)

    @property
    def doubled(self):
        return 2 * self.stored

    @doubled.setter
    def doubled(self, value):
        self.stored = value / 2

    def forward(self, x):
        return x * self.doubled * self._slot * self.inner


def test_properties_and_slots_are_assigned_to():
    net = Computed()
    given = {"doubled": torch.full((4,), 3.0), "inner": torch.full((4,), 5.0)}
    torch.testing.assert_close(tl.functional_call(net, given, (X,)), 15 * X)
    torch.testing.assert_close(net(X), 2 * X)


class Symmetric(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).mT


def test_parametrizations():
    layer, w = nn.Linear(4, 4, bias=False), torch.rand(4, 4)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    before = held(layer)
    expected = X @ Symmetric()(w)
    original = {"parametrizations.weight.original": w}
    torch.testing.assert_close(tl.functional_call(layer, original, (X,)), expected)
    # The plain name is that of the parametrization's result.
    torch.testing.assert_close(tl.functional_call(layer, {"weight": w}, (X,)), X @ w.T)
    gradient = tl.grad(lambda w: tl.functional_call(layer, {"weight": w}, (X,)).sum())(w)
    torch.testing.assert_close(gradient, X.sum(0).expand(4, 4))
    assert held(layer) == before
    assert type(layer.parametrizations.weight) is parametrize.ParametrizationList


def test_parametrization_cache_does_not_mix_tensors():
    layer, w = nn.Linear(4, 4, bias=False), torch.rand(4, 4)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    with parametrize.cached():
        own = layer(X)
        for given in (w, 2 * w):
            result = tl.functional_call(layer, {"parametrizations.weight.original": given}, (X,))
            torch.testing.assert_close(result, X @ Symmetric()(given))
            torch.testing.assert_close(
                tl.functional_call(layer, {"weight": given}, (X,)), X @ given.T
            )
        assert torch.equal(layer(X), own)


@pytest.mark.parametrize("kind", ["spectral_norm", "orthogonal", "weight_norm"])
def test_torchs_own_parametrizations(kind):
    layer = getattr(parametrizations, kind)(nn.Linear(4, 4))
    layer.eval()
    given = {name: t.detach() * 1.5 for name, t in layer.named_parameters()}
    result = tl.functional_call(layer, given, (X,))
    torch.testing.assert_close(result, torch.func.functional_call(layer, given, (X,)))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_script_modules():
    inner = torch.jit.script(nn.Linear(4, 2))
    with pytest.raises(RuntimeError, match="jitted"):
        tl.functional_call(inner, {}, (X,))
    net = nn.Sequential(inner)
    before = net(X)
    given = {"0.weight": torch.zeros(2, 4), "0.bias": torch.ones(2)}
    for strict in (False, True):
        out = tl.functional_call(net, given, (X,), strict=strict)
        torch.testing.assert_close(out, torch.ones(3, 2))
    torch.testing.assert_close(net(X), before)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_tracing_by_jit_is_refused():
    layer = nn.Linear(4, 2)
    with pytest.raises(RuntimeError, match="jit"):
        torch.jit.trace(lambda x: tl.functional_call(layer, {}, (x,)), (X,))


def test_data_parallel_is_refused():
    with pytest.raises(RuntimeError, match="DataParallel"):
        tl.functional_call(nn.DataParallel(nn.Linear(4, 2)), {}, (X,))


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_lazy_modules():
    layer = nn.LazyLinear(2)
    given = {"weight": torch.ones(2, 4), "bias": torch.zeros(2)}
    torch.testing.assert_close(tl.functional_call(layer, given, (X,)), X @ given["weight"].T)
    own = nn.LazyLinear(2)
    tl.functional_call(own, {}, (X,))
    assert own.weight.shape == (2, 4)  # created in the call, and not shared


class Reading(nn.Module):
    """A module with a penalty, and lookups of all kinds."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        ways = [
            sum(p.sum() for p in self.parameters()),
            sum(p.sum() for _, p in self.named_parameters()),
            sum(p.sum() for p in self.layer._parameters.values()),
            self.layer.weight.sum() + getattr(self.layer, "bi" + "as").sum(),
            sum(p.sum() for p in copy.copy(self.layer).parameters()),
        ]
        return self.layer(x).sum(), *ways


def test_every_lookup_of_a_tensor_finds_the_given_one():
    net, given = Reading(), {"layer.weight": torch.ones(4, 4), "layer.bias": torch.ones(4)}
    _, *ways = tl.functional_call(net, given, (X,))
    assert ways == [20] * len(ways)


# torch's modules with special handling


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks(kind):
    net = kind(4, 3, num_layers=2, bidirectional=True)
    given = {name: p.detach() + 1 for name, p in net.named_parameters()}
    flat, references = net._flat_weights, net._flat_weight_refs
    other = copy.deepcopy(net)
    other.load_state_dict(given)
    torch.testing.assert_close(tl.functional_call(net, given, (X,))[0], other(X)[0])
    assert net._flat_weights is flat  # torch.func's version leaves the given tensors
    assert net._flat_weight_refs is references

    def loss(given, x):
        return tl.functional_call(net, given, (x,))[0].square().sum()

    other(X)[0].square().sum().backward()
    gradients = tl.grad(loss)(given, X)
    for name, parameter in other.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad)
    torch.testing.assert_close(copy.deepcopy(net)(X)[0], net(X)[0])


@pytest.mark.parametrize("training", [True, False])
def test_transformers(training):
    net = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).train(training)
    given = {name: p.detach() * 1.5 for name, p in net.named_parameters()}
    x = X.expand(2, 3, 4)
    other = copy.deepcopy(net)
    other.load_state_dict(given)
    for grad_mode in (True, False):  # the fast path runs without grad mode
        with torch.set_grad_enabled(grad_mode):
            torch.testing.assert_close(tl.functional_call(net, given, (x,)), other(x))
    attention = nn.MultiheadAttention(4, 2, batch_first=True).train(training)
    given = {name: p.detach() * 1.5 for name, p in attention.named_parameters()}
    other = copy.deepcopy(attention)
    other.load_state_dict(given)
    result = tl.functional_call(attention, given, (x, x, x))
    torch.testing.assert_close(result, other(x, x, x))


# Compilers


@pytest.mark.parametrize("transformed", [False, True])
def test_torch_compile(net, transformed):
    torch._dynamo.reset()
    given = ones_of(net)

    def run(given, x):
        return tl.functional_call(net, given, (x,)).sum()

    call = tl.grad(run) if transformed else run
    compiled = torch.compile(call, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(given, X), call(given, X))


def test_a_compiled_module_is_called(net):
    torch._dynamo.reset()
    compiled = torch.compile(net, backend="eager")
    given = {name: 2 * t for name, t in ones_of(net).items()}
    expected = by_state(net, given, X)
    named = {f"_orig_mod.{name}": t for name, t in given.items()}
    for _ in range(2):
        torch.testing.assert_close(tl.functional_call(compiled, named, (X,)), expected)
    with pytest.raises(TypeError):  # it must not be ignored silently
        tl.functional_call(compiled, given, (X,))
    torch.testing.assert_close(compiled(X), net(X))


def test_make_fx(net):
    given = ones_of(net)
    graph = make_fx(lambda given, x: tl.functional_call(net, given, (x,)))(given, X)
    doubled = {name: 2 * t for name, t in given.items()}
    torch.testing.assert_close(graph(doubled, X), by_state(net, doubled, X))


# Names that do not exist


def test_name_in_a_missing_submodule_is_rejected():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    with pytest.raises(AttributeError) as info:
        tl.functional_call(net, {"2.weight": X}, (X,))
    assert str(info.value).startswith(
        "torchlayers: functional_call: the Sequential has no tensor '2.weight': it has no "
        "attribute '2'. Did you mean '1.weight'? In test_functional_call.py:"
    )
    with pytest.raises(AttributeError, match=r"its '0' \(Linear\) has no attribute 'a'"):
        tl.functional_call(net, {"0.a.b": X}, (X,))


def test_strict_suggests_similar_names():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    given = dict(net.named_parameters())
    given["0.weigth"] = given.pop("0.weight")
    with pytest.raises(RuntimeError, match=r"those of the Sequential(.|\n)*mean '0.weight'\?"):
        tl.functional_call(net, given, (X,), strict=True)
