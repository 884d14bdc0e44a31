"""The lookup of torch's private names, and of operators."""

import contextlib

import pytest
import torch

from torchlayers.core import private_names
from torchlayers.core.errors import TorchVersionError
from torchlayers.core.operators import MissingOperator, aten, present
from torchlayers.core.private_names import lookup, patch, private, private_class
from torchlayers.core.torch_private import functorch
from torchlayers.transforms.layers.layer import Layer

GONE = r"lookup needs torch\._C\._gone, which torch 2\.\d+\.\d+ does not have\. Use torch 2\.11 to"


def test_a_name_is_looked_up_when_it_is_first_read(monkeypatch):
    namespace = private("torch._inductor_of_another_torch")
    assert "config" not in vars(namespace)
    with pytest.raises(TorchVersionError, match=r"needs torch\._inductor_of_another_torch\.config"):
        namespace.config  # noqa: B018
    namespace = private("torch._C")
    first = namespace._is_fwd_grad_enabled
    monkeypatch.setattr(private_names, "_find", None)  # not looked up again
    assert namespace._is_fwd_grad_enabled is first is torch._C._is_fwd_grad_enabled


def test_a_missing_name_raises_or_gives_its_fallback():
    with pytest.raises(TorchVersionError, match=GONE):
        lookup("torch._C._gone")
    assert lookup("torch._C._gone", None) is None
    assert lookup("torch._no.module", 3) == 3


def test_programs_that_catch_the_error_of_an_import_catch_ours():
    with pytest.raises(ImportError):
        lookup("torch._C._gone")


def test_an_import_that_fails_for_another_module_says_which(monkeypatch):
    def fail(name):
        raise ModuleNotFoundError("No module named 'sympy'", name="sympy")

    monkeypatch.setattr(private_names.importlib, "import_module", fail)
    with pytest.raises(ModuleNotFoundError, match="sympy"):
        lookup("torch._not_imported_yet")


def test_flags_are_read_anew(monkeypatch):
    namespace = private("torch.compiler")
    assert namespace._is_exporting_flag is False
    monkeypatch.setattr(torch.compiler, "_is_exporting_flag", True)
    assert namespace._is_exporting_flag is True


def test_the_message_names_the_room_that_asked():
    code = compile('lookup("torch._C._gone")', "record.py", "exec")
    asking = {"__name__": "torchlayers.compiler.capture.record", "lookup": lookup}
    with pytest.raises(TorchVersionError, match=r"compile \(compiler\.capture\.record\) needs"):
        exec(code, asking)


def test_a_class_in_the_place_of_a_missing_one_has_no_instances():
    absent = private_class("torch._subclasses.GoneError")
    assert not isinstance(RuntimeError(), absent)
    with pytest.raises(ZeroDivisionError), contextlib.suppress(absent):
        1 / 0  # noqa: B018

    class Sub(absent):
        pass

    with pytest.raises(TorchVersionError, match=r"torch\._subclasses\.GoneError"):
        Sub()


def test_patch_replaces_what_there_is(monkeypatch):
    monkeypatch.setattr(torch.compiler, "_is_exporting_flag", False)
    patch("torch.compiler._is_exporting_flag", lambda before: ("was", before))
    assert torch.compiler._is_exporting_flag == ("was", False)
    patch("torch.compiler._gone", lambda before: before)
    assert not hasattr(torch.compiler, "_gone")


def test_a_namespace_has_torchs_own_functions():
    assert functorch.maybe_get_level is torch._C._functorch.maybe_get_level


def test_an_operator_that_torch_lacks_is_a_placeholder():
    missing = aten.of_another_torch.default
    assert isinstance(missing, MissingOperator)
    assert missing not in {torch.ops.aten.sin.default}
    assert present([aten.sin, missing]) == [torch.ops.aten.sin]
    with pytest.raises(TorchVersionError, match=r"torch\.ops\.aten\.of_another_torch\.default"):
        missing(torch.ones(2))


def test_a_rule_for_a_missing_operator_is_skipped():
    class Mine(Layer):
        pass

    @Mine.rule(aten.of_another_torch, aten.sin)
    def rule(layer, op, x):
        return x

    assert Mine().has_rule(torch.ops.aten.sin.default)
