# SPDX-License-Identifier: Apache-2.0
"""Runs test_NAME.py; 77 and a word where what the package needs is not installed. Usage: run.py NAME [UNITTEST...]"""

import importlib.util
import sys
import unittest

missing = [name for name in ("numpy", "google.protobuf") if importlib.util.find_spec(name.split(".")[0]) is None]
if missing:
    print(f"skipped: {', '.join(missing)} not installed (apt install python3-numpy python3-protobuf)")
    sys.exit(77)
unittest.main(module=f"test_{sys.argv[1]}", argv=["test_" + sys.argv[1], *sys.argv[2:]], verbosity=2)
