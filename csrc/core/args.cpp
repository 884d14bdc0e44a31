#include "core/args.h"

namespace torchlayers {
namespace {

c10::IValue changed(
    const c10::IValue& value, c10::function_ref<at::Tensor(const at::Tensor&)> change) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? c10::IValue(change(value.toTensor())) : value;
  }
  return is_container(value) ? change_held(value, change) : value;
}

bool holds_tensors(const c10::IValue& container) {
  bool any = false;
  visit_held(container, [&](const at::Tensor&) { any = true; });
  return any;
}

} // namespace

void visit_held(const c10::IValue& container, c10::function_ref<void(const at::Tensor&)> visit) {
  if (container.isGenericDict()) {
    for (const auto& entry : container.toGenericDict()) {
      visit_tensors_of(entry.key(), visit);
      visit_tensors_of(entry.value(), visit);
    }
  } else if (container.isTuple()) {
    for (const c10::IValue& member : container.toTupleRef().elements()) {
      visit_tensors_of(member, visit);
    }
  } else {
    for (const c10::IValue& member : container.toListRef()) {
      visit_tensors_of(member, visit);
    }
  }
}

c10::IValue change_held(
    const c10::IValue& container, c10::function_ref<at::Tensor(const at::Tensor&)> change) {
  if (!holds_tensors(container)) {
    return container;
  }
  if (container.isGenericDict()) {
    const auto before = container.toGenericDict();
    c10::impl::GenericDict after(before.keyType(), before.valueType());
    after.reserve(before.size());
    for (const auto& entry : before) {
      after.insert(changed(entry.key(), change), changed(entry.value(), change));
    }
    return after;
  }
  if (container.isTuple()) {
    std::vector<c10::IValue> members;
    for (const c10::IValue& member : container.toTupleRef().elements()) {
      members.push_back(changed(member, change));
    }
    return c10::ivalue::Tuple::create(std::move(members));
  }
  auto after = container.toList().copy();
  for (size_t i = 0; i < after.size(); ++i) {
    after.set(i, changed(container.toListRef()[i], change));
  }
  return after;
}

} // namespace torchlayers
