"""The layer stack: its contents, and that it is always restored."""

import contextlib
import gc
import re
import signal
import threading
import weakref

import pytest
import torch
import torch.func
from torch.autograd import forward_ad

import torchlayers as tl
from torchlayers import _C


def ambient():
    """The ambient state that a transform may change and has to restore."""
    keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return (
        tl.current_stack(),
        [key.raw_repr() for key in keys],
        torch.is_grad_enabled(),
        torch._C._is_fwd_grad_enabled(),
        torch.is_inference_mode_enabled(),
        forward_ad._current_level,
        torch._functorch.eager_transforms.JVP_NESTING,
        torch._C._autograd._saved_tensors_hooks_is_enabled(),
        torch._C._functorch.peek_interpreter_stack() is None,
    )


def in_all_three(action):
    """Runs action() inside vmap of jvp of grad."""

    def innermost(x):
        action()
        return x.sum()

    def with_jvp(x):
        return tl.jvp(tl.grad(innermost), (x,), (x,))[1]

    return tl.vmap(with_jvp)(torch.ones(2, 3))


def test_layers_are_listed_outermost_first():
    seen = []
    in_all_three(lambda: seen.append(tl.current_stack()))
    (stack,) = seen
    assert [(layer.kind, layer.level) for layer in stack] == [("vmap", 1), ("jvp", 2), ("grad", 3)]


def test_layer_carries_its_metadata():
    seen = []
    with torch.no_grad():
        in_all_three(lambda: seen.extend(tl.current_stack()))
    vmap, jvp, grad = seen
    assert vmap.metadata == {"batch_size": 2, "randomness": "error"}
    assert jvp.metadata == {"previous_forward_grad_mode": True, "previous_inference_mode": False}
    assert grad.metadata == {"previous_grad_mode": False, "previous_inference_mode": False}


def test_layer_has_a_readable_repr():
    seen = []
    tl.vmap(lambda x: seen.extend(tl.current_stack()) or x, randomness="same")(torch.ones(3))
    assert (
        re.sub(r" entered at .*`", "", repr(seen))
        == "[vmap (level 1, torchlayers, batch_size=3, randomness='same')]"
    )


def test_layers_of_torch_func_are_listed_with_their_owner():
    seen = []

    def f(x):
        seen.extend(tl.current_stack())
        return x.sum()

    tl.vmap(torch.func.grad(f))(torch.ones(2, 3))
    assert [(layer.owner, layer.kind) for layer in seen] == [
        ("torchlayers", "vmap"),
        ("torch.func", "grad"),
    ]


def test_stack_prints_in_one_line():
    seen = []
    in_all_three(lambda: seen.append(_C.describe_stack()))
    assert seen == ["[1:vmap 2:jvp 3:grad]"]


def test_level_dies_with_its_transform():
    kept = []
    tl.grad(lambda x: kept.append(x) or x.sum())(torch.ones(2))
    assert torch._C._functorch.maybe_get_level(kept[0]) == -2  # torch's value for a dead level


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_everything_is_as_it_was_after_an_exception(error):
    before = ambient()

    def fail():
        raise error

    with pytest.raises(error):
        in_all_three(fail)
    assert ambient() == before


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_layers_outside_go_on_after_an_exception_inside(depth):
    def f(x):
        with contextlib.suppress(ZeroDivisionError):
            in_all_three(lambda: 1 / 0)
        return (x**3).sum()

    g = f
    for _ in range(depth):
        g = (lambda inner: lambda x: tl.grad(inner)(x).sum())(g)
    expected = {0: 8.0, 1: 12.0, 2: 12.0}[depth]
    assert g(torch.tensor(2.0)).item() == expected


def test_everything_is_as_it_was_after_an_error_in_an_operator():
    before = ambient()
    with pytest.raises(RuntimeError):
        in_all_three(lambda: torch.ones(2) @ torch.ones(3))
    assert ambient() == before


def test_everything_is_as_it_was_after_an_error_in_the_backward():
    class Fails(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            raise ZeroDivisionError

    before = ambient()
    with pytest.raises(ZeroDivisionError):
        tl.vmap(tl.grad(lambda x: Fails.apply(x).sum()))(torch.ones(2, 3))
    assert ambient() == before


# Python discards exceptions raised in a finalizer or in a callback of the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_at_any_moment_leaves_nothing_behind():
    """A timer interrupts a running nest again and again at arbitrary points."""
    in_all_three(lambda: None)  # so that torch performs its lazy imports now
    before = ambient()

    def interrupt(signum, frame):
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    try:
        for i in range(300):
            try:
                # Repeats later, in case the exception was discarded.
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.00001 * i, 0.2)
                while True:
                    in_all_three(lambda: None)
            except KeyboardInterrupt:
                signal.setitimer(signal.ITIMER_REAL, 0)
                interrupted += 1
            assert ambient() == before
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert interrupted == 300


def test_threads_have_stacks_of_their_own():
    barrier = threading.Barrier(8)
    results, failures = [None] * 8, []

    def work(i):
        try:
            x = torch.arange(3.0) + i
            barrier.wait()
            for _ in range(50):
                depth = []
                got = tl.vmap(
                    lambda s, depth=depth: tl.jvp(
                        tl.grad(lambda y: depth.append(len(tl.current_stack())) or (y**3).sum()),
                        (s,),
                        (torch.ones_like(s),),
                    )[1]
                )(x)
                assert depth == [3]
                torch.testing.assert_close(got, 6 * x)
            results[i] = True
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert results == [True] * 8
    assert tl.current_stack() == ()


def test_a_new_thread_starts_with_an_empty_stack():
    seen = []

    def look():
        seen.append(tl.current_stack())

    def f(x):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return x.sum()

    tl.grad(f)(torch.ones(2))
    assert seen == [()]


def test_the_stack_is_rebuilt_on_the_engines_own_threads():
    """Backwards nested 60 deep continue on threads of the engine's pool."""
    threads, stacks = set(), []

    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(x, depth):
            return x * 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])
            ctx.depth = inputs[1]

        @staticmethod
        def backward(ctx, g):
            threads.add(threading.get_ident())
            stacks.append([(layer.kind, layer.owner) for layer in tl.current_stack()])
            (x,) = ctx.saved_tensors
            if ctx.depth == 0:
                return g * 2, None
            with torch.enable_grad():
                y = Nested.apply(x, ctx.depth - 1)
            return torch.autograd.grad(y, x, g, retain_graph=True)[0], None

    result = tl.grad(lambda x: Nested.apply(x, 70))(torch.tensor(1.0))
    assert result.item() == 2.0
    assert len(threads) > 1
    assert set(map(tuple, stacks)) == {(("grad", "torchlayers"),)}


def test_entries_left_out_of_order_are_cleaned_up_and_reported():
    before = ambient()
    outer, inner = _C.grad_entry(), _C.vmap_entry(2, "error")
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(RuntimeError, match=r"when grad \(level 1\) was left, 1 layer"):
        outer.__exit__(None, None, None)
    assert ambient() == before
    with pytest.raises(RuntimeError, match="does not contain it"):
        inner.__exit__(None, None, None)
    assert ambient() == before


# NOTE [A stack left dirty]: code that pushes to or pops from torch.func's stack without undoing it.


def push_one():
    torch._C._functorch._grad_increment_nesting()


def pop_one():
    torch._C._functorch.pop_dynamic_layer_stack()


def dirty_operator(action, rule_action=lambda: None):
    """op(x) = 2 x, whose kernel runs one action, and whose batching rule, if any, the other."""
    library = torch.library.Library("torchlayers_dirty", "FRAGMENT")
    library.define("op(Tensor x) -> Tensor")
    library.impl("op", lambda x: (action(), x * 2)[1], "CompositeExplicitAutograd")
    if rule_action is not None:
        torch.library.register_vmap(
            "torchlayers_dirty::op",
            lambda info, in_dims, x: (rule_action(), x * 2)[1:] + in_dims,
            lib=library,
        )
    return library


@pytest.fixture
def clean():
    before = ambient()
    yield
    assert ambient() == before
    assert second_derivative_of_cube(2.0) == 12.0


def second_derivative_of_cube(x):
    return tl.grad(tl.grad(lambda y: y**3))(torch.tensor(x)).item()


@pytest.fixture
def make_dirty():
    """Returns a function that makes the operator, for one test."""
    made = []

    def make(*actions):
        made.append(dirty_operator(*actions))
        return torch.ops.torchlayers_dirty.op

    yield make
    for library in made:
        library._destroy()
    torch.ops.__dict__.pop("torchlayers_dirty", None)


@pytest.mark.parametrize("around", ["grad", "vmap"])
def test_a_kernel_that_leaves_a_layer_on_the_stack_is_named(clean, make_dirty, around):
    op = make_dirty(push_one)
    with pytest.raises(
        RuntimeError,
        match=r"torchlayers: a kernel of torchlayers_dirty::op changed the stack below it from "
        r"\[\] to \[1:torch.func\]",
    ):
        getattr(tl, around)(lambda x: (x * op(torch.ones(2))).sum())(torch.ones(2))


def test_batching_rule_that_pops_a_layer_raises_on_leaving_it(clean, make_dirty):
    op = make_dirty(lambda: None, pop_one)

    def f(x):
        return tl.vmap(lambda y: op(y) * x)(torch.ones(2)).sum()

    message = (
        r"vmap \(level 2\) was no longer on the stack when it was left: the stack is \[1:grad\]"
    )
    with pytest.raises(RuntimeError, match=message):
        tl.grad(f)(torch.tensor(1.0))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_kernel_that_pops_a_layer_is_detected_by_the_next_operator(clean, make_dirty):
    op = make_dirty(pop_one, None)
    said = []

    def f(x, y):
        for use in (lambda: op(x * y), lambda: y + 1):
            with pytest.raises(RuntimeError) as error:
                use()
            said.append(str(error.value))
        return torch.ones(2)

    # vmap is off the stack while the kernel runs, and grad is on it.
    with pytest.raises(RuntimeError, match=r"grad \(level 1\) was no longer on the stack"):
        tl.grad(lambda x: tl.vmap(lambda y: f(x, y))(torch.ones(2)).sum())(torch.tensor(3.0))
    words = "torchlayers: vmap (level 2) is no longer at its level: the stack is [2:vmap]. A kernel"
    assert said[0].startswith(f"{words} changed the stack below it to [], and popped entries")
    assert said[1].startswith(f"{words} or program has popped entries of torch.func's stack")


def test_program_that_pops_a_layer_raises_on_leaving_it(clean):
    with pytest.raises(
        RuntimeError,
        match=r"grad \(level 1\) was no longer on the stack when it was left: the stack is \[\]",
    ):
        tl.grad(lambda x: (pop_one(), x.sum())[1])(torch.ones(2))


def test_program_that_pushes_a_layer_raises_on_leaving_the_outer_one(clean):
    with pytest.raises(RuntimeError, match=r"when vmap \(level 1\) was left, 1 layer\(s\)"):
        tl.vmap(lambda x: (push_one(), x)[1])(torch.ones(2))


def test_an_entry_can_not_be_left_on_another_thread():
    entry = _C.grad_entry()
    failures = []

    def leave():
        try:
            entry.__exit__(None, None, None)
        except RuntimeError as error:
            failures.append(str(error))

    with entry:
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
    assert len(failures) == 1
    assert "must be left on the thread that entered it" in failures[0]


def test_calls_leak_no_memory():
    """10,000 calls of a nest leave no object and no tensor memory behind."""
    x = torch.ones(2, 3)
    call = tl.vmap(lambda s: tl.jvp(tl.grad(lambda y: (y**2).sum()), (s,), (s,))[1])

    def in_use():
        gc.collect()
        with open("/proc/self/statm") as statm:
            return len(gc.get_objects()), int(statm.read().split()[1]) * 4096

    for _ in range(2000):
        call(x)

    def grows():
        objects, resident = in_use()
        for _ in range(10_000):
            call(x)
        objects_after, resident_after = in_use()
        bytes_per_call = (resident_after - resident) / 10_000
        return objects_after - objects >= 100 or bytes_per_call >= 100

    # Garbage of earlier tests may make it grow once; a leak grows every time.
    assert not all(grows() for _ in range(3))


def test_arguments_are_freed_after_the_call():
    x = torch.ones(3)
    alive = weakref.ref(x)
    tl.grad(lambda y: (y * y).sum())(x)
    del x
    assert alive() is None


def test_importing_leaves_the_dispatch_of_plain_operators_alone():
    """Neither key is active without a layer, so plain operators never dispatch to them."""
    names = {_C.FRONT_KEY, _C.BACK_KEY}
    included = torch._C._dispatch_tls_local_include_set()
    of_tensor = torch._C._dispatch_keys(torch.ones(1))
    for key in map(torch._C._dispatch_key_parse, names):
        assert not included.has(key)
        assert not of_tensor.has(key)


def test_requires_grad_may_be_set_inside_a_transform():
    """On a tensor that already requires it, which torch.func rejects."""
    gradient = tl.grad(lambda x: x.clone().requires_grad_().square().sum())(torch.ones(2))
    assert gradient.tolist() == [2.0, 2.0]


def test_the_switch_for_in_place_requires_grad_is_torch_funcs():
    from torch._functorch.eager_transforms import enable_inplace_requires_grad

    def f(x):
        with enable_inplace_requires_grad(True):
            return x.clone().detach().requires_grad_().sum()

    tl.vmap(f)(torch.ones(2, 3))


def test_jvps_on_threads_share_the_one_dual_level_without_losing_tangents():
    """One leaves while the other is inside: the level stays open until the last has left."""
    inside, leave = threading.Event(), threading.Event()

    def first():
        def f(x):
            inside.set()
            leave.wait(10)
            return x * x

        tl.jvp(f, (torch.tensor(1.0),), (torch.tensor(1.0),))

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait(10)

    def f(x):
        y = x * x
        leave.set()
        thread.join()
        return y * x

    _, tangent = tl.jvp(f, (torch.tensor(2.0),), (torch.tensor(1.0),))
    assert tangent.item() == 12.0
    assert forward_ad._current_level == -1


def test_jvp_works_inside_a_users_own_dual_level():
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.tensor(2.0), torch.tensor(1.0))
        value, tangent = tl.jvp(torch.square, (dual,), (torch.tensor(1.0),))
        assert tangent.item() == 4.0
        assert forward_ad.unpack_dual(tangent).tangent.item() == 2.0
        assert forward_ad.unpack_dual(value).tangent.item() == 4.0
