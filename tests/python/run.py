# SPDX-License-Identifier: Apache-2.0
"""Runs test_NAME.py; 77 and a word where what it needs is not there. Usage: run.py NAME [UNITTEST...]"""

import importlib.util
import sys
import unittest

missing = [name for name in ("numpy", "google.protobuf") if importlib.util.find_spec(name.split(".")[0]) is None]
if missing:
    print(f"skipped: {', '.join(missing)} not installed (apt install python3-numpy python3-protobuf)")
    sys.exit(77)
result = unittest.main(
    module=f"test_{sys.argv[1]}", argv=["test_" + sys.argv[1], *sys.argv[2:]], verbosity=2, exit=False
).result
if result.testsRun == len(result.skipped):
    sys.exit(77)
sys.exit(not result.wasSuccessful())
