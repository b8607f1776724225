"""Finds the file with which TLS cannot be set up, and what is wrong with it: OpenSSL's errors name
neither."""

import ssl


def tls_problem(
    error: ssl.SSLError, cert_file: str | None, key_file: str | None, ca_file: str | None
) -> str:
    """Returns why these files could not be loaded into a context, which raised `error`. Reads them
    again."""
    for file in filter(None, (ca_file, cert_file)):
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
        except ssl.SSLError:
            return f"{file} has no certificate in PEM form that can be read"
    key = key_file or cert_file
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"the key in {key} is not that of the certificate in {cert_file}"
    if error.reason in (None, "PEM_LIB"):
        return f"{key} has no private key in PEM form that can be read without a password"
    return f"{cert_file}: {error.reason}"
