"""Programs that read values of tensors."""

import dataclasses
import math

import numpy as np
import torch
from torch.nn import functional as F

import torchlayers as tl


def branches(f):
    """A program without state."""

    def program():
        return f, None

    program.__name__ = f.__name__
    program.is_program = True
    return program


@branches
def branch_on_a_sum(x):
    return x.sin() if x.sum() > 0 else x.cos()


@branches
def branch_on_an_item(x):
    loss = (x * x).sum().item()
    return x / loss if loss > 3 else x * loss


@branches
def chained_comparison(x):
    if -1 < x.sum() < 1:
        return x * 2
    return x * 3


@branches
def any_and_not(x):
    if torch.isnan(x).any() or not (x > -2.5).all():
        return torch.zeros_like(x) * x
    return x.exp()


@branches
def positive_elements(x):
    return x[x > 0].sum() * x


@branches
def masked_assignment(x):
    y = x.clone()
    y[y < 0] = 0.0
    y[x > 1] += 2 * x[x > 1]
    return y * x


@branches
def shrinks_until_short(x):
    while x.norm() > 1:
        x = x * 0.7
    return x.sin()


@branches
def backtracks(x):
    def loss(x):
        return (x**4).sum() + x.sum()

    step, slope = 1.0, tl.grad(loss)(x)
    while loss(x - step * slope) > loss(x) - 1e-4 * step * slope.dot(slope):
        step *= 0.5
        if step < 1e-4:
            break
    return x - step * slope


@branches
def bisects(x):
    low, high = 0.0, x.abs().max().item() + 1
    while high - low > 0.1:
        middle = (low + high) / 2
        if (x.abs() - middle).sum().item() > 0:
            low = middle
        else:
            high = middle
    return x * low


@branches
def newtons_method(x):
    y = x.abs() + 1
    for _ in range(30):
        change = (y * y - x.abs() - 1) / (2 * y)
        y = y - change
        if change.abs().max().item() < 1e-8:
            break
    else:
        raise RuntimeError("no root")
    return y


@branches
def power_iteration(x):
    matrix = torch.diag(x.abs() + 1) + 0.1
    v = torch.ones_like(x)
    before = torch.tensor(math.inf)
    for _ in range(40):
        v = matrix @ v
        v = v / v.norm()
        value = v @ matrix @ v
        if (value - before).abs() < 1e-2:
            break
        before = value
    return v


@branches
def asserts(x):
    assert torch.isfinite(x).all(), "not finite"
    assert x.norm() < 1e6
    return x.cos()


@branches
def returns_from_a_loop(x):
    for i in range(5):
        x = x * 0.5 + i
        if x.min() > 1:
            return x * i
    return x


@branches
def catches_its_own_error(x):
    try:
        if x.max() > 2:
            raise ValueError("large")
        return x.sin()
    except ValueError as error:
        return x * len(str(error))


@branches
def raises_on_data(x):
    if x.min() < -2:
        raise ValueError(f"too small: {x.min():.2f}")
    return x.exp()


@branches
def catches_errors_of_torch(x):
    try:
        return torch.linalg.cholesky(torch.diag(x))
    except torch.linalg.LinAlgError:
        return torch.diag(x.abs())


@branches
def cholesky_with_info(x):
    factor, info = torch.linalg.cholesky_ex(torch.diag(x))
    jitter = 1e-3
    while info.item() > 0:
        factor, info = torch.linalg.cholesky_ex(torch.diag(x) + jitter * torch.eye(3).to(x))
        jitter *= 10
    return factor * jitter


@branches
def formats(x):
    text = f"{x.max().item():.1f}|{x.sum():.0f}|{str(x.min().item())[:2]}|{x[0].item()!r:.3}"
    return x * len(text), text


@branches
def percent_format(x):
    return x, "loss %.3f at %d" % (x.sum().item(), x.numel())  # noqa: UP031


@branches
def uses_numpy(x):
    order = np.argsort(x.detach().numpy())
    return x[torch.from_numpy(order)] * float(np.median(x.detach().numpy()))


@branches
def closeness(x):
    if torch.allclose(x, x.round(), atol=0.3):
        return x.round() * x
    return x if torch.equal(x, x.clamp(min=-1)) else x.clamp(min=-1)


@branches
def unique_values(x):
    values, counts = torch.unique(x.detach().sign(), return_counts=True)
    return x * len(values) + counts.max().item()


@branches
def indices_of_nonzeros(x):
    total = x * 0
    for i in torch.nonzero(x > 0).flatten().tolist():
        total = total + x[i] * (i + 1)
    return total


@branches
def where_without_values(x):
    (places,) = torch.where(x < 1)
    return x[places].exp().sum() + x


@branches
def how_many_are_largest(x):
    count = int((x > 0).sum())
    return x.topk(max(count, 1)).values.sum() * x


@branches
def filters_a_list(x):
    chosen = [v * v for v in x if v > 0]
    return sum(chosen, x * 0)


@branches
def sorts_a_list(x):
    return torch.tensor(sorted(x.tolist()), dtype=x.dtype) * x


@branches
def builtin_extremes(x):
    return max(x) * min(x.unbind()) + sum(x)


@branches
def key_of_minimum(x):
    best = min(range(3), key=lambda i: x[i].item())
    return x[best] * x


@branches
def index_of_maximum(x):
    i = x.argmax().item()
    return x[: i + 1].sum() * x[i]


@branches
def repeats_by_a_number(x):
    for _ in range(int(x.abs().sum()) % 5):
        x = x.sin()
    return x


@branches
def matches_a_value(x):
    match int(x.sum()):
        case 0:
            return x
        case n if n > 0:
            return x * n
        case _:
            return -x


@branches
def table_of_functions(x):
    functions = {0: torch.sin, 1: torch.cos, 2: torch.exp}
    return functions[int(x.abs().sum()) % 3](x)


@branches
def math_of_a_number(x):
    scale = math.sqrt(x.norm().item()) + math.exp(-abs(x.sum().item()))
    return x * scale + math.floor(x.max().item())


@branches
def recursion(x):
    return recursion_of(x * 0.5) + 1 if x.norm() > 1 else x


def recursion_of(x):
    return recursion_of(x * 0.5) + 1 if x.norm() > 1 else x


@branches
def splits_by_sizes(x):
    count = (x > 0).sum()
    first, rest = x.split([int(count), 3 - int(count)])
    return first.sum() * x + rest.sum()


@branches
def repeats_elements(x):
    counts = (x > 0).long() + 1
    return torch.repeat_interleave(x, counts).sum() * x


@branches
def set_of_integers(x):
    return x * len({int(v) for v in x.round()})


@branches
def one_hot_labels(x):
    labels = x.detach().abs().long() % 3
    return (F.one_hot(labels).to(x).sum(0)).sum() * x


@branches
def dictionary_of_results(x):
    return {"x": x, "positive": bool(x.sum() > 0), "n": int((x > 0).sum()), "norm": x.norm().item()}


@dataclasses.dataclass
class Bounds:
    low: float
    high: float

    def clamp(self, x):
        return x.clamp(self.low, self.high)


@branches
def dataclass_of_numbers(x):
    return Bounds(x.min().item() / 2, x.max().item() / 2).clamp(x)


@branches
def generator_that_reads(x):
    def halves(x):
        while x.norm() > 0.5:
            yield x
            x = x / 2

    return sum(halves(x), x * 0)


@branches
def two_compiled_functions(x):
    inner = tl.compile(lambda x: x * 2 if x.sum() > 0 else x * 3, backend="replay")
    return inner(x) + inner(-x)


@branches
def autograd_inside(x):
    y = x.detach().requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad((y**3).sum(), y)
    return slope * x if slope.norm() > 3 else slope + x


@branches
def rejection_sampling(x):
    generator = torch.Generator().manual_seed(int((x > 0).sum()))
    while True:
        y = torch.rand(3, generator=generator, dtype=x.dtype)
        if y.sum() < 1.2:
            return y * x


@branches
def early_stop_on_nan(x):
    y = x.log()
    if y.isnan().any():
        return x.abs().log().nan_to_num()
    return y


@branches
def while_with_else(x):
    count = 0
    while x.max() > 0.5:
        x, count = x * 0.5, count + 1
        if count == 2:
            break
    else:
        return x - 1
    return x * count


@branches
def conditional_expression_on_integers(x):
    labels = (x * 2).long()
    return x * (labels.sum().item() % 2 + 1) if labels.max() != labels.min() else x


@branches
def checks_inside_no_grad(x):
    with torch.no_grad():
        norm = x.norm()
        scale = 1.0 if norm <= 1 else 1 / norm.item()
    return x * scale


@branches
def divides_by_a_number(x):
    return x / (x.sum().item() // 1 + 0.5) % (abs(x.max().item()) + 1)


@branches
def assert_close_of_testing(x):
    try:
        torch.testing.assert_close(x, x.abs())
    except AssertionError:
        return -x
    return x * 2


@branches
def bincount_of_labels(x):
    counts = torch.bincount(x.detach().abs().long())
    return x * counts[0] + len(counts)


@branches
def rows_of_a_numbers_list(x):
    rows = [[v, v * v] for v in x.tolist()]
    return torch.tensor(rows, dtype=x.dtype).sum(1) + x


@branches
def numbers_as_default_dict_keys(x):
    groups = {}
    for value in x:
        groups.setdefault(value.item() > 0, []).append(value)
    return sum(torch.stack(group).prod() for group in groups.values()) * x


@branches
def padded_sequences(x):
    lengths = [max(1, int(v)) for v in x.abs()]
    rows = [x[i].expand(n) for i, n in enumerate(lengths)]
    return torch.nn.utils.rnn.pad_sequence(rows).sum() * x


READING = [value for value in [*globals().values()] if hasattr(value, "is_program")]
