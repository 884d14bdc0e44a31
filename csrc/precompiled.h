// What nearly every file reads of torch, parsed once a build and not once a file (setup.py).
// pybind11 is left out: a unit that includes it takes 4 seconds for it, and few of them do.
#pragma once
#pragma GCC system_header // no warnings about torch's headers

// Keeps torch's headers from including all of its operators.
#define AT_PER_OPERATOR_HEADERS

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include "core/aten_functions.h"
