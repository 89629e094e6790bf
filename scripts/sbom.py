"""The dependencies as a bill of materials (CycloneDX 1.6, JSON), from `requirements.lock`.

`python scripts/sbom.py FILE` writes it (`make sbom`); `--licences` prints a table instead. Versions
and hashes are those of the lock, licences those that the installed packages declare. The same lock
gives the same bytes, so two bills can be compared.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import uuid
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

import headwater

ROOT = Path(__file__).resolve().parent.parent
_PIN = re.compile(r"^([A-Za-z0-9_.-]+)==([^\s;\\]+)\s*(?:;\s*([^\\]*))?")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_UNKNOWN = "not installed here"


@dataclass(frozen=True, slots=True)
class Package:
    """A line of the lock, with its hashes."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]

    @property
    def licence(self) -> str:
        """What the installed package says of its licence."""
        try:
            found: Any = metadata(self.name)
        except PackageNotFoundError:
            return _UNKNOWN
        named = found.get("License-Expression") or ""
        classified = [
            one.rpartition(" :: ")[2]
            for one in found.get_all("Classifier") or []
            if one.startswith("License ::")
        ]
        text = (found.get("License") or "").strip().splitlines()
        return named or " / ".join(classified) or (text[0] if text else "not declared")


def read_lock(text: str) -> list[Package]:
    """Return the packages of a lock, in its order.

    Raises:
        ValueError: a package has no hash.
    """
    found: list[Package] = []
    for block in re.split(r"\n(?=[A-Za-z0-9])", text.strip()):
        pin = _PIN.match(block)
        if pin is None:
            continue
        hashes = tuple(_HASH.findall(block))
        if not hashes:
            raise ValueError(f"{pin[1]} has no hash in the lock")
        found.append(Package(pin[1], pin[2], (pin[3] or "").strip(), hashes))
    return found


def bill(packages: list[Package], version: str, wanted: list[str]) -> dict[str, Any]:
    """Return the document. `wanted` are the names that pyproject.toml asks for to run."""
    product = f"pkg:pypi/headwater@{version}"
    components = [_component(one) for one in packages]
    listed = json.dumps([[one["purl"], one["hashes"]] for one in components])
    direct = sorted(one["bom-ref"] for one in components if one["name"] in wanted)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, product + listed)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": product,
                "name": "headwater",
                "version": version,
                "purl": product,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": components,
        "dependencies": [{"ref": product, "dependsOn": direct}],
    }


def _component(package: Package) -> dict[str, Any]:
    purl = f"pkg:pypi/{package.name}@{package.version}"
    made: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": package.version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": one} for one in package.hashes],
    }
    if package.licence != _UNKNOWN:
        made["licenses"] = [{"license": {"name": package.licence}}]
    if package.marker:
        made["properties"] = [{"name": "headwater:marker", "value": package.marker}]
    return made


def wanted_names(project: dict[str, Any]) -> list[str]:
    """Return what the package needs to run, its extras included."""
    extras = project["project"]["optional-dependencies"].values()
    lines = [*project["project"]["dependencies"], *(one for extra in extras for one in extra)]
    return sorted({re.split(r"[\[<>=;~! ]", line)[0].lower() for line in lines})


def main(arguments: list[str]) -> int:
    """Write the bill, or print the licences."""
    packages = read_lock((ROOT / "requirements.lock").read_text())
    if arguments == ["--licences"]:
        for one in packages:
            print(f"{one.name:32} {one.version:16} {one.licence}")
        return 0
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    made = bill(packages, headwater.__version__, wanted_names(project))
    path = Path(arguments[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made, indent=2) + "\n")
    print(f"{path}: {len(packages)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
