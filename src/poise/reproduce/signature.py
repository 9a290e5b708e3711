"""Signatures of records with OpenSSH: ``ssh-keygen -Y`` over the canonical form, with keys that people already have."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from poise.errors import InvalidOptionError, MissingDependencyError
from poise.files import read_bounded, write_atomic
from poise.reproduce.answers import canonical
from poise.reproduce.record import InvalidRecordError

NAMESPACE = "poise-record"


def sign(record: Mapping[str, Any], key: Path, out: Path) -> None:
    """Write a signature of a record, made with a private key or, through the agent, with a public one."""
    if not key.is_file():
        raise InvalidOptionError(f"There is no key '{key}'.", hint="Make one: ssh-keygen -t ed25519.")
    done = _ssh(["-Y", "sign", "-f", str(key), "-n", NAMESPACE], canonical(record))
    if done.returncode or not done.stdout:
        raise InvalidOptionError(f"ssh-keygen can't sign with '{key}': {_said(done)}.", hint="Is it a key of OpenSSH?")
    write_atomic(out, done.stdout)


def check(record: Mapping[str, Any], signature: Path, signers: Path | None = None) -> str:
    """Return who signed a record: a name of the file of allowed signers or, without one, the key's fingerprint.

    Raises:
        InvalidRecordError: The signature is of another content, or by nobody in the file.
    """
    try:
        read_bounded(signature, 1 << 20)
    except OSError:
        raise InvalidOptionError(
            f"There is no signature '{signature}'.", hint="`poise reproduce sign` writes it."
        ) from None
    place = ["-n", NAMESPACE, "-s", str(signature)]
    if signers is None:
        done = _ssh(["-Y", "check-novalidate", *place], canonical(record))
        return _said(done) if done.returncode == 0 else _refuse(signature, done)
    names = _ssh(["-Y", "find-principals", "-s", str(signature), "-f", str(signers)], b"")
    name = names.stdout.decode("utf-8", "replace").strip().split("\n")[0]
    if names.returncode or not name:
        return _refuse(signature, names)
    done = _ssh(["-Y", "verify", "-f", str(signers), "-I", name, *place], canonical(record))
    return name if done.returncode == 0 else _refuse(signature, done)


def _refuse(signature: Path, done: subprocess.CompletedProcess[bytes]) -> str:
    raise InvalidRecordError(
        f"The signature '{signature}' is not of this record: {_said(done)}.",
        hint="The record or the signature was changed, or the signer is not in the file of allowed signers.",
    )


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    text = (done.stderr or done.stdout).decode("utf-8", "replace") or done.stdout.decode("utf-8", "replace")
    return " ".join(text.split()).rstrip(".")


def _ssh(arguments: list[str], content: bytes) -> subprocess.CompletedProcess[bytes]:
    program = shutil.which("ssh-keygen")
    if program is None:
        raise MissingDependencyError("Signatures need ssh-keygen.", hint="Install OpenSSH, e.g. openssh-client.")
    return subprocess.run([program, *arguments], input=content, capture_output=True, timeout=60, check=False)
