#include "core/args.h"

namespace torchlayers {
namespace {

using Change = c10::function_ref<at::Tensor(const at::Tensor&)>;

std::optional<c10::IValue> changed(const c10::IValue& value, Change change) {
  if (value.isTensor() && value.toTensor().defined()) {
    return change(value.toTensor());
  }
  return is_container(value) ? changed_held(value, change) : std::nullopt;
}

} // namespace

void visit_held(const c10::IValue& container, c10::function_ref<void(const at::Tensor&)> visit) {
  if (container.isGenericDict()) {
    for (const auto& entry : container.toGenericDict()) {
      visit_tensors_of(entry.key(), visit);
      visit_tensors_of(entry.value(), visit);
    }
    return;
  }
  const auto members =
      container.isTuple() ? container.toTupleRef().elements().asArrayRef() : container.toListRef();
  for (const c10::IValue& member : members) {
    visit_tensors_of(member, visit);
  }
}

std::optional<c10::IValue> changed_held(const c10::IValue& container, Change change) {
  bool any = false;
  const auto change_any = [&](const c10::IValue& value) {
    auto after = changed(value, change);
    any = any || after.has_value();
    return after ? std::move(*after) : value;
  };
  c10::IValue after;
  if (container.isGenericDict()) {
    const auto before = container.toGenericDict();
    c10::impl::GenericDict entries(before.keyType(), before.valueType());
    for (const auto& entry : before) {
      entries.insert(change_any(entry.key()), change_any(entry.value()));
    }
    after = entries;
  } else if (container.isTuple()) {
    std::vector<c10::IValue> members;
    for (const c10::IValue& member : container.toTupleRef().elements()) {
      members.push_back(change_any(member));
    }
    after = c10::ivalue::Tuple::create(std::move(members));
  } else {
    auto members = container.toList();
    for (size_t i = 0; i < members.size(); ++i) {
      if (auto member = changed(container.toListRef()[i], change)) {
        members = any ? std::move(members) : members.copy(); // it may be shared
        members.set(i, std::move(*member));
        any = true;
      }
    }
    after = std::move(members);
  }
  return any ? std::optional(std::move(after)) : std::nullopt;
}

} // namespace torchlayers
