"""A small OpenID provider for tests: it believes whoever comes, and signs what it says.

Discovery, keys, an authorization page that says yes at once, and a token endpoint that checks the
client's secret and that a code is used once.
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlparse

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT, SECRET = "laco", "the client's secret"


class Provider(ThreadingHTTPServer):
    """The provider at work; `email` is who signs in next."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.key = RSAKey.generate_key(2048, parameters={"kid": "1", "use": "sig"})
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.email = "vera@example.org"
        self.codes: dict[str, dict[str, Any]] = {}

    @property
    def metadata_url(self) -> str:
        """Where a client finds everything else."""
        return f"{self.url}/.well-known/openid-configuration"

    def token(self, nonce: str, email: str) -> str:
        """Who somebody is, signed."""
        now = int(time.time())
        claims = {
            "iss": self.url,
            "aud": CLIENT,
            "sub": email,
            "email": email,
            "email_verified": True,
            "nonce": nonce,
            "iat": now,
            "exp": now + 600,
        }
        return jwt.encode({"alg": "RS256", "kid": "1"}, claims, self.key)


class Answers(BaseHTTPRequestHandler):
    """What is answered to a request."""

    server: Provider  # type: ignore[assignment]

    def do_GET(self) -> None:
        """Discovery, keys, and the page that would ask for a password."""
        place = urlparse(self.path)
        asked = {name: values[0] for name, values in parse_qs(place.query).items()}
        url = self.server.url
        if place.path == "/.well-known/openid-configuration":
            self.say(
                {
                    "issuer": url,
                    "authorization_endpoint": f"{url}/authorize",
                    "token_endpoint": f"{url}/token",
                    "jwks_uri": f"{url}/keys",
                    "response_types_supported": ["code"],
                    "subject_types_supported": ["public"],
                    "id_token_signing_alg_values_supported": ["RS256"],
                }
            )
        elif place.path == "/keys":
            self.say({"keys": [self.server.key.as_dict(private=False)]})
        elif place.path == "/authorize" and asked.get("client_id") == CLIENT:
            code = secrets.token_urlsafe()
            self.server.codes[code] = {"nonce": asked["nonce"], "email": self.server.email}
            back = urlencode({"code": code, "state": asked["state"]})
            self.send_response(302)
            self.send_header("Location", f"{asked['redirect_uri']}?{back}")
            self.end_headers()
        else:
            self.say({"error": "invalid_request"}, 400)

    def do_POST(self) -> None:
        """A code for a token."""
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        asked = {name: values[0] for name, values in parse_qs(body).items()}
        known = self.server.codes.pop(asked.get("code", ""), None)
        given = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        by_header = self.headers.get("Authorization") == f"Basic {given}"
        if known is None or not (by_header or asked.get("client_secret") == SECRET):
            self.say({"error": "invalid_grant"}, 400)
            return
        token = self.server.token(**known)
        self.say({"access_token": "x", "token_type": "Bearer", "id_token": token})

    def say(self, document: dict[str, Any], status: int = 200) -> None:
        """Answer with JSON."""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@contextmanager
def provider() -> Iterator[Provider]:
    """A provider that answers while this lasts."""
    with Provider() as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()
