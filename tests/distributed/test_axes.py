"""Named axes over the samples of a vmap, over ranks, and over both, under each transform."""

import pytest
import torch
import torch.distributed as dist

import torchlayers as tl
from tests.distributed.nests import ALL, NESTS, close, everybodys, summed, weighted
from tests.distributed.processes import case, over_ranks
from tests.distributed.samples import Collective, blocks, to_everybody
from torchlayers.distributed import (
    all_gather,
    all_to_all,
    axis_index,
    axis_size,
    counting,
    pmax,
    pmean,
    pmin,
    ppermute,
    psum,
    psum_invariant,
    psum_scatter,
    pvary,
)
from torchlayers.errors import AxisError, DimensionError, TransformError


def mean_and_spread(x):
    centred = x - pmean(x, "i")
    return centred / (pmean(centred**2, "i") + 1).sqrt()


def mean_and_spread_of_all(x):
    centred = x - x.mean(0)
    return centred / ((centred**2).mean(0) + 1).sqrt()


def contrast(x):
    return (all_gather(x.sin(), "i") @ x).logsumexp(0)


def contrast_of_all(x):
    return (x @ x.sin().mT).logsumexp(1)


def index(x):
    return x * (axis_index("i") + 1)


def index_of_all(x):
    places = torch.arange(1, x.shape[0] + 1)
    return x * places.view(-1, *[1] * (x.dim() - 1))


def ring(x):
    size = axis_size("i")
    return ppermute(x, "i", [(i, (i + 1) % size) for i in range(size)])


def to_the_right(x):
    return ppermute(x, "i", [(i, i + 1) for i in range(axis_size("i") - 1)])


def to_the_right_of_all(x):
    return torch.cat([torch.zeros_like(x[:1]), x[:-1]])


def tree(x):
    summed = psum({"x": x.sin(), "both": (x, 2 * x)}, "i")
    return summed["x"] + summed["both"][1]


ALONG = {
    "psum": Collective(lambda x: psum(x, "i"), lambda x: x.sum(0).expand_as(x)),
    "psum of a number": Collective(lambda x: psum(x, "i"), lambda x: x.sum(0).expand_as(x), ()),
    "psum of a tree": Collective(tree, lambda x: (x.sin() + 2 * x).sum(0).expand_as(x)),
    "psum of what does not depend on it": Collective(
        lambda x: x + psum(torch.ones(3), "i"), lambda x: x + x.shape[0]
    ),
    "pmean": Collective(mean_and_spread, mean_and_spread_of_all),
    "pmax": Collective(lambda x: pmax(x, "i"), lambda x: x.amax(0).expand_as(x)),
    "pmin": Collective(lambda x: pmin(x, "i"), lambda x: x.amin(0).expand_as(x)),
    "softmax": Collective(
        lambda x: (x - pmax(x, "i")).exp() / psum((x - pmax(x, "i")).exp(), "i"),
        lambda x: x.softmax(0),
    ),
    "all_gather": Collective(
        lambda x: all_gather(x, "i"), lambda x: x.expand(x.shape[0], *x.shape)
    ),
    "all_gather in the last dim": Collective(
        lambda x: all_gather(x, "i", dim=-1),
        lambda x: x.movedim(0, -1).expand(x.shape[0], *x.movedim(0, -1).shape),
    ),
    "all_gather, tiled": Collective(lambda x: all_gather(x, "i", tiled=True), to_everybody),
    "contrast": Collective(contrast, contrast_of_all, (3,)),
    "psum_scatter, tiled": Collective(
        lambda x: psum_scatter(x, "i", tiled=True), lambda x: blocks(x).sum(1)
    ),
    "psum_scatter": Collective(
        lambda x: psum_scatter(torch.stack([x * i for i in range(axis_size("i"))], 1), "i", 1),
        lambda x: torch.stack([x.sum(0) * i for i in range(x.shape[0])]),
    ),
    "all_to_all": Collective(
        lambda x: all_to_all(x, "i", 0, 1),
        lambda x: torch.cat([*blocks(x).unbind(1)], 2),
    ),
    "all_to_all in place": Collective(
        lambda x: all_to_all(x, "i", 1, 1),
        lambda x: blocks(x.mT).flatten(1, 2).mT,
        (3, 4),
    ),
    "ppermute": Collective(ring, lambda x: x.roll(1, 0)),
    "ppermute to the right": Collective(to_the_right, to_the_right_of_all),
    "axis_index": Collective(index, index_of_all),
}

names = pytest.mark.parametrize("name", ALONG)
# Their gradients read the results, which must then not be written to.
READ = ("pmax", "pmin", "contrast")


def may_follow(name, nest):
    return nest != "grad after a write" or name not in READ


nests = pytest.mark.parametrize(
    "name, nest", [(name, nest) for name in ALONG for nest in ALL if may_follow(name, nest)]
)


@nests
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.full)])
def test_nest_over_samples_equals_one_function_of_all(name, nest, size):
    along = ALONG[name]
    of_rank, of_all = ALL[nest]
    x = everybodys(along.shape, size, nest)
    found = tl.vmap(of_rank(along.of_rank), axis_name="i")(x)
    close(found, of_all(along.of_all)(x))


@names
@pytest.mark.parametrize("nest", [nest for nest in NESTS if nest != "grad after a write"])
def test_nest_around_the_named_vmap_equals_one_function_of_all(name, nest):
    """The transform is outside the vmap that binds the name."""
    along = ALONG[name]
    of_one, of_function = NESTS[nest][0], NESTS[nest][0]
    x = everybodys(along.shape, 2, nest)
    named = of_one(tl.vmap(along.of_rank, axis_name="i"))
    close(named(x), of_function(along.of_all)(x))


def mesh():
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("i",))


def compare(nest: str, name: str) -> None:
    along = ALONG[name]
    of_rank, of_all = ALL[nest]
    x = everybodys(along.shape, dist.get_world_size(), nest)
    rank = dist.get_rank()
    with mesh():
        found = of_rank(along.of_rank)(x[rank])
    close(found, of_all(along.of_all)(x)[rank])


@nests
def test_a_nest_over_ranks_is_that_of_all(ranks, nest, name):
    ranks.run(__name__, "compare", nest, name)


def both(x):
    return x / psum(x, "i") + psum(x, "j") * pmean(x.sin(), "j")


def both_of_all(x):
    return x / x.sum(0) + x.sum(1, keepdim=True) * x.sin().mean(1, keepdim=True)


def test_two_names_over_samples():
    x = torch.rand(2, 3, 4, dtype=torch.float64)
    close(tl.vmap(tl.vmap(both, axis_name="j"), axis_name="i")(x), both_of_all(x))
    over_i_inside = tl.vmap(tl.vmap(both, axis_name="i"), 1, 1, axis_name="j")
    close(over_i_inside(x), both_of_all(x))


@case
def a_name_of_samples_and_one_of_ranks():
    rank = dist.get_rank()
    x = torch.rand(dist.get_world_size(), 3, 4)
    with mesh():
        close(tl.vmap(both, axis_name="j")(x[rank]), both_of_all(x)[rank])
        found = tl.grad(lambda x: (tl.vmap(both, axis_name="j")(x) ** 2).sum())(x[rank])
    close(found, torch.func.grad(lambda x: (both_of_all(x) ** 2).sum())(x)[rank])


@case
def a_mesh_is_an_axis_as_well_as_its_name():
    own = torch.ones(2)
    assert psum(own, mesh()).equal(own * dist.get_world_size())
    assert axis_index(mesh()) == dist.get_rank()


@case
def a_value_and_its_tangent_go_together():
    with counting() as calls, mesh():
        tl.jvp(lambda x: psum(x, "i"), (torch.ones(3),), (torch.ones(3),))
    assert calls.names == ["psum"]
    with counting() as calls, mesh():
        tl.vmap(tl.grad(lambda x: psum(x.sin(), "i").sum()))(torch.ones(5, 3))
    assert calls.names == ["psum", "psum"]


@case
def an_invariant_sum_has_one_cotangent():
    """A result shared by all ranks is differentiated once; gradients by shared inputs add up."""
    size = dist.get_world_size()
    x = torch.arange(1.0, size + 1)
    own = x[dist.get_rank()]
    with mesh():
        assert tl.grad(lambda x: psum_invariant(x.sin(), "i"))(own) == own.cos()
        found = tl.grad(lambda w: psum_invariant((pvary(w, "i") * own).sin(), "i"))(own * 0 + 0.5)
    close(found, (x * (0.5 * x).cos()).sum())


def test_an_invariant_sum_over_samples_has_one_cotangent():
    x = torch.arange(3.0, dtype=torch.float64)
    shared = tl.vmap(tl.grad(lambda x: psum_invariant(x.sin(), "i")), axis_name="i")
    close(shared(x), x.cos())
    everywhere = tl.vmap(tl.grad(lambda x: psum(x.sin(), "i")), axis_name="i")
    close(everywhere(x), 3 * x.cos())


@pytest.mark.sweep
@pytest.mark.parametrize("backend", ["replay", "inductor"])
def test_a_compiled_function_has_names_of_samples(backend):
    x = everybodys((3,), 4, "grad")
    of_samples = tl.vmap(mean_and_spread, axis_name="i")
    gradient = tl.grad(lambda x: weighted(of_samples(x)))
    compiled = tl.compile(gradient, backend=backend)
    for _ in range(3):
        close(compiled(x), torch.func.grad(lambda x: weighted(mean_and_spread_of_all(x)))(x))
    per_sample = tl.compile(
        tl.vmap(tl.grad(lambda x: weighted(mean_and_spread(x))), axis_name="i"), backend=backend
    )
    close(per_sample(x), torch.func.grad(summed(mean_and_spread_of_all))(x))


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_torch_compile_leaves_named_axes_to_run_as_they_are():
    x = everybodys((3,), 4, "grad")
    compiled = torch.compile(tl.vmap(mean_and_spread, axis_name="i"), backend="eager")
    close(compiled(x), mean_and_spread_of_all(x))


def test_error_for_an_unbound_name_lists_the_bound_ones():
    with pytest.raises(AxisError, match=r"no axis named 'k' is bound here. Bound axes: 'i', 'j'"):
        tl.vmap(tl.vmap(lambda x: psum(x, "k"), axis_name="j"), axis_name="i")(torch.ones(2, 2))
    with pytest.raises(NameError, match="none"):
        psum(torch.ones(2), "i")


def of_branch(x):
    return tl.cond(x.sum() > 0, lambda x: x * psum(x, "i"), torch.sin, x)


def of_step(x):
    return tl.while_loop(lambda x: x.sum() < 9, lambda x: x + pmean(x, "i") + 1, x)


@pytest.mark.parametrize("call", [of_branch, of_step])
def test_collective_in_a_batched_branch_is_rejected(call):
    x = everybodys((3,), 4, "value")
    for run in (call, tl.grad(lambda x: call(x).sum())):
        with pytest.raises(TransformError, match="not all members of 'i' reach this"):
            tl.vmap(run, axis_name="i")(x)


def test_collective_in_a_branch_with_shared_predicate():
    x = everybodys((2, 3), 4, "value")

    def centred(x):
        return x - pmean(x, "i")

    def of_outer(pred, x):  # pred is shared by all samples of the inner vmap
        return tl.vmap(lambda x: tl.cond(pred, centred, torch.sin, x), axis_name="i", in_dims=0)(x)

    pred = torch.tensor([True, False, True, False])
    found = tl.vmap(of_outer)(pred, x)
    close(found, torch.where(pred.view(-1, 1, 1), x - x.mean(1, keepdim=True), x.sin()))
    place = tl.vmap(
        lambda x: tl.cond(x.sum() > 0, lambda x: x * axis_index("i"), torch.sin, x), axis_name="i"
    )
    scaled = x[:, 0] * torch.arange(4).view(-1, 1)
    close(place(x[:, 0]), torch.where(x[:, 0].sum(1, keepdim=True) > 0, scaled, x[:, 0].sin()))


@case
def a_collective_over_ranks_under_a_batched_predicate_is_refused():
    x = everybodys((3,), 4, "value")
    with mesh(), pytest.raises(TransformError, match="not all members of 'i' reach this"):
        tl.vmap(of_branch)(x)
    with mesh():  # a predicate that is equal on all ranks is allowed
        found = tl.cond(x.sum() > 0, lambda x: psum(x, "i"), lambda x: psum(-x, "i"), x)
    close(found, x.sum().sign() * x * dist.get_world_size())


def test_name_is_unbound_outside_its_vmap():
    with pytest.raises(ValueError, match="inside"):
        tl.vmap(raises_inside, axis_name="i")(torch.ones(2))
    with pytest.raises(AxisError):
        psum(torch.ones(2), "i")


def raises_inside(x):
    raise ValueError("inside")


@pytest.mark.parametrize("options", [{"chunk_size": 2}, {"chunk_size": "auto"}])
def test_a_name_is_refused_with_chunks(options):
    with pytest.raises(TransformError, match="have to run at once"):
        tl.vmap(torch.sin, axis_name="i", **options)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda x: psum(x, 3), AxisError, "got int"),
        (lambda x: all_gather(x, "i", 2), DimensionError, "out of range"),
        (lambda x: psum_scatter(x, "i"), DimensionError, "its size must be"),
        (lambda x: psum_scatter(x, "i", tiled=True), DimensionError, "can't be split over axis"),
        (lambda x: all_to_all(x, "i", 0, 0), DimensionError, "can't be split over axis"),
        (lambda x: ppermute(x, "i", [(0, 1), (0, 0)]), AxisError, "pairs"),
        (lambda x: ppermute(x, "i", [(0, 2)]), AxisError, "pairs"),
    ],
)
def test_invalid_arguments_are_rejected(call, error, words):
    with pytest.raises(error, match=words):
        tl.vmap(call, axis_name="i")(torch.ones(2, 3))


TIES = [
    torch.tensor([[1.0, 3.0, 0.0], [3.0, 3.0, -0.0], [3.0, 2.0, 0.0], [3.0, 3.0, -1.0]]),
    torch.tensor([[torch.nan, 3.0], [1.0, torch.inf], [2.0, torch.inf], [2.0, 0.0]]),
]


def largest_of_all(x):
    return weighted_by_column(x.amax(0).expand_as(x))


def weighted_by_column(y):
    return (y * torch.arange(1.0, y.shape[-1] + 1)).sum()


@pytest.mark.parametrize("x", TIES, ids=["ties", "nan and inf"])
def test_ties_share_the_gradient_of_pmax(x):
    def of_samples(x):
        return weighted_by_column(tl.vmap(lambda x: pmax(x, "i"), axis_name="i")(x))

    expected = torch.func.grad(largest_of_all)(x)
    torch.testing.assert_close(tl.grad(of_samples)(x), expected, equal_nan=True)
    tangents = tl.jvp(of_samples, (x,), (x.cos(),))[1]
    expected = torch.func.jvp(largest_of_all, (x,), (x.cos(),))[1]
    torch.testing.assert_close(tangents, expected, equal_nan=True)


def test_gradient_of_ties_is_the_mean_of_one_sided_slopes():
    def of_samples(x):
        return weighted_by_column(tl.vmap(lambda x: pmax(x, "i"), axis_name="i")(x)[:1])

    two = torch.tensor([[1.0, 3.0], [3.0, 3.0]], dtype=torch.float64)
    gradient, step = tl.grad(of_samples)(two), 1e-6
    for i in range(2):
        for j in range(2):
            away = torch.zeros_like(two)
            away[i, j] = step
            slope = (of_samples(two + away) - of_samples(two - away)) / (2 * step)
            torch.testing.assert_close(gradient[i, j], slope)


@case
def equal_ones_on_several_ranks_share_the_gradient_of_pmax():
    for x in TIES:
        x = x[: dist.get_world_size()].double()
        own = x[dist.get_rank()]
        expected = torch.func.grad(largest_of_all)(x)[dist.get_rank()]
        with mesh():
            found = tl.grad(lambda x: weighted_by_column(pmax(x, "i")))(own)
            torch.testing.assert_close(found, expected, equal_nan=True)
            leaf = own.clone().requires_grad_()
            weighted_by_column(pmax(leaf, "i")).backward()
            torch.testing.assert_close(leaf.grad, expected, equal_nan=True)


test_over_ranks = over_ranks(__name__)
