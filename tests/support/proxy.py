"""A forwarder between labelguard and PostgreSQL that cuts the line at a chosen moment."""

import contextlib
import socket
import threading


class Proxy:
    """Forwards to a port of this machine until the client's n-th piece of data; then nothing.

    `delivered` says whether that piece still reaches the server: its answer never comes back.
    """

    def __init__(self, port, cut_at=None, *, delivered=False):
        self._target, self._cut_at, self._delivered = port, cut_at, delivered
        self._lock, self._sockets = threading.Lock(), list[socket.socket]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.pieces, self.is_cut = 0, False

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind, error, traceback):
        self._listener.close()
        self._cut()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.is_cut:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, server]
                for work in (self._from_client, self._from_server):
                    threading.Thread(target=work, args=(client, server), daemon=True).start()

    def _from_client(self, client, server):
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                with self._lock:
                    self.pieces += 1
                    last = self.pieces == self._cut_at
                    if last:
                        self._close(client)  # before the server can answer
                    if not self.is_cut and (not last or self._delivered):
                        server.sendall(data)
                    if last:
                        self.is_cut = True
                        self._cut()
        self._close(server)

    def _from_server(self, client, server):
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                client.sendall(data)
        self._close(client)

    def _cut(self):
        for one in self._sockets:
            self._close(one)

    @staticmethod
    def _close(one):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
