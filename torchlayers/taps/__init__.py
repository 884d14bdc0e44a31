"""Taps: named intermediate values of a function, and derivatives with respect to them.

A function names its intermediate values by :func:`tap`; module outputs are named by the modules'
paths (`module_calls.py`). A transform that wants some of them registers a listener while the
function runs (`listener.py`), and each named value is passed to all listeners, innermost first. A
listener is at the level of its transform; a value is at an inner level if there are transforms in
between (csrc/layers/level_views.h).
"""

from torchlayers.taps.api import intermediates as intermediates
from torchlayers.taps.api import tap as tap
from torchlayers.taps.api import with_tangents as with_tangents
from torchlayers.taps.api import with_taps as with_taps
from torchlayers.taps.api import with_values as with_values
from torchlayers.taps.listener import Names as Names
