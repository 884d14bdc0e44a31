#include "layers/vmap/errors.h"

#include <cctype>
#include <optional>
#include <sstream>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "core/args.h"
#include "core/errors.h"
#include "layers/vmap/example_sample.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

bool says(const std::string& text, std::string_view words) {
  return text.find(words) != std::string::npos;
}
bool says(const c10::Error& error, std::string_view words) {
  return says(error.msg(), words);
}

// The `caller` of errors that were raised again.
const char kSaidAgain = 0;

template <class Kind>
void throw_if_like(const c10::Error& error, const std::string& text) {
  if (typeid(error) == typeid(Kind)) {
    throw Kind(text, error.backtrace(), &kSaidAgain);
  }
}

// Throws the text as an error of the same type, if that type has no data besides its text.
void throw_like(const c10::Error& error, const std::string& text) {
  if (typeid(error) == typeid(c10::Error)) {
    raise_text(ErrorClass::BatchedOperator, text, /*was_said_again=*/true);
  }
  throw_if_like<c10::IndexError>(error, text);
  throw_if_like<c10::ValueError>(error, text);
  throw_if_like<c10::TypeError>(error, text);
  throw_if_like<c10::NotImplementedError>(error, text);
  throw_if_like<c10::LinAlgError>(error, text);
}

// Whether these are still the arguments that the operator was passed. A kernel that failed may have
// popped them, or replaced them by the batch itself.
bool are_whole(const Operator& op, const Args& args, const VmapLayer& layer) {
  if (args.size() < op.num_args) {
    return false;
  }
  for (size_t i = 0; i < op.num_args; ++i) {
    const auto kind = op.schema().arguments()[i].type()->kind();
    const bool may_be_none =
        kind == c10::TypeKind::OptionalType || kind == c10::TypeKind::TensorType;
    if (peek(args, i, op.num_args).isNone() && !may_be_none) {
      return false;
    }
  }
  return any_tensor(
      args, op.num_args, [&](const at::Tensor& tensor) { return layer.follows(tensor); });
}

// "(2, 3)", as Python writes it.
std::string shape_of(const at::Tensor& tensor) {
  if (holder_of(tensor).is_nested()) {
    return "nested";
  }
  std::ostringstream out;
  const auto sizes = tensor.sym_sizes();
  out << "(";
  for (size_t i = 0; i < sizes.size(); ++i) {
    out << (i > 0 ? ", " : "") << sizes[i];
  }
  out << (sizes.size() == 1 ? ",)" : ")");
  return out.str();
}

// " (self (2, 3), vec (3,))": the tensors as one sample sees them.
std::string shapes_of(const Operator& op, const Args& args) {
  std::string shapes;
  size_t named = op.num_args;
  visit_tensors(args, op.num_args, [&](const at::Tensor& tensor, size_t i) {
    shapes += shapes.empty() ? " (" : ", ";
    if (i != std::exchange(named, i)) {
      shapes += op.schema().arguments()[i].name() + " ";
    }
    shapes += shape_of(tensor);
  });
  return shapes + ")";
}

// Without the full stop, which the surrounding sentence adds.
std::string quoted(std::string text) {
  while (!text.empty() && (text.back() == '.' || std::isspace(text.back()))) {
    text.pop_back();
  }
  return text;
}

// The operator's message for one sample of these shapes; nullopt if it does not reject it. Not for
// operators that draw random numbers, or where the values are to blame (a singular matrix).
std::optional<std::string> refusal_of_sample(const Operator& op, const Args& args) {
  if (op.is_custom || op.handle.hasTag(at::Tag::nondeterministic_seeded)) {
    return std::nullopt;
  }
  try {
    run_on_stand_in(op, args, 0);
  } catch (const c10::Error& refusal) {
    if (!says(refusal, "INTERNAL ASSERT")) {
      return refusal.msg();
    }
  } catch (const std::exception&) { // from a kernel in Python
  }
  return std::nullopt;
}

[[noreturn]] void raise_sizes_differ(const Operator& op, const VmapLayer& layer) {
  raise_as(
      ErrorClass::BatchedOperator,
      "{} can't run {}: the results of different samples would differ in size. Use "
      "torch.where(mask, x, 0), call it outside vmap, or pass fallback='loop' to vmap, which runs "
      "one sample at a time.",
      layer.name(),
      op.name());
}

// Handles the error of torch's loop over the samples if their results differ in size.
void explain_sizes(const std::string& text, const Operator& op, const VmapLayer& layer) {
  if (says(text, "stack expects each tensor to be equal size") && op.name() != "aten::stack") {
    raise_sizes_differ(op, layer);
  }
}

// Raises known errors again, with advice.
void explain(
    const c10::Error& error, const Operator& op, const Args& args, const VmapLayer& layer) {
  if (says(error, "randomness error mode")) {
    refuse_to_draw(op, layer);
  }
  if (says(error, "inplace randomness on an unbatched tensor")) {
    raise_as(
        ErrorClass::InPlace,
        "{} can't fill a tensor that is not batched with random numbers that differ between "
        "samples ({}): it is {}. Create the tensor inside the function, or pass randomness='same' "
        "to vmap.",
        layer.name(),
        op.name(),
        layer.whose(peek(args, 0, op.num_args).toTensor()));
  }
  if (op.is_custom && says(error, "Batching rule not implemented")) {
    raise_as(
        ErrorClass::BatchedOperator,
        "{} can't run {}: it has no batching rule, and can't be called sample by sample. Register "
        "a batching rule with torch.library.register_vmap, or register its kernel as "
        "CompositeImplicitAutograd.",
        layer.name(),
        op.name());
  }
  if (says(error, "dynamic shape") || says(error, "vmap over `mask` in torch.masked_select")) {
    raise_sizes_differ(op, layer);
  }
  if (says(error, "Batching rule not implemented for ")) {
    throw_like(
        error,
        said(
            "{}: Batching rule not implemented for {}. Loop over the samples and torch.stack the "
            "results, or use other operators.",
            layer.name(),
            op.name()));
  }
  if (says(error, "vmap over torch.allclose isn't supported")) {
    raise_as(
        ErrorClass::BatchedValue,
        "{} can't convert {} samples to one Python bool ({}). Use torch.isclose(x, y).all(), and "
        "read the result after vmap.",
        layer.name(),
        *layer.batch_size(),
        op.name());
  }
  if (says(error, "running_mean or running_var, which will be updated in place")) {
    raise_as(
        ErrorClass::InPlace,
        "{} can't update the running statistics of a batch norm ({}): they are not batched, but "
        "each of the {} samples would update them. Remove them "
        "(torchlayers.replace_all_batch_norm_modules_, or track_running_stats=False), or put the "
        "module into eval mode.",
        layer.name(),
        op.name(),
        *layer.batch_size());
  }
}

} // namespace

void say_again(
    const c10::Error& error, const Operator& op, const Args& args, const VmapLayer& layer) {
  const bool was_said_again = error.caller() == &kSaidAgain;
  // When the transform is left, torchlayers/autograd_function/errors.py gives advice on a C++
  // Function.
  if ((says(error, "torchlayers: ") && !was_said_again) ||
      says(error, "cannot use C++ torch::autograd::Function")) {
    return;
  }
  explain_sizes(error.msg(), op, layer);
  if (!was_said_again) {
    explain(error, op, args, layer);
  }
  const bool whole = are_whole(op, args, layer);
  const bool may_be_shapes = whole && typeid(error) != typeid(c10::LinAlgError);
  const auto refusal = may_be_shapes ? refusal_of_sample(op, args) : std::nullopt;
  if (!refusal && was_said_again) {
    return;
  }
  const std::string on =
      refusal ? " on a sample" : " on a batch of " + c10::str(*layer.batch_size()) + " samples";
  throw_like(
      error,
      said(
          "{} can't run {}{}{}: {}.",
          layer.name(),
          op.name(),
          on,
          whole ? shapes_of(op, args) : "",
          quoted(refusal.value_or(error.msg()))));
}

void say_again(
    const LayerError& error, const Operator& op, const Args& args, const VmapLayer& layer) {
  if (!error.was_said_again) {
    return;
  }
  explain_sizes(error.text(), op, layer);
  const auto refusal = are_whole(op, args, layer) ? refusal_of_sample(op, args) : std::nullopt;
  if (refusal) {
    raise_text(
        error.error_class,
        said(
            "{} can't run {} on a sample{}: {}.",
            layer.name(),
            op.name(),
            shapes_of(op, args),
            quoted(*refusal)),
        /*was_said_again=*/true);
  }
}

void refuse_to_write(const Operator& op, const at::Tensor& tensor, const VmapLayer& layer) {
  raise_as(
      ErrorClass::InPlace,
      "{} can't write a batched value into a tensor from outside the function that is not batched "
      "({}): it is {}, and has room for one sample, not for {}. Make a tensor inside the function "
      "(a clone of it, torch.zeros) and write to that, or use the out-of-place operator.",
      layer.name(),
      op.name(),
      layer.whose(tensor),
      *layer.batch_size());
}

void refuse_to_draw(const Operator& op, const VmapLayer& layer) {
  // The words are torch.func's, and programs look for them where a message begins.
  raise_text(
      ErrorClass::Randomness,
      "vmap: called random operation while in randomness error mode. " +
          said(
              "{} called the random operator {} with randomness='error'. Pass "
              "randomness='different' to vmap for different numbers in each sample, or 'same' for "
              "the same numbers in all.",
              layer.name(),
              op.name()));
}

void refuse_to_read_number(const Operator& op, const Args& args, const VmapLayer& layer) {
  visit_tensors(args, op.num_args, [&](const at::Tensor& tensor) {
    if (layer.follows(tensor)) {
      // The words in the middle are torch.func's, which programs look for.
      raise_as(
          ErrorClass::BatchedValue,
          "{} can't convert a batched tensor to one Python number: it has {} values. vmap: It "
          "looks like you're calling .item() on a Tensor, or attempting to use a Tensor in some "
          "data-dependent control flow (bool(), if, while). Use torchlayers.cond, "
          "torchlayers.while_loop or torch.where instead of if and while; or return the value and "
          "read it after vmap; or pass fallback='loop' to vmap, which runs one sample at a time.",
          layer.name(),
          *layer.batch_size());
    }
  });
}

} // namespace torchlayers
