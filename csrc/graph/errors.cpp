#include "graph/errors.h"

namespace torchlayers::graph {

namespace {

using torch::jit::Node;
using torch::jit::SourceRange;

std::string trimmed(const std::string& line) {
  const auto first = line.find_first_not_of(" \t");
  const auto last = line.find_last_not_of(" \t\r\n");
  return first == std::string::npos ? "" : line.substr(first, last - first + 1);
}

std::string place(const SourceRange& range) {
  const auto position = range.file_line_col();
  if (!position) {
    return "";
  }
  const auto& [path, line, column] = *position;
  const auto source = range.source();
  const auto text = source->get_line(source->lineno_for_offset(range.start())).str();
  const auto name = path.substr(path.find_last_of('/') + 1);
  return name + ":" + std::to_string(line) + ", `" + trimmed(text) + "`";
}

// The node's own line and, for an inlined node, the line of the outermost call, which is the one in
// the user's program.
std::string location(const Node& node) {
  std::string text = place(node.sourceRange());
  if (text.empty()) {
    return "";
  }
  if (const auto calls = node.callstack()) {
    const auto outermost = place((*calls)->source_range());
    if (!outermost.empty() && outermost != text) {
      text += ", called in " + outermost;
    }
  }
  return " In " + text + ".";
}

} // namespace

void refuse(const Node& node, const std::string& why, const std::string& remedy) {
  throw GraphProblem(
      std::string("torchlayers: can't differentiate ") + node.kind().toQualString() + ": " + why +
      "." + location(node) + " " + remedy);
}

} // namespace torchlayers::graph
