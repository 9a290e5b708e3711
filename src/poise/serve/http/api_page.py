"""A page on which every route can be tried, without anything from other machines."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

PATH = "/docs"


def add_page(app: FastAPI) -> None:
    """Add the page; the browser runs no other script or style than the page's own, and contacts this server only."""
    text = (files("poise.serve.http") / "assets" / "api.html").read_text("utf-8")
    rules = ["default-src 'none'", "connect-src 'self'", "img-src data:", "base-uri 'none'", "form-action 'none'"]
    rules += ["frame-ancestors 'none'", f"style-src {_hash(text, 'style')}", f"script-src {_hash(text, 'script')}"]
    headers = {"Content-Security-Policy": "; ".join(rules), "X-Content-Type-Options": "nosniff"}

    @app.get(PATH, include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(text, headers=headers)


def _hash(text: str, tag: str) -> str:
    (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
