"""The generator: its published test vectors, a NumPy reference, and its two kernels."""

import math

import numpy as np
import pytest
import torch

import torchlayers as tl
from torchlayers import _C

ops = torch.ops.torchlayers
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
DTYPES = [
    *(("bits", dtype) for dtype in (torch.int32, torch.int64)),
    *(("uniform", dtype) for dtype in FLOATS),
    *(("normal", dtype) for dtype in FLOATS),
]
# Sizes of no numbers, part of a block, whole blocks, part of a tile, and tiles.
SIZES = [(), (0,), (1,), (3,), (4,), (2, 3), (7, 19), (128,), (130,), (1000,), (3, 0, 2)]

kinds = pytest.mark.parametrize(("numbers", "dtype"), DTYPES)


def keys(*shape):
    return torch.randint(-(2**63), 2**63 - 1, shape, generator=torch.Generator().manual_seed(1))


def drawn(numbers, key, size, dtype):
    return getattr(ops, f"random_{numbers}")(key, size, dtype)


# From the paper's code, Random123 (kat_vectors): philox4x32, ten rounds.
@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        (
            [0x00000000, 0x00000000, 0x00000000, 0x00000000],
            [0x00000000, 0x00000000],
            [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8],
        ),
        (
            [0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF],
            [0xFFFFFFFF, 0xFFFFFFFF],
            [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
        ),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
    ids=["zeros", "ones", "digits of pi"],
)
def test_the_published_vectors(counter, key, words):
    assert _C.philox(counter, key) == words


def test_the_numbers_of_a_key_are_its_blocks_one_after_the_other():
    key = -0x0123456789ABCDEF
    halves = [key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF]
    words = [word for block in range(50) for word in _C.philox([block, 0, 0, 0], halves)]
    found = drawn("bits", torch.tensor(key), (200,), torch.int32)
    assert [word % 2**32 for word in found.tolist()] == words


def test_a_place_beyond_32_bits_is_another():
    key = torch.tensor(7)
    low, high = (tl.random.fold_in(key, place) for place in (5, 5 + 2**32))
    assert low != high


@pytest.mark.sweep
@kinds
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 5), (0,), (40, 1)], ids=str)
def test_both_kernels_give_the_same(numbers, dtype, size, shape):
    key = keys(*shape)
    ours = drawn(numbers, key, size, dtype)
    of_tensors = getattr(ops, f"random_{numbers}_of_tensors")(key, size, dtype)
    assert ours.shape == (*shape, *size)
    assert ours.dtype == of_tensors.dtype == dtype
    if numbers == "normal":  # torch's CPU square root is not IEEE's
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(ours, of_tensors, rtol=2 * eps, atol=0)
    else:
        assert torch.equal(ours, of_tensors)


@kinds
def test_a_key_gives_what_it_gives_alone(numbers, dtype):
    key = keys(6)
    for size in SIZES:
        together = drawn(numbers, key, size, dtype)
        for i in range(6):
            assert torch.equal(together[i], drawn(numbers, key[i], size, dtype))


@kinds
def test_fewer_numbers_are_the_first_of_more(numbers, dtype):
    key = keys()
    more = drawn(numbers, key, (1000,), dtype)
    for count in (1, 5, 127, 513):
        assert torch.equal(drawn(numbers, key, (count,), dtype), more[:count])


@kinds
def test_threads_give_what_one_gives(numbers, dtype):
    key, threads = keys(3), torch.get_num_threads()
    one = drawn(numbers, key, (100_001,), dtype)
    try:
        torch.set_num_threads(3)
        assert torch.equal(drawn(numbers, key, (100_001,), dtype), one)
    finally:
        torch.set_num_threads(threads)


@kinds
def test_strided_keys(numbers, dtype):
    key = keys(4, 6)
    assert torch.equal(
        drawn(numbers, key.t()[::2], (9,), dtype),
        drawn(numbers, key.t()[::2].contiguous(), (9,), dtype),
    )


@pytest.mark.parametrize(
    ("dtype", "digits"), [(torch.float16, 11), (torch.bfloat16, 8), (torch.float32, 24)]
)
def test_uniform_numbers_are_the_upper_bits(dtype, digits):
    key = keys()
    words = drawn("bits", key, (500,), torch.int32).to(torch.int64) & 0xFFFFFFFF
    expected = (words >> (32 - digits)).double() * 2.0**-digits
    assert torch.equal(drawn("uniform", key, (500,), dtype).double(), expected)


def test_uniform_doubles_have_53_bits():
    key = keys()
    words = drawn("bits", key, (400,), torch.int32).numpy().astype(np.uint32).reshape(-1, 2)
    whole = (words[:, 0] >> 5).astype(np.uint64) << np.uint64(26)
    expected = (whole | (words[:, 1] >> 6)).astype(float) / 2**53
    assert (drawn("uniform", key, (200,), torch.float64).numpy() == expected).all()


KINDS = {  # float and integer types; mantissa bits; bits of sqrt(1/2); numbers of terms
    torch.float32: (np.float32, np.int32, 23, 0x3F3504F3, 4, 5),
    torch.float64: (np.float64, np.int64, 52, 0x3FE6A09E667F3BCD, 10, 8),
}


@pytest.mark.parametrize("dtype", KINDS)
def test_normal_numbers_are_these_operations_to_the_last_bit(dtype):
    """Each rounds as IEEE 754 specifies, so a device without a kernel of ours may compute them."""
    real, integer, mantissa, root_of_half, log_terms, sine_terms = KINDS[dtype]
    key = keys()
    words = drawn("bits", key, (40_000,), torch.int32).numpy().astype(np.uint32).astype(np.int64)
    number = real
    if dtype == torch.float32:
        radius, angle = words.reshape(-1, 2).T
        whole = (radius >> 16).astype(real) * number(2.0**16) + (radius & 0xFFFF).astype(real)
        u = whole * number(2.0**-32) + number(2.0**-33)
        t = ((angle & 0x3FFFFFFF) - 0x20000000).astype(real) * number(2.0**-30)
    else:
        radius, more, angle, rest = words.reshape(-1, 4).T
        u = ((radius >> 5) * 2.0**26 + (more >> 6)) * 2.0**-53 + 2.0**-54
        t = ((angle & 0x3FFFFFFF) - 0x20000000) * 2.0**-30 + (rest >> 10) * 2.0**-52
    shifted = u.view(integer) - integer(root_of_half)
    f = ((shifted & integer(2**mantissa - 1)) + integer(root_of_half)).view(real) - number(1)
    s = f / (f + number(2))
    z = s * s
    series = np.full_like(z, number(1) / number(2 * log_terms + 1))
    for n in reversed(range(log_terms)):
        series = series * z + number(1) / number(2 * n + 1)
    log = (shifted >> mantissa).astype(real) * number(math.log(2)) + (s + s) * series
    r = np.sqrt(number(-2) * log)
    t = t * number(math.pi / 2)
    z = t * t
    sine = np.full_like(z, number(1 / math.factorial(2 * sine_terms + 1)))
    cosine = np.full_like(z, number(1 / math.factorial(2 * sine_terms)))
    for n in reversed(range(sine_terms)):
        sine = number(1 / math.factorial(2 * n + 1)) - sine * z
        cosine = number(1 / math.factorial(2 * n)) - cosine * z
    sine = sine * t
    quadrant = angle >> 30
    x = r * np.where(quadrant & 1, sine, cosine)
    y = r * np.where(quadrant & 1, cosine, sine)
    pairs = np.where((quadrant + 1) & 2, -x, x), np.where(quadrant & 2, -y, y)
    expected = np.stack(pairs, -1).ravel()
    found = drawn("normal", key, (expected.size,), dtype).numpy()
    assert (found == expected).all()


def test_normal_numbers_of_the_extreme_words_are_finite():
    """The Box-Muller transform of the smallest and the largest radius, with the same logarithm."""
    for dtype in FLOATS:
        numbers = drawn("normal", keys(200), (5000,), dtype)
        assert numbers.isfinite().all()
    assert 4.5 < numbers.abs().max() < 8.7


@kinds
def test_meta_and_fake_tensors_have_the_shape(numbers, dtype):
    from torch._subclasses import FakeTensorMode

    assert drawn(numbers, keys(3).to("meta"), (2, 5), dtype).shape == (3, 2, 5)
    with FakeTensorMode() as mode:
        fake = drawn(numbers, mode.from_tensor(keys(3)), (2, 5), dtype)
    assert fake.shape == (3, 2, 5)
    assert fake.dtype == dtype


@pytest.mark.parametrize("numbers", ["bits", "uniform", "normal"])
def test_another_dtype_is_refused(numbers):
    with pytest.raises(RuntimeError, match="can't have dtype Bool"):
        drawn(numbers, keys(), (3,), torch.bool)
    with pytest.raises(RuntimeError, match="keys are int64"):
        drawn(numbers, torch.zeros(()), (3,), torch.float32)
