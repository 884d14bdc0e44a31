"""Operators promote dtypes as for a sample, whose tensors without dimensions count for less."""

import itertools

import pytest
import torch

import torchlayers as tl

OPERATORS = {
    "where": lambda a, b, c: torch.where(a > 0.5, b, c),
    "clamp, min": lambda a, b, c: torch.clamp(a, c),
    "clamp, max": lambda a, b, c: torch.clamp(a, max=c),
    "clamp": lambda a, b, c: torch.clamp(a, b - 1, c),
    "addcmul": torch.addcmul,
    "addcdiv": lambda a, b, c: torch.addcdiv(a, b, c + 2),
}
DTYPES = {
    "float32 and float64": (torch.float32, torch.float32, torch.float64),
    "float64 and float32": (torch.float64, torch.float32, torch.float32),
    "float16 and float32": (torch.float16, torch.float32, torch.float16),
    "float32 and int64": (torch.float32, torch.float32, torch.int64),
}
DTYPES_OF_LERP = (torch.float32, torch.float64, torch.bfloat16)
SHAPES = [((), (), ()), ((2,), (), ()), ((), (), (2,)), ((), (2,), ()), ((1,), (2,), ())]
BATCHED = [(0, 0, None), (0, None, None), (None, None, 0), (0, 0, 0), (None, 0, 0)]


def samples(shape, dtype, dim):
    generator = torch.Generator().manual_seed(len(shape))
    shape = shape if dim is None else (3, *shape)
    return (torch.rand(shape, generator=generator, dtype=torch.float64) * 4).to(dtype)


@pytest.mark.parametrize("op", OPERATORS.values(), ids=OPERATORS)
@pytest.mark.parametrize("dtypes", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("dims", BATCHED, ids=str)
def test_a_batch_has_the_dtype_of_a_sample(op, dtypes, shapes, dims):
    args = [samples(*each) for each in zip(shapes, dtypes, dims, strict=True)]
    looped = torch.stack(
        [
            op(*(x if dim is None else x[i] for x, dim in zip(args, dims, strict=True)))
            for i in range(3)
        ]
    )
    torch.testing.assert_close(tl.vmap(op, dims)(*args), looped)


@pytest.mark.parametrize("op", OPERATORS.values(), ids=OPERATORS)
def test_gradients_are_those_of_a_sample(op):
    dtypes = DTYPES["float32 and float64"]
    args = [samples((), *each) for each in zip(dtypes, (0, 0, None), strict=True)]
    gradient = tl.grad(op, argnums=(0, 1, 2))
    found = tl.vmap(gradient, (0, 0, None))(*args)
    looped = [gradient(args[0][i], args[1][i], args[2]) for i in range(3)]
    for x, each in zip(found, zip(*looped, strict=True), strict=True):
        torch.testing.assert_close(x, torch.stack(each))


@pytest.mark.parametrize("compare", [torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge])
@pytest.mark.parametrize("dims", [(0, None), (None, 0), (0, 0)])
def test_numbers_are_compared_in_the_larger_dtype(compare, dims):
    """0.1 is larger in float32 than in float64."""
    single = torch.tensor(0.1, dtype=torch.float32)
    double = torch.tensor(0.1, dtype=torch.float64)
    args = [
        x if dim is None else x.expand(3) for x, dim in zip((single, double), dims, strict=True)
    ]
    assert tl.vmap(compare, dims)(*args).tolist() == [compare(single, double).item()] * 3


@pytest.mark.parametrize("dtypes", [*itertools.product(DTYPES_OF_LERP, repeat=3)], ids=str)
@pytest.mark.parametrize("dims", BATCHED, ids=str)
def test_lerp_takes_the_dtypes_that_it_takes_of_a_sample(dtypes, dims):
    """It promotes the dtype of a weight without dimensions, and refuses other mixtures."""
    for shapes in itertools.product([(), (2,)], repeat=3):
        args = [samples(*each) for each in zip(shapes, dtypes, dims, strict=True)]
        try:
            looped = torch.stack(
                [
                    torch.lerp(*(x if d is None else x[i] for x, d in zip(args, dims, strict=True)))
                    for i in range(3)
                ]
            )
        except RuntimeError:
            with pytest.raises(RuntimeError, match="dtype"):
                tl.vmap(torch.lerp, dims)(*args)
        else:
            torch.testing.assert_close(tl.vmap(torch.lerp, dims)(*args), looped)
