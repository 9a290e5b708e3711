"""Files of the Hugging Face hub, from the local cache or downloaded."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from urllib.parse import urlsplit

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from poise.errors import InvalidCheckpointError, ModelNotFoundError, reason_of

PROBE_SECONDS = 3.0
_cache_only: ContextVar[bool] = ContextVar("cache_only", default=False)


@contextmanager
def cache_only() -> Iterator[None]:
    """Download nothing inside the block: what is not in the cache is a `ModelNotFoundError`."""
    token = _cache_only.set(True)
    try:
        yield
    finally:
        _cache_only.reset(token)


def fetch(repo: str, names: Sequence[str], cache_dir: str | None = None) -> Path:
    """Return the first of ``names`` that the repository has, and download it if it is not in the cache."""
    for name in names:
        try:
            return Path(huggingface_hub.hf_hub_download(repo, name, cache_dir=cache_dir, local_files_only=True))
        except LocalEntryNotFoundError:
            continue
        except HFValidationError as error:
            raise ModelNotFoundError(f"'{repo}' is not a repository name: {error}.", hint="Give ORG/NAME.") from error
    _require_network(repo, names, cache_dir)
    for name in names:
        try:
            return Path(huggingface_hub.hf_hub_download(repo, name, cache_dir=cache_dir))
        except LocalEntryNotFoundError as error:
            raise _missing(repo, names, cache_dir, str(error)) from error
        except EntryNotFoundError:
            continue
        except (HfHubHTTPError, OSError) as error:
            raise _missing(repo, names, cache_dir, str(error)) from error
    raise InvalidCheckpointError(
        f"The repository {repo} has none of {', '.join(names)}.",
        hint="Only safetensors are accepted: convert its weights and load the folder with local-dir:PATH.",
    )


def fetch_folder(repo: str, patterns: Sequence[str], cache_dir: str | None = None, *, needs: str) -> Path:
    """Return a folder with the repository's files that match ``patterns``; the file ``needs`` must be among them."""
    try:
        local = huggingface_hub.snapshot_download(
            repo, allow_patterns=list(patterns), cache_dir=cache_dir, local_files_only=True
        )
        if (Path(local) / needs).is_file():
            return Path(local)
    except LocalEntryNotFoundError:
        pass
    except HFValidationError as error:
        message = f"'{repo}' is neither a folder nor a repository name."
        raise ModelNotFoundError(message, hint="Give ORG/NAME.") from error
    _require_network(repo, patterns, cache_dir)
    try:
        return Path(huggingface_hub.snapshot_download(repo, allow_patterns=list(patterns), cache_dir=cache_dir))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise _missing(repo, patterns, cache_dir, str(error)) from error


def _require_network(repo: str, names: Sequence[str], cache_dir: str | None) -> None:
    """Raise an error if the hub can't be reached; its client would retry for half a minute."""
    if _cache_only.get():
        raise _missing(repo, names, cache_dir, "downloads are off here")
    if constants.HF_HUB_OFFLINE:
        raise _missing(repo, names, cache_dir, "offline mode is on")
    if urllib.request.getproxies():
        return  # the hub may be reachable only through the proxy
    address = urlsplit(constants.ENDPOINT)
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((address.hostname or "", port), timeout=PROBE_SECONDS).close()
    except OSError as error:
        raise _missing(repo, names, cache_dir, f"{address.hostname} can't be reached ({reason_of(error)})") from error


def _listed(names: Sequence[str]) -> str:
    """Return the names of files; of a whole list of patterns, the first says enough."""
    return " or ".join(names) if len(names) <= 3 else f"{names[0]}, with the weights as safetensors,"


def _missing(repo: str, names: Sequence[str], cache_dir: str | None, reason: str) -> ModelNotFoundError:
    cache = cache_dir or constants.HF_HUB_CACHE
    return ModelNotFoundError(
        f"{_listed(names)} of {repo} is not in the cache '{cache}' and can't be downloaded: {reason}.",
        hint=f"On a machine with network access, run: hf download {repo} -- then copy its folder "
        f"models--{repo.replace('/', '--')} into '{cache}'; or put the files into any folder and use local-dir:PATH "
        "(open_clip) or transformers:PATH.",
    )
