"""Matrix products of compiled code: oneDNN's results equal MKL's up to rounding."""

import contextlib
import platform

import pytest
import torch

import torchlayers as tl
from torchlayers._C import OneDnn, ProgramWriter, RecordedValue, multiply_with

PRODUCTS = {
    "mm": (torch.mm, []),
    "bmm": (torch.bmm, []),
    "addmm": (torch.addmm, [(4,), (1, 4), (3, 1), (3, 4)]),
    "baddbmm": (torch.baddbmm, [(4,), (2, 1, 4), (1, 3, 1), (2, 3, 4)]),
}
LAYOUTS = {
    "rows": lambda x: x.contiguous(),
    "columns": lambda x: x.mT.contiguous().mT,
    "with holes": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "later in memory": lambda x: torch.cat([x.flatten(), x.flatten()])[x.numel() :].view_as(x),
    "a batch within": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
    "expanded": lambda x: x[..., :1].expand_as(x),
    "negated": lambda x: torch._neg_view(x),
    "flat": lambda x: x.flatten().as_strided(x.shape, (1,) * x.dim()),
}


@contextlib.contextmanager
def multiplied_by_onednn(when):
    before = multiply_with(when)
    try:
        yield
    finally:
        multiply_with(before)


def program(tensors, sizes, strides, beta=1, alpha=1):
    """Builds a program of one product; the factors and the added tensor are its inputs."""
    writer = ProgramWriter(len(tensors))
    out = writer.allocate(sizes, strides, tensors[0].dtype)
    values = [RecordedValue(i) for i in range(len(tensors))]
    writer.multiply([out, *values], beta, alpha, "a product")
    return writer.finish([out])


def said_by_onednn(capfd, function):
    capfd.readouterr()
    with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
        function()
    return capfd.readouterr().out


def is_onednn_called(capfd, function):
    return ",matmul," in said_by_onednn(capfd, function)


def factors(name, dtype=torch.float32):
    batch = (2,) if "bmm" in name else ()
    return [torch.randn(*batch, *shape).mul(3).to(dtype) for shape in ((3, 5), (5, 4))]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_onednn_products_equal_torchs(name, layout):
    function, biases = PRODUCTS[name]
    for which in range(2):
        one, other = factors(name)
        if which:
            other = LAYOUTS[layout](other)
        else:
            one = LAYOUTS[layout](one)
        for shape in biases or [None]:
            added = [] if shape is None else [torch.randn(shape)]
            expected = function(*added, one, other)
            for strides in (expected.stride(), expected.mT.contiguous().mT.stride()):
                run = program([one, other, *added], expected.shape, strides)
                with multiplied_by_onednn(OneDnn.ALWAYS):
                    (result,) = run([one, other, *added])
                torch.testing.assert_close(result, expected)
                assert result.stride() == strides


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_other_dtypes_equal_torchs_products(name, dtype, capfd):
    function, biases = PRODUCTS[name]
    tensors = factors(name, dtype)
    added = [torch.randn(biases[1]).to(dtype)] if biases else []
    expected = function(*added, *tensors)
    run = program([*tensors, *added], expected.shape, expected.stride())
    with multiplied_by_onednn(OneDnn.ALWAYS):
        (result,) = run([*tensors, *added])
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["addmm", "baddbmm"])
def test_scaled_bias(name):
    function, biases = PRODUCTS[name]
    nan = torch.full(biases[1], float("nan"))
    for beta, alpha, added in ((2, 1, nan.nan_to_num(3)), (1, 0.5, nan.nan_to_num(3)), (0, 1, nan)):
        one, other = factors(name)
        expected = function(added, one, other, beta=beta, alpha=alpha)
        run = program([one, other, added], expected.shape, expected.stride(), beta, alpha)
        with multiplied_by_onednn(OneDnn.ALWAYS):
            (result,) = run([one, other, added])
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("sizes", [(0, 5, 4), (3, 0, 4), (3, 5, 0)], ids=str)
def test_products_of_empty_matrices(sizes):
    rows, inner, columns = sizes
    one, other, added = torch.ones(rows, inner), torch.ones(inner, columns), torch.ones(columns)
    with multiplied_by_onednn(OneDnn.ALWAYS):
        (product,) = program([one, other], (rows, columns), (columns, 1))([one, other])
        (total,) = program([one, other, added], (rows, columns), (columns, 1))([one, other, added])
    assert torch.equal(product, one @ other)
    assert torch.equal(total, torch.addmm(added, one, other))


def test_nan_and_infinity():
    one, other = torch.ones(3, 5), torch.ones(5, 4)
    one[0, 0], one[1, 1], other[2, 2] = float("nan"), float("inf"), float("-inf")
    with multiplied_by_onednn(OneDnn.ALWAYS):
        (result,) = program([one, other], (3, 4), (4, 1))([one, other])
    torch.testing.assert_close(result, one @ other, equal_nan=True)


needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available()
    or (platform.machine() == "x86_64" and not torch.cpu._is_avx512_supported()),
    reason="torch hands products to oneDNN on processors with AVX-512",
)


@needs_onednn
def test_onednn_is_used_where_it_is_enabled(capfd):
    small, large = torch.randn(64, 64), torch.randn(2048, 2048)
    for x, when, expected in (
        (small, OneDnn.ALWAYS, True),
        (small, OneDnn.WHERE_FASTER, False),
        (small, OneDnn.NEVER, False),
        (large, OneDnn.ALWAYS, True),
        (large, OneDnn.NEVER, False),
    ):
        run = program([x, x], x.shape, x.stride())
        with multiplied_by_onednn(when):
            assert is_onednn_called(capfd, lambda run=run, x=x: run([x, x])) == expected
    run = program([small, small], small.shape, small.stride())
    torch._C._set_mkldnn_enabled(False)  # mkldnn.flags() warns about GPUs
    try:
        with multiplied_by_onednn(OneDnn.ALWAYS):
            assert not is_onednn_called(capfd, lambda: run([small, small]))
    finally:
        torch._C._set_mkldnn_enabled(True)


@needs_onednn
@pytest.mark.parametrize("name", ["mm", "bmm"])
def test_column_major_results_use_no_reference_kernel(name, capfd):
    function, _ = PRODUCTS[name]
    tensors = factors(name)
    expected = function(*tensors)
    run = program(tensors, expected.shape, expected.mT.contiguous().mT.stride())
    with multiplied_by_onednn(OneDnn.ALWAYS):
        said = said_by_onednn(capfd, lambda: run(tensors))
    assert ",matmul," in said
    assert ",ref" not in said


@needs_onednn
def test_compiled_function_uses_onednn(capfd):
    x, y = torch.randn(40, 50), torch.randn(50, 60)
    compiled = tl.compile(tl.vmap(lambda row, y: (row @ y).sin(), in_dims=(0, None)))
    with multiplied_by_onednn(OneDnn.ALWAYS):
        assert is_onednn_called(capfd, lambda: compiled(x, y))
        torch.testing.assert_close(compiled(x, y), (x @ y).sin())
