"""`runcompss … application.py VERB …` is `medweave-step VERB …` with this process as the master of the COMPSs runtime.

The runtime imports this file once before it starts itself, and then runs it as the main program. torch is loaded in the first
pass: libraries that start threads are safer loaded before the Java machine than after it. `medweave_steps/__main__.py`
does not serve: imported under its own name it would run.
"""

import importlib.util
import sys

if importlib.util.find_spec("torch"):
    import torch  # noqa: F401

from medweave_steps.cli import main

if __name__ == "__main__":
    sys.exit(main())
