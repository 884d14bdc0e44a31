"""Faults in torchlayers/transforms: the rules of jet, laplacian, sparse and layers in Python."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "jet_root_of_odd_orders",
        "torchlayers/transforms/jet/coefficients.py",
        "for i in range(1, (k + 1) // 2):\n"
        "            total = accumulated(total, y[i], y[k - i], -2)",
        "for i in range(1, k // 2):\n            total = accumulated(total, y[i], y[k - i], -2)",
        "the third derivative of a square root lacks a term",
        "tests/transforms/jet/test_closed_forms.py",
    ),
    Mutant(
        "jet_series_of_a_term",
        "torchlayers/transforms/jet/rules/terms.py",
        "times(s, 1 / (k + 1))",
        "times(s, 1 / (k + 2))",
        "the coefficients of an operator's series, from those of its slope",
        "tests/transforms/jet/test_closed_forms.py",
    ),
    Mutant(
        "jet_cumprod_steps",
        "torchlayers/transforms/jet/rules/reductions.py",
        "        step *= 2\n",
        "        step += 1\n",
        "the running product of four or more elements",
        "tests/transforms/jet/test_closed_forms.py",
    ),
    Mutant(
        "laplacian_of_sin",
        "torchlayers/transforms/laplacian/elementwise.py",
        "aten.sin.default: lambda y, x: (torch.cos(x), -y),",
        "aten.sin.default: lambda y, x: (torch.cos(x), y),",
        "the second derivative of sin",
        "tests/transforms/laplacian/test_elementwise.py",
    ),
    Mutant(
        "laplacian_of_other_inputs",
        "torchlayers/transforms/laplacian/rows.py",
        "isinstance(right, Diagonal) and left.start == right.start:",
        "isinstance(right, Diagonal):",
        "a dropped guard: the rows of two arguments are added to one",
        "tests/transforms/laplacian/test_laplacian.py -k argument",
    ),
    Mutant(
        "laplacian_weights_unsymmetric",
        "torchlayers/transforms/laplacian/seeds.py",
        "return 0.5 * (weights + weights.mT)",
        "return weights.tril() + weights.mT.tril(-1)",
        "of a matrix of weights one half is read",
        "tests/transforms/laplacian/test_laplacian.py -k weights",
    ),
    Mutant(
        "pattern_of_varying_indices",
        "torchlayers/transforms/sparse/detection/layer.py",
        "varying = operands + [i for i in parts if not (self.is_local or i in operands)]",
        "varying = operands",
        "an index that depends on the inputs is taken for a constant in a custom operator's vjp",
        "tests/transforms/sparse/test_detection.py -k indices_that_vary",
    ),
    Mutant(
        "pattern_of_adaptive_pool",
        "torchlayers/transforms/sparse/detection/rules/windows.py",
        'end = -((-(places + 1) * length).div(count, rounding_mode="floor"))',
        'end = ((places + 1) * length).div(count, rounding_mode="floor")',
        "the windows of an adaptive pool end one element early",
        "tests/transforms/sparse/test_detection.py -k 'pattern_of'",
    ),
    Mutant(
        "acyclic_substitution_sign",
        "torchlayers/transforms/sparse/reading.py",
        "        sign = 1\n",
        "        sign = -1\n",
        "entries of an acyclic colouring are solved with a wrong sign",
        "tests/transforms/sparse/test_coloring.py "
        "tests/transforms/sparse/test_derivatives.py "
        "-k 'acyclic or chain'",
    ),
    Mutant(
        "sparse_check_sees_nothing",
        "torchlayers/transforms/sparse/check.py",
        "differs = error > torch.finfo(values.dtype).eps ** 0.5 * scale",
        "differs = error > scale * scale + 1",
        "check=True finds no missing entry",
        "tests/transforms/sparse/test_derivatives.py -k check",
    ),
    Mutant(
        "parts_in_other_memory_layout",
        "torchlayers/transforms/layers/memory_layout.py",
        "    if x.storage_offset() != y.storage_offset():\n        return False\n",
        "",
        "a dropped guard: as_strided reads a part at the value's offset",
        "tests/transforms/layers/test_memory_layout.py",
    ),
)
