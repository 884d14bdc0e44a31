"""Compiled functions saved, loaded, and run by C++ without Python."""

import json
import pathlib
import shutil
import subprocess
import textwrap
import threading
import zipfile

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import cpp_extension

import torchlayers as tl
from torchlayers.errors import StructureError, TransformError

pytestmark = pytest.mark.filterwarnings("error:.*LeafSpec:FutureWarning")

WEIGHT = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
SEEN = torch.zeros(())


def slopes(x, options, running, power):
    """Has everything a package must support: captures, a constant, a write, noise, aliases."""
    running.mul_(0.9).add_(x.detach().mean(), alpha=0.1)
    SEEN.add_(1)
    noise = torch.randn(3)

    def energy(x):
        return ((x @ WEIGHT).tanh() * options["scale"]).pow(power).sum()

    slope = tl.vmap(tl.grad(energy))(x)
    return {"slope": slope, "noise": noise, "given": x}, power, WEIGHT.detach()


def arguments():
    x = torch.linspace(-1, 1, 20, dtype=torch.float32).reshape(5, 4)
    return x, {"scale": torch.tensor(2.0), "unused": 3}, torch.ones(()), 2


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("package") / "slopes.pt2"
    SEEN.zero_()
    tl.compile(slopes, static_argnums=3).lower(*arguments()).save(path)
    return path


@pytest.fixture(scope="module")
def loaded(path):
    return tl.load(path)


def test_loaded_function_equals_the_saved_one(loaded):
    mine, theirs = arguments(), arguments()
    torch.manual_seed(0)
    expected = slopes(*mine)
    torch.manual_seed(0)
    got = loaded(*theirs[:3])
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(theirs[2], mine[2])  # the running mean
    assert got[0]["given"] is theirs[0]


def test_saving_computes_and_writes_nothing(path):
    SEEN.zero_()
    running = torch.ones(())
    x, options, _, power = arguments()
    tl.compile(slopes, static_argnums=3).lower(x, options, running, power)
    assert (SEEN, running) == (0, 1)


def test_arguments_of_other_strides_are_copied(loaded):
    x, options, running, _ = arguments()
    torch.manual_seed(0)
    expected = loaded(x, options, running)
    other = x.t().contiguous().t()
    assert other.stride() != x.stride()
    torch.manual_seed(0)
    torch.testing.assert_close(loaded(other, options, torch.ones(())), expected)


def test_threads_share_a_package(loaded):
    x, options, _, _ = arguments()
    expected = loaded(x, options, torch.ones(()))[0]["slope"]
    found = []

    def run():
        found.append(loaded(x, options, torch.ones(()))[0]["slope"])

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    for slope in found:
        torch.testing.assert_close(slope, expected)


WRONG = {
    "a shape": (
        lambda x, options, running: (x[:4], options, running),
        r"a tensor of shape \(5, 4\), dtype float32 on cpu as leaf 0 .*got \(4, 4\)",
    ),
    "a dtype": (lambda x, options, running: (x.double(), options, running), "got .*float64"),
    "a constant": (
        lambda x, options, running: (x, {**options, "unused": 4}, running),
        "was saved with the constant 3 as leaf 2",
    ),
    "a structure": (lambda x, options, running: (x, options), "arguments of the structure"),
    "no tensor": (
        lambda x, options, running: (x, options, 1.0),
        "leaf 3 of the arguments must be a tensor, got float",
    ),
}


@pytest.mark.parametrize(("change", "words"), WRONG.values(), ids=WRONG)
def test_arguments_that_do_not_match_are_rejected(loaded, change, words):
    with pytest.raises(StructureError, match=words):
        loaded(*change(*arguments()[:3]))


def test_differentiating_a_package_is_rejected(loaded):
    x, options, running, _ = arguments()
    with pytest.raises(TransformError, match="has no derivatives, and leaf 0"):
        loaded(x.requires_grad_(), options, running)
    with torch.no_grad():
        loaded(x, options, running)
    with pytest.raises(TransformError, match="can't be called inside a transform"):
        tl.vmap(lambda x: loaded(x, options, running)[0]["slope"])(x.detach()[None])
    assert tl.current_stack() == ()


def rewritten(path, folder, change):
    """Copies the package with changed metadata."""
    other = folder / path.name
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(other, "w") as target:
        for item in source.infolist():
            data = source.read(item)
            if item.filename.endswith("wrapper_metadata.json"):
                notes = json.loads(data)
                change(notes)
                data = json.dumps(notes).encode()
            target.writestr(item, data)
    return other


def of_another_torch(notes):
    notes["torchlayers"] = json.dumps({**json.loads(notes["torchlayers"]), "torch": "1.0"})


def of_other_shapes(notes):
    notes["torchlayers"] = notes["torchlayers"].replace("[5, 4]", "[50, 4]")


OTHERS = {
    "other shapes": (of_other_shapes, "is damaged: its description of arguments"),
    "half of it": (
        lambda notes: notes.update(torchlayers=notes["torchlayers"][:99]),
        "was not saved by torchlayers",
    ),
    "something else": (
        lambda notes: notes.update(torchlayers="[1]"),
        "was not saved by torchlayers",
    ),
    "without its digest": (
        lambda notes: notes.pop("torchlayers_sha256"),
        "is damaged: its description",
    ),
    "another torch": (of_another_torch, "was compiled for torch 1.0, and this is"),
    "another processor": (
        lambda notes: notes.update(AOTI_MACHINE="aarch64"),
        "was compiled for aarch64 .* and this processor is",
    ),
    "a processor that can more": (
        lambda notes: notes.update(AOTI_CPU_ISA="AVX4096"),
        "compiled for .* with AVX4096",
    ),
    "somebody else": (lambda notes: notes.pop("torchlayers"), "was not saved by torchlayers"),
}


@pytest.mark.parametrize(("change", "words"), OTHERS.values(), ids=OTHERS)
def test_package_for_another_machine_is_rejected_before_it_runs(path, tmp_path, change, words):
    with pytest.raises(TransformError, match=words):
        tl.load(rewritten(path, tmp_path, change))


def test_file_that_is_no_package_is_rejected(tmp_path):
    (tmp_path / "text.pt2").write_text("no package")
    with pytest.raises(TransformError, match="was not saved by torchlayers"):
        tl.load(tmp_path / "text.pt2")


def test_a_directory_is_refused(path, tmp_path):
    with pytest.raises(TransformError, match=r"is a directory\. Pass the file"):
        tl.load(tmp_path)
    with zipfile.ZipFile(path) as package:
        package.extractall(tmp_path / "extracted.pt2")
    with pytest.raises(TransformError, match=r"is a directory\. Pass the file"):
        tl.load(tmp_path / "extracted.pt2")


def damaged(whole: bytes, place: int) -> bytes:
    return whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :]


DAMAGED = {
    "a byte of the code": lambda whole: damaged(whole, len(whole) // 2),
    "a byte of the index": lambda whole: damaged(whole, len(whole) - 22),
    "the first byte": lambda whole: damaged(whole, 0),
    "the end": lambda whole: whole[:-1],
    "everything": lambda whole: b"",
    "half of it": lambda whole: whole[: len(whole) // 2],
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_package_is_refused_before_it_runs(path, tmp_path, damage):
    package = tmp_path / "damaged.pt2"
    package.write_bytes(damage(pathlib.Path(path).read_bytes()))
    with pytest.raises(TransformError, match="damaged"):
        tl.load(package)


def test_unsavable_function_is_rejected_before_compilation(tmp_path):
    lowered = tl.compile(lambda x: (x, object)).lower(torch.ones(2))
    with pytest.raises(TransformError, match="takes or returns a value that can't be serialized"):
        lowered.save(tmp_path / "f.pt2")
    with pytest.raises(TransformError, match=r"must end in \.pt2"):
        lowered.save(tmp_path / "f.so")


MAIN = """
#include <torch/torch.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <iostream>

int main(int, char** arguments) {
  c10::InferenceMode mode;
  torch::inductor::AOTIModelPackageLoader package(arguments[1]);
  std::vector<at::Tensor> inputs = {
      torch::linspace(-1, 1, 20).reshape({5, 4}), torch::tensor(2.0f), torch::ones({})};
  std::vector<at::Tensor> outputs = package.run(inputs);
  std::cout << outputs[0].sum().item<double>() << " " << inputs[2].item<double>() << "\\n";
}
"""


@pytest.mark.full
def test_a_cpp_program_runs_a_package_without_python(path, tmp_path, loaded):
    source, program = tmp_path / "main.cpp", tmp_path / "main"
    source.write_text(textwrap.dedent(MAIN))
    libraries = cpp_extension.library_paths()
    flags = [
        *(f"-I{folder}" for folder in cpp_extension.include_paths()),
        *(f"-L{folder}" for folder in libraries),
        *(f"-Wl,-rpath,{folder}" for folder in libraries),
        *("-std=c++20", "-O0", "-ltorch", "-ltorch_cpu", "-lc10"),
    ]
    compiler = shutil.which("c++") or shutil.which("g++")
    assert compiler
    subprocess.run([compiler, source, "-o", program, *flags], check=True)
    run = subprocess.run([program, path], check=True, capture_output=True, text=True)
    x, options, running, _ = arguments()
    slope = loaded(x, options, running)[0]["slope"]
    numbers = [float(word) for word in run.stdout.split()]
    assert numbers == pytest.approx([slope.sum().item(), running.item()], rel=1e-5)


@pytest.mark.full
def test_a_module_with_batch_norm_is_saved_with_its_statistics(tmp_path):
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval()
    x = torch.randn(6, 3)
    tl.compile(net).lower(x).save(tmp_path / "net.pt2")
    with torch.no_grad():
        torch.testing.assert_close(tl.load(tmp_path / "net.pt2")(x), net(x))


# Memory layout of arguments.


def written(a, b):
    a.add_(1)
    return a * b


@pytest.fixture(scope="module")
def writing(tmp_path_factory):
    path = tmp_path_factory.mktemp("package") / "written.pt2"
    tl.compile(written).lower(torch.ones(3), torch.ones(3)).save(path)
    return tl.load(path)


@pytest.mark.full
@pytest.mark.parametrize(
    "look",
    [
        lambda z: (z.conj().imag, z.real),
        lambda z: (z.conj().imag, z.conj().imag.neg()),
        lambda z: (z.imag, z.conj().imag),
        lambda z: (z.imag.contiguous(), z.conj().imag.contiguous()),
    ],
)
def test_arguments_that_are_negated_lazily(writing, look):
    z = torch.complex(torch.arange(3.0), torch.arange(1.0, 4.0))
    mine, theirs = look(z.clone()), look(z.clone())
    if mine[0].untyped_storage().data_ptr() == mine[1].untyped_storage().data_ptr():
        mine, theirs = ((a, b.clone()) for a, b in (mine, theirs))
    torch.testing.assert_close(writing(*theirs), written(*mine))
    torch.testing.assert_close(theirs, mine)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
def test_arguments_that_are_conjugated_lazily(tmp_path):
    z = torch.complex(torch.arange(3.0), torch.ones(3))
    tl.compile(lambda z: z * z.real).lower(z).save(tmp_path / "f.pt2")
    torch.testing.assert_close(tl.load(tmp_path / "f.pt2")(z.conj()), z.conj() * z.real)


BUFFER = torch.arange(6.0)


@pytest.mark.full  # compiles for ten seconds
@pytest.mark.parametrize(
    "given",
    [(BUFFER[:3], BUFFER[:3]), (BUFFER[:3], BUFFER[2:5]), (BUFFER[::2], BUFFER[2:5])],
)
def test_a_written_argument_that_shares_memory_is_refused(writing, given):
    with pytest.raises(TransformError, match=r"writes to leaf 0 .* shares memory with leaf 1"):
        writing(*given)
    assert BUFFER.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.full
def test_arguments_may_share_storage_without_overlap_or_unwritten(writing, tmp_path):
    mine, theirs = torch.arange(6.0), torch.arange(6.0)
    torch.testing.assert_close(writing(theirs[:3], theirs[3:]), written(mine[:3], mine[3:]))
    torch.testing.assert_close(theirs, mine)
    tl.compile(lambda a, b: a * b).lower(mine[:3], mine[3:]).save(tmp_path / "f.pt2")
    torch.testing.assert_close(tl.load(tmp_path / "f.pt2")(mine[1:4], mine[1:4]), mine[1:4] ** 2)


@pytest.mark.parametrize("stride", [1, 2])
def test_write_bumps_the_version_counter(writing, stride):
    x, buffer = torch.ones(3, requires_grad=True), torch.full((6,), 2.0)[: 3 * stride : stride]
    y = x * buffer
    writing(buffer, torch.ones(3))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    with torch.inference_mode():
        writing(torch.ones(3), torch.ones(3))


@pytest.mark.sweep
def test_tangents_are_refused(writing):
    x = torch.ones(3)
    with forward_ad.dual_level():
        with pytest.raises(TransformError, match=r"no derivatives, and leaf 1 .* has a tangent"):
            writing(x, forward_ad.make_dual(x.clone(), x.clone()))
        writing(x, x.clone())


AROUND = {
    "torch.func.vmap": lambda f: torch.func.vmap(f)(torch.ones(2, 3)),
    "torch.func.grad": lambda f: torch.func.grad(lambda x: f(x).sum())(torch.ones(3)),
    "torch.func.jvp": lambda f: torch.func.jvp(f, (torch.ones(3),), (torch.ones(3),)),
    "torch.func.functionalize": lambda f: torch.func.functionalize(f)(torch.ones(3)),
    **{
        name: lambda f, name=name: getattr(tl, name)(lambda x: f(x).sum())(torch.ones(3))
        for name in ("grad", "jacrev", "jacfwd", "hessian", "functionalize")
    },
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_transforms_around_one_are_refused(writing, around):
    with pytest.raises(TransformError, match="can't be called inside a transform"):
        around(lambda x: writing(x.clone(), x))


def test_capturing_a_package_is_rejected(writing):
    x = torch.ones(3)
    said = r"can't be traced or called inside a compiled"
    with pytest.warns(UserWarning, match=said):
        tl.compile(lambda y: y * writing(x, x.clone()), backend="replay")(torch.ones(3))
    with pytest.raises(TransformError, match=r"can't be traced or called inside a compiled"):
        make_fx(lambda y: writing(y, y), tracing_mode="fake")(torch.ones(3))


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.ones(3).to_sparse(), r"a tensor with layout torch\.sparse_coo"),
        (torch.ones(3).to_mkldnn(), r"a tensor with layout torch\._mkldnn"),
    ],
)
def test_tensors_of_other_kinds_are_refused(writing, tensor, words):
    with pytest.raises(StructureError, match=f"leaf 1 .* a plain tensor, got {words}"):
        writing(torch.ones(3), tensor)


@pytest.mark.full
def test_loops_that_capture_what_they_start_with_are_saved(tmp_path):
    def f(x):
        doubled = tl.while_loop(lambda y: y.sum() < 10, lambda y: 2 * y + x.exp(), x)
        return tl.grad(lambda x: tl.scan(lambda c, _: (c * x, c), x, None, 9)[1].sum())(x / doubled)

    x = torch.tensor([0.3, 0.5])
    tl.compile(f).lower(x).save(tmp_path / "loops.pt2")
    torch.testing.assert_close(tl.load(tmp_path / "loops.pt2")(x), f(x))
