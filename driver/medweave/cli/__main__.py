"""`python -m medweave.cli` is `medweave`."""

import sys

from medweave.cli import main

if __name__ == "__main__":
    sys.exit(main())
