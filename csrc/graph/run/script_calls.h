// Runs TorchScript functions operator by operator, for calls under layers.
//
// NOTE [TorchScript under layers]
// torch's executor rewrites a graph from its second run on. It differentiates parts of it itself,
// with their inputs detached: that is right for one level of autograd, but the tangents and graphs
// of other levels are lost. It fuses kernels that access memory directly, and it folds constants by
// running operators under whatever layers are active. The plans that it creates remain in use,
// however the function is called later. So under our layers the executor is bypassed: the
// function's graph is interpreted unchanged, and each operator goes through the dispatcher.
// Operators that would call the executor for a part of the graph are replaced (script_calls.cpp).
// would call the executor for a part of the graph are replaced (script_calls.cpp).
#pragma once

#include <torch/csrc/jit/api/function_impl.h>

namespace torchlayers::graph {

// Pops the arguments from the stack and pushes the result.
void run_operators_of(torch::jit::Function& function, torch::jit::Stack& stack);

// Replaces the calls that the interpreter would pass to torch's executor.
void replace_executor_calls(torch::jit::Block& block);

} // namespace torchlayers::graph
