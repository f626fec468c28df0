"""Generate the Python code of ``proto/`` into ``src/drumbeat/``, or check that it is up to date.

The generator is pinned, because generated code refuses to run on a protobuf
older than itself, and the SDK lives in training environments that pin old ones
(see docs/adr/0003-generated-code.md). It runs in an environment of its own
under ``.venv-protoc``, so that the pin touches nothing else.

    python scripts/gen_protos.py           # write
    python scripts/gen_protos.py --check   # exit 1 if a file would change
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
CODE = ROOT / "src"
ENVIRONMENT = ROOT / ".venv-protoc"
GENERATOR = ("grpcio-tools==1.66.2", "mypy-protobuf==3.7.0", "setuptools<81")
# A service-less file still gets an empty `_pb2_grpc.py`; such files are removed.
SERVICE_MARK = "Stub"


def generator_python() -> Path:
    """Return the interpreter of the generator's environment, made at first use."""
    python = ENVIRONMENT / "bin" / "python"
    stamp = ENVIRONMENT / "requirements.txt"
    wanted = "\n".join(GENERATOR)
    if not stamp.exists() or stamp.read_text() != wanted:
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *GENERATOR], check=True)
        stamp.write_text(wanted)
    return python


def generate(target: Path) -> None:
    """Write the generated code of every proto file below ``target``."""
    protos = sorted(str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))
    outputs = [f"--{kind}_out={target}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    python = generator_python()
    subprocess.run(
        [python, "-m", "grpc_tools.protoc", f"-I{PROTO}", *outputs, *protos],
        check=True,
        env={"PATH": str(python.parent)},
    )
    below = target / "drumbeat"
    for stub in [*below.rglob("*_pb2_grpc.py"), *below.rglob("*_pb2_grpc.pyi")]:
        if SERVICE_MARK not in stub.read_text():
            stub.unlink()


def generated_files(root: Path) -> dict[str, str]:
    """Return the text of every generated file below ``root`` by its relative path."""
    below = root / "drumbeat"
    files = [*below.rglob("*_pb2*.py"), *below.rglob("*_pb2*.pyi")]
    return {str(path.relative_to(root)): path.read_text() for path in sorted(files)}


def check() -> int:
    """Compare the committed code with fresh output; return the exit code."""
    with tempfile.TemporaryDirectory() as directory:
        generate(Path(directory))
        fresh = generated_files(Path(directory))
        committed = generated_files(CODE)
    stale = sorted(
        name for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name)
    )
    for name in stale:
        print(f"stale: {name} (run `make gen`)", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(check())
    generate(CODE)
