// grid_sampler: resampling of images, where the weights of the pixels depend on the grid.
#include <tuple>

#include "rules/families.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

constexpr int64_t kNearest = 1;
constexpr int64_t kCubic = 2;
constexpr int64_t kBorder = 1;
constexpr int64_t kReflection = 2;

// Coordinates along an axis, in pixels, and their derivative by the grid.
struct Coordinates {
  Tensor at;
  Tensor scale;
};

// Reflects coordinates at both ends as often as needed, and then clamps them.
Coordinates padded(Coordinates places, int64_t size, int64_t padding, bool align_corners) {
  if (padding == kReflection) {
    const double low = align_corners ? 0 : -0.5;
    const double span = align_corners ? size - 1 : size;
    if (span == 0) {
      return {at::zeros_like(places.at), at::zeros_like(places.scale)};
    }
    const Tensor distance = (places.at - low).abs();
    const Tensor folds = (distance / span).floor();
    const Tensor rest = distance - folds * span;
    const Tensor is_upright = folds.remainder(2) == 0;
    const Tensor is_turned = (places.at < low).logical_xor(is_upright.logical_not());
    places = {
        at::where(is_upright, rest + low, span - rest + low),
        at::where(is_turned, -places.scale, places.scale)};
  }
  if (padding == kBorder || padding == kReflection) {
    const Tensor is_free = (places.at > 0).logical_and(places.at < size - 1);
    places = {places.at.clamp(0, size - 1), at::where(is_free, places.scale, 0)};
  }
  return places;
}

// A pixel's index along an axis, and its weight with derivatives by the coordinate; undefined means
// zero.
struct Tap {
  Tensor index;
  Tensor is_inside;
  Tensor weight;
  Tensor slope;
  Tensor bend;
};

// Keys, "Cubic convolution interpolation for digital image processing" (1981), with a = -0.75: two
// polynomials of the distance to the pixel. `side` is the derivative of the distance.
void weigh(Tap& tap, const Tensor& d, double side, bool is_near) {
  constexpr double a = -0.75;
  if (is_near) {
    tap.weight = ((a + 2) * d - (a + 3)) * d * d + 1;
    tap.slope = (3 * (a + 2) * d - 2 * (a + 3)) * d * side;
    tap.bend = 6 * (a + 2) * d - 2 * (a + 3);
  } else {
    tap.weight = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
    tap.slope = ((3 * a * d - 10 * a) * d + 8 * a) * side;
    tap.bend = 6 * a * d - 10 * a;
  }
}

// The product of the defined factors.
Tensor product_of(std::initializer_list<Tensor> factors) {
  Tensor product;
  for (const Tensor& factor : factors) {
    if (factor.defined()) {
      product = product.defined() ? product * factor : factor;
    }
  }
  return product;
}

// A grid (N, *out, D), whose last column is for the image's first axis, for linear or cubic
// interpolation: the value at a place is a sum over corners, one pixel each, weighted by a product
// of one weight per axis. Places are flattened here: (N, 1, places).
class Grid {
 public:
  Grid(
      const Tensor& image,
      const Tensor& grid,
      int64_t interpolation,
      int64_t padding,
      bool align_corners)
      : image_sizes_(image.sym_sizes()), grid_sizes_(grid.sym_sizes()) {
    for (int64_t axis = 0; axis < image.dim() - 2; ++axis) {
      const int64_t size = image.sym_size(2 + axis).guard_int(__FILE__, __LINE__);
      const Tensor along = column(grid, axis);
      Coordinates places{
          align_corners ? (along + 1) / 2 * (size - 1) : ((along + 1) * size - 1) / 2,
          at::full_like(along, (align_corners ? size - 1 : size) / 2.0)};
      if (interpolation != kCubic) {
        places = padded(places, size, padding, align_corners);
      }
      const Tensor below = places.at.floor();
      const Tensor past = places.at - below;
      std::vector<Tap> taps;
      const auto add = [&](int64_t step) -> Tap& {
        Tensor index = below + step;
        if (interpolation == kCubic) {
          index = padded({index, places.scale}, size, padding, align_corners).at.round();
        }
        const Tensor is_inside = (index >= 0).logical_and(index <= size - 1);
        taps.push_back({at::where(is_inside, index, 0).to(at::kLong), is_inside});
        return taps.back();
      };
      if (interpolation == kCubic) {
        weigh(add(-1), past + 1, 1, /*is_near=*/false);
        weigh(add(0), past, 1, /*is_near=*/true);
        weigh(add(1), 1 - past, -1, /*is_near=*/true);
        weigh(add(2), 2 - past, -1, /*is_near=*/false);
      } else {
        Tap& lower = add(0);
        lower.weight = 1 - past;
        lower.slope = at::full_like(past, -1);
        Tap& upper = add(1);
        upper.weight = past;
        upper.slope = at::ones_like(past);
      }
      axes_.push_back(std::move(taps));
      scales_.push_back(places.scale);
    }
  }

  // The tangent of the sampled values, from that of the grid.
  Tensor tangent(const Tensor& image, const Tensor& t) const {
    const std::vector<Tensor> moves = moves_of(t);
    Tensor sum;
    visit([&](const Corner& corner) {
      sum = sum_of({sum, read(image, corner) * slope_along(corner, moves)});
    });
    c10::SymDimVector sizes(grid_sizes_.begin(), grid_sizes_.end() - 1);
    sizes.insert(sizes.begin() + 1, image.sym_size(1));
    return sum.reshape_symint(sizes);
  }
  // The tangent of the transpose, applied to a cotangent, from that of the grid.
  Tensor transposed_tangent(const Tensor& g, const Tensor& t) const {
    const std::vector<Tensor> moves = moves_of(t);
    const Tensor flat = g.flatten(2);
    Tensor sum = g.new_zeros_symint(image_sizes_).flatten(2);
    visit([&](const Corner& corner) {
      const Tensor values = (flat * slope_along(corner, moves)).masked_fill(corner.outside, 0);
      sum = sum.scatter_add(2, across(corner, g), values);
    });
    return sum.reshape_symint(image_sizes_);
  }
  // The tangent of the gradient by the grid, from that of the grid. This map is its own transpose.
  Tensor gradient_tangent(const Tensor& g, const Tensor& image, const Tensor& t) const {
    const std::vector<Tensor> moves = moves_of(t);
    const Tensor flat = g.flatten(2);
    const size_t rank = axes_.size();
    std::vector<Tensor> columns(rank);
    visit([&](const Corner& corner) {
      const Tensor product = (flat * read(image, corner)).sum(1, /*keepdim=*/true);
      for (size_t axis = 0; axis < rank; ++axis) {
        Tensor& column = columns[rank - 1 - axis];
        column = sum_of({column, product * slope_of_slope(corner, axis, moves)});
      }
    });
    for (size_t axis = 0; axis < rank; ++axis) {
      columns[rank - 1 - axis] = columns[rank - 1 - axis] * scales_[axis];
    }
    return at::stack(columns, -1).reshape_symint(grid_sizes_);
  }

 private:
  struct Corner {
    std::vector<const Tap*> taps; // one per axis
    Tensor index;                 // into the flattened image
    Tensor outside;
  };

  Tensor column(const Tensor& grid, int64_t axis) const {
    return grid.flatten(1, -2)
        .select(-1, grid.sym_size(-1).guard_int(__FILE__, __LINE__) - 1 - axis)
        .unsqueeze(1);
  }
  // The tangents of the coordinates by axis, in pixels.
  std::vector<Tensor> moves_of(const Tensor& t) const {
    std::vector<Tensor> moves;
    for (size_t axis = 0; axis < axes_.size(); ++axis) {
      moves.push_back(column(t, static_cast<int64_t>(axis)) * scales_[axis]);
    }
    return moves;
  }

  template <class Visit>
  void visit(const Visit& visit) const {
    const size_t taps = axes_[0].size();
    size_t count = 1;
    for (size_t axis = 0; axis < axes_.size(); ++axis) {
      count *= taps;
    }
    for (size_t i = 0; i < count; ++i) {
      Corner corner;
      Tensor is_inside;
      size_t rest = i;
      for (size_t axis = 0; axis < axes_.size(); ++axis, rest /= taps) {
        const Tap& tap = axes_[axis][rest % taps];
        corner.taps.push_back(&tap);
        is_inside = is_inside.defined() ? is_inside.logical_and(tap.is_inside) : tap.is_inside;
        corner.index = corner.index.defined()
                           ? corner.index * at::Scalar(image_sizes_[2 + axis]) + tap.index
                           : tap.index;
      }
      corner.outside = is_inside.logical_not();
      visit(corner);
    }
  }

  // The index, expanded to all channels.
  Tensor across(const Corner& corner, const Tensor& channels) const {
    return corner.index.expand_symint({-1, channels.sym_size(1), -1});
  }
  Tensor read(const Tensor& image, const Corner& corner) const {
    return image.flatten(2).gather(2, across(corner, image)).masked_fill(corner.outside, 0);
  }

  // The product of the weights of all axes but up to two.
  Tensor weight_of_others(const Corner& corner, size_t one, size_t other) const {
    Tensor product;
    for (size_t axis = 0; axis < axes_.size(); ++axis) {
      if (axis != one && axis != other) {
        product = product_of({product, corner.taps[axis]->weight});
      }
    }
    return product;
  }
  Tensor slope_along(const Corner& corner, const std::vector<Tensor>& moves) const {
    Tensor sum;
    for (size_t axis = 0; axis < axes_.size(); ++axis) {
      sum = sum_of(
          {sum,
           product_of(
               {moves[axis], corner.taps[axis]->slope, weight_of_others(corner, axis, axis)})});
    }
    return sum;
  }
  // The tangent of the weight's derivative by one axis.
  Tensor slope_of_slope(const Corner& corner, size_t axis, const std::vector<Tensor>& moves) const {
    const Tap& tap = *corner.taps[axis];
    Tensor sum;
    if (tap.bend.defined()) {
      sum = product_of({moves[axis], tap.bend, weight_of_others(corner, axis, axis)});
    }
    for (size_t other = 0; other < axes_.size(); ++other) {
      if (other != axis) {
        sum = sum_of(
            {sum,
             product_of(
                 {moves[other],
                  tap.slope,
                  corner.taps[other]->slope,
                  weight_of_others(corner, axis, other)})});
      }
    }
    return sum;
  }

  c10::SymIntArrayRef image_sizes_;
  c10::SymIntArrayRef grid_sizes_;
  std::vector<std::vector<Tap>> axes_;
  std::vector<Tensor> scales_;
};

// Whether the result depends on the grid: with nearest-pixel sampling it doesn't. The call's
// options begin at this argument.
bool is_moved(const Operands& call, size_t options) {
  return call.integer(options) != kNearest;
}
Grid grid_of(const Operands& call, const Tensor& image, const Tensor& grid, size_t options) {
  return {image, grid, call.integer(options), call.integer(options + 1), call.flag(options + 2)};
}

// grid_sampler(input, grid, interpolation_mode, padding_mode, align_corners)
void grid_sampler(JvpCall& call) {
  call.run();
  Tensor sum;
  if (call.has_tangent(0)) {
    sum = call.with({{0, call.tangent(0)}});
  }
  if (call.has_tangent(1) && is_moved(call, 2)) {
    const Grid grid = grid_of(call, call[0], call[1], 2);
    sum = sum_of({sum, grid.tangent(call[0], call.tangent(1))});
  }
  call.set_tangent(0, sum);
}

template <auto Backward>
void grid_sampler_vjp(VjpCall& call) {
  const auto [input, grid] = Backward(
      call.cotangents()[0],
      call[0],
      call[1],
      call.integer(2),
      call.integer(3),
      call.flag(4),
      {call.wants(0), call.wants(1)});
  call.give(0, input);
  call.give(1, grid);
}

// grid_sampler_backward(g, input, grid, …, output_mask) -> (gradient by input, by grid)
template <auto Backward>
void grid_sampler_backward(JvpCall& call) {
  call.run();
  const auto mask = call.arg(6).toBoolList();
  const bool moves = is_moved(call, 3);
  const auto backward = [&](const Tensor& g, const Tensor& image, bool by_input, bool by_grid) {
    return Backward(
        g, image, call[2], call.integer(3), call.integer(4), call.flag(5), {by_input, by_grid});
  };
  Tensor by_input, by_grid;
  if (call.has_tangent(0)) {
    std::tie(by_input, by_grid) = backward(call.tangent(0), call[1], mask[0], mask[1]);
  }
  if (call.has_tangent(1) && moves && mask[1]) {
    by_grid = sum_of({by_grid, std::get<1>(backward(call[0], call.tangent(1), false, true))});
  }
  if (call.has_tangent(2) && moves) {
    const Grid grid = grid_of(call, call[1], call[2], 3);
    const Tensor& t = call.tangent(2);
    if (mask[0]) {
      by_input = sum_of({by_input, grid.transposed_tangent(call[0], t)});
    }
    if (mask[1]) {
      by_grid = sum_of({by_grid, grid.gradient_tangent(call[0], call[1], t)});
    }
  }
  call.set_tangent(0, mask[0] ? by_input : Tensor());
  call.set_tangent(1, mask[1] ? by_grid : Tensor());
}

// The gradients of <g, sampled values> along the cotangents of input and grid, which enter where
// tangents of those would.
template <auto Forward, auto Backward>
void grid_sampler_backward_vjp(VjpCall& call) {
  const auto mask = call.arg(6).toBoolList();
  const auto& by = call.cotangents(); // a result that was not requested may have none
  const Tensor to_input = mask[0] ? by.front() : Tensor();
  const Tensor to_grid = mask[1] && is_moved(call, 3) ? by.back() : Tensor();
  const Tensor& g = call[0];
  Tensor by_g, by_grid;
  if (to_input.defined()) {
    if (call.wants(0)) {
      by_g = Forward(to_input, call[2], call.integer(3), call.integer(4), call.flag(5));
    }
    if (call.wants(2)) {
      by_grid = std::get<1>(Backward(
          g, to_input, call[2], call.integer(3), call.integer(4), call.flag(5), {false, true}));
    }
  }
  if (to_grid.defined()) {
    const Grid grid = grid_of(call, call[1], call[2], 3);
    if (call.wants(0)) {
      by_g = sum_of({by_g, grid.tangent(call[1], to_grid)});
    }
    if (call.wants(1)) {
      call.give(1, grid.transposed_tangent(g, to_grid));
    }
    if (call.wants(2)) {
      by_grid = sum_of({by_grid, grid.gradient_tangent(g, call[1], to_grid)});
    }
  }
  call.give(0, by_g);
  call.give(2, by_grid);
}

} // namespace

#define GRID_SAMPLER(name)                                          \
  rules[#name]                                                      \
      .jvp(grid_sampler)                                            \
      .vjp(                                                         \
          grid_sampler_vjp<at::name##_backward>,                    \
          {.by = {"input", "grid"}, .saves = {"input", "grid"}});   \
  rules[#name "_backward"]                                          \
      .jvp(grid_sampler_backward<at::name##_backward>)              \
      .vjp(                                                         \
          grid_sampler_backward_vjp<at::name, at::name##_backward>, \
          {.by = {"grad_output", "input", "grid"},                  \
           .of = {"result", "result1"},                             \
           .saves = {"grad_output", "input", "grid"}})

void add_grid_sampler(Table& rules) {
  GRID_SAMPLER(grid_sampler_2d);
  GRID_SAMPLER(grid_sampler_3d);
}

} // namespace torchlayers
