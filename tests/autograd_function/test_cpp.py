"""C++ autograd Functions: a clear error, and never a silently lost gradient."""

from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import load

import torchlayers as tl
from tests.support.calls import ambient
from torchlayers.errors import FunctionError

X = torch.tensor([0.5, 1.0, 2.0])
TRANSFORMS = {
    "grad": lambda f: tl.grad(lambda x: f(x).sum())(X),
    "vjp": lambda f: tl.vjp(f, X),
    "jvp": lambda f: tl.jvp(f, (X,), (X,)),
    "vmap(grad)": lambda f: tl.vmap(tl.grad(f))(X),
    "grad(vmap)": lambda f: tl.grad(lambda x: tl.vmap(f)(x).sum())(X),
    "grad(grad)": lambda f: tl.grad(lambda x: tl.grad(lambda y: f(y).sum())(x).sum())(X),
}


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # about the compiler and missing batching rules
def test_cpp_functions(tmp_path):
    """A single test, since building the extension is slow."""
    load(
        "torchlayers_cpp_tests",
        [str(Path(__file__).with_name("cpp_functions.cpp"))],
        extra_cflags=["-O0"],
        build_directory=str(tmp_path),
        is_python_module=False,
    )
    for name in ("composite", "square"):
        operator = getattr(torch.ops.torchlayers_cpp_tests, name)
        before = ambient()
        for transform in TRANSFORMS.values():
            with pytest.raises(FunctionError, match=r"torchlayers: a C\+\+ .* Make it an operator"):
                transform(operator)
            assert ambient() == before
        x = X.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(tl.vmap(operator)(x).sum(), x)
        torch.testing.assert_close(gradient, 2 * X)
