"""Those who write a name of JAX's are told what to write instead."""

import re
from pathlib import Path

import pytest
import torch

import torchlayers as tl
from torchlayers.core import jax_names

PAGE = Path(__file__).parents[2] / "docs" / "from-jax.md"


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("jit", "torchlayers.compile"),
        ("value_and_grad", "torchlayers.grad_and_value, which returns (gradient, value)"),
        ("pmap", "torchlayers.vmap(f, mesh="),
        ("lax", "torchlayers.cond"),
        ("tree_map", "torchlayers.tree.map_leaves"),
    ],
)
def test_a_function_of_jax_is_named_with_ours(name, ours):
    with pytest.raises(AttributeError, match=rf"^torchlayers has no {name}\. In place of JAX's"):
        getattr(tl, name)
    assert jax_names.FUNCTIONS[name].startswith(ours)
    assert not hasattr(tl, name)


def test_keys_of_jax_are_named_with_ours():
    with pytest.raises(AttributeError, match=r"torchlayers\.random has no PRNGKey.*key\(seed\)"):
        tl.random.PRNGKey  # noqa: B018


@pytest.mark.parametrize("module", [tl, tl.random])
def test_another_name_has_pythons_error(module):
    with pytest.raises(AttributeError, match=f"^module '{module.__name__}' has no attribute 'fo'"):
        module.fo  # noqa: B018


def test_functions_that_are_named_exist():
    for text in jax_names.FUNCTIONS.values():
        for path in re.findall(r"torchlayers((?:\.\w+)+)", text):
            value = tl
            for part in path[1:].split("."):
                value = getattr(value, part)


def test_no_name_of_ours_is_among_jaxs():
    assert not {*jax_names.FUNCTIONS} - {"checkpoint_policies"} & {*dir(tl)}


def test_every_name_on_the_page_is_ours_or_has_an_error():
    ours = {*dir(tl), *dir(tl.random), *dir(tl.debug), *dir(tl.implicit.solvers)}
    ours |= {*dir(tl.distributed), "map", "leaves"}
    rows = re.findall(r"^\| (.+?) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    modules = r"lax|tree_util|random|custom_batching|flatten_util|experimental\.jet"
    named = re.findall(rf"jax(?:\.(?:{modules}))?\.(\w+)", "".join(rows))
    named = {name for name in named if name not in ("tree", "scipy", "experimental", "debug")}
    assert len(named) > 30
    assert named - ours - {*jax_names.FUNCTIONS} == {"register_dataclass"}


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda f: tl.vmap(f, in_axes=0), r"vmap\(\) .* 'in_axes'\. It is in_dims here"),
        (lambda f: tl.vmap(f, out_axes=0), "It is out_dims here"),
        (lambda f: tl.grad(f, holomorphic=True), "Gradients of complex tensors need no flag"),
        (lambda f: tl.grad_and_value(f, argnum=0), "It is argnums here"),
        (lambda f: tl.jacfwd(f, allow_int=True), "Pass floating-point tensors"),
        (lambda f: tl.jacrev(f, foo=2), r"Its arguments are func, argnums, has_aux, chunk_size"),
        (lambda f: tl.hessian(f, argnum=0), r"hessian\(\) got an unexpected keyword argument"),
        (lambda f: tl.compile(f, static_argnames="n"), "not tensors are static anyway"),
        (lambda f: tl.compile(f, donate_argnums=0), "Write in place"),
        (lambda f: tl.scan(f, 0, unroll=2), "compile unrolls short loops"),
        (lambda f: tl.associative_scan(f, 0, axis=1), "It is dim here"),
        (lambda f: tl.vmap(f, in_dim=0), "Did you mean 'in_dims'"),
    ],
)
def test_a_keyword_of_jax_is_named_with_ours(call, text):
    with pytest.raises(TypeError, match=text):
        call(torch.sin)
