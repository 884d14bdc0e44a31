"""Exports functions to run outside Python: torch.export programs, ONNX models, native code.

api.py captures a function, as compile does; program.py makes the graph a torch.export program of
core ATen operators (symbolic_sizes.py, decompositions.py), whose inputs and outputs signature.py
names.
exported_function.py holds the program; from there onnx_file.py writes an ONNX model, aot_package.py
native code, which loaded_package.py runs. load.py reads files.
"""
