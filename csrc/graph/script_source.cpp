#include "graph/script_source.h"

#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/csrc/jit/frontend/sugared_value.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

namespace torchlayers::graph {

using torch::jit::CompilationUnit;
using torch::jit::Graph;

namespace {

// Resolves names of torch, also without `torch.`, and of the functions compiled so far.
struct NamesInSource : torch::jit::Resolver {
  explicit NamesInSource(const CompilationUnit& unit) : unit(unit) {}

  std::shared_ptr<torch::jit::SugaredValue> resolveValue(
      const std::string& name,
      torch::jit::GraphFunction& function,
      const torch::jit::SourceRange& place) override {
    if (auto* known = unit.find_function(c10::QualifiedName(name))) {
      return std::make_shared<torch::jit::FunctionValue>(known);
    }
    if (name == "torchlayers") { // operators.cpp
      return std::make_shared<torch::jit::BuiltinModule>("torchlayers");
    }
    const auto op = c10::Symbol::aten(name);
    if (!torch::jit::getAllOperatorsFor(op).empty()) {
      return std::make_shared<torch::jit::BuiltinFunction>(op, std::nullopt);
    }
    return torch::jit::nativeResolver()->resolveValue(name, function, place);
  }

  const CompilationUnit& unit;
};

struct Compiler {
  Compiler() {
    unit.define(std::nullopt, helper_functions(), names, nullptr);
  }

  std::shared_ptr<Graph> compile(
      const std::vector<Parameter>& parameters, const std::string& body) {
    const std::lock_guard<std::mutex> guard(mutex);
    const std::string name = "derivative_" + std::to_string(known.size());
    std::string source = "def " + name + "(";
    for (const auto& parameter : parameters) {
      source += parameter.name + ": " + parameter.type + ", ";
    }
    source += "):\n" + body;
    auto& graph = known[source.substr(name.size())];
    if (!graph) {
      const auto functions = unit.define(std::nullopt, source, names, nullptr);
      graph = torch::jit::toGraphFunction(*functions.at(0)).graph()->copy();
      torch::jit::Inline(*graph);
      torch::jit::EliminateDeadCode(graph->block());
    }
    return graph;
  }

  CompilationUnit unit;
  std::shared_ptr<NamesInSource> names = std::make_shared<NamesInSource>(unit);
  std::unordered_map<std::string, std::shared_ptr<Graph>> known;
  std::mutex mutex;
};

bool is_name_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

} // namespace

std::shared_ptr<Graph> compiled(const std::vector<Parameter>& parameters, const std::string& body) {
  static auto* compiler = new Compiler(); // torch's registries may be gone before statics
  return compiler->compile(parameters, body);
}

std::vector<std::string> names_in(const std::string& source) {
  std::vector<std::string> names;
  for (size_t i = 0; i < source.size();) {
    size_t end = i;
    while (end < source.size() && is_name_character(source[end])) {
      ++end;
    }
    if (end == i) {
      ++i;
      continue;
    }
    const auto name = source.substr(i, end - i);
    const bool attribute = i > 0 && source[i - 1] == '.';
    if (!attribute && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
        std::find(names.begin(), names.end(), name) == names.end()) {
      names.push_back(name);
    }
    i = end;
  }
  return names;
}

} // namespace torchlayers::graph
