"""The files of certificates and keys for TLS, and what is wrong with one that cannot be used:
OpenSSL's errors name neither the file nor the fault."""

import ssl

from msgspec import Struct


class TlsFiles(Struct, frozen=True):
    """The files in PEM form of one end of a connection."""

    cert_file: str | None
    key_file: str | None
    """None: the key is in `cert_file`."""
    ca_file: str | None
    """The authorities that the other end's certificate must be of."""

    @property
    def paths(self) -> list[str]:
        """The files that are set."""
        return [path for path in (self.cert_file, self.key_file, self.ca_file) if path]

    def load_certificate(self, context: ssl.SSLContext) -> None:
        """Loads certificate and key into a context, if they are set. Raises SSLError or OSError."""
        if self.cert_file is not None:
            # Without a password, OpenSSL would prompt for one on the terminal.
            context.load_cert_chain(self.cert_file, self.key_file, password="")

    def fault(self, error: ssl.SSLError) -> str:
        """Why the files could not be loaded into a context, which raised `error`. Reads them
        again."""
        for file in filter(None, (self.ca_file, self.cert_file)):
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
            except ssl.SSLError:
                return f"{file} has no certificate in PEM form that can be read"
        key = self.key_file or self.cert_file
        if error.reason == "KEY_VALUES_MISMATCH":
            return f"the key in {key} is not that of the certificate in {self.cert_file}"
        if error.reason in (None, "PEM_LIB"):
            return f"{key} has no private key in PEM form that can be read without a password"
        return f"{self.cert_file}: {error.reason}"
