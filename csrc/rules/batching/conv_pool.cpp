// Convolution, pooling and resizing: images have a batch dimension of their own, into which vmap's
// is merged.

#include <array>

#include "core/aten_functions.h"
#include "rules/batching/families.h"

namespace torchlayers {
namespace {

using at::Tensor;

// Reshapes (B, N, ...) to (B N, ...), and back.
Tensor joined(const Tensor& tensor) {
  at::SymDimVector sizes(tensor.sym_sizes().slice(1));
  sizes[0] *= tensor.sym_size(0);
  return tensor.is_contiguous() ? tensor.view_symint(sizes) : tensor.reshape_symint(sizes);
}

Tensor parted(const Tensor& tensor, const c10::SymInt& batch_size) {
  if (!tensor.defined()) {
    return tensor;
  }
  at::SymDimVector sizes(tensor.sym_sizes());
  sizes[0] = sizes[0] / batch_size;
  sizes.insert(sizes.begin(), batch_size);
  return tensor.view_symint(sizes);
}

// Whether (B, N, C, ...) can be merged without a copy: the first dimension into the one at `place`.
bool merges(const Tensor& tensor, int64_t place) {
  return tensor.size(0) == 1 || tensor.size(place) == 1 ||
         tensor.stride(0) == tensor.stride(place) * tensor.size(place);
}

// Whether images of (B, N, C, ...) are laid out as N images of B C channels, as a convolution with
// a weight for each sample leaves them. Pooling treats each channel alike, so that these need no
// copy.
bool is_beside_channels(const Tensor& tensor) {
  return !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() && tensor.dim() > 3 &&
         !merges(tensor, 1) && merges(tensor, 2);
}

// Runs the operator on every tensor's images as one batch, and splits the results. Each sample must
// be a batch of images, and no tensor may be empty.
bool on_joined(BatchedCall& call) {
  return call.give([&] {
    std::vector<Tensor> results =
        call.call_all(call.args_with([&](size_t i) { return joined(call.value(i)); }));
    for (Tensor& result : results) {
      result = parted(result, call.batch_size());
    }
    return results;
  });
}

// The same with every tensor's images as one batch, of the channels of all samples.
bool on_channels(BatchedCall& call) {
  return call.give([&] {
    std::vector<Tensor> results =
        call.call_all(call.args_with([&](size_t i) { return beside_channels(call.value(i)); }));
    for (Tensor& result : results) {
      if (result.defined()) {
        result = result.unflatten_symint(1, {call.batch_size(), -1}).transpose(0, 1);
      }
    }
    return results;
  });
}

bool has_elements(const BatchedCall& call) {
  return call.tensor(0).sym_numel() > 0 && call.batch_size() > 0;
}

// op(x, ...) on images with `dims` spatial dimensions, where every tensor is batched.
bool on_images(BatchedCall& call, size_t dims) {
  const auto image_rank = static_cast<int64_t>(dims) + 1;
  if (!call.all_like(0) || !has_elements(call)) {
    return false;
  }
  if (call.rank(0) == image_rank) {
    return call.run();
  }
  if (call.rank(0) != image_rank + 1) {
    return false;
  }
  return is_beside_channels(call.value(0)) ? on_channels(call) : on_joined(call);
}

// upsample_...(x, ...): a sample must be a batch of images.
bool upsampled(BatchedCall& call, size_t dims) {
  return call.only(0) && call.rank(0) == static_cast<int64_t>(dims) + 2 && has_elements(call) &&
         on_joined(call);
}

// upsample_..._backward(gradient, sizes, sizes of x, ...)
bool resized_backward(BatchedCall& call, size_t dims) {
  if (!call[2].isIntList()) {
    return false;
  }
  std::vector<c10::SymInt> sizes = call[2].toSymIntVector();
  const bool fits = sizes.size() == dims + 2 && call.rank(0) == static_cast<int64_t>(dims) + 2 &&
                    call.only(0) && has_elements(call) && sizes[0] == call.tensor(0).sym_size(0);
  if (!fits) {
    return false;
  }
  sizes[0] *= call.batch_size();
  call.set(2, std::move(sizes));
  return on_joined(call);
}

// Arguments that the convolutions for a number of dimensions and the general one share.
struct Convolution {
  std::vector<c10::SymInt> stride, padding, dilation, output_padding;
  bool transposed;
  c10::SymInt groups;

  Tensor operator()(
      const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) const {
    return at::convolution_symint(
        x, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
  }
};

// convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
bool convolution(BatchedCall& call, size_t) {
  for (size_t i : {3, 4, 5, 7}) {
    if (!call[i].isIntList()) {
      return false;
    }
  }
  Convolution conv{
      call[3].toSymIntVector(),
      call[4].toSymIntVector(),
      call[5].toSymIntVector(),
      call[7].toSymIntVector(),
      call.flag(6),
      call[8].toInt()};
  const bool has_bias = call.has_tensor(2);
  if (!has_elements(call) || call.rank(0) != call.rank(1)) {
    return false;
  }
  const c10::SymInt& batch_size = call.batch_size();
  if (call.only(0)) {
    return call.give([&] {
      const auto bias = has_bias ? std::optional<Tensor>(call.tensor(2)) : std::nullopt;
      return parted(conv(joined(call.value(0)), call.tensor(1), bias), batch_size);
    });
  }
  if (!call.is_batched(1)) {
    return false;
  }
  return call.give([&] {
    const Tensor x = beside_channels(call.expanded(0));
    const Tensor weight = joined(call.value(1));
    const auto bias = has_bias ? std::optional<Tensor>(joined(call.expanded(2))) : std::nullopt;
    conv.groups *= batch_size;
    return conv(x, weight, bias).unflatten_symint(1, {batch_size, -1}).transpose(0, 1);
  });
}

// conv2d(x, weight, bias, stride, padding, dilation, groups) and its variants, with one weight: if
// a sample is one image, the samples are a batch of images below; if it is a batch, they form a
// larger one.
bool convolution_of_images(BatchedCall& call, size_t dims) {
  if (!call.only(0)) {
    return false;
  }
  const auto image_rank = static_cast<int64_t>(dims) + 1;
  if (call.rank(0) == image_rank) {
    return call.run();
  }
  if (call.rank(0) != image_rank + 1 || call.rank(1) != image_rank + 1 || !has_elements(call)) {
    return false;
  }
  return call.give([&] {
    const Tensor images = joined(call.value(0));
    return parted(
        call.call(call.args_with([&](size_t i) { return i == 0 ? images : call.tensor(i); })),
        call.batch_size());
  });
}

// convolution_backward(gradient, x, weight, bias_sizes, stride, padding, dilation, transposed,
// output_padding, groups, which): each sample's gradient by the weight is that of one group.
bool convolution_backward(BatchedCall& call, size_t) {
  for (size_t i : {4, 5, 6, 8}) {
    if (!call[i].isIntList()) {
      return false;
    }
  }
  const bool has_images = call.is_batched(0) && call.is_batched(1) && !call.is_batched(2) &&
                          call.rank(0) == call.rank(1) && call.tensor(1).sym_numel() > 0 &&
                          call.tensor(0).sym_numel() > 0;
  if (!has_images || call.batch_size() == 0) {
    return false;
  }
  const c10::SymInt& batch_size = call.batch_size();
  const auto stride = call[4].toSymIntVector();
  const auto padding = call[5].toSymIntVector();
  const auto dilation = call[6].toSymIntVector();
  const bool transposed = call.flag(7);
  const auto output_padding = call[8].toSymIntVector();
  const c10::SymInt groups = call[9].toSymInt();
  const auto which = call[10].toBoolList();
  return call.give([&] {
    const Tensor gradient = call.value(0);
    const Tensor x = call.value(1);
    const Tensor& weight = call.tensor(2);
    const auto backward = [&](const Tensor& gradient,
                              const Tensor& x,
                              const Tensor& weight,
                              const c10::SymInt& groups,
                              std::array<bool, 3> which) {
      return at::convolution_backward_symint(
          gradient,
          x,
          weight,
          std::nullopt,
          stride,
          padding,
          dilation,
          transposed,
          output_padding,
          groups,
          which);
    };
    std::vector<Tensor> gradients(3);
    if (which[0]) {
      gradients[0] = parted(
          std::get<0>(backward(joined(gradient), joined(x), weight, groups, {true, false, false})),
          batch_size);
    }
    if (which[1]) {
      const Tensor weights = joined(call.expanded(2));
      const Tensor by_group = std::get<1>(backward(
          beside_channels(gradient),
          beside_channels(x),
          weights,
          groups * batch_size,
          {false, true, false}));
      gradients[1] = parted(by_group, batch_size);
    }
    if (which[2]) {
      std::vector<int64_t> dims{1};
      for (int64_t dim = 3; dim < gradient.dim(); ++dim) {
        dims.push_back(dim);
      }
      gradients[2] = gradient.sum(dims);
    }
    return gradients;
  });
}

} // namespace

void add_batched_conv_pool(BatchingTable& rules) {
  rules.add({"convolution"}, {convolution});
  rules.add({"conv1d"}, {convolution_of_images, 1});
  rules.add({"conv2d"}, {convolution_of_images, 2});
  rules.add({"conv3d"}, {convolution_of_images, 3});
  rules.add({"convolution_backward"}, {convolution_backward});
  rules.add(
      {"max_pool2d",
       "max_pool2d_with_indices",
       "max_pool2d_with_indices_backward",
       "avg_pool2d",
       "avg_pool2d_backward",
       "_adaptive_avg_pool2d",
       "_adaptive_avg_pool2d_backward"},
      {on_images, 2});
  rules.add({"upsample_nearest1d", "upsample_nearest1d.vec"}, {upsampled, 1});
  rules.add(
      {"upsample_nearest2d",
       "upsample_nearest2d.vec",
       "upsample_bilinear2d",
       "upsample_bilinear2d.vec",
       "upsample_bicubic2d",
       "upsample_bicubic2d.vec"},
      {upsampled, 2});
  rules.add(
      {"upsample_nearest2d_backward",
       "upsample_bilinear2d_backward",
       "upsample_bicubic2d_backward"},
      {resized_backward, 2});
}

} // namespace torchlayers
