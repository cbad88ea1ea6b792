# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel; pyproject.toml says what it is. kvd/kvd.binpb is made of ../../proto/kvd.proto by protoc, by protoc-c,
or by grpcio-tools, whichever is there; a source distribution brings it along."""

import os
import shutil
import subprocess
import sys

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = os.path.dirname(os.path.abspath(__file__))
PROTO = os.path.join(HERE, os.pardir, os.pardir, "proto")


def compiler():
    for name in ("protoc", "protoc-c"):
        if shutil.which(name):
            return [name]
    try:
        import grpc_tools.protoc  # noqa: F401
    except ImportError:
        sys.exit("kvd-client: protoc, protoc-c or grpcio-tools is needed to build it (apt install protobuf-compiler)")
    return [sys.executable, "-m", "grpc_tools.protoc"]


def make_descriptor(to):
    if os.path.exists(os.path.join(PROTO, "kvd.proto")):
        subprocess.run(compiler() + [f"--proto_path={PROTO}", f"--descriptor_set_out={to}", "kvd.proto"], check=True)
    elif os.path.exists(os.path.join(HERE, "kvd", "kvd.binpb")):
        shutil.copyfile(os.path.join(HERE, "kvd", "kvd.binpb"), to)
    else:
        sys.exit("kvd-client: build it in kvd's source tree, or from its source distribution")


class BuildPackage(build_py):
    def run(self):
        super().run()
        self.mkpath(os.path.join(self.build_lib, "kvd"))
        make_descriptor(os.path.join(self.build_lib, "kvd", "kvd.binpb"))


class SourceDistribution(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        make_descriptor(os.path.join(base_dir, "kvd", "kvd.binpb"))


setup(cmdclass={"build_py": BuildPackage, "sdist": SourceDistribution})
