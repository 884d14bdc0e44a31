"""Simplified graphs: the same results, writes, random draws and memory layout."""

import pytest
import torch
from torch import Tensor

import torchlayers as tl
from tests.compiler.passes.simplified import operators, same
from torchlayers.compiler import passes
from torchlayers.compiler.capture.record import record
from torchlayers.compiler.passes import simplify

aten = torch.ops.aten


def test_graph_given_stays_as_it_is():
    captured_graph = record(lambda x: x.clone().sin(), [torch.ones(3)]).graph
    before = captured_graph.code
    simplify(captured_graph)
    assert captured_graph.code == before


def test_simplifying_twice_changes_nothing():
    def func(x: Tensor, y: Tensor) -> Tensor:
        x.add_(y)
        y.copy_(x)
        return x.t().clone()

    once = simplify(record(func, [torch.ones(3, 3), torch.ones(3, 3)]).graph)
    assert operators(simplify(once)) == operators(once)


@pytest.fixture
def rounds_of(monkeypatch):
    """Counts the calls of a pass that is the only one of a stage that runs until it is stable."""

    def rounds_of(change):
        calls = []

        def counting(graph):
            calls.append(graph)
            change(graph)

        stage = passes.Stage((counting,), "it is counted", until_stable=True)
        monkeypatch.setattr(passes, "STAGES", (stage,))
        simplify(record(lambda x: x.sin().sin().sin(), [torch.ones(3)]).graph)
        return len(calls)

    return rounds_of


def test_stage_ends_after_a_round_that_changes_nothing(rounds_of):
    def turn_one_sine(graph):
        for node in [*graph.graph.find_nodes(op="call_function", target=aten.sin.default)][:1]:
            node.target = aten.cos.default

    assert rounds_of(turn_one_sine) == 4
    assert rounds_of(lambda graph: None) == 1


def test_stage_whose_pass_never_settles_ends(rounds_of):
    def swap(graph):
        for node in graph.graph.nodes:
            others = {aten.sin.default: aten.cos.default, aten.cos.default: aten.sin.default}
            node.target = others.get(node.target, node.target)

    assert rounds_of(swap) == passes._MOST_ROUNDS


# Functions that write, and return what they wrote or views of it.
def adds_to_input(x, y):
    x.add_(y)
    return x * 2


def adds_to_row(x, y):
    x[0].add_(y[1])
    return x.sin()


def adds_to_row_of_transpose(x, y):
    row = x.t()[1]
    row.mul_(y[0])
    return row + 1


def writes_twice(x, y):
    x.add_(y)
    x.mul_(2)
    return x.sum()


def writes_what_it_made(x, y):
    made = torch.zeros_like(x)
    made[1:].copy_(y[:2])
    view = made.unsqueeze(0)
    view.squeeze_(0)
    return view * 2


def swaps(x, y):
    old = x.clone()
    x.copy_(y)
    y.copy_(old)


def transposes_in_place(x, y):
    x.copy_(x.t().clone())
    return x[0]


def returns_what_it_wrote(x, y):
    return x.add_(1), x.t(), y


def returns_old_and_new(x, y):
    old = x * 1
    x.add_(y)
    return old, x[1:]


def returns_a_view_taken_before(x, y):
    row = x[1]
    x.mul_(3)
    return row


def writes_by_index(x, y):
    x[torch.tensor([0, 2])] = y[:2]
    return x


def writes_through_detach(x, y):
    x.detach().mul_(y)
    return x


WRITING = [
    adds_to_input,
    adds_to_row,
    adds_to_row_of_transpose,
    writes_twice,
    writes_what_it_made,
    swaps,
    transposes_in_place,
    returns_what_it_wrote,
    returns_old_and_new,
    returns_a_view_taken_before,
    writes_by_index,
    writes_through_detach,
]


@pytest.mark.parametrize("func", WRITING, ids=lambda func: func.__name__)
def test_writes_and_returned_views(func):
    graph = same(func, torch.randn(3, 3), torch.randn(3, 3))
    written = [node for node in graph.graph.nodes if str(node.target).startswith("aten.copy_")]
    assert len({node.args[0] for node in written}) == len(written)


@pytest.mark.parametrize("func", WRITING, ids=lambda func: func.__name__)
def test_input_with_odd_strides_is_written(func):
    same(func, torch.randn(6, 3)[::2].t(), torch.randn(3, 3, 2)[..., 1])


def test_custom_operator_that_writes_is_left_as_recorded():
    with torch.library._scoped_library("torchlayers_test", "DEF") as library:
        library.define("fill_up(Tensor(a!) x) -> ()")
        library.impl("fill_up", lambda x: None, "Meta")
        library.impl("fill_up", lambda x: x.fill_(1) and None, "CPU")

        def func(x: Tensor) -> Tensor:
            torch.ops.torchlayers_test.fill_up(x)
            return x.clone()

        graph = simplify(record(func, [torch.zeros(2)]).graph)
        assert operators(graph) == ["fill_up", "clone"]


def test_random_operators_keep_number_and_order():
    def func(x: Tensor) -> tuple[Tensor, Tensor]:
        torch.rand(2)
        kept = torch.rand_like(x)
        noise = torch.empty_like(x).normal_()
        return kept + torch.rand_like(x), noise

    graph = same(func, torch.randn(3))
    assert operators(graph)[:1] == ["rand"]
    assert operators(graph).count("rand_like") == 2


def test_redundant_copies_and_views_are_removed():
    def func(x: Tensor) -> Tensor:
        y = x.clone().detach().view(2, 3).expand(2, 3)
        return y.permute(0, 1).squeeze()[:].split(2)[0].sin()

    assert operators(same(func, torch.randn(2, 3))) == ["sin"]


def test_equal_numbers_of_other_types_or_signs_are_not_shared():
    """0.0 == -0.0 and True == 1 == 1.0, but operators' results differ."""
    same(lambda x: (x / 0.0, x / -0.0), torch.ones(2))
    same(lambda x: (x + True, x + 1, x + 1.0), torch.tensor([False, True]))


def test_copy_with_other_strides_stays():
    graph = same(lambda x: x.t().contiguous().view(-1).sin(), torch.randn(2, 3))
    assert "clone" in operators(graph)


def test_copied_result_stays_a_copy():
    x = torch.randn(3)
    graph = simplify(record(lambda x: (x.clone(), x[:], x * 1), [x]).graph)
    first, second, third = graph(x)
    assert second.data_ptr() == x.data_ptr()
    assert len({x.data_ptr(), first.data_ptr(), third.data_ptr()}) == 3


def test_result_keeps_its_strides():
    for x in (torch.randn(2, 3).t(), torch.randn(4, 6)[::2, ::3], torch.randn(3, 1)):
        same(lambda x: (x.clone(), x.t().contiguous(), x.t().clone() + 0), x)


def test_as_strided_keeps_its_inputs_layout():
    def func(x: Tensor) -> Tensor:
        return x.t().clone(memory_format=torch.contiguous_format).as_strided((2,), (3,), 1) + 1

    same(func, torch.randn(3, 3))
    same(lambda x: (x[1:].clone()).as_strided((2,), (1,), 1) + 1, torch.randn(5))


def test_zeros_written_through_as_strided_keep_their_layout():
    """A tangent of the Cholesky factor is laid out as the factor is, column-major."""
    weights, tangent = torch.rand(2, 3, 3, dtype=torch.float64)

    def columns(x):
        return tl.vmap(tl.jacfwd(lambda x: (torch.linalg.cholesky(x) * weights).sum()))(x)

    x = torch.stack([tangent @ tangent.mT + torch.eye(3), torch.eye(3) * 2])
    same(lambda x: tl.jvp(columns, (x,), (tangent.expand(2, 3, 3).clone(),))[1], x, exact=False)


def test_as_strided_of_a_tangent_with_gaps_in_memory():
    def energy(x):
        return x.as_strided(x.shape, x.stride()).sin().sum()

    x = torch.randn(3, 4)[:, ::2]
    same(lambda x: tl.jvp(energy, (x,), (x.cos(),))[1], x, exact=False)


def test_permuted_copy_in_another_layout():
    def func(x, like):
        copy = torch.empty_like(like).copy_(x)
        return copy.permute(0, 2, 1).contiguous() * torch.arange(6.0).reshape(3, 2)

    x = torch.arange(24.0).reshape(4, 2, 3)
    same(func, x, torch.empty(4, 3, 2).permute(0, 2, 1))


def test_a_padding_that_shifts_is_kept():
    pad = torch.nn.functional.pad
    same(lambda x: pad(x, (1, -1)) * x, torch.arange(1.0, 5.0))
    assert operators(same(lambda x: pad(x, (0, 0)) * x, torch.ones(4))) == ["mul"]


C = torch.tensor([[1 + 2j, 3 - 1j], [0.5j, 2 + 0j]])


@pytest.mark.parametrize(
    "view",
    [torch.conj, torch.view_as_real, torch.imag, lambda x: x.conj().imag, lambda x: x.t().real],
    ids=["conj", "view_as_real", "imag", "imag_of_conj", "real_of_t"],
)
def test_complex_views_of_written_tensors(view):
    same(lambda x: view(x.add_(1)), C)


def test_lazy_conjugates_are_not_merged_with_resolved_copies():
    """view_as_real rejects a lazily conjugated tensor, and accepts a resolved one."""
    same(lambda x: torch.view_as_real(x.conj().clone() * 1) * 2, C)
    same(lambda x: torch.view_as_real(x.conj().resolve_conj()) * 2, C)
    same(lambda x: x.conj().imag.clone().view(-1) * 2, C)


def test_unary_write_as_the_last_operator():
    same(lambda x: x.sqrt_(), torch.rand(3))
    same(lambda x: x.clone().sqrt_(), torch.rand(3))


# Their out-of-place forms return contiguous memory, or the layout of their other operands.
WRITES_TO_VIEWS = {
    "masked_fill_": lambda y, x: y.masked_fill_(x > 5, 0.1),
    "index_add_": lambda y, x: y.index_add_(0, torch.tensor([0, 1]), x[:2]),
    "index_copy_": lambda y, x: y.index_copy_(0, torch.tensor([0, 1]), x[:2]),
    "addmm_": lambda y, x: y.addmm_(x, x),
    "tril_": lambda y, x: y.tril_(),
    "cumsum_": lambda y, x: y.cumsum_(0),
    "mul_": lambda y, x: y.mul_(x),
    "pow_": lambda y, x: y.pow_(2),
    "copy_": lambda y, x: y.copy_(x),
}
READS = {
    "view": lambda x: x.view(-1).sin(),
    "as_strided": lambda x: x.as_strided((9,), (1,)).sin(),
    "a write through a view": lambda x: x.view(-1)[1:3].add_(1),
}


@pytest.mark.sweep
@pytest.mark.parametrize("is_input", [True, False])
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("write", WRITES_TO_VIEWS)
def test_a_write_through_a_transpose_keeps_the_layout(write, read, is_input):
    def func(x):
        given, y = x * 1, x if is_input else x * 2
        WRITES_TO_VIEWS[write](y.t(), given)
        return READS[read](y)

    graph = same(func, torch.arange(9.0).reshape(3, 3))
    assert not any(name.endswith("_") and name != "copy_" for name in operators(graph))


def test_in_place_view_is_not_a_write():
    def func(x):
        y = x * 2
        y.t_()
        y.masked_fill_(x > 5, 0.1)
        return y.t().view(-1) * 1

    same(func, torch.arange(9.0).reshape(3, 3))


VIEWED_ANEW = {
    "as_strided_": lambda y: y.as_strided_((2,), (3,), 1),
    "resize_": lambda y: y.resize_(2),
    "resize_as_": lambda y: y.resize_as_(torch.ones(1, 2)),
    "unsqueeze_": lambda y: y.unsqueeze_(1),
}


@pytest.mark.parametrize("change", VIEWED_ANEW)
@pytest.mark.parametrize("view", [lambda x: x[1:], lambda x: x[:, 1:], torch.diagonal])
def test_a_view_changed_in_place_refers_to_its_memory(view, change):
    def func(x):
        memory = x * 2
        y = view(memory)
        VIEWED_ANEW[change](y)
        y.mul_(3)
        return memory * 1, y * 1

    graph = same(func, torch.arange(9.0).reshape(3, 3))
    assert not any(name.endswith("_") for name in operators(graph))


READERS = {
    "pairs": lambda x: torch.view_as_real(torch.view_as_complex(x)),
    "wider numbers": lambda x: x.view(torch.float64),
    "integers": lambda x: x.view(torch.int32),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_strides_are_kept_for_views_that_refuse_some(reader, rows):
    """Also those along one element or none, which other operators do not read."""
    x, dense = torch.randn(rows, 3), torch.contiguous_format
    same(lambda x: reader(x[:, :1].expand(len(x), 2).clone(memory_format=dense)), x)
    same(lambda x: reader(torch.ones(len(x), 2) * x.sum()), x)
    same(lambda x: reader(x[:, 1:].clone(memory_format=dense)), x)
    same(lambda x: reader((x[:, :2] * 2).mT.contiguous().mT.contiguous()), x)
