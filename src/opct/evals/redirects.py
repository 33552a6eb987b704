"""No provider follows a redirect: what was sent to one address, prompts and keys in headers, would go to another.

Providers' packages send with clients of their own, some made anew for each call. These come from three libraries, whose
one method that sends is replaced: it differs within `no_redirects` alone.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from typing import Any

LIBRARIES = (
    ("httpx", "AsyncClient", "send", "follow_redirects"),
    ("httpx2", "AsyncClient", "send", "follow_redirects"),
    ("aiohttp", "ClientSession", "_request", "allow_redirects"),
)
_addresses: ContextVar[list[str] | None] = ContextVar("_addresses", default=None)


@contextlib.contextmanager
def no_redirects() -> Iterator[list[str]]:
    """Calls of this task follow no redirect. Gives the addresses that they were sent to, filled as they come."""
    _replace_senders()
    addresses: list[str] = []
    token = _addresses.set(addresses)
    try:
        yield addresses
    finally:
        _addresses.reset(token)


@functools.cache
def _replace_senders() -> None:
    for library, client, method, option in LIBRARIES:
        if find_spec(library) is not None:
            sender = getattr(import_module(library), client)
            setattr(sender, method, _following_none(getattr(sender, method), option))


def _following_none(send: Any, option: str) -> Any:
    @functools.wraps(send)
    async def send_once(*args: Any, **options: Any) -> Any:
        addresses = _addresses.get()
        if addresses is None:
            return await send(*args, **options)
        response = await send(*args, **{**options, option: False})
        status = getattr(response, "status_code", None) or response.status
        if 300 <= status <= 399 and "location" in response.headers:
            addresses.append(str(response.headers["location"]))
            await response.aclose() if hasattr(response, "aclose") else response.close()
            # an error: Azure's package follows an answer with an address by itself
            raise RuntimeError(f"redirected to {addresses[-1]}")
        return response

    return send_once
