"""Channels to coordinators of this user on this host, with what their user's own agents use."""

from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from drumbeat.access.client import credentials
from drumbeat.access.settings import AccessSettings

# gRPC ends its threads with the last channel or server, and waits for them with the
# interpreter's lock held, which they may need to forget the token of a call. So one is left.
_KEPT = grpc.insecure_channel("127.0.0.1:1")


@dataclass(frozen=True, kw_only=True, init=False, eq=False, repr=False)
class AsUser(AccessSettings):
    """A user who gives no option."""


def _credentials(
    address: str, token: str = ""
) -> tuple[grpc.ChannelCredentials | None, list[tuple[str, Any]]]:
    used = credentials(AsUser(), address)
    options = [*used.options, ("grpc.use_local_subchannel_pool", 1)]
    if (channel := used.channel) is None or used.token is None:
        return None, options
    return with_token(channel, token or used.token.text()), options


def with_token(channel: grpc.ChannelCredentials, text: str) -> grpc.ChannelCredentials:
    """Return credentials that send a token with each call."""
    return grpc.composite_channel_credentials(channel, grpc.access_token_call_credentials(text))


def channel_to(address: str) -> grpc.Channel:
    """Return a channel whose calls may do everything."""
    secret, options = _credentials(address)
    if secret is None:
        return grpc.insecure_channel(address, options)
    return grpc.secure_channel(address, secret, options)


def aio_channel_to(address: str, token: str = "") -> grpc.aio.Channel:
    """Return the same for asyncio, with another token if one is given."""
    secret, options = _credentials(address, token)
    if secret is None:
        return grpc.aio.insecure_channel(address, options)
    return grpc.aio.secure_channel(address, secret, options)
