// Runs TorchScript functions operator by operator, for calls under layers.
//
// NOTE [TorchScript under layers]
// torch's executor rewrites a graph from its second run on. It differentiates parts of it itself,
// with their inputs detached: that is right for one level of autograd, but every other level's
// tangents and graphs are lost. It fuses kernels that read memory, and it folds constants by
// running operators, with whichever layers are on the stack. Plans that it has made stay, however
// the function is called later. So under our layers the executor is passed by: the function's
// graph is interpreted as it stands, and each operator goes through the dispatcher. Operators that
// would call the executor for a part of the graph are replaced (script_calls.cpp).
#pragma once

#include <torch/csrc/jit/api/function_impl.h>

namespace torchlayers::graph {

// Takes the arguments off the stack and leaves the result there.
void run_operators_of(torch::jit::Function& function, torch::jit::Stack& stack);

// Replaces the calls that the interpreter would hand to torch's executor.
void replace_executor_calls(torch::jit::Block& block);

} // namespace torchlayers::graph
