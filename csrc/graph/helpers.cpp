// TorchScript functions that the tables share. The first half is for derivatives (rules/), the
// second for compositions (rewrites.cpp).
#include <string>

#include "graph/script_source.h"

namespace torchlayers::graph {

namespace {

const char* const kForDerivatives = R"(
def spread(grad, size: List[int], dim: Optional[List[int]], keepdim: bool):
    if dim is not None and not keepdim:
        if len(dim) > 0 and len(size) > 0:
            shape = size[:]
            for d in dim:
                shape[d] = 1
            grad = grad.reshape(shape)
    return grad.expand(size)

def as_before(grad, changed: Optional[int], dtype: int):
    if changed is None:
        return grad
    return grad.to(dtype)

def is_integral(dtype: int):
    # torch's numbers: the old integers, bool, and the unsigned ones that came later.
    return dtype <= 4 or dtype == 11 or (dtype >= 27 and dtype <= 29)

def converted(grad, device: Device, dtype: int, through: int):
    # Nothing flows back through integers, though a float may have come of them since.
    if is_integral(through):
        return torch.zeros_like(grad, dtype=dtype, device=device)
    return grad.to(device, dtype)

def promoted(x, other):
    return x.to(torch.result_type(x, other))

def difference(x, other):
    return promoted(x, other) - promoted(other, x)

def evenly(grad, where):
    return grad * where / where.sum()

def evenly_along(grad, where, dim: List[int]):
    if len(dim) == 0:
        return evenly(grad, where)
    return grad * where / where.sum(dim, True)

def reversed_cumsum(grad, dim: int):
    return grad.flip([dim]).cumsum(dim).flip([dim])

def logcumsumexp_backward(grad, self, result, dim: int):
    # By logarithms, because exp(self) may overflow.
    nothing = -float("inf")
    parts: List[Tensor] = []
    for part in [grad, -grad]:
        logs = (part.clamp_min(0).log() - result).masked_fill(result == nothing, nothing)
        parts.append((self + logs.flip([dim]).logcumsumexp(dim).flip([dim])).exp())
    return parts[0] - parts[1]

def product_of_others(x, dim: int):
    # Not a quotient of the product: elements may be zero.
    if x.numel() < 2 or x.dim() == 0:
        return torch.ones_like(x)
    ones = torch.ones_like(x.narrow(dim, 0, 1))
    rest = x.size(dim) - 1
    before = torch.cat([ones, x.narrow(dim, 0, rest)], dim).cumprod(dim)
    after = torch.cat([ones, x.flip([dim]).narrow(dim, 0, rest)], dim).cumprod(dim).flip([dim])
    return before * after

def unrepeated(grad, size: List[int], repeats: List[int]):
    extra = len(repeats) - len(size)
    shape: List[int] = []
    summed: List[int] = []
    for i in range(len(repeats)):
        if i < extra:
            summed.append(len(shape))
            shape.append(repeats[i])
        else:
            summed.append(len(shape))
            shape.append(repeats[i])
            shape.append(size[i - extra])
    if len(summed) == 0:
        return grad
    return grad.reshape(shape).sum(summed)

def each_repeated(grad, size: List[int], repeats: int, dim: Optional[int]):
    if dim is None:
        return grad.reshape([-1, repeats]).sum(1).reshape(size)
    place = dim
    if dim < 0:
        place = dim + len(size)
    return grad.reshape(size[:place + 1] + [repeats] + size[place + 1:]).sum(place + 1)

def mean_or_sum(grad, size: List[int], reduction: int):
    if reduction == 1:
        count = 1
        for s in size:
            count *= s
        return grad / count
    return grad

def conv_backward(grad, input, weight, stride: List[int], padding: List[int],
                  dilation: List[int], transposed: bool, output_padding: List[int], groups: int,
                  mask: List[bool]):
    batched = input.dim() == weight.dim()
    if not batched:
        grad = grad.unsqueeze(0)
        input = input.unsqueeze(0)
    grad_input, grad_weight, grad_bias = torch.convolution_backward(
        grad, input, weight, [grad.size(1)], stride, padding, dilation, transposed,
        output_padding, groups, mask)
    if mask[0] and not batched:
        grad_input = grad_input.squeeze(0)
    return grad_input, grad_weight, grad_bias

def batch_norm_backward(grad, input, weight: Optional[Tensor], running_mean: Optional[Tensor],
                        running_var: Optional[Tensor], mean, invstd, training: bool, eps: float,
                        mask: List[bool]):
    if input.numel() == 0: # torch's kernel would divide by zero, which ends the process
        channels = torch.zeros([input.size(0 if input.dim() < 2 else 1)],
                               dtype=input.dtype, device=input.device)
        return torch.zeros_like(input), channels, channels
    if training:
        running_mean = None
        running_var = None
    return torch.native_batch_norm_backward(
        grad, input, weight, running_mean, running_var, mean, invstd, training, eps, mask)

def norm_backward(grad, self, result, p: float):
    if p == 2.0:
        return (grad / result).masked_fill(result == 0, 0.0) * self
    if p == 0.0:
        return torch.zeros_like(self)
    if p == 1.0:
        return grad * self.sgn()
    if abs(p) == float("inf"):
        where = (self.abs() == result).to(grad)
        return grad * self.sgn() * where / where.sum()
    scale = (grad / result.pow(p - 1.0)).masked_fill(result == 0, 0.0)
    return scale * self * self.abs().pow(p - 2.0).masked_fill(self == 0, 0.0)

def norm_dim_backward(grad, self, result, p: float, size: List[int],
                      dim: Optional[List[int]], keepdim: bool):
    if dim is None or len(dim) == 0:
        return norm_backward(grad, self, result, p)
    grad = spread(grad, size, dim, keepdim)
    result = spread(result, size, dim, keepdim)
    if abs(p) == float("inf"):
        where = (self.abs() == result).to(grad)
        return grad * self.sgn() * where / where.sum(dim, True)
    return norm_backward(grad, self, result, p)

def order(p: Optional[number]):
    if p is None:
        return 2.0
    return float(p)
)";

const char* const kForCompositions = R"(
def reduced(loss, reduction: int):
    if reduction == 1:
        return loss.mean()
    if reduction == 2:
        return loss.sum()
    return loss

def weighted(loss, weight: Optional[Tensor]):
    if weight is not None:
        loss = loss * weight
    return loss

def positive_weight(target, pos_weight: Optional[Tensor]):
    if pos_weight is not None:
        return 1 + (pos_weight - 1) * target
    return torch.ones_like(target)

def cross_entropy(self, target, weight: Optional[Tensor], reduction: int, ignore_index: int,
                  label_smoothing: float):
    assert label_smoothing == 0.0 and not target.is_floating_point(), \
        "torchlayers: cross_entropy is only supported for class indices without label smoothing"
    dim = 0 if self.dim() == 1 else 1
    return nll(torch.log_softmax(self, dim), target, weight, reduction, ignore_index)

def nll(self, target, weight: Optional[Tensor], reduction: int, ignore_index: int):
    if self.dim() <= 2:
        return torch.nll_loss(self, target, weight, reduction, ignore_index)
    flat = self.movedim(1, -1).reshape(-1, self.size(1))
    loss = torch.nll_loss(flat, target.reshape(-1), weight, reduction, ignore_index)
    return loss.reshape(target.size()) if reduction == 0 else loss

def prelu(self, weight):
    if self.dim() == 0:
        weight = weight.reshape([])
    elif weight.numel() > 1 and self.dim() > 1:
        weight = weight.reshape([1, weight.numel()] + [1] * (self.dim() - 2))
    return torch.where(self > 0, self, weight * self)

def padded(self, pad: List[int], mode: str, value: Optional[float]):
    if mode == "constant":
        filler = 0.0
        if value is not None:
            filler = value
        return torch.constant_pad_nd(self, pad, filler)
    assert len(pad) <= 4, "torchlayers: only the constant mode can pad three dimensions"
    if mode == "reflect":
        if len(pad) == 2:
            return torch.reflection_pad1d(self, pad)
        return torch.reflection_pad2d(self, pad)
    assert mode == "replicate", "torchlayers: the modes of pad are constant, reflect, replicate"
    if len(pad) == 2:
        return torch.replication_pad1d(self, pad)
    return torch.replication_pad2d(self, pad)

def scaled_by_channel(normal, weight: Optional[Tensor], bias: Optional[Tensor]):
    channel = [1, normal.size(1)] + [1] * (normal.dim() - 2)
    if weight is not None:
        normal = normal * weight.reshape(channel)
    if bias is not None:
        normal = normal + bias.reshape(channel)
    return normal

def group_norm(input, num_groups: int, weight: Optional[Tensor], bias: Optional[Tensor],
               eps: float):
    rows = input.reshape([input.size(0) * num_groups, -1])
    normal = torch.layer_norm(rows, [rows.size(1)], None, None, eps)
    return scaled_by_channel(normal.reshape(input.size()), weight, bias)

def instance_norm(input, weight: Optional[Tensor], bias: Optional[Tensor],
                  running_mean: Optional[Tensor], running_var: Optional[Tensor],
                  use_input_stats: bool, momentum: float, eps: float, cudnn_enabled: bool):
    if not use_input_stats:
        return torch.batch_norm(
            input, weight, bias, running_mean, running_var, False, momentum, eps, cudnn_enabled)
    assert running_mean is None, "torchlayers: instance_norm that tracks statistics"
    shape = [1, input.size(0) * input.size(1)] + input.size()[2:]
    normal = torch.batch_norm(
        input.reshape(shape), None, None, None, None, True, momentum, eps, cudnn_enabled)
    normal = normal.reshape(input.size())
    return scaled_by_channel(normal, weight, bias)

def cosine_similarity(x1, x2, dim: int, eps: float):
    x1, x2 = torch.broadcast_tensors([x1, x2])
    lengths = x1.norm(2, dim).clamp_min(eps) * x2.norm(2, dim).clamp_min(eps)
    return (x1 * x2).sum(dim) / lengths

def tiled(self, dims: List[int]):
    ones: List[int] = []
    for _ in range(self.dim() - len(dims)):
        ones.append(1)
    return self.repeat(ones + dims)

def stacked_horizontally(tensors: List[Tensor]):
    dim = 0 if tensors[0].dim() < 2 else 1
    return torch.cat([torch.atleast_1d(tensor) for tensor in tensors], dim)

def distance(x1, x2, p: float, eps: float, keepdim: bool):
    return torch.norm(x1 - x2 + eps, p, [-1], keepdim)

def triplet_margin(anchor, positive, negative, margin: float, p: float, eps: float, swap: bool):
    near = distance(anchor, positive, p, eps, False)
    far = distance(anchor, negative, p, eps, False)
    if swap:
        far = torch.min(far, distance(positive, negative, p, eps, False))
    return (margin + near - far).clamp_min(0)

def poisson_nll(input, target, log_input: bool, full: bool, eps: float):
    if log_input:
        loss = torch.exp(input) - target * input
    else:
        loss = input - target * torch.log(input + eps)
    if full: # Stirling's approximation, for targets above 1
        more = target * torch.log(target) - target + 0.5 * torch.log(6.283185307179586 * target)
        loss = loss + more.masked_fill(target <= 1, 0.0)
    return loss

def rms_norm(input, normalized_shape: List[int], weight: Optional[Tensor], eps: Optional[float]):
    # The precision of double, 7, and of float, in which the narrower ones are computed.
    epsilon = 2.220446049250313e-16 if input.dtype == 7 else 1.1920928955078125e-07
    if eps is not None:
        epsilon = eps
    dims: List[int] = []
    for i in range(len(normalized_shape)):
        dims.append(-1 - i)
    normal = input * torch.rsqrt((input * input).mean(dims, True) + epsilon)
    if weight is not None:
        normal = normal * weight
    return normal

def attention(query, key, value, attn_mask: Optional[Tensor], dropout_p: float, is_causal: bool,
              scale: Optional[float]):
    factor = 1.0 / (query.size(-1) ** 0.5)
    if scale is not None:
        factor = scale
    scores = torch.matmul(query * factor, key.transpose(-2, -1))
    if is_causal:
        # 11 is torch.bool, which has no name in here.
        allowed = torch.ones(
            [query.size(-2), key.size(-2)], dtype=11, device=query.device).tril()
        scores = scores.masked_fill(torch.logical_not(allowed), -float("inf"))
    if attn_mask is not None:
        if attn_mask.dtype == 11:
            scores = scores.masked_fill(torch.logical_not(attn_mask), -float("inf"))
        else:
            scores = scores + attn_mask
    return torch.matmul(torch.dropout(torch.softmax(scores, -1), dropout_p, True), value)
)";

} // namespace

const char* helper_functions() {
  static const auto* text = new std::string(std::string(kForDerivatives) + kForCompositions);
  return text->c_str();
}

} // namespace torchlayers::graph
