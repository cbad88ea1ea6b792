# SPDX-License-Identifier: Apache-2.0
"""What a wheel requires on this machine, but for what comes from elsewhere. Usage: vllm_requirements.py WHEEL"""

import sys
import zipfile
from email.parser import Parser

from pip._vendor.packaging.requirements import Requirement

APART = {"torch", "torchaudio", "torchvision", "torchcodec", "setuptools", "intel-openmp"}

with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(each for each in wheel.namelist() if each.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(wheel.read(name).decode())
for each in map(Requirement, metadata.get_all("Requires-Dist", [])):
    if each.name not in APART and (each.marker is None or each.marker.evaluate({"extra": ""})):
        each.marker = None
        print(each)
