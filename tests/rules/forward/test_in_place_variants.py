"""Every in-place method treats tangents as its out-of-place counterpart does."""

import pytest
import torch
from torch import Tensor

import torchlayers as tl

A = torch.rand(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.1
B = A.flip(0) * 0.9 + 0.05
ROWS = torch.tensor([0, 2])
PLACES = torch.tensor([[0, 1, 2], [2, 1, 0], [1, 1, 0]])

# Arguments that some method accepts.
ARGUMENTS = (
    (),
    (B,),
    (2.5,),
    (2,),
    (B, B),
    (0.2, 0.7),
    (B, 0.5),
    (0, ROWS, B[:2]),
    (0, ROWS, 0.3),
    (0, PLACES, B),
    (A > 0.5, 0.3),
    ((ROWS,), B[:2]),
)
RANDOM = {"bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_"} | {
    "random_",
    "uniform_",
}
REFUSED = {"igamma_", "igammac_"}  # by torch too: no formula for their first argument
METHODS = sorted(
    name
    for name in dir(Tensor)
    if name.endswith("_") and not name.startswith("_") and hasattr(Tensor, name[:-1])
    if not name.startswith("resize")  # deprecated without the underscore
)


def calls(name):
    """Pairs of in-place and out-of-place functions, with the tensors to differentiate by."""
    for arguments in ARGUMENTS:

        def bound(*tensors, method, arguments=arguments):
            rest = iter(tensors[1:])
            filled = [next(rest) if is_float(a) else a for a in arguments]
            return getattr(tensors[0].clone(), method)(*filled)

        tensors = (A, *filter(is_float, arguments))
        try:
            written = bound(*tensors, method=name)
            expected = bound(*tensors, method=name[:-1])
        except (TypeError, RuntimeError, ValueError, IndexError):
            continue  # the method does not accept these arguments
        if written.dtype == expected.dtype and torch.allclose(written, expected, equal_nan=True):
            yield bound, tensors


def is_float(value):
    return isinstance(value, Tensor) and value.is_floating_point()


@pytest.mark.filterwarnings("ignore:This overload of:UserWarning")
@pytest.mark.parametrize("name", [name for name in METHODS if name not in RANDOM])
def test_an_in_place_method_has_the_tangent_of_its_namesake(name):
    for bound, tensors in calls(name):
        tangents = tuple(torch.linspace(-1, 1, t.numel()).to(t.dtype).view_as(t) for t in tensors)

        def pushed(method, bound=bound, tensors=tensors, tangents=tangents):
            return tl.jvp(lambda *xs: bound(*xs, method=method), tensors, tangents)[1]

        if name in REFUSED:
            for method in (name, name[:-1]):
                with pytest.raises(NotImplementedError, match=r"torchlayers: jvp .* formula"):
                    pushed(method)
        else:
            torch.testing.assert_close(pushed(name), pushed(name[:-1]), equal_nan=True)


@pytest.mark.filterwarnings("ignore:This overload of:UserWarning")
def test_the_calls_are_many():
    assert sum(len(list(calls(name))) for name in METHODS if name not in RANDOM) > 100


@pytest.mark.parametrize("name", ["mul_", "add_", "sub_", "atan2_", "pow_", "div_"])
def test_a_tensor_written_with_itself(name):
    """torch.func reads the overwritten value instead of the original."""

    def written(x):
        y = x.clone()
        return getattr(y, name)(y)

    def expected(x):
        return getattr(x, name[:-1])(x)

    torch.testing.assert_close(tl.jvp(written, (A,), (B,)), tl.jvp(expected, (A,), (B,)))
