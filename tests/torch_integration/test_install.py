"""install puts our transforms in place of torch.func's, and uninstall restores torch's."""

import threading

import functorch
import pytest
import torch
import torch.func
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import torchlayers as tl
from tests.support.traced_steps import traced_steps

# functorch's functions are deprecated; torch.func.linearize and Dynamo warn of other things.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)

NAMES = [
    "functionalize",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "vjp",
    "vmap",
]
PLACES = [
    (torch, "vmap"),
    *[(torch.func, name) for name in NAMES],
    *[(functorch, name) for name in NAMES if name != "linearize"],
]
THEIRS = [getattr(module, name) for module, name in PLACES]

X = torch.tensor([0.5, 1.0, 2.0])


def who_is_in():
    """Which library's functions are in torch's modules."""
    found = [getattr(module, name) for module, name in PLACES]
    if found == THEIRS:
        return "torch's"
    assert found == [getattr(tl, name) for _, name in PLACES]
    return "ours"


@pytest.fixture(autouse=True)
def torchs_before_and_after():
    assert who_is_in() == "torch's"
    yield
    tl.uninstall()
    assert who_is_in() == "torch's"


def test_functions_are_installed_until_uninstall():
    tl.install()
    assert who_is_in() == "ours"
    tl.uninstall()
    assert who_is_in() == "torch's"


def test_functions_are_installed_inside_the_block():
    with tl.install():
        assert who_is_in() == "ours"
    assert who_is_in() == "torch's"


def test_exception_in_the_block_uninstalls():
    with pytest.raises(ZeroDivisionError), tl.install():
        raise ZeroDivisionError
    assert who_is_in() == "torch's"


def test_functions_stay_installed_until_the_last_installation_ends():
    with tl.install():
        with tl.install():
            pass
        assert who_is_in() == "ours"
    assert who_is_in() == "torch's"
    tl.install()
    with tl.install():
        pass
    assert who_is_in() == "ours"


def test_uninstall_ends_all_installations():
    tl.install()
    with tl.install():
        tl.install()
        tl.uninstall()
        assert who_is_in() == "torch's"
    assert who_is_in() == "torch's"


def test_uninstall_without_an_installation_does_nothing():
    tl.uninstall()
    tl.uninstall()
    assert who_is_in() == "torch's"


def test_an_installation_can_be_entered_again():
    installation = tl.install()
    for _ in range(2):
        with installation:
            assert who_is_in() == "ours"
        assert who_is_in() == "torch's"


def test_later_patches_by_others_are_kept(monkeypatch):
    def somebody_elses(func):
        return func

    with monkeypatch.context() as patch:
        with tl.install():
            patch.setattr(torch.func, "grad", somebody_elses)
        assert torch.func.grad is somebody_elses
        assert torch.func.vmap is not tl.vmap
        patch.undo()  # restores what it found, which was ours
        torch.func.grad = THEIRS[PLACES.index((torch.func, "grad"))]


def test_earlier_patches_by_others_are_restored(monkeypatch):
    def somebody_elses(func):
        return func

    with monkeypatch.context() as patch:
        patch.setattr(torch.func, "grad", somebody_elses)
        with tl.install():
            assert torch.func.grad is tl.grad
        assert torch.func.grad is somebody_elses


def test_installations_on_several_threads_are_independent():
    """Leaving the block on one thread does not uninstall ours for another thread's block."""
    both_are_in, one_is_out, seen = threading.Barrier(2), threading.Event(), []

    def first():
        with tl.install():
            both_are_in.wait()
        one_is_out.set()

    def second():
        with tl.install():
            both_are_in.wait()
            one_is_out.wait()
            seen.append(who_is_in())

    threads = [threading.Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == ["ours"]
    assert who_is_in() == "torch's"


# Programs that run while ours are installed


def pulled(x):
    output, vjp_fn = torch.func.vjp(torch.sin, x)
    return vjp_fn(torch.ones_like(output))[0]


PROGRAMS = {
    "grad": lambda x: torch.func.grad(lambda x: x.sin().sum())(x),
    "grad_and_value": lambda x: torch.func.grad_and_value(lambda x: x.sin().sum())(x),
    "vjp": pulled,
    "jvp": lambda x: torch.func.jvp(torch.sin, (x,), (x,)),
    "vmap": lambda x: torch.vmap(torch.sin)(x),
    "vmap(grad)": lambda x: torch.vmap(torch.func.grad(torch.sin))(x),
    "jacrev": lambda x: torch.func.jacrev(torch.sin)(x),
    "jacfwd": lambda x: torch.func.jacfwd(torch.sin)(x),
    "hessian": lambda x: torch.func.hessian(lambda x: x.sin().sum())(x),
    "functionalize": lambda x: torch.func.functionalize(lambda x: x.sin().mul_(x))(x),
    "linearize": lambda x: torch.func.linearize(torch.sin, x)[1](x),
    "functorch": lambda x: functorch.vmap(functorch.grad(torch.sin))(x),
    "functional_call": lambda x: torch.func.grad(
        lambda p: torch.func.functional_call(torch.nn.Linear(3, 1), p, (x,)).sum()
    )({"weight": torch.ones(1, 3), "bias": torch.ones(1)}),
}
programs = pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)


@programs
def test_installed_functions_run_on_our_layers(program):
    before = program(X)
    with tl.install(), traced_steps() as events:
        torch.testing.assert_close(program(X), before)
    assert events


@pytest.mark.sweep(one_in=8)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@programs
def test_programs_compile_while_installed(program, backend):
    torch._dynamo.reset()
    before = program(X)
    with tl.install():
        compiled = torch.compile(program, backend=backend)
        torch.testing.assert_close(compiled(X), before)
    if program is not PROGRAMS["functionalize"]:  # torch's own does not compile with this backend
        torch.testing.assert_close(compiled(X), before)


def test_assigning_ours_by_hand_compiles(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(torch.func, "grad", tl.grad)
    compiled = torch.compile(tl.grad(lambda x: x.sin().sum()), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), X.cos())


# torch's own uses of its transforms


def cond_in_vmap(x):
    return torch.vmap(
        lambda x: torch.cond(x.sum() > 1, lambda x: x.sin(), lambda x: x.cos(), (x,))
    )(x)


def cond_in_functionalize(x):
    def f(x):
        return torch.cond(x.sum() > 1, lambda x: x.clone().mul_(2), lambda x: x.cos(), (x,))

    return torch.func.functionalize(f)(x)


def attention(x):
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 128, 128, device="cpu")
    values = x.expand(1, 1, 128, 3).contiguous()
    return flex_attention(values, values, values, block_mask=mask)


@torch.library.custom_op("test_install::double_", mutates_args={"x"})
def double_(x: torch.Tensor) -> None:
    x.mul_(2)


def compiled_write(x):
    def f(x):
        y = x.clone()
        double_(y)
        return y.sin()

    torch._dynamo.reset()
    return torch.compile(f, backend="aot_eager", fullgraph=True)(x)


def scan(x):
    from torch._higher_order_ops.associative_scan import associative_scan

    return associative_scan(lambda a, b: a * b, x, dim=0, combine_mode="generic")


def squares(x):
    return x**2


MACHINERY = {
    "autograd.functional's jacobian": lambda x: torch.autograd.functional.jacobian(
        squares, x, vectorize=True
    ),
    "autograd.functional's forward jacobian": lambda x: torch.autograd.functional.jacobian(
        squares, x, vectorize=True, strategy="forward-mode"
    ),
    "autograd.functional's hessian": lambda x: torch.autograd.functional.hessian(
        lambda x: (x**3).sum(), x, vectorize=True, outer_jacobian_strategy="forward-mode"
    ),
    "is_grads_batched": lambda x: torch.autograd.grad(
        squares(y := x.clone().requires_grad_()), y, torch.eye(3), is_grads_batched=True
    ),
    "gradcheck": lambda x: torch.autograd.gradcheck(
        squares, x.double().requires_grad_(), check_batched_grad=True, check_forward_ad=True
    ),
    "cond in vmap": cond_in_vmap,
    "cond in functionalize": cond_in_functionalize,
    "flex_attention": attention,
    "associative_scan": scan,
    "a custom operator that writes, compiled": compiled_write,
}


@pytest.mark.parametrize("program", MACHINERY.values(), ids=MACHINERY)
def test_torch_uses_of_transforms_work_while_installed(program):
    before = program(X)
    with tl.install():
        torch.testing.assert_close(program(X), before)


@pytest.mark.parametrize("name", ["vmap", "jvp", "grad"])
def test_export_works_while_installed(name):
    class Module(torch.nn.Module):
        def forward(self, x):
            return PROGRAMS[name](x)

    before = PROGRAMS[name](X + 1)
    with tl.install():
        exported = torch.export.export(Module(), (X,), strict=False).module()
    torch.testing.assert_close(exported(X + 1), before)


PROGRAM = """
import torch
import torch.func
from torch import vmap
from torch.func import grad as g, jvp
import torchlayers
torchlayers.install()
"""


def test_a_module_with_earlier_imports_is_warned():
    module = {"__name__": "train"}
    with pytest.warns(UserWarning, match="^torchlayers: install: train has imported grad, jvp, vm"):
        exec(PROGRAM, module)
    assert module["g"] is not tl.grad


def test_a_module_without_earlier_imports_is_not_warned(recwarn):
    exec("import torch.func\nimport torchlayers\ntorchlayers.install()\n" + PROGRAM, {})
    assert not [each for each in recwarn if "install" in str(each.message)]
