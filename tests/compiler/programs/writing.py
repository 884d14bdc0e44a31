"""Programs that write numbers, text and containers to Python."""

import bisect
import collections
import contextlib
import dataclasses
import enum
import heapq
import types

import torchlayers as tl


def history_of_losses():
    history = []

    def f(x):
        loss = (x * x).sum()
        history.append(loss.item())
        return loss * x

    return f, history


def memo_by_sign():
    memo = {}

    def f(x):
        sign = bool(x.sum() > 0)
        if sign not in memo:
            memo[sign] = float(len(memo) + 1)
        return x * memo[sign]

    return f, memo


def last_losses():
    losses = collections.deque(maxlen=3)

    def f(x):
        losses.append((x * x).sum().item())
        return x * 2

    return f, losses


def metrics_by_name():
    metrics = collections.defaultdict(list)

    def f(x):
        metrics["loss"].append(x.sum().item())
        metrics["norm"].append(x.norm().detach())
        return x * x

    return f, metrics


def counts_of_signs():
    counts = collections.Counter()

    def f(x):
        counts["positive" if x.sum() > 0 else "negative"] += 1
        return x.sin()

    return f, counts


def set_of_classes():
    seen = set()

    def f(x):
        seen.add(int((x > 0).sum()))
        return x.cos()

    return f, seen


def nonlocal_counter():
    count, last = 0, 0.0

    def f(x):
        nonlocal count, last
        count += 1
        last = x.max().item()
        return x * count

    def state():
        return count, last

    return f, state


STEPS = 0


def global_counter():
    def f(x):
        global STEPS
        STEPS = STEPS + 1 if x.sum() > 0 else 0
        return x * 2

    def state():
        return STEPS

    globals()["STEPS"] = 0
    return f, state


@dataclasses.dataclass
class Meter:
    total: float = 0.0
    count: int = 0
    values: list = dataclasses.field(default_factory=list)

    def update(self, value, n=1):
        self.total += value * n
        self.count += n
        self.values.append(value)

    @property
    def average(self):
        return self.total / self.count


def average_meter():
    meter = Meter()

    def f(x):
        meter.update(x.sum().item(), n=3)
        return x * 2

    return f, meter


def average_that_is_used():
    meter = Meter()

    def f(x):
        meter.update(x.sum().item())
        return x - meter.average

    return f, meter


Pair = collections.namedtuple("Pair", ["low", "high"])


def stored_namedtuple():
    box = types.SimpleNamespace(bounds=Pair(0.0, 0.0))

    def f(x):
        box.bounds = Pair(min(box.bounds.low, x.min().item()), max(box.bounds.high, x.max().item()))
        return x.clamp(box.bounds.low / 2, box.bounds.high / 2)

    return f, box


def early_stopping():
    state = types.SimpleNamespace(best=None, patience=0, stop=False)

    def f(x):
        loss = x.sum().item()
        if state.best is None or loss < state.best - 1e-3:
            state.best, state.patience = loss, 0
        else:
            state.patience += 1
            if state.patience >= 2:
                state.stop = True
        return x * 2 if not state.stop else x

    return f, state


def new_object():
    box = types.SimpleNamespace(last=None)

    def f(x):
        meter = Meter()
        meter.update(x.sum().item())
        box.last = meter
        return x * 2

    return f, box


def list_operations():
    numbers = [5, 3, 1]

    def f(x):
        if x.sum() > 0:
            numbers.append(len(numbers))
            numbers.sort()
        else:
            numbers.insert(0, 9)
            numbers.pop()
        return x * numbers[0]

    return f, numbers


def heap_of_losses():
    heap = []

    def f(x):
        heapq.heappush(heap, x.sum().item())
        if len(heap) > 3:
            heapq.heappop(heap)
        return x.sin()

    return f, heap


def sorted_losses():
    losses = []

    def f(x):
        bisect.insort(losses, round(x.norm().item(), 2))
        del losses[4:]
        return x * 2

    return f, losses


def context_manager_of_flags():
    flags = types.SimpleNamespace(training=True, entered=0)

    @contextlib.contextmanager
    def evaluation():
        before, flags.training = flags.training, False
        flags.entered += 1
        try:
            yield
        finally:
            flags.training = before

    def f(x):
        with evaluation():
            y = x * (1 if flags.training else 2)
        return y if y.sum() > 0 else -y

    return f, flags


def property_with_setter():
    class Model:
        def __init__(self):
            self._scale = 1.0
            self.log = []

        @property
        def scale(self):
            return self._scale

        @scale.setter
        def scale(self, value):
            self.log.append(value)
            self._scale = value

    model = Model()

    def f(x):
        model.scale = x.abs().max().item()
        return x / model.scale

    return f, model


def slots():
    class Slotted:
        __slots__ = ("count", "last")

    box = Slotted()
    box.count, box.last = 0, None

    def f(x):
        box.count += 1
        box.last = x.detach().sum()
        return x * 2

    return f, lambda: (box.count, box.last)


class Phase(enum.Enum):
    WARM = 1
    COLD = 2


def state_machine():
    machine = types.SimpleNamespace(phase=Phase.COLD, changes=0)

    def f(x):
        phase = Phase.WARM if x.sum() > 0 else Phase.COLD
        if phase is not machine.phase:
            machine.phase = phase
            machine.changes += 1
        return x * phase.value

    return f, machine


def grouped_by_sign():
    groups = {}

    def f(x):
        groups.setdefault(x.sum().item() > 0, []).append(x.detach())
        return x * len(groups)

    return f, groups


def text_log():
    log = types.SimpleNamespace(text="")

    def f(x):
        log.text += f"{x.sum().item():+.1f};"
        return x * 2

    return f, log


def restored_by_finally():
    settings = {"scale": 1.0}

    def f(x):
        before = settings["scale"]
        settings["scale"] = 3.0
        try:
            if x.min() < -2:
                raise ValueError("small")
            return x * settings["scale"]
        except ValueError:
            return x
        finally:
            settings["scale"] = before

    return f, settings


def closure_that_is_stored():
    box = types.SimpleNamespace(function=None, seen=0)

    def f(x):
        scale = 2.0 if x.sum() > 0 else 3.0
        y = (lambda value: value * scale)(x)
        box.seen += scale
        return y

    return f, box


def iterates_an_ordered_dict():
    layers = collections.OrderedDict(a=1.0, b=2.0)

    def f(x):
        for name, value in layers.items():
            x = x * value
            layers[name] = value + 0.5
        layers.move_to_end("a")
        return x

    return f, layers


def nested_functions_with_state():
    log = []

    @tl.compile(backend="replay")
    def inner(x):
        log.append(len(log))
        return x * 2 if x.sum() > 0 else x * 3

    return lambda x: inner(x) + inner(x * 0.5), log


def user_dict():
    class Registry(collections.UserDict):
        pass

    registry = Registry()

    def f(x):
        registry["last"] = x.detach().norm()
        registry["n"] = registry.get("n", 0) + 1
        return x * 2

    return f, lambda: dict(registry)


WRITING = [
    value
    for value in [*globals().values()]
    if isinstance(value, types.FunctionType) and value.__module__ == __name__
]
