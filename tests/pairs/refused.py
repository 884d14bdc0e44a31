"""The cells of the table of pairs that are not right: most are refused on purpose."""

import re
from typing import NamedTuple


class Refused(NamedTuple):
    """Pairs of a feature and a nest, as regular expressions, and what comes out in these words."""

    features: str
    nests: str
    words: str
    why: str


REFUSED = [
    Refused(
        r"(sums|gathering) over ranks|exchanges between ranks",
        r"torch\.func\.grad",
        r"torch\.func's grad, vjp, jacrev and hessian can't go through",
        "torch.func's reverse mode does not take derivatives that torch.library registers; "
        "torchlayers.grad has the collectives' own",
    ),
    Refused(
        r"checkpoint.*|scan, checkpointed|torch's checkpoint|grad, by a memory budget",
        r"torch\.func\.grad",
        r"torch\.func\.{grad, vjp, jacrev, hessian} don't yet support saved tensor hooks",
        "torch.func has no saved-tensor hooks; torchlayers' grad has",
    ),
    Refused(
        r"autograd\.Function of the old style",
        r".*jvp.*|jacfwd.*|hvp|linearize|(compile of )?hessian|vmap\(hessian\)|plain forward mode",
        r"You must implement the jvp function for custom autograd\.Function",
        "it has no jvp",
    ),
    Refused(
        r"autograd\.Function of the old style",
        r"torch\.func\..*",
        r"must override the setup_context staticmethod",
        "torch.func takes only those with setup_context; torchlayers takes both",
    ),
    Refused(
        r"custom_vjp",
        r"(compile of )?jvp|jacfwd.*|linearize|(vmap|grad|jvp)\(jvp\)|plain forward mode",
        r"has no jvp rule, so it works in reverse mode only",
        "it has a rule for reverse mode only; custom_jvp works in both",
    ),
    Refused(
        r"pure_callback in a custom_jvp",
        r"(.*\(|compile of )?(jet|laplacian|jet\(.*)\)?|hessian_diagonal|directional_derivatives"
        r"|biharmonic",
        r"pure_callback: <lambda> is Python code without a derivative",
        "jet and laplacian go through a custom_jvp's function, not by its rule",
    ),
    Refused(
        r"torch\.autograd\.grad inside",
        r"(.*\(|compile of )?(jet|laplacian)\)?|hessian_diagonal|directional_derivatives"
        r"|biharmonic|jacfwd\(sparse=True\)",
        r"torch\.autograd\.grad inside \w+ \(level \d\), of one of its tensors|"
        r"requires_grad_\(\) inside layers in Python that are nested",
        "torch's pass does not know what a layer in Python adds; use torchlayers.grad inside",
    ),
    Refused(
        r"torch\.autograd\.grad inside|ensemble",
        r"torch\.func\..*",
        r"attempting to call Tensor\.requires_grad_\(\)",
        "torch.func refuses requires_grad_(); torchlayers does not",
    ),
    Refused(
        r"custom_root|custom_linear_solve|linear_solve|minimize|least_squares|find_root|find_fixed_point",
        r"grad, by a memory budget",
        r"but at least \d+ are needed",
        "what a solution saves is not recomputed",
    ),
    Refused(
        r"custom_root|custom_fixed_point|linear_solve|minimize|least_squares|find_(root|fixed_point).*",
        r"make_fx of grad",
        r"trying to get value out of a tracing tensor",
        "make_fx can't record a solver, which stops by values; compile and make_graph can",
    ),
    Refused(
        r"a branch on a value|a number of a tensor",
        r"(compile of |torch\.func\.)?vmap.*|per_sample_norms|clipped_grad|grad\(vmap\)",
        r"can't convert a batched tensor to one Python number|vmap: It looks like you're",
        "samples differ; cond and while_loop batch, and fallback='loop' runs one sample at a time",
    ),
    Refused(
        r"a branch on a value|a number of a tensor",
        r"make_fx of grad",
        r"trying to get value out of a tracing tensor",
        "make_fx can't record values; compile splits the graph there",
    ),
    Refused(
        r"multivariate normal|one_hot",
        r"make_fx of grad",
        r"trying to get value out of a tracing tensor",
        "torch validates values there, and make_fx can't record them; compile leaves checks out",
    ),
    Refused(
        r"multivariate normal",
        r"torch\.func\.vmap",
        r"use a Tensor in some data-dependent control flow",
        "torch.func's vmap can't branch on the check of the matrix; torchlayers needs no branch",
    ),
    Refused(
        r"a sparse Jacobian inside",
        r"plain forward mode",
        r"Trying to use forward AD with _sparse_coo_tensor_with_dims_and_tensors",
        "torch has no forward mode of sparse tensors; torchlayers.jvp has",
    ),
    Refused(
        r"a sparse Jacobian inside",
        r"plain autograd",
        r"wrong",
        "torch's own second derivative of to_dense() is wrong, without torchlayers, too; "
        "torchlayers.grad of torchlayers.grad is right",
    ),
    Refused(
        r"at",
        r"plain forward mode",
        r"wrong",
        "torch's own forward mode drops the tangent of scatter_reduce, without torchlayers, too; "
        "torchlayers.jvp is right",
    ),
    Refused(
        r"writes through view\(dtype\)",
        r"plain (autograd|forward mode)|torch\.func\.grad",
        r"wrong",
        "torch's own derivatives lose what is written through view(dtype), without torchlayers, "
        "too; torchlayers' transforms have it",
    ),
    Refused(
        r"functionalize inside",
        r"functionalize|(grad|vmap)\(functionalize\)",
        r"functionalize can't be applied directly inside functionalize",
        "it would change nothing",
    ),
    Refused(
        r"writes by a mask",
        r"torch\.func\.vmap",
        r"We do not support batching operators that can support dynamic shape",
        "torch.func has no batching rule for it; torchlayers has",
    ),
    Refused(
        r"GRU|LSTM",
        r"torch\.func\.vmap",
        r"Batching rule not implemented for aten::(gru|lstm)\.input",
        "torch.func has no batching rule for it; torchlayers has",
    ),
    Refused(
        r"attention|embedding bags|ctc_loss",
        r"plain (autograd|forward mode)",
        r"derivative for aten::_(scaled_dot_product|embedding_bag|ctc_loss)\w+ is not implemented|"
        r"Trying to use forward AD with _(scaled_dot_product|embedding_bag|ctc_loss)\w*",
        "torch has no second derivative nor forward mode of it; torchlayers' transforms have",
    ),
]


def of(feature: str, nest: str) -> Refused | None:
    """What is known of a pair that is not right, else None."""
    for refused in REFUSED:
        if re.fullmatch(refused.features, feature) and re.fullmatch(refused.nests, nest):
            return refused
    return None
