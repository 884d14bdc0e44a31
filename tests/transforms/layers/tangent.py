"""A layer for tests: forward mode, by OperatorCall."""

import torchlayers as tl


class Tangent(tl.Layer):
    """parts is a tangent."""

    def inputs(self, x, tangent):
        return (self.tensor(x, tangent),), {}

    def outputs(self, result):
        return result.value, result.parts


@Tangent.rule("any")
def push(layer, op, *args, **kwargs):
    call = tl.OperatorCall(layer, op, args, kwargs)
    return call.results(call.tangent([x.parts for x in call.operands]))
