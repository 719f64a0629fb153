"""Asks services for known vulnerabilities of what is pinned in requirements*.txt.

What a service finds is shown and fails the build. Where none answers, or one does not know some
packages, that is said and the build goes on.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PINNED = ("requirements.txt", "requirements-dev.txt")
SERVICES = ("pypi", "osv")


def asked(service: str) -> list[dict] | None:
    """What a service says of each package; None where it does not answer."""
    command = [sys.executable, "-m", "pip_audit", "--format=json", "--progress-spinner=off"]
    command += ["--timeout=10", "--disable-pip", "--no-deps", f"--vulnerability-service={service}"]
    command += [f"--requirement={file}" for file in PINNED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return None


def main() -> int:
    """0, or 1 where something is known to be vulnerable."""
    known: dict[str, list[str]] = {}
    names: set[str] = set()
    for service in SERVICES:
        for package in asked(service) or ():
            names.add(package["name"])
            if "vulns" in package:
                found = known.setdefault(package["name"], [])
                found += [f"{package['version']}: {one['id']}" for one in package["vulns"]]
    bad = {name: sorted(set(found)) for name, found in known.items() if found}
    for name, found in sorted(bad.items()):
        print(f"pip-audit: {name} {', '.join(found)}")
    if not known:
        print("pip-audit: no vulnerability service answers from here, so nothing was looked up.")
    else:
        unknown = sorted(names - set(known))
        rest = f"; not known there: {', '.join(unknown)}" if unknown else ""
        print(f"pip-audit: {len(known)} packages looked up, {len(bad)} vulnerable{rest}.")
    return 1 if bad else 0


if __name__ == "__main__":
    assert all(Path(file).is_file() for file in PINNED), "run this from the top folder"
    sys.exit(main())
