# SPDX-License-Identifier: Apache-2.0
"""A socket between a client and kvd, in this process (so that kvd sees the same pid), that loses answers on command."""

import os
import socket
import struct
import threading


class Proxy:
    """`lose(type)`: the next answer of that type is swallowed, and the connection cut. `hold(type)`: it waits for
    let_go(). Frames pass whole."""

    def __init__(self, folder, target):
        self.path = os.path.join(folder, "proxy.sock")
        self._target = target
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        self._lock = threading.Lock()
        self._losing, self._holding = set(), set()
        self._held = threading.Event()
        self._ends = []
        self.lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def lose(self, *types):
        with self._lock:
            self._losing.update(types)

    def hold(self, type_):
        with self._lock:
            self._held.clear()
            self._holding.add(type_)

    def let_go(self):
        self._held.set()

    def cut(self):
        with self._lock:
            ends, self._ends = self._ends, []
        self._end(*ends)

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.let_go()
        self.cut()

    def _accept(self):
        while True:
            try:
                client = self._listener.accept()[0]
                server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                server.connect(self._target)
            except OSError:
                return
            with self._lock:
                self._ends += [client, server]
            threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
            threading.Thread(target=self._answers, args=(client, server), daemon=True).start()

    @staticmethod
    def _end(*sockets):
        for each in sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _requests(self, client, server):
        try:
            while True:
                data = client.recv(65536)
                if not data:
                    break
                server.sendall(data)
        except OSError:
            pass
        self._end(server)

    def _answers(self, client, server):
        data = b""
        try:
            while True:
                some = server.recv(65536)
                if not some:
                    break
                data += some
                while len(data) >= 4 and len(data) >= 4 + struct.unpack_from("<I", data)[0]:
                    n = 4 + struct.unpack_from("<I", data)[0]
                    frame, data = data[:n], data[n:]
                    if self._is_lost(struct.unpack_from("<H", frame, 4)[0]):
                        raise OSError
                    client.sendall(frame)
        except OSError:
            pass
        self._end(client, server)
        client.close()
        server.close()

    def _is_lost(self, type_):
        with self._lock:
            lost = type_ in self._losing
            self._losing.discard(type_)
            held = type_ in self._holding
            self._holding.discard(type_)
            self.lost += lost
        if held:
            self._held.wait(20)
        return lost
