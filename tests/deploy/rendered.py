"""deploy/kubernetes as `kubectl apply -k` sends it, with freshly made secrets."""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from services.cli.commands.make_secrets import make_secrets

DEPLOY = Path(__file__).parents[2] / "deploy"
Manifest = dict[str, Any]


def kustomize() -> list[str] | None:
    """The command that renders a directory; None where neither kubectl nor kustomize is
    installed."""
    if shutil.which("kustomize"):
        return ["kustomize", "build"]
    return ["kubectl", "kustomize"] if shutil.which("kubectl") else None


def documents(text: str) -> Iterator[Manifest]:
    """The documents of a YAML stream."""
    for part in f"\n{text}".split("\n---\n"):
        if document := msgspec.yaml.decode(part.encode()):
            yield document


class Rendered:
    """The manifests of an overlay."""

    def __init__(self, directory: Path, overlay: str, components: Sequence[str] = ()) -> None:
        """`components`: further ones, beside those of the overlay. Raises CalledProcessError."""
        command = kustomize()
        assert command is not None
        shutil.copytree(DEPLOY, directory / "deploy", ignore=shutil.ignore_patterns("secrets"))
        kubernetes = directory / "deploy" / "kubernetes"
        self.secrets = kubernetes / "secrets"
        make_secrets(self.secrets)
        shutil.copy(DEPLOY / "kubernetes" / "secrets" / "kustomization.yaml", self.secrets)
        (self.secrets / "frontend" / "keys.txt").write_text(f"admin:{'0' * 64}\n")
        place = kubernetes / "overlays" / overlay
        if components:
            with (place / "kustomization.yaml").open("a") as file:
                file.write(
                    f"components: [{', '.join(f'../../components/{name}' for name in components)}]\n"
                )
        done = subprocess.run(
            [*command, str(place)], check=True, capture_output=True, text=True, timeout=120
        )
        self.manifests = list(documents(done.stdout))

    def get(self, kind: str, name: str) -> Manifest:
        (found,) = [
            m for m in self.manifests if m["kind"] == kind and m["metadata"]["name"] == name
        ]
        return found

    def all(self, *kinds: str) -> list[Manifest]:
        return [manifest for manifest in self.manifests if manifest["kind"] in kinds]

    def generated(self, kind: str, name: str) -> Manifest:
        """A ConfigMap or Secret with this name, which a hash may follow."""
        (found,) = [m for m in self.all(kind) if m["metadata"]["name"].startswith(name)]
        return found

    def environment(self, workload: Manifest) -> dict[str, str]:
        """The variables of the only container of a workload's pods. Those of Secrets are left
        out."""
        template = workload["spec"]["template"]
        (container,) = template["spec"]["containers"]
        found: dict[str, str] = {}
        for source in container.get("envFrom", ()):
            found |= self.get("ConfigMap", source["configMapRef"]["name"])["data"]
        for variable in container.get("env", ()):
            field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
            if "value" in variable:
                found[variable["name"]] = variable["value"]
            elif field.startswith("metadata.labels['"):
                found[variable["name"]] = template["metadata"]["labels"][field.split("'")[1]]
        return found

    def mounted(self, workload: Manifest, path: str) -> set[str]:
        """The files of the Secrets that are mounted at a path."""
        spec = workload["spec"]["template"]["spec"]
        (mount,) = [m for m in spec["containers"][0]["volumeMounts"] if m["mountPath"] == path]
        (volume,) = [v for v in spec["volumes"] if v["name"] == mount["name"]]
        return set(self.get("Secret", volume["secret"]["secretName"])["data"])
