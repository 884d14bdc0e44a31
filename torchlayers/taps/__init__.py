"""Taps: values inside a function by name, and derivatives by them.

A function names its intermediate values itself, by :func:`tap`, or its modules do, by their paths
(`module_calls.py`). Whoever wants some of them listens while the function runs (`listener.py`), and
each value that has a name goes by all who listen, the innermost first. A listener is at the level
of its transform; a value is of an inner level where there are transforms between
(csrc/layers/inner_levels.h).
"""

from torchlayers.taps.api import intermediates as intermediates
from torchlayers.taps.api import tap as tap
from torchlayers.taps.api import with_tangents as with_tangents
from torchlayers.taps.api import with_taps as with_taps
from torchlayers.taps.api import with_values as with_values
from torchlayers.taps.listener import Names as Names
