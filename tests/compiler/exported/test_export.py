"""torchlayers.export: names, sizes, refusals, and the files that it writes."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import torchlayers as tl
from torchlayers.errors import DataDependentError, StructureError, TransformError

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

pytestmark = pytest.mark.filterwarnings("error:.*LeafSpec:FutureWarning")

X = torch.linspace(-1, 1, 12).reshape(4, 3)


def loss(parameters, batch):
    hidden = (batch["x"] @ parameters["weight"]).tanh()
    return ((hidden.sum(1) - batch["y"]) ** 2).mean()


PARAMETERS = {"weight": torch.linspace(-1, 1, 15).reshape(3, 5)}
DATA = {"x": X, "y": torch.ones(4)}


def run_onnx(path, feed):
    session = onnxruntime.InferenceSession(str(path))
    return [torch.from_numpy(array) for array in session.run(None, feed)]


def test_inputs_and_outputs_have_the_names_of_their_paths():
    def gradients(parameters, batch):
        return {"slope": tl.grad(loss)(parameters, batch), "loss": loss(parameters, batch)}

    exported = tl.export(gradients, PARAMETERS, DATA)
    assert exported.input_names == ["parameters_weight", "batch_x", "batch_y"]
    assert exported.output_names == ["result_slope_weight", "result_loss"]
    inputs = exported.program.graph_signature.user_inputs
    assert [*inputs] == exported.input_names
    assert [*exported.program.graph_signature.user_outputs] == exported.output_names
    torch.testing.assert_close(exported(PARAMETERS, DATA), gradients(PARAMETERS, DATA))


def test_a_graph_has_operators_of_core_aten_alone():
    exported = tl.export(tl.vmap(tl.hessian(lambda x: (x.sin() * x.cumsum(0)).sum())), X)
    for node in exported.program.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            assert torch.Tag.core in node.target.tags, node.target


def test_saved_and_loaded(tmp_path):
    exported = tl.export(
        tl.grad(loss), PARAMETERS, DATA, dynamic=(None, {"x": {0: "n"}, "y": {0: "n"}})
    )
    exported.save(tmp_path / "loss.pt2")
    loaded = tl.load(tmp_path / "loss.pt2")
    more = {"x": torch.cat([X, X.cos()]), "y": torch.zeros(8)}
    assert repr(loaded) == repr(exported)
    assert loaded.input_names == exported.input_names
    torch.testing.assert_close(loaded(PARAMETERS, more), tl.grad(loss)(PARAMETERS, more))
    torch.testing.assert_close(loaded.module()(PARAMETERS, more), loaded(PARAMETERS, more))
    loaded.to_onnx(tmp_path / "loss.onnx")
    with pytest.raises(TransformError, match=r"must end in \.pt2"):
        exported.save(tmp_path / "loss.onnx")


def test_a_file_of_torch_export_alone_is_refused(tmp_path):
    program = torch.export.export(nn.Linear(2, 2), (torch.ones(2),))
    torch.export.save(program, tmp_path / "linear.pt2")
    with pytest.raises(TransformError, match="was not saved by torchlayers"):
        tl.load(tmp_path / "linear.pt2")


def test_a_module_keeps_its_parameters_inside():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh()).requires_grad_(False)
    exported = tl.export(net, X)
    assert exported.input_names == ["input_1"]  # torch.fx renames builtins
    torch.testing.assert_close(exported(X), net(X))


def test_costs_are_those_of_the_operators():
    costs = tl.export(torch.mm, X, X.mT.contiguous()).costs()
    assert costs.flops == 2 * 4 * 3 * 4
    assert costs.peak_bytes == 4 * 16


def test_dynamic_sizes_by_name_and_by_dim():
    batch = torch.export.Dim("batch", max=100)
    by_dim = tl.export(tl.vmap(torch.dot), X, X, dynamic=({0: batch}, {0: batch}))
    by_name = tl.export(tl.vmap(torch.dot), X, X, dynamic=({0: "batch"}, ("batch", None)))
    longer = torch.randn(7, 3)
    for exported in (by_dim, by_name):
        torch.testing.assert_close(exported(longer, longer), (longer**2).sum(1))


def test_sizes_of_loops_and_products_are_computed():
    def f(xs):
        total = tl.scan(lambda c, x: (c + x.sum() / xs.shape[0], c), xs.new_zeros(()), xs)[0]
        return tl.grad(lambda x: (x.flatten() * torch.arange(x.shape[0] * 3)).sum())(xs) * total

    exported = tl.export(f, X, dynamic=({0: "n"},))
    longer = torch.randn(9, 3)
    torch.testing.assert_close(exported(longer), f(longer))


def test_a_size_that_the_function_needs_as_a_number_is_refused():
    with pytest.raises(TransformError, match=r"these dynamic sizes|can't be dynamic"):
        tl.export(lambda x: x + torch.ones(4, 3), X, dynamic=({0: "n"},))


@pytest.mark.parametrize(
    ("dynamic", "words"),
    [
        (({0: "n"}, None), "dynamic has 2 entries for 1 arguments"),
        ({"y": {0: "n"}}, "dynamic names 'y', and the arguments are x"),
        (({5: "n"},), r"dynamic has \{5: 'n'\} for x, a tensor of 2 dimensions"),
    ],
)
def test_dynamic_that_matches_no_argument_is_refused(dynamic, words):
    with pytest.raises(StructureError, match=words):
        tl.export(lambda x: x.sin(), X, dynamic=dynamic)


def test_constants_are_checked_at_calls():
    exported = tl.export(lambda x, power: x**power, X, 3)
    torch.testing.assert_close(exported(X, 3), X**3)
    with pytest.raises(StructureError, match="exported with the constant 3 as leaf 1"):
        exported(X, 2)
    with pytest.raises(StructureError, match=r"dtype torch\.float32 as leaf 0"):
        exported(X.double(), 3)
    with pytest.raises(StructureError, match="arguments of the structure"):
        exported(X)


def test_draws_are_refused_with_the_line():
    with pytest.raises(
        TransformError, match=r"draws random numbers with aten\.randn.* In .*test_export"
    ):
        tl.export(lambda x: x + torch.randn(3), X)


def test_values_read_are_refused():
    with pytest.raises(DataDependentError, match="export: "):
        tl.export(lambda x: x if x.sum() > 0 else -x, X)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: tl.pure_callback(lambda x: x, x, x), "a file holds no Python code"),
        (lambda x: tl.debug.print("{}", x.sum()), "prints or checks values"),
    ],
)
def test_calls_of_python_are_refused(function, words):
    with pytest.raises(TransformError, match=words):
        tl.export(function, X)


def test_an_operator_that_onnx_lacks_is_named_with_its_line(tmp_path):
    exported = tl.export(lambda x: torch.linalg.svd(x)[1], X)
    words = r"no counterpart of aten\._linalg_svd.* In .*test_export\.py:\d+, .*Write it with other"
    with pytest.raises(TransformError, match=words):
        exported.to_onnx(tmp_path / "svd.onnx")


def test_writes_are_exported_and_refused_by_onnx(tmp_path):
    def accumulate(total, x):
        total.add_(x)
        return total * 2

    exported = tl.export(accumulate, torch.zeros(3), torch.ones(3))
    total = torch.ones(3)
    assert exported(total, torch.ones(3)).tolist() == [4, 4, 4]
    assert total.tolist() == [2, 2, 2]
    with pytest.raises(TransformError, match="writes to a tensor"):
        exported.to_onnx(tmp_path / "f.onnx")


def test_a_model_has_the_names_the_opset_and_the_results(tmp_path):
    exported = tl.export(tl.grad(loss), PARAMETERS, DATA)
    exported.to_onnx(tmp_path / "loss.onnx", opset=20)
    model = onnx.load(tmp_path / "loss.onnx")
    assert [entry.name for entry in model.graph.input] == exported.input_names
    assert [entry.name for entry in model.graph.output] == exported.output_names
    assert {entry.domain: entry.version for entry in model.opset_import}[""] == 20
    feed = {"parameters_weight": PARAMETERS["weight"], "batch_x": X, "batch_y": DATA["y"]}
    (slope,) = run_onnx(tmp_path / "loss.onnx", {k: v.numpy() for k, v in feed.items()})
    torch.testing.assert_close(slope, tl.grad(loss)(PARAMETERS, DATA)["weight"])


NUMBERS = {
    "product": lambda x: x * 0.1,
    "sum": lambda x: x + 0.1,
    "quotient": lambda x: x / 0.3,
    "difference": lambda x: 0.1 - x,
    "power": lambda x: x.abs() ** 0.3,
    "branch": lambda x: torch.where(x > 0.1, x, 0.7),
    "limits": lambda x: x.clamp(-0.33, 0.33),
    "filled": lambda x: x * torch.full((3,), 0.1, dtype=torch.float64),
    "slope": lambda x: torch.nn.functional.leaky_relu(x),
    "tiny": lambda x: x * 1e-60,
}


@pytest.mark.parametrize("function", NUMBERS.values(), ids=NUMBERS)
def test_numbers_of_float64_are_exact_in_onnx(tmp_path, function):
    x = X.double()
    exported = tl.export(function, x)
    exported.to_onnx(tmp_path / "f.onnx", check=False)
    (got,) = run_onnx(tmp_path / "f.onnx", {exported.input_names[0]: x.numpy()})
    torch.testing.assert_close(got, function(x), rtol=1e-14, atol=0)


def matrices():
    torch.manual_seed(0)
    return torch.randn(2, 4, 4, dtype=torch.float64), torch.randn(2, 4, 3, dtype=torch.float64)


ALGEBRA = {
    "solve": lambda a, b: torch.linalg.solve(a, b),
    "solve a vector": lambda a, b: torch.linalg.solve(a, b[..., 0]),
    "solve from the right": lambda a, b: torch.linalg.solve(a, b.mT, left=False),
    "inv": lambda a, b: torch.linalg.inv(a),
    "det": lambda a, b: torch.linalg.det(a),
    "cholesky": lambda a, b: torch.linalg.cholesky(a @ a.mT),
    "upper": lambda a, b: torch.linalg.solve_triangular(a, b, upper=True),
    "lower, from the right": lambda a, b: torch.linalg.solve_triangular(
        a, b.mT, upper=False, left=False
    ),
    "gradient of solve": lambda a, b: tl.grad(lambda a: torch.linalg.solve(a, b).sin().sum())(a),
    "gradient of cholesky": lambda a, b: tl.grad(
        lambda a: torch.linalg.cholesky(a @ a.mT).sin().sum()
    )(a),
    "hessian of solve": lambda a, b: tl.hessian(
        lambda a: torch.linalg.solve(a, b[0, :, 0]).sin().sum()
    )(a[0]),
}


@pytest.mark.sweep
@pytest.mark.parametrize("function", ALGEBRA.values(), ids=ALGEBRA)
def test_linear_algebra_of_small_matrices_in_onnx(tmp_path, function):
    a, b = matrices()
    tl.export(function, a, b).to_onnx(tmp_path / "f.onnx")  # compares


CONVOLUTIONS = {
    "strides and padding": (nn.Conv2d(2, 4, 3, stride=2, padding=1), (2, 7, 8)),
    "groups and dilation": (nn.Conv2d(4, 6, (3, 2), groups=2, dilation=2), (4, 9, 7)),
    "one dimension": (nn.Conv1d(3, 2, 3, stride=3), (3, 11)),
    "three dimensions": (nn.Conv3d(2, 2, 2, stride=2), (2, 5, 4, 6)),
    "transposed": (nn.ConvTranspose2d(4, 2, 3, stride=2, padding=1, output_padding=1), (4, 4, 5)),
    "transposed, groups": (nn.ConvTranspose1d(4, 6, 3, groups=2, dilation=2), (4, 5)),
}


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dynamic", [None, (None, {0: "n"})], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_per_sample_gradients_of_convolutions_in_onnx(tmp_path, case, dynamic, dtype):
    layer, shape = CONVOLUTIONS[case]
    layer = layer.to(dtype).requires_grad_(False)
    parameters = {name: parameter.clone() for name, parameter in layer.named_parameters()}

    def loss(parameters, x):
        return tl.functional_call(layer, parameters, (x[None],)).sin().sum()

    images = torch.randn(3, *shape, dtype=dtype)
    per_sample = tl.vmap(tl.grad(loss, argnums=(0, 1)), in_dims=(None, 0))
    exported = tl.export(per_sample, parameters, images, dynamic=dynamic)
    exported.to_onnx(tmp_path / "f.onnx")  # compares


def test_keys_draw_the_same_numbers_in_onnx(tmp_path):
    def draw(key):
        first, second = tl.random.split(key)
        return {
            "bits": tl.random.bits(first, (5,)),
            "uniform": tl.random.uniform(second, (3,), dtype=torch.float64),
            "normal": tl.random.normal(tl.random.fold_in(key, 3), (2, 3)),
            "double": tl.random.normal(first, (5,), dtype=torch.float64),
        }

    tl.export(draw, tl.random.key(0)).to_onnx(tmp_path / "f.onnx")
    for seed in (1, -5, 2**62 + 12345):
        got = run_onnx(tmp_path / "f.onnx", {"key": tl.random.key(seed).numpy()})
        expected = [*draw(tl.random.key(seed)).values()]
        torch.testing.assert_close(got, expected)
        assert torch.equal(got[0], expected[0])


def test_export_without_onnx_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(TransformError, match=r"needs the package onnxscript.*torchlayers\[onnx\]"):
        tl.export(torch.sin, X).to_onnx(tmp_path / "f.onnx")


STEPS = 1000


@pytest.mark.full
def test_a_training_step_runs_a_thousand_times_without_torch(tmp_path):
    def step(parameters, batch):
        gradient, value = tl.grad_and_value(loss)(parameters, batch)
        return {name: p - 0.05 * gradient[name] for name, p in parameters.items()}, value

    tl.export(step, PARAMETERS, DATA).to_onnx(tmp_path / "step.onnx")
    program = f"""
import sys, numpy, onnxruntime
session = onnxruntime.InferenceSession({str(tmp_path / "step.onnx")!r})
start = numpy.load({str(tmp_path / "start.npz")!r})
weight = start["weight"]
for _ in range({STEPS}):
    weight, value = session.run(None, {{
        "parameters_weight": weight, "batch_x": start["x"], "batch_y": start["y"]}})
assert "torch" not in sys.modules
numpy.savez({str(tmp_path / "end.npz")!r}, weight=weight, value=value)
"""
    import numpy

    start = {**PARAMETERS, **DATA}
    numpy.savez(tmp_path / "start.npz", **{name: t.numpy() for name, t in start.items()})
    subprocess.run([sys.executable, "-c", program], check=True)
    parameters = PARAMETERS
    for _ in range(STEPS):
        parameters, value = step(parameters, DATA)
    end = numpy.load(tmp_path / "end.npz")
    torch.testing.assert_close(
        torch.from_numpy(end["weight"]), parameters["weight"], rtol=1e-4, atol=1e-5
    )
    assert float(end["value"]) == pytest.approx(float(value), rel=1e-3)
    assert float(value) < float(loss(PARAMETERS, DATA)) / 10
