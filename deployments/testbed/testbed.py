#!/usr/bin/env python3
"""The testbed's command: `up`, `down`, `status`, and what works on a testbed that is up."""

from __future__ import annotations

import sys

from medweave_testbed.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
