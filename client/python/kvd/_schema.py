# SPDX-License-Identifier: Apache-2.0
"""Message classes of the package kvd.v1, from the descriptor kvd.binpb that the build makes of proto/kvd.proto.

The descriptor is read at run time, so that one wheel serves every release of protobuf from 3.20 on: generated modules
are tied to the one that made them. It has a pool of its own and meets no other kvd.proto of the process.
"""

from __future__ import annotations

import os
from typing import Any, Callable

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PATH = os.path.join(os.path.dirname(__file__), "kvd.binpb")


def _load() -> Any:
    try:
        with open(_PATH, "rb") as file:
            files = descriptor_pb2.FileDescriptorSet.FromString(file.read())
    except FileNotFoundError as error:
        raise ImportError(
            f"{_PATH} is missing: build the package (pip install client/python, or the target kvd_python), or run "
            "protoc --descriptor_set_out on proto/kvd.proto"
        ) from error
    pool = descriptor_pool.DescriptorPool()
    for each in files.file:
        pool.Add(each) if hasattr(pool, "Add") else pool.AddSerializedFile(each.SerializeToString())
    return pool


_pool = _load()
_class_of: Callable[[Any], Any] = getattr(message_factory, "GetMessageClass", None) or (
    message_factory.MessageFactory(_pool).GetPrototype
)


def message(name: str) -> Any:
    """The class of a message of kvd.proto, for example message("HelloRequest")."""
    return _class_of(_pool.FindMessageTypeByName("kvd.v1." + name))


def service(name: str) -> Any:
    """The descriptor of a service of kvd.proto."""
    return _pool.FindServiceByName("kvd.v1." + name)
