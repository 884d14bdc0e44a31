"""The benchmarks run, and peers are compared only on equal work."""

import functools
import math
import struct
import subprocess

import pytest
import torch

import torchlayers
from benchmarks import (
    batching,
    compiled_programs,
    control_flow,
    costs,
    first_call_parts,
    growth,
    implicit,
    instruction_history,
    jacobians,
    laplacian,
    memory,
    modules,
    norms,
    over_ranks,
    pinn_training,
    python_layers,
    scaling,
    solvers,
    sparse_jacobians,
    taylor,
    timing,
    two_checkouts,
    writes,
)
from benchmarks.chains import FUNC, OURS, RAW
from benchmarks.executed import Executed
from benchmarks.machine import Rates
from benchmarks.peak import peak_bytes
from benchmarks.timing import Effort, Timing, by_turns, check_same
from benchmarks.workloads import __main__ as workloads
from benchmarks.workloads import networks, peers, real_networks, real_size, tables, torch_operators
from benchmarks.workloads.catalogue import catalogue, small
from benchmarks.workloads.layered import Layered
from benchmarks.workloads.peers import COMPILED, EAGER, JIT, OURS_COMPILED, RAW_COMPILED, Ready
from benchmarks.workloads.workload import Workload

SPECIALISTS = ("Opacus", "BackPACK", "curvlinops")
OTHERS = (COMPILED, RAW_COMPILED, JIT, EAGER, OURS_COMPILED, *SPECIALISTS)


def doubling(by_hand=lambda x: 2 * x, specialists=None, size="one number"):
    return Workload(
        "doubling",
        size,
        lambda transforms, ops: lambda x: x + x,
        by_hand,
        (torch.ones(1),),
        specialists or {},
    )


def row(size="one number", **medians):
    names = {"theirs": FUNC, "ours": OURS, "jit": JIT}
    timings = {names[name]: Timing(median, 0.0) for name, median in medians.items()}
    return tables.Row(doubling(size=size), 0.67, Ready(), timings)


def test_two_checkouts_measures_each_work(monkeypatch, capsys):
    monkeypatch.setattr(two_checkouts, "works", lambda: {"nothing": lambda: None})
    monkeypatch.setattr("sys.stdin", ["\n"])
    monkeypatch.setattr(two_checkouts, "SECONDS", 0)
    threads = torch.get_num_threads()
    two_checkouts.serve()
    torch.set_num_threads(threads)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == printed[-1] == two_checkouts.DONE
    assert printed[1].startswith("nothing\t")


@pytest.mark.parametrize("workload", small(), ids=str)
def test_a_workload_is_the_same_by_hand_and_by_transforms(workload):
    ready = peers.prepare(workload, OTHERS)
    assert ready.works.keys() == {FUNC, RAW, OURS}


def test_a_large_workload_is_its_small_one_on_more():
    bounded = [workload for workload, _ in catalogue()]
    for little, much in zip(bounded[::2], bounded[1::2], strict=True):
        assert little.name == much.name
        assert little.size != much.size


def test_workloads_of_real_size_have_distinct_names():
    names = [str(workload) for workload in real_size.real()]
    assert len({*names}) == len(names)


@pytest.mark.parametrize(
    "workload",
    [
        real_size.transformer_gradient(width=8, blocks=1, samples=2),
        real_size.transformer_per_sample(width=8, blocks=2, samples=2),
        real_size.resnet_per_sample(2),
        real_size.laplacian_loss(width=8, points=4),
        real_size.ensemble_of_cnns(members=2, images=2),
        real_size.denoising(1),
        real_size.recurrent(width=8, steps=3, samples=2),
        real_size.private_step(2),
        real_size.gauss_newton(2),
        real_size.maml_of_a_cnn(tasks=2, images=2),
        real_size.hessian_diagonal(8),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch.func, attention
def test_a_workload_of_real_size_is_the_same_by_all_transforms_on_less(workload):
    assert peers.prepare(workload, OTHERS).works.keys() == {FUNC, OURS}


def test_a_workload_that_torch_func_refuses_is_compared_with_the_next_peer():
    ready = peers.prepare(real_size.transformer_product(width=8, blocks=1, samples=2), OTHERS)
    assert ready.works.keys() == {OURS}
    assert ready.failures[FUNC].kind == "refused"


@pytest.mark.sweep
def test_the_machines_limit_counts_each_groups_own_channels():
    """A kernel's gradient per sample has as many products as that of all samples together."""
    limits = []
    for images in (2, 4):
        row = tables.RealRow(real_size.private_step(images), Ready(), {}, {}, Rates(1.0, math.inf))
        limits.append(row.limit())
    shared = limits[1] - limits[0]  # for two images: three products for each of them, or two
    first, second, last = 1024 * 16 * 27, 256 * 32 * 144, 2048 * 10
    assert shared == 2 * 2 * (2 * first + 3 * second + 2 * last)


@pytest.mark.parametrize(
    ("network", "params", "x"),
    [
        (networks.cnn, networks.cnn_parameters(), networks.inputs(2, 1, 8, 8)),
        (
            networks.transformer,
            networks.transformer_parameters(8, 2),
            networks.integers(networks.WORDS, 2, 4),
        ),
        (
            real_networks.language_model,
            real_networks.language_model_parameters(8, 2, 4),
            networks.integers(networks.WORDS, 2, 4),
        ),
        (
            functools.partial(real_networks.resnet, stages=real_networks.RESNET),
            real_networks.resnet_parameters(real_networks.RESNET),
            networks.inputs(2, 3, 8, 8),
        ),
        (
            real_networks.convolutional,
            real_networks.convolutional_parameters([4, 8], 8),
            networks.inputs(2, 3, 8, 8),
        ),
    ],
    ids=["cnn", "transformer", "language model", "resnet", "convolutional"],
)
def test_a_network_of_layers_has_its_parameters_and_computes_the_same(network, params, x):
    model = Layered(network, params, x)
    for own, given in zip(model.parameters(), params, strict=True):
        assert torch.equal(own, given)
    assert torch.equal(model(x), network(torch_operators, params, x))
    torch.nn.init.zeros_(model.layers[-1].weight)  # the layers compute, not what they came from
    assert not torch.equal(model(x), network(torch_operators, params, x))


@pytest.mark.parametrize("wrong", [1.999, -2.0, math.nan, math.inf])
def test_a_peer_that_does_other_work_is_not_timed(wrong):
    with pytest.raises(AssertionError, match="doubling, one number: raw engine differs from"):
        peers.prepare(doubling(lambda x: wrong * x), OTHERS)


def test_a_peer_that_does_other_work_in_its_second_call_is_not_timed():
    calls = []

    def by_hand(x):
        calls.append(x)
        return 2 * x * len(calls)

    with pytest.raises(AssertionError, match="raw engine differs"):
        peers.prepare(doubling(by_hand), OTHERS)


def test_a_peer_of_another_shape_is_not_timed():
    with pytest.raises(AssertionError, match="other shapes"):
        peers.prepare(doubling(lambda x: 2 * x.unsqueeze(0)), OTHERS)


def test_a_missing_peer_is_named():
    def specialist():
        raise ImportError("No module named 'special'")

    ready = peers.prepare(doubling(specialists={"Special": specialist}), OTHERS)
    assert "Special" not in ready.works
    text = tables.absences([tables.Row(doubling(), 1.0, ready, {})], ())
    assert text == "- Special was skipped: No module named 'special'."


def test_rejected_peer_is_listed_with_its_reason():
    def specialist():
        raise NotImplementedError("no doubling\nat all")

    workload = doubling(specialists={"Special": specialist})
    ready = peers.prepare(workload, OTHERS)
    refused = tables.Row(workload, 1.0, ready, by_turns(ready.works, Effort(2, 1e-6)))
    assert "Special refused" in tables.times([refused])
    expected = "- Refused: doubling, one number: Special: no doubling"
    assert tables.absences([refused], ()) == expected


def test_specialists_stand_before_ours_in_the_table_of_real_size():
    def absent():
        raise ImportError("No module named 'absent'")

    def refusing():
        raise NotImplementedError("no doubling")

    others = {
        "Absent": absent,
        "Refusing": refusing,
        "Special": lambda: lambda: torch.full((1,), 2),
    }
    workload = doubling(specialists=others)
    ready = peers.prepare(workload, OTHERS)
    assert ready.works.keys() == {FUNC, RAW, OURS, "Special"}
    timings = dict.fromkeys((*ready.works, OURS_COMPILED), Timing(0.002, 0.0001))
    text = tables.real_times([tables.RealRow(workload, ready, timings, {}, Rates(1.0, 1.0))])
    header, _, cells = (line.split(" | ") for line in text.splitlines())
    place = header.index("specialist, ms")
    assert cells[place] == "Refusing refused<br>Special 2.0 (0.1)"
    assert header[place + 1] == f"{OURS}, ms"
    assert cells[place + 1] == "2.0 (0.1)"


def test_compiler_with_wrong_results_is_listed_with_its_error(monkeypatch):
    monkeypatch.setattr(
        *(peers, "compiled_by_torch"),
        lambda workload: lambda: 3 * workload.by_hand(*workload.arguments),
    )
    others = (RAW_COMPILED, JIT, EAGER, OURS_COMPILED)
    ready = peers.prepare(doubling(), others)
    wrong = tables.Row(doubling(), 1.0, ready, by_turns(ready.works, Effort(2, 1e-6)))
    assert COMPILED not in ready.works
    assert wrong.cells()[2 + tables.EVERYWHERE.index(COMPILED)] == "wrong"
    assert tables.absences([wrong], ()) == (
        f"- Wrong: doubling, one number: {COMPILED} differs from torch.func "
        "by 2.0e+00 of the largest entry."
    )


def test_a_missed_bar_is_written_down():
    assert row(theirs=1.0, ours=0.7).cells()[-2:] == ["0.70, missed", "0.67"]
    assert row(theirs=1.0, ours=0.6).cells()[-2:] == ["0.60", "0.67"]


def test_faster_peer_is_computed():
    rows = [row(theirs=4.0, ours=2.0, jit=0.5), row("large", theirs=1.0, ours=2.0, jit=2.0)]
    lines = tables.leaders(rows, OURS).splitlines()[2:]
    assert lines == [
        "| torch.func | 1 of 2 | 2.00 | 2.00 | doubling, large |",
        "| JAX jit | 1 of 2 | 4.00 | 4.00 | doubling, one number |",
    ]


def test_the_workloads_run(monkeypatch):
    monkeypatch.setattr(workloads, "small", lambda: small()[-2:])
    text = workloads.measure(quick=True, threads="one")
    assert "| Lennard-Jones cluster, forces | 13 atoms |" in text
    assert f"- {JIT} was left out of this run." in text


def page_with(count: str) -> str:
    rows = f"| a call, vmap | torchlayers | {count} | 1 | 2 |\n| new | torchlayers | 5 | 1 | 2 |"
    return f"before\n{instruction_history.between_markers(rows)}\nafter"


def test_instructions_are_compared_through_the_history(tmp_path):
    def git(*args):
        who = "-c", "user.name=a", "-c", "user.email=a@b"
        subprocess.run(["git", *who, "-C", str(tmp_path), *args], check=True, capture_output=True)

    git("init", "-b", "main")
    (tmp_path / "docs").mkdir()
    (tmp_path / "torchlayers").mkdir()
    for number, count in enumerate(("1,000", "1,000", "1,005", "1,200")):
        (tmp_path / "torchlayers" / "code.py").write_text(str(number))
        git("add", ".")
        git("commit", "-m", f"code {number}")
        (tmp_path / "docs" / "benchmarks.md").write_text(page_with(count) + str(number))
        git("add", ".")
        git("commit", "-m", f"page {number}")
    lines = [*instruction_history.report(tmp_path, "torchlayers", 5)]
    assert [line.strip() for line in lines if "->" in line] == [
        "a call, vmap: 1,005 -> 1,200 (+19.4%)"
    ]
    assert [line.split(" ", 5)[-1] for line in lines if line.startswith("    ")] == ["code 3"]


@pytest.mark.full  # a benchmark's networks
@pytest.mark.filterwarnings("ignore:`torch._prims_common.check`")  # from inductor's trace
@pytest.mark.parametrize("way", pinn_training.WAYS)
def test_a_training_step_is_the_same_by_hand_and_by_transforms(way, monkeypatch):
    monkeypatch.setattr(pinn_training, "compiled_by_torch", refuse)
    monkeypatch.setattr(pinn_training, "jax_work", refuse)
    step = pinn_training.training(way, layers=3, width=4, points=5)
    works = pinn_training.works(step)
    assert works.keys() == {FUNC, RAW, OURS, OURS_COMPILED}
    timings = {**{name: Timing(2e-6, 0.0) for name in works}, JIT: Timing(4e-6, 1e-6)}
    assert f"| {step} | 2 (0) | 2 (0) |  | 4 (1) | 2 (0) | 2 (0) | 0.50 |  |" in (
        pinn_training.table([step], [timings])
    )


def refuse(*_, **__):
    raise NotImplementedError


@pytest.mark.parametrize("transform", ["jacrev", "jacfwd", "hessian"])
def test_jacobians_agree(transform):
    check_same(jacobians.peers()[transform])


def test_laplacians_and_biharmonics_agree():
    function = laplacian.network(2, [4, 4, 1])
    directions = torch.randn(3, 2)
    for each in (
        laplacian.laplacians(function),
        laplacian.random_biharmonics(function, directions),
        laplacian.exact_biharmonics(function),
    ):
        check_same(laplacian.works(each, 2, 3))


def test_solutions_of_the_implicit_benchmarks_solve_their_equations():
    ours, _, (weight, x) = implicit.equilibrium(2, 4, "gmres")
    z = ours(weight, x)
    torch.testing.assert_close(z, torch.tanh(z @ weight + x), rtol=1e-4, atol=1e-5)
    ours, _, (matrix, a) = implicit.newton_systems(3, 4)
    x = ours(matrix, a)
    torch.testing.assert_close(x**3 + x @ matrix.mT, a, rtol=1e-4, atol=1e-4)
    ours, _, (data, target, penalty) = implicit.ridge(10, 4)
    w = ours(data, target, penalty)
    gradient = data.mT @ (data @ w - target) / 10 + penalty.exp() * w
    torch.testing.assert_close(gradient, torch.zeros(4), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", solvers.PROBLEMS)
def test_solvers_of_the_benchmark_find_what_they_are_compared_with(name):
    ours, _, exact, arguments = solvers.PROBLEMS[name][0](4)
    assert solvers.error_of(ours(*arguments), exact) < 1e-3


def test_memory_of_implicit_derivatives_is_compared(monkeypatch):
    monkeypatch.setattr(implicit, "ATOMS", 1000)
    assert implicit.memory_of(40, True) == implicit.memory_of(10, True)
    assert implicit.memory_of(40, False) > 2 * implicit.memory_of(40, True)


def test_batching_runs(monkeypatch):
    survey = batching.survey
    monkeypatch.setattr(batching, "survey", lambda repeat: survey(repeat)[:2])
    text = batching.measure(quick=True)["benchmarks.md"]
    assert "survey of 60, vmap(grad): geometric mean" in text
    assert "| x / 2 |" in text


def test_control_flow_agrees_with_plain_code(monkeypatch):
    monkeypatch.setattr(control_flow, "STEPS", 20)
    monkeypatch.setattr(control_flow, "SAMPLES", 32)
    monkeypatch.setattr(control_flow.tl, "compile", lambda f, **_: f)  # see tests/control_flow
    for works in (control_flow.scans(), control_flow.compiled(20), control_flow.conds()):
        check_same(works)


def test_writes_are_measured():
    text = writes.measure(quick=True)["benchmarks.md"]
    assert "| a recurrence of 32 |" in text


def test_jet_is_compared_with_nested_jvps_on_equal_work(monkeypatch):
    monkeypatch.setattr(taylor.tl, "compile", lambda f, **_: f)  # see tests/transforms/jet
    for order in taylor.ORDERS:
        check_same(taylor.works(order, torch.float64))
    assert "| 1 to 2 |" in taylor.measure(quick=True)["taylor-mode.md"]


def test_python_layers_do_the_same_as_no_layer_and_jet_as_nested_jvps(monkeypatch):
    monkeypatch.setattr(
        python_layers, "by_turns", lambda works, *_: dict.fromkeys(works, Timing(1.0, 0.0))
    )
    text = python_layers.measure(quick=True)["benchmarks.md"]
    assert text.count("| 1.00 | 4.00 |") == 2
    assert text.count("| 1.00 | 1.00 |") == 6


def test_growth_is_measured():
    (depth, *_) = scaling.growths()
    points = scaling._measured(depth, depth.curves["vmap"], 0.001, (1, 2))
    assert [count for count, _ in points[OURS]] == [1, 2]
    assert all(cost > 0 for of in points.values() for _, cost in of)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_slope_is_the_power_of_the_larger_half(power):
    costs = [1000.0, 1000.0, *(3 * count**power for count in (16, 64, 256))]
    assert scaling.slope(list(zip((1, 4, 16, 64, 256), costs, strict=True))) == pytest.approx(power)


def test_plain_operators_are_counted_below_the_transforms():
    x = torch.ones(2, 3)
    assert scaling.count_plain_operators(lambda: torch.func.vmap(torch.sin)(x)) == 1


def test_a_plot_is_the_same_each_time(tmp_path):
    pytest.importorskip("matplotlib")
    curves = {"ours": [(1, 1.0), (2, 2.0)], "theirs": [(1, 2.0), (2, 4.0)]}
    texts = []
    for _ in range(2):
        growth.draw(tmp_path / "plot.svg", curves, "count", "cost", ["theirs"], logarithmic=True)
        texts.append((tmp_path / "plot.svg").read_text())
    assert texts[0] == texts[1]
    assert "<svg" in texts[0]


def test_least_within_makes_all_repetitions():
    calls = []
    timing.least_within(lambda: calls.append(1), seconds=1e-5, repetitions=3)
    assert len(calls) >= 3


@pytest.mark.parametrize("case", [*modules.cases()], ids=lambda case: case.name)
def test_a_module_gives_the_same_by_every_way_of_calling_it(case):
    with torch.no_grad():
        check_same(modules.calls(case))
    for works in modules.transformed(case).values() if case.by_hand else ():
        check_same(works)


DUMP = """desc: Trigger: Client Request: {name}
events: Ir Dr
ob={binary}
fn=f
{lock} 3 7 2
{plain} 4 5
calls=1 0x5
{plain} 4 1000 1000
fn=g
{plain} 8 1
"""


def test_instruction_counts_exclude_callees_and_include_atomics(tmp_path):
    code = bytearray(64)
    code[5] = 0xF0
    head = struct.pack("<4s28xQ14xHH", b"\x7fELF", 64, 56, 1).ljust(64, b"\0")
    segment = struct.pack("<IIQQQQQQ", 1, 0, 120, 0x1000, 0, 64, 64, 0)
    binary = tmp_path / "library.so"
    binary.write_bytes(head + segment + bytes(code))
    dump = tmp_path / "callgrind.out.1"
    dump.write_text(DUMP.format(name="a loop#0", binary=binary, lock="0x1005", plain="0x1009"))
    name, counts = Executed().read(dump)
    assert name == "a loop#0"
    assert counts == {"Ir": 13, "Dr": 2, "atomic": 7}


@pytest.mark.full
def test_a_batch_over_ranks_is_measured_and_its_scaling_predicted():
    """With one and with two processes."""
    (text,) = over_ranks.tables(quick=True).values()
    assert "prediction" in text
    assert "| 1024 |" in text


def test_costs_are_of_equal_work():
    """Each section compares what computes the same; a sparse Jacobian needs less memory."""
    assert [what for what, _, _ in costs.jacobians()] == [
        "a network, 32 numbers to 8",
        "a network, 8 numbers to 32",
    ]
    _, _, works = costs.sparse_jacobian()
    dense, sparse = (peak_bytes(work) for work in works.values())
    assert sparse < 0.1 * dense


@pytest.mark.sweep(one_in=16)
@pytest.mark.filterwarnings("ignore")  # from Opacus
@pytest.mark.parametrize("is_clipped", [False, True])
@pytest.mark.parametrize("name", ["CNN", "transformer"])
def test_norms_take_less_memory_than_gradients(name, is_clipped):
    """Also less than Opacus' ghost clipping, where it is installed."""
    works = norms.works(name, is_clipped)
    norms.check_equal(works, is_clipped)
    peaks = {peer: peak_bytes(work) for peer, work in works.items()}
    ours = peaks.pop(norms.OURS)
    assert ours < 0.75 * peaks[norms.PLAIN]
    assert ours <= min(peaks.values())


@pytest.mark.sweep
def test_checkpoints_and_budgets_keep_less_memory(tmp_path):
    works = memory.works(tmp_path)
    peaks = {name: max(memory.timeline(works[name])) for name in memory.DRAWN}
    peaks[memory.TORCHS] = max(memory.timeline(works[memory.TORCHS]))
    assert peaks[memory.OURS] <= peaks[memory.TORCHS] < 0.5 * peaks[memory.PLAIN]
    assert peaks[memory.BUDGETED] <= 1.02 * peaks[memory.TORCHS]
    expected = works[memory.PLAIN]()
    for name in (memory.OURS, memory.BUDGETED):
        assert all(map(torch.equal, works[name](), expected))


def test_a_part_inside_another_interrupts_it(monkeypatch):
    clock = iter([0.0, 1.0, 3.0, 7.0])
    monkeypatch.setattr(first_call_parts, "seconds_of_process", lambda: next(clock))
    parts = first_call_parts.Parts()
    inner = parts.within("inner", lambda: None)
    parts.within("outer", inner)()
    assert parts.seconds == {"outer": 1 + 4, "inner": 2}


def test_peaks_have_their_ratio_and_say_if_it_is_missed():
    def cells(ours, compiled):
        peaks = {OURS: ours, OURS_COMPILED: compiled}
        return tables.RealRow(doubling(), Ready(), {}, peaks, Rates(1.0, 1.0)).peak_cells()

    assert cells(100, 108)[-1] == "1.08"
    assert cells(100, 120)[-1] == "1.20, missed"


@pytest.mark.parametrize("problem", sparse_jacobians.PROBLEMS, ids=lambda problem: problem.name)
def test_sparse_jacobians_are_compared_with_the_same_dense_ones(problem):
    small = problem._replace(size=36)
    once, works = sparse_jacobians.ours(small)
    chunks, whole = sparse_jacobians.dense(small)
    assert chunks == 1 and once.colors < 36
    torch.testing.assert_close(works[sparse_jacobians.COO]().to_dense(), whole())


@pytest.mark.parametrize("name", ["training", "newton", "features", "cache", "position"])
def test_compiled_programs_have_the_results_of_eager_ones(name):
    program = getattr(compiled_programs, name)
    eager, compiled = (
        program(compile)
        for compile in (lambda f: f, lambda f: torchlayers.compile(f, backend="replay"))
    )
    for x in compiled_programs.inputs():
        torch.testing.assert_close(compiled(x), eager(x))
