// Programs, as Python writes and calls them.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "compiled/program.h"

namespace torchlayers {

c10::IValue value_of(pybind11::handle object);
pybind11::object object_of_value(c10::IValue&& value);

// Runs the program without the GIL.
void run_program(const compiled::Program& program, torch::jit::Stack& stack);

pybind11::object object_of_program(std::shared_ptr<const compiled::Program> program);
// Null if the object is not a program.
std::shared_ptr<const compiled::Program> program_of(pybind11::handle object);

void bind_programs(pybind11::module_& m);
void bind_program_writer(pybind11::module_& m);

} // namespace torchlayers
