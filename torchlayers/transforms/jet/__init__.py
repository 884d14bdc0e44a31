"""Taylor mode: derivatives of any order along a curve, in one pass.

Series (`series.py`) are computed with as mathematics does; the layer (`layer.py`) attaches them to
tensors; `rules/` has what each operator does to them, and an operator without a rule is
differentiated by nested jvps (`nested_jvp.py`). `api.py` has the public function.
"""

from torchlayers.transforms.jet.api import jet as jet
