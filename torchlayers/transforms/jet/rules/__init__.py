"""The rules of jet, a family of operators in each module. Operators without one use nested jvps."""

from torchlayers.transforms.jet.layer import Jet
from torchlayers.transforms.jet.rules import activations as activations
from torchlayers.transforms.jet.rules import decomposed as decomposed
from torchlayers.transforms.jet.rules import elementwise as elementwise
from torchlayers.transforms.jet.rules import in_cpp as in_cpp
from torchlayers.transforms.jet.rules import linear as linear
from torchlayers.transforms.jet.rules import linear_algebra as linear_algebra
from torchlayers.transforms.jet.rules import normalization as normalization
from torchlayers.transforms.jet.rules import piecewise as piecewise
from torchlayers.transforms.jet.rules import products as products
from torchlayers.transforms.jet.rules import random as random
from torchlayers.transforms.jet.rules import reductions as reductions
from torchlayers.transforms.jet.rules import softmax as softmax
from torchlayers.transforms.jet.rules import terms as terms

Jet.rule("any")(Jet.by_nested_jvps)
