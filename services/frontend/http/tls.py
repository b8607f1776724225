"""Serves TLS with certificate files that may change while the frontend listens."""

import ssl
from pathlib import Path

from services.runtime.config.frontend import FrontendConfig
from services.runtime.nats.tls_files import TlsFiles


class Tls:
    """The TLS contexts of a listener.

    The listener keeps `context`; each connection gets the newest context that `reload` made.
    (Loading new files into one context would add authorities, but never remove one.)
    """

    def __init__(self, cert_file: str, key_file: str | None, client_ca_file: str | None) -> None:
        """Raises ValueError or OSError, as `reload`."""
        self._files = TlsFiles(cert_file, key_file, client_ca_file)
        self.context = self._make()
        self._current = self.context
        self.context.sni_callback = self._choose

    @classmethod
    def of(cls, config: FrontendConfig) -> "Tls | None":
        """Makes the configured contexts. Returns None for plain HTTP. Raises as `reload`."""
        if config.tls_cert_file is None:
            return None
        return cls(config.tls_cert_file, config.tls_key_file, config.tls_client_ca_file)

    @property
    def files(self) -> list[str]:
        """The files to watch."""
        return self._files.paths

    def reload(self) -> None:
        """Reads the files again; open connections keep their certificates.

        Raises ValueError, with the file's name, for one that cannot be used, OSError for one that
        cannot be opened. Then nothing changes.
        """
        self._current = self._make()

    def _make(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["http/1.1"])
        for path in self._files.paths:
            _check_readable(path)
        try:
            self._files.load_certificate(context)
            if self._files.ca_file:
                context.load_verify_locations(self._files.ca_file)
                # Optional here, because probes have no certificate; the middleware requires one for
                # all other paths.
                context.verify_mode = ssl.CERT_OPTIONAL
        except ssl.SSLError as error:
            raise ValueError(self._files.fault(error)) from error
        return context

    def _choose(
        self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext
    ) -> None:
        # OpenSSL calls this for every handshake, with or without a server name.
        connection.context = self._current


def _check_readable(path: str) -> None:
    """Raises OSError with the file's name, which OpenSSL's error lacks."""
    Path(path).open("rb").close()
