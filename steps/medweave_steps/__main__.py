"""`python -m medweave_steps VERB …`, for workers where the folder was only copied."""

import sys

from medweave_steps.cli import main

sys.exit(main())
