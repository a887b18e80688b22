"""The address that a server listens at, and who may reach it there."""

from __future__ import annotations

import errno
import ipaddress
import socket

from stolon.errors import InvalidRequest
from stolon.srt.server.gate import LOOPBACK_HOSTS


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_bind(host: str, *, api_key: str | None, insecure: bool) -> None:
    """Raise InvalidRequest for a bind beyond this machine without a key, unless `insecure`."""
    if api_key is not None and not api_key.strip():
        raise InvalidRequest("the API key is empty", param="api_key")
    if api_key is None and not insecure and not is_loopback(host):
        raise InvalidRequest(
            f"binding {host} lets other machines use this server without a key",
            param="host",
            hint="give --api-key, or --insecure if the network is trusted",
        )


def allowed_hosts(host: str) -> frozenset[str] | None:
    """The Host headers a bind accepts: on loopback only loopback's names, else any."""
    if not is_loopback(host):
        return None
    return LOOPBACK_HOSTS | {f"[{host}]" if ":" in host else host}


def open_listener(host: str, port: int) -> socket.socket:
    """A bound TCP socket. Raises InvalidRequest for an address that can't be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, ValueError) as error:  # ValueError: not a name at all
        raise InvalidRequest(
            f"{host!r} is no name or address of this machine",
            param="host",
            hint="choose another with --host",
        ) from error
    try:
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise no_listener(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise no_listener(host, port, error) from error
    except BaseException:
        listener.close()
        raise
    return listener


def no_listener(host: str, port: int, error: OSError) -> InvalidRequest:
    """Why an address can't be had."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return InvalidRequest(f"{where} is in use", param="port", hint="choose another with --port")
    if error.errno == errno.EACCES:
        return InvalidRequest(
            f"{where} is reserved for the system", param="port", hint="choose another with --port"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return InvalidRequest(
            f"{host} is no address of this machine", param="host", hint="choose another with --host"
        )
    return InvalidRequest(f"{where} can't be had: {error.strerror or error}", param="host")
