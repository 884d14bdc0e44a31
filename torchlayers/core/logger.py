"""The package's logger, ``logging.getLogger("torchlayers")``: quiet unless a handler is added.

INFO has a message for what a program may wait for, or not expect: a function is captured, or
captured again and why; compiled code is adopted or refused; vmap loops over samples. DEBUG has what
happens on the way there.
"""

import logging

logger = logging.getLogger("torchlayers")
logger.addHandler(logging.NullHandler())
