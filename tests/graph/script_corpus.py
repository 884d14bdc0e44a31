"""Functions and modules to script, each with the arguments of a call."""

from collections.abc import Callable
from typing import Any, List, NamedTuple, Optional, Tuple  # noqa: UP035 (TorchScript's names)

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Case(NamedTuple):
    make: Callable[[], Any]  # returns the argument of torch.jit.script
    args: Callable[[], tuple[Any, ...]]
    random: bool = False


FUNCTIONS: dict[str, Case] = {}
MODULES: dict[str, Case] = {}


def t(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def positive(*shape: int) -> Tensor:
    return torch.rand(shape, dtype=torch.float64) + 0.5


def ints(high: int, *shape: int) -> Tensor:
    return torch.randint(high, shape)


def case(*makers: Callable[[], Any], random: bool = False) -> Callable[[Any], Any]:
    """Adds the decorated function to the corpus; `makers` create its arguments."""

    def add(function: Any) -> Any:
        FUNCTIONS[function.__name__] = Case(
            lambda: function, lambda: tuple(make() for make in makers), random
        )
        return function

    return add


# Pointwise chains with broadcasting.


@case(lambda: t(3, 4), lambda: t(4))
def product_and_tanh(x, y):
    return (x * y).tanh() + x


@case(lambda: t(3, 1), lambda: t(1, 4))
def both_are_broadcast(x, y):
    return x * y - y / (x * x + 1)


@case(lambda: t(2, 3, 4), lambda: t(3, 1), lambda: t())
def three_shapes(x, y, z):
    return torch.sigmoid(x + y) * z


@case(lambda: t(5))
def numbers_on_both_sides(x):
    return 2 - x * 3 + 1 / (x * x + 1) - x / 4


@case(lambda: positive(4))
def logarithms_and_roots(x):
    return x.log() + x.sqrt() + x.rsqrt() + x.log1p() + x.log2() + x.reciprocal()


@case(lambda: t(4))
def exponentials(x):
    return x.exp() + x.expm1() + torch.exp2(x) + x.erf() + x.sinh() * x.cosh()


@case(lambda: t(4) * 0.3)
def trigonometry(x):
    return x.sin() * x.cos() + x.tan() + x.asin() + x.acos() + x.atan()


@case(lambda: t(4), lambda: positive(4))
def inverse_hyperbolic(x, y):
    return torch.asinh(x) + torch.acosh(y + 1) + torch.atanh(x.tanh() * 0.5)


@case(lambda: positive(3, 4), lambda: t(4))
def powers(x, y):
    return x**2 + x**y + torch.square(x) + 2**y


@case(lambda: t(3, 4), lambda: t(3, 4))
def extrema_of_two(x, y):
    return torch.maximum(x, y) * torch.minimum(x, y.relu())


@case(lambda: t(3, 4), lambda: t(4))
def atan2_and_hypot(x, y):
    sums = torch.logaddexp(x, y) * torch.logaddexp2(x, y)
    return torch.atan2(x, y) + torch.hypot(x, y) + sums


@case(lambda: t(3, 4), lambda: t(4), lambda: t(3, 1))
def clamps_by_tensors(x, low, high):
    return x.clamp(low, high) + x.clamp_min(low) * x.clamp_max(high) + torch.dist(x, low)


@case(lambda: t(6))
def clamps(x):
    return x.clamp(-0.5, 0.5) + x.clamp_min(0.1) * x.clamp_max(0.7) + x.abs()


@case(lambda: t(3, 4), lambda: t(3, 4))
def chosen(x, y):
    return torch.where(x > y, x * y, y.sin())


@case(lambda: t(3, 4))
def masked(x):
    return x.masked_fill(x > 0.5, 2.0) * x


@case(lambda: t(3), lambda: t(3), lambda: positive(3))
def addc(x, y, z):
    return torch.addcmul(x, y, z, value=0.5) + torch.addcdiv(x, y, z, value=2)


@case(lambda: t(3), lambda: t(3), lambda: t(3))
def lerp(x, y, w):
    return torch.lerp(x, y, 0.3) + torch.lerp(x, y, w)


@case(lambda: t(4))
def repeated_value(x):
    y = x * x
    return y * y + y * x + y


# Activations and losses.


@case(lambda: t(8))
def activations(x):
    return F.relu(x) + F.gelu(x) + F.silu(x) + F.leaky_relu(x, 0.2) + F.softplus(x)


@case(lambda: t(8))
def more_activations(x):
    return F.elu(x) + F.selu(x) + F.celu(x) + F.mish(x) + F.logsigmoid(x) + F.hardtanh(x)


@case(lambda: t(8))
def activations_with_parameters(x):
    y = F.gelu(x, approximate="tanh") + F.softplus(x, 2.0, 1.0) + F.threshold(x, 0.1, 0.2)
    return y + F.hardtanh(x, -0.3, 0.4) + F.elu(x, 0.7) + F.celu(x, 1.5) + F.hardshrink(x, 0.2)


@case(lambda: t(8))
def hard_activations(x):
    return F.hardswish(x) + F.hardsigmoid(x) + F.relu6(x) + F.softshrink(x) + F.hardshrink(x)


@case(lambda: t(3, 6))
def glu(x):
    return F.glu(x, dim=1)


@case(lambda: t(3, 5))
def softmaxes(x):
    return F.softmax(x, dim=1) * F.log_softmax(x, dim=0)


@case(lambda: t(4, 5), lambda: ints(5, 4))
def cross_entropy(x, target):
    return F.cross_entropy(x, target)


@case(lambda: t(4, 5), lambda: ints(5, 4), lambda: positive(5))
def weighted_cross_entropy(x, target, weight):
    return F.cross_entropy(x, target, weight.detach())


@case(lambda: t(2, 5, 3), lambda: ints(5, 2, 3))
def cross_entropy_of_a_sequence(x, target):
    return F.cross_entropy(x, target, reduction="none")


@case(lambda: t(4, 5), lambda: ints(5, 4))
def nll(x, target):
    return F.nll_loss(F.log_softmax(x, dim=1), target)


@case(lambda: t(4), lambda: t(4))
def regression_losses(x, y):
    return F.mse_loss(x, y) + F.l1_loss(x, y) + F.smooth_l1_loss(x, y) + F.huber_loss(x, y)


@case(lambda: t(4), lambda: torch.rand(4, dtype=torch.float64))
def binary_losses(x, y):
    one = F.binary_cross_entropy(x.sigmoid(), y.detach())
    return one + F.binary_cross_entropy_with_logits(x, y)


@case(lambda: t(3, 4), lambda: t(3, 4))
def divergence(x, y):
    return F.kl_div(F.log_softmax(x, 1), F.softmax(y, 1), reduction="batchmean")


@case(lambda: t(3, 4), lambda: t(3, 4))
def cosine(x, y):
    return F.cosine_similarity(x, y, dim=1)


# Reductions.


@case(lambda: t(3, 4))
def sums(x):
    return x.sum() + x.sum(0).sum() * x.sum(1, keepdim=True) + x.sum([0, 1])


@case(lambda: t(3, 4))
def means(x):
    return x.mean() * x.mean(1) + (x * x).mean([0, 1], keepdim=True).sum()


@case(lambda: t(3, 4))
def variances(x):
    return x.var() + x.std() * x.var(1) + x.std(1, keepdim=True).sum()


@case(lambda: t(3, 4))
def logsumexp(x):
    return torch.logsumexp(x, 1) * torch.logsumexp(x, 0, keepdim=True).sum()


@case(lambda: t(3, 4))
def extrema(x):
    values, _ = x.max(1)
    return values * x.min(1)[0] + x.amax(1) + x.amin([0, 1]) + x.max() - x.min()


@case(lambda: t(3, 6))
def order_statistics(x):
    values, _ = torch.topk(x, 2, dim=1)
    return values.sum() * x.kthvalue(2, dim=1)[0] + torch.sort(x, dim=1)[0][:, 0]


@case(lambda: t(3, 4))
def norms(x):
    return x.norm() + x.norm(2, 1) * x.norm(1) + torch.linalg.vector_norm(x, 3, 0).sum()


@case(lambda: t(3, 4))
def cumulative(x):
    return x.cumsum(1) * torch.logcumsumexp(x, 0)


# Matrices.


@case(lambda: t(3, 4), lambda: t(4, 5))
def matrices(x, y):
    return x.mm(y).t() @ x


@case(lambda: t(2, 3, 4), lambda: t(2, 4, 5), lambda: t(2, 3, 5))
def batches_of_matrices(x, y, z):
    return torch.bmm(x, y) + torch.baddbmm(z, x, y, beta=0.5, alpha=2)


@case(lambda: t(2, 3, 4), lambda: t(4, 5))
def matmul_with_broadcasting(x, y):
    return torch.matmul(x, y)


@case(lambda: t(4), lambda: t(4, 3), lambda: t(2, 4, 3), lambda: t(2, 3, 4))
def matmul_of_vectors(x, a, b, c):
    y = torch.matmul(x, x) * torch.matmul(x, a).sum() + torch.matmul(c, x).sum()
    z = torch.matmul(x, b) + torch.matmul(a.t(), x)
    return y * z + torch.matmul(c, a).sum() * torch.matmul(c.unsqueeze(1), b).sum()


@case(lambda: t(3, 4), lambda: t(4), lambda: t(3))
def vectors(a, x, y):
    return a.mv(x) * y.dot(y) + torch.addmv(y, a, x, beta=2, alpha=0.5) + torch.outer(y, x).sum(1)


@case(lambda: t(3), lambda: t(2, 4), lambda: t(4, 3))
def addmm(b, x, y):
    return torch.addmm(b, x, y, beta=2, alpha=0.5)


@case(lambda: t(2, 4), lambda: t(3, 4), lambda: t(3))
def linear(x, w, b):
    return F.linear(F.linear(x, w, b), w.t())


# Shapes.


@case(lambda: t(2, 3, 4))
def reshaping(x):
    y = x.view(6, 4).reshape(3, 8).flatten()
    return y.unflatten(0, (4, 6)).sum(1) * 2


@case(lambda: t(2, 3, 4))
def permuting(x):
    return x.permute(2, 0, 1).transpose(0, 2).contiguous() * x.movedim(0, 1)


@case(lambda: t(3, 1, 4))
def squeezing(x):
    return x.squeeze(1).unsqueeze(0).expand(2, 3, 4) * x.squeeze()


@case(lambda: t(5, 6))
def slices(x):
    return x[1:, ::2] * x[:-1, 1:4] + x[-1, 3:] * x[2, 1]


@case(lambda: t(5, 6))
def selects(x):
    return x[0] * x.select(1, 2)[1] + x.narrow(0, 1, 2).sum(0)


@case(lambda: t(5, 6), lambda: ints(5, 3))
def indexing(x, i):
    return x[i] * x.index_select(0, i) + torch.gather(x, 1, i.unsqueeze(1)).sum()


@case(lambda: t(6, 4))
def chunks(x):
    a, b, c = x.chunk(3, dim=0)
    return a * b.tanh() + c


@case(lambda: t(5, 4))
def one_chunk_of_many(x):
    return torch.chunk(x, 2, dim=1)[1] * 3


@case(lambda: t(5, 4))
def splits(x):
    a, b = x.split([2, 3])
    first = x.split(2, dim=1)[0]
    return a.sum() * b + first.sum()


@case(lambda: t(3, 4))
def unbinding(x):
    a, b, _ = x.unbind(0)
    return a * b


@case(lambda: t(2, 3), lambda: t(4, 3))
def concatenating(x, y):
    return torch.cat([x, y, x * 2], dim=0) * torch.stack([x, x.sin(), x]).sum()


@case(lambda: t(2, 3))
def repeating(x):
    return x.repeat(2, 1, 3) * x.repeat(1, 3)


@case(lambda: t(4, 4))
def triangles(x):
    return x.triu() * x.tril(1) + x.diagonal().sum() * x.trace()


@case(lambda: t(3, 4))
def flipping(x):
    return x.flip([0]) * torch.roll(x, 1, 1)


@case(lambda: t(2, 3))
def padding(x):
    return F.pad(x, [1, 2], value=0.5) * F.pad(x, [2, 1])


@case(lambda: t(3, 4))
def changing_dtype(x):
    y = x.to(torch.float32).to(torch.float64)
    return y * x.type_as(y)


# Lists, optional arguments, tuples.


@case(lambda: [t(2, 3), t(1, 3)])
def list_of_tensors(xs: List[Tensor]):  # noqa: UP006
    return torch.cat(xs, 0).sum(0) * xs[0]


@case(lambda: [t(3), t(3), t(3)])
def loop_over_a_list(xs: List[Tensor]):  # noqa: UP006
    total = xs[0]
    for x in xs:
        total = total * x + x
    return total


@case(lambda: t(3), lambda: t(3))
def optional_given(x, bias: Optional[Tensor] = None):  # noqa: UP045
    y = x.exp()
    if bias is not None:
        y = y * bias
    return y


@case(lambda: t(3))
def optional_left_out(x, bias: Optional[Tensor] = None):  # noqa: UP045
    y = x.exp()
    if bias is not None:
        y = y * bias
    return y


@case(lambda: (t(3), t(3)))
def tuple_argument(pair: Tuple[Tensor, Tensor]):  # noqa: UP006
    return pair[0] * pair[1].exp()


@case(lambda: t(3), lambda: t(3))
def several_outputs(x, y):
    z = x * y
    return z, (z.sin(), [x + z, y])


@case(lambda: t(3))
def numbers_beside_tensors(x, n: int = 2, s: float = 0.5):
    return x.pow(n) * s


# Loops and branches.


@case(lambda: t(3))
def loop_that_unrolls(x):
    for i in range(4):
        x = x * x.sin() + i
    return x


@case(lambda: t(3))
def nested_loops(x):
    for _ in range(2):
        for j in range(2):
            x = (x + j).tanh()
    return x


@case(lambda: t(3), lambda: t(3))
def branch_on_data(x, y):
    if bool(x.sum() > 0):  # noqa: SIM108 (a block)
        z = x * y.exp()
    else:
        z = x.sin()
    return z * y


@case(lambda: t(3), lambda: True)
def branch_on_a_flag(x, flag: bool):
    y = x.tanh()
    if flag:
        w = y.exp()
        z = w * x
    else:
        z = y.sigmoid()
    return z + y


@case(lambda: t(3), lambda: False, lambda: True)
def branches_in_branches(x, a: bool, b: bool):
    y = x
    if a:
        y = x * 2
    else:
        if b:
            y = x.sin().exp()
        y = y * x
    return y.cos()


@case(lambda: t(2, 3))
def loop_with_a_branch(x):
    for i in range(3):
        x = x.sin() if i % 2 == 0 else x * 2
    return x


@case(lambda: t(3, 2), lambda: t(2))
def appending_to_a_list(xs, h):
    outputs = []
    for i in range(3):
        h = torch.tanh(xs[i] + h)
        outputs.append(h)
    return torch.stack(outputs), h


@case(lambda: t(3), lambda: 2)
def branch_that_raises(x, n: int):
    if n > 2:
        raise ValueError("too many")
    y = x.sin()
    assert n > 0
    return y * n


# Operators without gradients.


@case(lambda: t(3), lambda: t(3) * 3)
def through_integers(x, y):
    return x * y.long().to(torch.float64) + (y > 0).to(torch.float64) * x


@case(lambda: t(3), lambda: t(3) * 3, lambda: ints(3, 3))
def through_the_dtype_of_integers(x, y, i):
    return x * y.to(i) + x * y.type_as(i) + y.type_as(x) * y.to(x)


@case(lambda: t(3), lambda: t(3))
def under_no_grad(x, y):
    with torch.no_grad():
        scale = (x * y).sum()
    return x * scale + y


@case(lambda: t(3), lambda: t(3))
def detached(x, y):
    return x.detach() * y + x


@case(lambda: t(3))
def written_in_place(x):
    y = x * 2
    y += 1
    y.mul_(x)
    return y.relu_()


@case(lambda: t(3, 4), lambda: t(4))
def written_in_parts(x, y):
    z = x * 2
    z[0] = y
    z[1:, 1] += y.sum()
    z[:, 2:] -= z[:, :2]
    w = z + 1
    z.add_(1)
    z[-1][2] = 0.5
    z[:1, 1:2].zero_()
    z[2, 3:].fill_(2.0)
    first = z[0]
    first += y
    first *= 2
    z[1].relu_()
    return z * w


@case(lambda: t(3, 2), lambda: t(2))
def written_step_by_step(xs, h):
    outputs = torch.zeros_like(xs)
    for i in range(3):
        h = torch.tanh(xs[i] + h)
        outputs[i] = h
    return outputs


@case(lambda: t(3, 2), lambda: True)
def written_in_a_branch(x, flag: bool):
    if flag:
        y = x * 3
        y[0] = x[1]
    else:
        y = x.sin()
    return y * x


@case(lambda: t(3, 2))
def written_under_no_grad(x):
    y = x * 2
    with torch.no_grad():
        y[0] = 3.0
        z = x * 2
        z[1] = x[0]
    y.detach()[1] = 2.0
    return y + x * z


@case(lambda: t(4, 3), lambda: ints(4, 2))
def embedding(weight, i):
    return F.embedding(i, weight) * 2


# Randomness.


@case(lambda: t(20), random=True)
def dropout(x):
    return F.dropout(x, 0.3, training=True) * x


@case(lambda: t(20), random=True)
def dropout_not_training(x):
    return F.dropout(x, 0.3, training=False) * x


@case(lambda: t(4))
def attention_of_itself(x):
    y = x.view(1, 2, 2)
    return F.scaled_dot_product_attention(y, y * 2, y)


# Images.


@case(lambda: t(2, 3, 8), lambda: t(4, 3, 3), lambda: t(4))
def convolution_1d(x, w, b):
    return F.conv1d(x, w, b, stride=2, padding=1)


@case(lambda: t(2, 4, 6, 6), lambda: t(4, 2, 3, 3), lambda: t(4))
def convolution_2d(x, w, b):
    return F.conv2d(x, w, b, padding=1, groups=2)


@case(lambda: t(2, 3, 4, 4), lambda: t(3, 2, 3, 3))
def convolution_transposed(x, w):
    return F.conv_transpose2d(x, w, stride=2)


@case(lambda: t(2, 3, 6, 6))
def pooling(x):
    return F.max_pool2d(x, 2) * F.avg_pool2d(x, 2) + F.adaptive_avg_pool2d(x, [3, 3])


@case(lambda: t(2, 3, 6))
def pooling_1d(x):
    return F.max_pool1d(x, 2) * F.avg_pool1d(x, 2)


@case(lambda: t(2, 4, 3, 3), lambda: t(4), lambda: t(4))
def group_norm(x, w, b):
    return F.group_norm(x, 2, w, b)


@case(lambda: t(3, 5), lambda: t(5), lambda: t(5))
def layer_norm(x, w, b):
    return F.layer_norm(x, [5], w, b)


@case(lambda: t(4, 3, 2), lambda: t(3), lambda: t(3))
def batch_norm(x, w, b):
    return F.batch_norm(x, None, None, w, b, training=True)


@case(lambda: t(2, 3, 5))
def instance_norm(x):
    return F.instance_norm(x)


# The remaining rules.


@case(lambda: t(4) * 0.3, lambda: positive(4))
def special_functions(x, y):
    return torch.erfinv(x) + torch.lgamma(y) + torch.logit(y * 0.4) + x.sign() + y.sgn() * x


@case(lambda: t(3, 4), lambda: t(4))
def extrema_by_other_names(x, y):
    return torch.max(x, y) * torch.min(x, y.sin()) + torch.positive(x) + torch.ops.aten.alias(y)


@case(lambda: t(3, 4), lambda: t())
def filled_and_chosen(x, y):
    filled = torch.masked_fill(x, x > 0.5, y)
    return filled + torch.where(x > 0, x, 1.0) * torch.where(x > 0, 2.0, x)


@case(lambda: t(4), lambda: t(3, 4))
def filled_by_a_larger_mask(x, y):
    return x.masked_fill(y > 0, 2.0) * torch.addcdiv(x, y, y.cosh(), value=2)


@case(lambda: t(3, 5), lambda: t(3, 5).to(torch.float32))
def dtypes_and_devices(x, y):
    return x.to(x.device) * y.to(x) + y.to("cpu", torch.float64)


@case(lambda: t(3, 5))
def statistics_along_a_dimension(x):
    return x.median(1)[0] * torch.mode(x, 1)[0]


@case(lambda: t(2, 1, 3), lambda: t(2, 2, 3))
def broadcasting_views(x, y):
    return x.broadcast_to([2, 2, 3]) * x.expand_as(y) + y.view_as(y) * y.reshape_as(y)


@case(lambda: t(2, 3), lambda: t(1, 2, 1, 3))
def turned(x, y):
    z = x.mT.T + torch.swapaxes(x.swapdims(0, 1), 0, 1) * torch.rot90(x, 2, [0, 1])
    return z * y.squeeze([0, 2]) + torch.movedim(y, [0, 1], [1, 0]).sum()


@case(lambda: t(1, 2, 4, 4))
def padding_images(x):
    y = F.pad(x, [1, 1, 1, 1], mode="reflect") * F.pad(x, [1, 1, 1, 1], mode="replicate")
    line = x.flatten(2)
    z = F.pad(line, [2, 1], mode="reflect") + F.pad(line, [2, 1], mode="replicate")
    return y.sum() * z


@case(lambda: t(1, 2, 4, 4, 4), lambda: t(3, 2, 2, 2, 2), lambda: t(3, 2, 2, 2, 2))
def volumes(x, w, v):
    y = F.conv_transpose3d(F.conv3d(x, w), v)
    return F.max_pool3d(y, 2) * F.avg_pool3d(y, 2)


@case(lambda: t(1, 2, 5), lambda: t(2, 3, 2), lambda: t(3))
def convolution_transposed_1d(x, w, b):
    return F.conv_transpose1d(x, w, b, stride=2, padding=1)


@case(lambda: t(1, 2, 5, 5), lambda: t(3, 2, 2, 2), lambda: t(3))
def convolution_by_other_names(x, w, b):
    y = torch.convolution(x, w, b, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    z = torch._convolution(
        x, w, b, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, False, False, True, True
    )
    return y * z + torch.ops.aten._slow_conv2d_forward(x, w, [2, 2], b, [1, 1], [0, 0])


@case(lambda: t(2, 5, 5))
def an_image_without_a_batch(x):
    weight = torch.ones([3, 2, 2, 2], dtype=torch.float64)
    return F.conv2d(x, weight) * 2


@case(lambda: t(3, 4), lambda: t(4), lambda: t(4))
def native_norms(x, w, b):
    y = torch.native_layer_norm(x, [4], w, b, 1e-5)[0]
    return y * torch.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)[0]


@case(lambda: t(3, 4), lambda: t(4), lambda: t(4))
def native_norms_and_their_statistics(x, w, b):
    y, mean, rstd = torch.native_layer_norm(x, [4], w, b, 1e-5)
    z, mean2, rstd2 = torch.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)
    return y * mean + z * rstd2, rstd * mean2, mean


@case(lambda: t(3, 4), lambda: t(3))
def products(x, y):
    z = torch.cat([y, torch.zeros(1, dtype=torch.float64)]) + y.prod()
    return x.prod() * x.prod(1) + x.prod(0, keepdim=True).sum() * z.prod() + z.prod(0)


@case(lambda: t(3, 4))
def running_products_and_extrema(x):
    y = torch.cat([x, torch.zeros(1, 4, dtype=torch.float64), x])
    return y.cumprod(0) * torch.cummax(y, 0)[0] + torch.cummin(y, 1)[0]


@case(lambda: t(3, 4), lambda: t(2, 4), lambda: t(4), lambda: ints(3, 2))
def scattered_and_added(x, y, z, i):
    a = x.index_add(0, i, y, alpha=2) + torch.index_put(x, [i], z)
    b = torch.index_put(x, [i], y, accumulate=True)
    c = x * 2
    c[i] = z
    return a * b + c


@case(lambda: t(3, 4), lambda: t(3, 2), lambda: ints(3, 3, 1))
def scattered_along_a_dimension(x, y, i):
    z = x.scatter(1, i, y[:, :1]) * x.scatter(1, i, 2.0)
    return z + x.scatter_add(1, torch.cat([i, i], 1), y)


@case(lambda: t(3, 4), lambda: t(4), lambda: t(3, 2))
def views_written_elsewhere(x, y, z):
    return torch.select_scatter(x, y, 0, -1) * torch.slice_scatter(x, z, 1, 0, 4, 2)


@case(lambda: t(3, 4), lambda: t(3, 2), lambda: t(3))
def stacked_in_three_ways(x, y, z):
    a = torch.hstack([x, y]).sum(0) * torch.hstack([z, z.exp()])
    b = torch.vstack([x, x[0]]).sum() + torch.dstack([x, x * x])
    return a.sum() * b + torch.atleast_1d(x.sum()) * torch.atleast_2d(z).sum()


@case(lambda: t(2, 3))
def tiled(x):
    return x.tile([2]) * x.tile([1, 2]) + x.tile([3, 1, 1]).sum()


@case(lambda: t(3, 4))
def variances_with_their_means(x):
    a, b = torch.var_mean(x, 1)
    c, d = torch.var_mean(x, unbiased=False)
    e, f = torch.std_mean(x, 1, keepdim=True)
    g, h = torch.std_mean(x)
    return a * b + c * d + e * f + g * h


@case(lambda: t(2, 3, 4), lambda: t(3, 4))
def rms_norms(x, w):
    return F.rms_norm(x, [3, 4], w) * F.rms_norm(x, [4], eps=0.1)


@case(lambda: t(3, 4), lambda: t(4, 5), lambda: t(2, 3, 4), lambda: t(1, 4))
def einsums(x, y, z, w):
    a = torch.einsum("ij,jk->ik", x, y) + torch.einsum("ij , kl", x, x)[0, 0, 0, 0]
    b = torch.einsum("...ij,...jk->...ik", z, y) * torch.einsum("i...,j->...", x, y.sum(1)).sum()
    c = torch.einsum("ij,ij,ij->j", x, w, x) + torch.einsum("b...jk,l->b...", z, y[0])[:1]
    return a * b + torch.einsum("i,i->", c, c) * torch.einsum("ab", x).sum()


@case(lambda: t(3, 3), lambda: positive(3))
def inverse_and_digamma(x, y):
    return torch.linalg.inv(x) * torch.digamma(y)


@case(lambda: t(3, 4), lambda: t(3, 4), lambda: t(3, 4))
def distances_and_margins(x, y, z):
    a = F.pairwise_distance(x, y) * F.pairwise_distance(x, z, keepdim=True).sum()
    b = F.triplet_margin_loss(x, y, z, margin=5.0, swap=True) + F.triplet_margin_loss(x, z, y)
    target = z.detach().sign()
    return a + b + F.margin_ranking_loss(x, y, target, 0.1) + F.soft_margin_loss(x, target)


@case(lambda: t(3, 4), lambda: positive(3, 4), lambda: ints(9, 3, 4))
def poisson_losses(x, y, counts):
    target = counts.to(torch.float64)
    a = F.poisson_nll_loss(x, target, full=True) + F.poisson_nll_loss(x, target, reduction="sum")
    return a * F.poisson_nll_loss(y, target, log_input=False, reduction="none")


@case(lambda: t(1, 4, 2, 6))
def pixels_and_channels(x):
    return F.pixel_shuffle(x, 2) * F.pixel_unshuffle(x, 2).sum()


@case(lambda: t(2, 3), lambda: t(3))
def repeated_elements_and_diagonals(x, y):
    a = x.repeat_interleave(2, 1) * x.repeat_interleave(3).sum() + x.repeat_interleave(2, dim=-1)
    b = torch.diag_embed(x, 1).sum(0) * torch.diag_embed(x).sum()
    return a.sum() * b + torch.deg2rad(y).sum() * torch.rad2deg(x.mH).sum() + x.adjoint().sum()


def module(name: str, make: Callable[[], nn.Module], *makers: Callable[[], Any], **extra: Any):
    MODULES[name] = Case(
        lambda: make().to(torch.float64), lambda: tuple(m() for m in makers), **extra
    )


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.relu(self.first(self.norm(x))))


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3), requires_grad=False)
        self.shift = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


class Cell(nn.Module):
    """Three steps of an LSTM cell."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Linear(3, 8)
        self.h = nn.Linear(2, 8)

    def forward(self, xs: Tensor, h: Tensor, c: Tensor) -> Tensor:
        for step in range(3):
            i, f, g, o = (self.x(xs[step]) + self.h(h)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return h


module("mlp", lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), lambda: t(5, 3))
module("residual", Residual, lambda: t(2, 4))
module("frozen_parameter", Frozen, lambda: t(2, 3))
module("lstm_cell_unrolled", Cell, lambda: t(3, 2, 3), lambda: t(2, 2), lambda: t(2, 2))
module(
    "cnn_with_batch_norm",
    lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    ),
    lambda: t(2, 2, 6, 6),
)
module(
    "batch_norm_in_eval",
    lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3)).eval(),
    lambda: t(2, 2, 6),
)
module(
    "group_norm_module", lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.SiLU()), lambda: t(2, 4, 3)
)
module(
    "dropout_module", lambda: nn.Sequential(nn.Dropout(0.5), nn.PReLU()), lambda: t(9), random=True
)
module("embedding_module", lambda: nn.Embedding(5, 3), lambda: ints(5, 2, 2))
