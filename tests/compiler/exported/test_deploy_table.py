"""Each transform reaches each target, or is refused in the words of cells.py; the page says it."""

import subprocess

import pytest
import torch

from examples.out_of_python import build
from tests.compiler.exported import cells, page
from tests.compiler.exported.cells import DTYPES, SIZES
from tests.compiler.exported.transforms import NAMES, exported

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")

CASES = [(name, sizes) for name in NAMES for sizes in SIZES if cells.has_case(name, sizes)]


def inputs_of(row, sizes):
    return [row.args] if sizes == "static" else [row.args, cells.larger(row.args, row.batch)]


def expected_of(row, args):
    return cells.tensors_of(row.function(*args))


def dense(results):
    """Results in which sparse matrices are their values."""
    return [x.values().flatten() if x.layout is not torch.strided else x for x in results]


def compare(got, expected, dtype):
    """Compares tensors; of a sparse matrix, the values come first in the exported result."""
    tolerance = (
        {"rtol": 1e-4, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    )
    got = [tensor for tensor in got if tensor.is_floating_point()]
    assert len(got) == len(expected)
    for one, other in zip(got, dense(expected), strict=True):
        torch.testing.assert_close(one.reshape(other.shape), other, **tolerance)


@pytest.mark.sweep(one_in=8)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "sizes"), CASES)
def test_torch_export_and_onnx(name, sizes, dtype, tmp_path):
    row, function = exported(name, dtype, sizes)
    function.to_onnx(tmp_path / "f.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "f.onnx"))
    used = {entry.name for entry in session.get_inputs()}
    for args in inputs_of(row, sizes):
        expected = expected_of(row, args)
        compare(cells.tensors_of(function(*args)), expected, dtype)
        named = zip(function.input_names, cells.tensors_of(args), strict=True)
        feed = {key: tensor.numpy() for key, tensor in named if key in used}
        got = [torch.from_numpy(array) for array in session.run(None, feed)]
        compare(got, expected, dtype)


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cpp")
    build(folder)
    return folder / "run_package"


@pytest.mark.full  # compiles each
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "sizes"), CASES)
def test_native_code_in_cpp(name, sizes, dtype, tmp_path, runner):
    row, function = exported(name, dtype, sizes)
    function.to_aot(tmp_path / "f.pt2")
    for args in inputs_of(row, sizes):
        torch.save([*map(torch.Tensor.contiguous, cells.tensors_of(args))], tmp_path / "in.pt")
        files = [tmp_path / "f.pt2", tmp_path / "in.pt", tmp_path / "out.pt"]
        subprocess.run([runner, *files], check=True, capture_output=True)
        got = torch.load(tmp_path / "out.pt")
        compare(list(got), expected_of(row, args), dtype)


def test_the_page_shows_the_table():
    assert page.table_text() in page.PAGE.read_text()
