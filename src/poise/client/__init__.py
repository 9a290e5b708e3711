"""A client of `poise serve`, for programs that do not run a model themselves. It needs the extra `client` only.

Example::

    from poise.client import Client

    with Client("http://127.0.0.1:8000") as client:
        reply = client.classify("image.jpg", labels=["cat", "dog"], methods=["kld+cats"])
        reply.result.label, reply.result.confidence
"""

from poise.client.http_client import AsyncClient, Client
from poise.client.replies import RemoteModel, Reply

__all__ = ["AsyncClient", "Client", "RemoteModel", "Reply"]
