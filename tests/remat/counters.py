"""A mode that counts how often each operator runs at the bottom of the stack."""

from collections import Counter

from torch.utils._python_dispatch import TorchDispatchMode


class Counted(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))
