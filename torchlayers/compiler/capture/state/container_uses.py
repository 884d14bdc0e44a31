"""Tells from bytecode whether a function only adds to a container and does not read it."""

import dis
import functools
import types
from collections.abc import Iterable, Iterator

from torchlayers.compiler.capture.bytecode import merge_accesses
from torchlayers.core.code_objects import codes_in

_ADDING = {"append", "appendleft", "extend", "extendleft"}
_SETTING = {"update", "__setitem__"}
_REORDERING = ("SWAP", "COPY", "ROT_", "DUP_")


def is_only_added_to(
    codes: Iterable[types.CodeType], loaded: Iterable[tuple[str, int]], *, is_dict: bool
) -> bool:
    """Whether all code that loads a container only adds items to it.

    Args:
        codes: the user's code that ran.
        loaded: the names under which it can be loaded, each with the number of subscripts that
            follow.
        is_dict: whether it is a dict, whose items may also be set: in a sequence, that replaces
            items.
    """
    codes, names = [*codes], {*loaded}
    if merge_accesses(codes).any_attribute or not all(name.isidentifier() for name, _ in names):
        return False
    adds = [
        _adds_after(following, name, subscripts, is_dict)
        for name, subscripts in names
        for code in codes
        for inner in codes_in(code)
        for following in _after_loads(_instructions(inner), name)
    ]
    return bool(adds) and all(adds)  # without a load, a library's code uses it


@functools.lru_cache(1024)
def _instructions(code: types.CodeType) -> tuple[dis.Instruction, ...]:
    return (*dis.get_instructions(code),)


def _after_loads(
    instructions: tuple[dis.Instruction, ...], name: str
) -> Iterator[tuple[dis.Instruction, ...]]:
    for place, instruction in enumerate(instructions):
        if instruction.opname.startswith("LOAD_") and _names(instruction.argval, name):
            yield instructions[place + 1 :]


def _names(argument: object, name: str) -> bool:
    """Whether an instruction loads this name; one that loads two has a pair."""
    return argument == name or (isinstance(argument, tuple) and name in argument)


def _adds_after(
    following: tuple[dis.Instruction, ...], name: str, subscripts: int, is_dict: bool
) -> bool:
    """Whether the code that follows a load adds to what was loaded; it is followed on the stack."""
    above = 0  # the number of values above the container
    methods = _SETTING if is_dict else _ADDING
    for place, instruction in enumerate(following):
        if above == 0 and instruction.opname.startswith(("LOAD_ATTR", "LOAD_METHOD")):
            return subscripts == 0 and instruction.argval in methods
        if "JUMP" in instruction.opname or instruction.opname.startswith(
            (*_REORDERING, "FOR_", "STORE_FAST")
        ):
            return False
        if above == 1 and instruction.opname == "STORE_SUBSCR":
            return subscripts == 0 and is_dict
        if above == 1 and (instruction.opname == "BINARY_SUBSCR" or instruction.argrepr == "[]"):
            subscripts, above = subscripts - 1, 0
            continue
        if above == 1 and instruction.argrepr == "+=":
            after = following[place + 1 : place + 3]
            stores = any(
                instruction.opname.startswith("STORE") and instruction.argval == name
                for instruction in after
            )
            return subscripts == 0 and stores
        above += dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
        if above < 1 or subscripts < 0:
            return False
    return False
