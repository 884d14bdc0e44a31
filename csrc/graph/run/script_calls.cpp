#include "graph/run/script_calls.h"

#include <torch/csrc/jit/runtime/custom_operator.h>

#include <mutex>
#include <unordered_map>

#include "core/aten_functions.h"
#include "core/keys.h"
#include "graph/run/run.h"

namespace torchlayers::graph {

using torch::jit::Block;
using torch::jit::Function;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Operation;
using torch::jit::Operator;
using torch::jit::pop;
using torch::jit::push;
using torch::jit::Stack;
namespace prim = c10::prim;

namespace {

using SharedProgram = std::shared_ptr<const Program>;

// The programs of functions that have been called under layers, cached while their graphs are
// alive.
class Programs {
 public:
  SharedProgram of(const std::shared_ptr<Graph>& graph) {
    const std::lock_guard lock(mutex_);
    auto& known = programs_[graph.get()];
    if (known.graph.lock() != graph) { // unknown, or of an earlier graph at the same address
      std::erase_if(programs_, [&](const auto& each) {
        return each.first != graph.get() && each.second.graph.expired();
      });
      programs_[graph.get()] = {graph, std::make_shared<const Program>(*graph)};
    }
    return programs_[graph.get()].program;
  }

 private:
  struct Known {
    std::weak_ptr<Graph> graph;
    SharedProgram program;
  };
  std::mutex mutex_;
  std::unordered_map<const Graph*, Known> programs_;
};

void run_program(const Program& program, Stack& stack, size_t num_inputs) {
  auto results = program.run(torch::jit::pop(stack, num_inputs));
  stack.insert(
      stack.end(),
      std::make_move_iterator(results.begin()),
      std::make_move_iterator(results.end()));
}

// A method of a module that is only known by an interface, so it can't be inlined.
Operation call_method(const Node* node) {
  return [name = node->s(c10::attr::name), count = node->inputs().size()](Stack& stack) {
    auto& type = *torch::jit::peek(stack, 0, count).type()->castRaw<c10::ClassType>();
    run_operators_of(type.getMethod(name), stack);
  };
}

// torch.jit.fork, without another thread.
Operation fork(const Node* node) {
  const auto program = std::make_shared<const Program>(*node->g(c10::attr::Subgraph));
  const auto type = node->output()->type()->expect<c10::FutureType>()->getElementType();
  return [program, type, count = node->inputs().size()](Stack& stack) {
    run_program(*program, stack, count);
    const auto future = c10::make_intrusive<c10::ivalue::Future>(type);
    future->markCompleted(pop(stack));
    push(stack, future);
  };
}

// torch.tensor and torch.as_tensor of a list write into memory that layers must not see before it
// is filled. Python's torch.tensor excludes the same keys.
template <const char* schema>
void make_tensor(Stack& stack) {
  static Operation make = torch::jit::getOperatorForLiteral(schema)->getOperation();
  {
    const c10::impl::ExcludeDispatchKeyGuard past_layers(
        kTorchFuncKeys | DispatchKeySet(DispatchKey::Functionalize) |
        DispatchKeySet({DispatchKey::Python, DispatchKey::PythonTLSSnapshot}));
    make(stack);
  }
  push(stack, at::lift_fresh(pop(stack).toTensor()));
}

constexpr char kTensor[] =
    "aten::tensor(t[] data, *, ScalarType? dtype=None, Device? device=None, "
    "bool requires_grad=False) -> Tensor";
constexpr char kAsTensor[] =
    "aten::as_tensor.list(t[] data, *, ScalarType? dtype=None, Device? device=None) -> Tensor";

const auto kOurMethod = c10::Symbol::fromQualString("torchlayers::call_method");
const auto kOurFork = c10::Symbol::fromQualString("torchlayers::fork");
const auto kOurTensor = c10::Symbol::fromQualString("torchlayers::tensor");
const auto kOurAsTensor = c10::Symbol::fromQualString("torchlayers::as_tensor");

const torch::jit::RegisterOperators registered({
    Operator(kOurMethod, call_method, c10::AliasAnalysisKind::CONSERVATIVE),
    Operator(kOurFork, fork, c10::AliasAnalysisKind::CONSERVATIVE),
    Operator(
        "torchlayers::tensor(t[] data, ScalarType? dtype, Device? device, bool requires_grad) -> "
        "Tensor",
        Operation(make_tensor<kTensor>),
        c10::AliasAnalysisKind::FROM_SCHEMA),
    Operator(
        "torchlayers::as_tensor(t[] data, ScalarType? dtype, Device? device) -> Tensor",
        Operation(make_tensor<kAsTensor>),
        c10::AliasAnalysisKind::FROM_SCHEMA),
});

std::optional<c10::Symbol> replacement_of(const Node& node) {
  switch (node.kind()) {
    case prim::CallMethod:
      return kOurMethod;
    case prim::fork:
      return kOurFork;
    case c10::aten::tensor:
      return node.matches(kTensor) ? std::optional(kOurTensor) : std::nullopt;
    case c10::aten::as_tensor:
      return node.matches(kAsTensor) ? std::optional(kOurAsTensor) : std::nullopt;
    default:
      return std::nullopt;
  }
}

} // namespace

void run_operators_of(Function& function, Stack& stack) {
  static Programs programs;
  auto* of_graph = torch::jit::tryToGraphFunction(function);
  if (of_graph == nullptr) { // implemented in C++
    function.run(stack);
    return;
  }
  of_graph->ensure_defined();
  run_program(*programs.of(of_graph->optimized_graph()), stack, of_graph->num_inputs());
}

void replace_executor_calls(Block& block) {
  for (auto it = block.nodes().begin(); it != block.nodes().end(); ++it) {
    for (Block* inner : it->blocks()) {
      replace_executor_calls(*inner);
    }
    if (const auto kind = replacement_of(**it)) {
      Node* ours = block.owningGraph()->create(*kind, it->inputs(), 1)->insertBefore(*it);
      ours->copyAttributes(**it);
      ours->copyMetadata(*it);
      ours->output()->copyMetadata(it->output());
      it->replaceAllUsesWith(ours);
      it.destroyCurrent();
    }
  }
}

} // namespace torchlayers::graph
