"""The rows of the table of pairs: features, each in a function of a vector of four numbers."""

from tests.pairs.rows import linalg as linalg
from tests.pairs.rows import own as own
from tests.pairs.rows import ranks as ranks
from tests.pairs.rows import torchs as torchs
from tests.pairs.rows.table import FEATURES as FEATURES
from tests.pairs.rows.table import Feature as Feature
