"""The printed form of differentiated TorchScript graphs."""

import re

import expecttest
import pytest
import torch

from torchlayers.graph.script import differentiate_script, steps

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

# Above the tests: EXPECTTEST_ACCEPT=1 moves the lines below what it writes, and TorchScript reads
# the source from this file.


def scaled_tanh(x, scale):
    return (x * scale).tanh()


def matrix_product(x, y):
    return x.mm(y)


def used_twice(x):
    y = x.sin()
    return y * 2 - y


def total(x):
    return (x * 2).sum()


def either(x, flag: bool):
    if flag:  # noqa: SIM108 (a block)
        y = x.sin()
    else:
        y = x.exp()
    return y


def product_of_halves(x):
    a, b = x.chunk(2)
    return a * b


def scaled_by_constant(x):
    with torch.no_grad():
        scale = x.exp()
    return x * scale


def square(x):
    return x * x


def printed(graph):
    """Prints the graph without source locations, which contain file names."""
    return re.sub(r" +# .*", "", str(graph))


def differentiated(function, **options):
    return differentiate_script(torch.jit.script(function), **options)


class TestPrintedGraphs(expecttest.TestCase):
    def test_forward_returns_what_backward_needs(self):
        gradient = differentiated(scaled_tanh)
        self.assertExpectedInline(
            printed(gradient.f),
            """\
graph(%x.1 : Tensor(requires_grad=0),
      %scale.1 : Tensor(requires_grad=0)):
  %2 : Tensor(requires_grad=0) = aten::mul(%x.1, %scale.1)
  %3 : int[] = aten::size(%scale.1)
  %4 : int[] = aten::size(%2)
  %5 : int[]? = aten::_size_if_not_equal(%3, %4)
  %6 : int[] = aten::size(%x.1)
  %7 : int[]? = aten::_size_if_not_equal(%6, %4)
  %8 : Tensor = aten::tanh(%2)
  return (%8, %5, %7)
""",
        )
        self.assertExpectedInline(
            printed(gradient.df),
            """\
graph(%grad_3 : Tensor,
      %x : Tensor,
      %scale : Tensor,
      %3 : int[]?,
      %4 : int[]?,
      %5 : Tensor):
  %grad_2 : Tensor = prim::GradOf[name="aten::tanh"](%grad_3)
    block0():
      %7 : Tensor = aten::tanh_backward(%grad_3, %5)
      -> (%7)
  %grad_x : Tensor, %grad_scale : Tensor = prim::GradOf[name="aten::mul"](%grad_2)
    block0():
      %10 : Tensor = aten::mul(%grad_2, %scale)
      %11 : Tensor = aten::mul(%x, %grad_2)
      %12 : Tensor = aten::_grad_sum_to_size(%10, %4)
      %13 : Tensor = aten::_grad_sum_to_size(%11, %3)
      -> (%12, %13)
  %14 : (Tensor, Tensor) = prim::TupleConstruct(%grad_x, %grad_scale)
  return (%14)
""",
        )

    def test_gradients_that_are_not_asked_for_are_not_computed(self):
        self.assertExpectedInline(
            printed(differentiated(matrix_product, argnums=0).df),
            """\
graph(%grad_2 : Tensor,
      %y : Tensor(requires_grad=0)):
  %grad_x : Tensor = prim::GradOf[name="aten::mm"](%grad_2)
    block0():
      %3 : int = prim::Constant[value=-2]()
      %4 : int = prim::Constant[value=-1]()
      %5 : Tensor = aten::transpose(%y, %3, %4)
      %6 : Tensor = aten::mm(%grad_2, %5)
      -> (%6)
  %7 : (Tensor) = prim::TupleConstruct(%grad_x)
  return (%7)
""",
        )

    def test_a_value_used_twice_has_its_gradients_added(self):
        self.assertExpectedInline(
            printed(differentiated(used_twice).df),
            """\
graph(%grad_5 : Tensor,
      %x : Tensor,
      %2 : int[]?,
      %3 : int[]?):
  %grad_4 : Tensor, %grad_y.2 : Tensor = prim::GradOf[name="aten::sub"](%grad_5)
    block0():
      %6 : Tensor = aten::neg(%grad_5)
      %7 : Tensor = aten::_grad_sum_to_size(%grad_5, %3)
      %8 : Tensor = aten::_grad_sum_to_size(%6, %2)
      -> (%7, %8)
  %grad_y.1 : Tensor = prim::GradOf[name="aten::mul"](%grad_4)
    block0():
      %10 : int = prim::Constant[value=2]()
      %11 : Tensor = aten::mul(%grad_4, %10)
      -> (%11)
  %12 : Tensor = prim::AutogradAdd(%grad_y.2, %grad_y.1)
  %grad_x : Tensor = prim::GradOf[name="aten::sin"](%12)
    block0():
      %14 : Tensor = aten::cos(%x)
      %15 : Tensor = aten::mul(%12, %14)
      -> (%15)
  %16 : (Tensor) = prim::TupleConstruct(%grad_x)
  return (%16)
""",
        )

    def test_a_size_is_captured_and_not_its_tensor(self):
        gradient = differentiated(total)
        self.assertExpectedInline(
            printed(gradient.f),
            """\
graph(%x : Tensor(requires_grad=0)):
  %1 : NoneType = prim::Constant()
  %2 : int = prim::Constant[value=2]()
  %3 : Tensor(requires_grad=0) = aten::mul(%x, %2)
  %4 : Tensor = aten::sum(%3, %1)
  %5 : int[] = aten::size(%3)
  return (%4, %5)
""",
        )
        self.assertExpectedInline(
            printed(gradient.df),
            """\
graph(%grad_4 : Tensor,
      %1 : int[]):
  %grad_3 : Tensor = prim::GradOf[name="aten::sum"](%grad_4)
    block0():
      %3 : bool = prim::Constant[value=0]()
      %4 : Tensor = aten::expand(%grad_4, %1, %3)
      -> (%4)
  %grad_x : Tensor = prim::GradOf[name="aten::mul"](%grad_3)
    block0():
      %6 : int = prim::Constant[value=2]()
      %7 : Tensor = aten::mul(%grad_3, %6)
      -> (%7)
  %8 : (Tensor) = prim::TupleConstruct(%grad_x)
  return (%8)
""",
        )

    def test_branches_have_branches_for_their_gradient(self):
        gradient = differentiated(either)
        self.assertExpectedInline(
            printed(gradient.f),
            """\
graph(%x.1 : Tensor(requires_grad=0),
      %flag.1 : bool):
  %y : Tensor, %3 : Tensor = prim::If(%flag.1)
    block0():
      %y.1 : Tensor = aten::sin(%x.1)
      %5 : Tensor = prim::AutogradZero()
      -> (%y.1, %5)
    block1():
      %y.3 : Tensor = aten::exp(%x.1)
      -> (%y.3, %y.3)
  return (%y, %3)
""",
        )
        self.assertExpectedInline(
            printed(gradient.df),
            """\
graph(%grad_y : Tensor,
      %x : Tensor,
      %flag : bool,
      %3 : Tensor):
  %grad_x : Tensor = prim::GradOf[name="prim::If"](%grad_y)
    block0():
      %5 : Tensor = prim::If(%flag)
        block0():
          %grad_x.1 : Tensor = prim::GradOf[name="aten::sin"](%grad_y)
            block0():
              %7 : Tensor = aten::cos(%x)
              %8 : Tensor = aten::mul(%grad_y, %7)
              -> (%8)
          -> (%grad_x.1)
        block1():
          %grad_x.3 : Tensor = prim::GradOf[name="aten::exp"](%grad_y)
            block0():
              %10 : Tensor = aten::mul(%grad_y, %3)
              -> (%10)
          -> (%grad_x.3)
      -> (%5)
  %11 : (Tensor) = prim::TupleConstruct(%grad_x)
  return (%11)
""",
        )

    def test_parts_of_a_tensor_are_joined_again(self):
        self.assertExpectedInline(
            printed(differentiated(product_of_halves).df),
            """\
graph(%grad_3 : Tensor,
      %grad_1 : Tensor,
      %grad_2 : Tensor,
      %3 : Tensor,
      %4 : Tensor,
      %5 : int[],
      %6 : int[]?,
      %7 : int[]?):
  %grad_1.1 : Tensor, %grad_2.1 : Tensor = prim::GradOf[name="aten::mul"](%grad_3)
    block0():
      %10 : Tensor = aten::mul(%grad_3, %4)
      %11 : Tensor = aten::mul(%3, %grad_3)
      %12 : Tensor = aten::_grad_sum_to_size(%10, %7)
      %13 : Tensor = aten::_grad_sum_to_size(%11, %6)
      -> (%12, %13)
  %14 : Tensor = prim::AutogradAdd(%grad_2, %grad_2.1)
  %15 : Tensor = prim::AutogradAdd(%grad_1, %grad_1.1)
  %grad_x : Tensor = prim::GradOf[name="prim::ConstantChunk"](%15, %14)
    block0():
      %17 : Tensor[] = prim::ListConstruct(%15, %14)
      %18 : int = prim::Constant[value=0]()
      %19 : int[] = prim::Constant[value=[0, 1]]()
      %20 : int = prim::Constant[value=2]()
      %21 : Tensor = torchlayers::chunk_backward(%17, %19, %5, %20, %18)
      -> (%21)
  %22 : (Tensor) = prim::TupleConstruct(%grad_x)
  return (%22)
""",
        )

    def test_what_is_under_no_grad_is_a_constant(self):
        self.assertExpectedInline(
            printed(differentiated(scaled_by_constant).df),
            """\
graph(%grad_6 : Tensor,
      %scale.1 : Tensor,
      %2 : int[]?):
  %grad_x : Tensor = prim::GradOf[name="aten::mul"](%grad_6)
    block0():
      %4 : Tensor = aten::mul(%grad_6, %scale.1)
      %5 : Tensor = aten::_grad_sum_to_size(%4, %2)
      -> (%5)
  %6 : (Tensor) = prim::TupleConstruct(%grad_x)
  return (%6)
""",
        )

    def test_the_reverse_block_before_it_is_lifted(self):
        before = steps(torch.jit.script(scaled_tanh))["dead code removed"]
        self.assertExpectedInline(
            printed(before),
            """\
graph(%x : Tensor,
      %scale : Tensor):
  %2 : Tensor = aten::mul(%x, %scale)
  %10 : int[] = aten::size(%scale)
  %11 : int[] = aten::size(%2)
  %12 : int[]? = aten::_size_if_not_equal(%10, %11)
  %7 : int[] = aten::size(%x)
  %9 : int[]? = aten::_size_if_not_equal(%7, %11)
  %3 : Tensor = aten::tanh(%2)
  return (%3)
 = prim::Reverse()
  block0(%grad_3 : Tensor):
    %grad_2 : Tensor = prim::GradOf[name="aten::tanh"](%grad_3)
      block0():
        %5 : Tensor = aten::tanh_backward(%grad_3, %3)
        -> (%5)
    %grad_x : Tensor, %grad_scale : Tensor = prim::GradOf[name="aten::mul"](%grad_2)
      block0():
        %13 : Tensor = aten::mul(%grad_2, %scale)
        %14 : Tensor = aten::mul(%x, %grad_2)
        %15 : Tensor = aten::_grad_sum_to_size(%13, %9)
        %16 : Tensor = aten::_grad_sum_to_size(%14, %12)
        -> (%15, %16)
    -> (%grad_x, %grad_scale)
""",
        )


def test_str_shows_both_graphs_and_their_mapping():
    text = str(differentiated(square))
    assert "aten::mul" in text and "prim::GradOf" in text
    assert "1 outputs" in text and "returns cotangents of inputs [0]" in text
