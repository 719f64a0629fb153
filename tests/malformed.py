"""Input that is wrong, each kind by name: recipes, models, texts, tasks, words on the command line.

A case writes what is malformed into an empty folder and gives the words that one would type. The
tables are read by `test_bad_input.py`; nothing here says what laco answers, save for the part of
the sentence that tells which check spoke.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Words = list[str]
FIVE_GB = 5_000_000_000
DEEP = 100_000  # brackets inside one another, far past what a parser's stack holds


@dataclass(frozen=True)
class Case:
    """One malformed input: its name, what writes it and gives the command, what is answered."""

    name: str
    make: Callable[[Path, Path], Words]  # an empty folder, a sound model's folder
    says: str
    status: int = 1


Content = str | bytes | None | Callable[[], bytes]  # None: five gigabytes of nothing


def put(file: Path, content: Content) -> None:
    """Write this into a file; what is large is made only now."""
    if content is None:
        sparse(file)
    elif isinstance(content, str):
        file.write_bytes(content.encode())
    else:
        file.write_bytes(content if isinstance(content, bytes) else content())


def sparse(file: Path, size: int = FIVE_GB) -> None:
    """A file that says it is large and takes no room."""
    with file.open("wb") as stream:
        stream.truncate(size)


def nested(opening: str, closing: str, inside: str = "") -> str:
    """Something inside itself, far too deep."""
    return opening * DEEP + inside + closing * DEEP


# --- recipes --------------------------------------------------------------------------------------

SOUND = {"model": {"path": "MODEL"}, "steps": [{"kind": "drop", "layers": [1]}]}


def recipe(name: str, content: Content, says: str = r"^The recipe ") -> Case:
    """`laco run` with a recipe file of this content."""

    def make(folder: Path, _model: Path) -> Words:
        file = folder / "recipe.json"
        put(file, content)
        return ["run", str(file)]

    return Case(f"recipe: {name}", make, says)


def step(name: str, says: str = "", /, **fields: Any) -> Case:
    """`laco run` with one step of these fields."""
    document = {"model": {"path": "MODEL"}, "steps": [fields]}
    return recipe(name, json.dumps(document), rf"^The recipe cannot be read: .*{says}")


def model_field(name: str, says: str, /, **fields: Any) -> Case:
    """`laco run` with a recipe whose model has these fields."""
    document = {"model": {"path": "MODEL", **fields}, "steps": []}
    return recipe(name, json.dumps(document), says)


UNREADABLE = r"^The recipe file .* cannot be read"
RECIPES = [
    recipe("empty", "", UNREADABLE),
    recipe("white space", " \n\t ", UNREADABLE),
    recipe("null", "null", "holds no JSON object"),
    recipe("a list", "[]", "holds no JSON object"),
    recipe("a number", "3", "holds no JSON object"),
    recipe("a text", '"recipe"', "holds no JSON object"),
    recipe("cut off", '{"model": {"path": ', UNREADABLE),
    recipe("a comma too many", '{"model": {"path": "x"},}', UNREADABLE),
    recipe("single quotes", "{'model': {'path': 'x'}}", UNREADABLE),
    recipe("a comment", '{"model": {"path": "x"}} // mine', UNREADABLE),
    recipe("two documents", '{"model": {"path": "x"}}{"steps": []}', UNREADABLE),
    recipe("TOML", '[model]\npath = "x"\n', UNREADABLE),
    recipe("YAML", "model:\n  path: x\n", UNREADABLE),
    recipe("UTF-16", json.dumps(SOUND).encode("utf-16"), UNREADABLE),
    recipe("Latin-1", '{"model": {"path": "größe"}}'.encode("latin-1"), UNREADABLE),
    recipe("bytes", bytes(range(256)), UNREADABLE),
    recipe("zeros", bytes(4096), UNREADABLE),
    recipe("a pickle", pickle.dumps(SOUND), UNREADABLE),
    recipe("lists 100,000 deep", nested("[", "]"), UNREADABLE),
    recipe("objects 100,000 deep", nested('{"model":', "}", "1"), UNREADABLE),
    recipe("a number of 6,000 digits", '{"model": ' + "9" * 6000 + "}", UNREADABLE),
    recipe("NaN", '{"model": {"path": "x"}, "steps": NaN}', UNREADABLE),
    recipe("infinity", '{"model": {"path": "x"}, "steps": -Infinity}', UNREADABLE),
    recipe("the same field twice", '{"model": {"path": "x", "path": "y"}}', "twice"),
    recipe("half a character", r'{"model": {"path": "\ud800"}}', ""),
    recipe("without a model", '{"steps": []}', "names no model"),
    recipe("an unknown field", '{"model": {"path": "x"}, "stepps": []}', "stepps: there is no"),
    recipe("steps that are an object", '{"model": {"path": "x"}, "steps": {}}'),
    recipe("steps that are a text", '{"model": {"path": "x"}, "steps": "drop"}'),
    recipe("steps that are null", '{"model": {"path": "x"}, "steps": null}'),
    recipe("a step that is a number", '{"model": {"path": "x"}, "steps": [3]}'),
    recipe("a step without a kind", '{"model": {"path": "x"}, "steps": [{"layers": [1]}]}'),
    recipe("a model that is a number", '{"model": 3}'),
    recipe("a model that is a list", '{"model": ["x"]}'),
    recipe("a model that is null", '{"model": null}'),
    recipe("a model without a path", '{"model": {}}'),
    model_field("a path that is a number", r"^The recipe .*model\.path", path=3),
    model_field("an empty path", r"", path=""),
    model_field("a path with a zero in it", r"", path="a\0b"),
    model_field("a path too long for a disk", r"", path="x" * 5000),
    model_field("a path of commands", r"", path="$(touch /tmp/laco-was-here)"),
    model_field("a dtype that there is not", r"model\.dtype", path="x", dtype="float8"),
    model_field(
        "trust that is a word", r"trust_remote_code", path="x", trust_remote_code="perhaps"
    ),
    model_field("a model's unknown field", r"there is no such field", path="x", device_map="auto"),
    step("an unknown kind", "steps", kind="distill"),
    step("a kind that is a list", "steps", kind=["drop"]),
    step("a step's unknown field", "there is no such field", kind="drop", layers=[1], layer=2),
    step("no layers", "", kind="drop", layers=[]),
    step("a layer before the first", "", kind="drop", layers=[-1]),
    step("a layer twice", "", kind="drop", layers=[1, 1]),
    step("a layer and a half", "", kind="drop", layers=[1.5]),
    step("layers that are a text", "", kind="drop", layers="all"),
    step("no spans", "", kind="merge", spans=[]),
    step("a span backwards", "", kind="merge", spans=[[5, 2]]),
    step("a span of one layer", "", kind="merge", spans=[[2, 3]]),
    step("a span before the first layer", "", kind="merge", spans=[[-3, 2]]),
    step("spans that overlap", "", kind="merge", spans=[[1, 4], [3, 6]]),
    step("a span of three numbers", "", kind="merge", spans=[[1, 2, 3]]),
    step("a merge that there is not", "", kind="merge", spans=[[1, 3]], merge="average"),
    step("a target of no layers", "", kind="collapse", target_layers=0),
    step("a target of 10**30 layers", "", kind="collapse", target_layers=-(10**30)),
    step("a threshold that is a word", "", kind="collapse", threshold="high"),
    step("a sparsity above one", "", kind="prune", method={"kind": "wanda", "sparsity": 1.5}),
    step("a sparsity below none", "", kind="prune", method={"kind": "wanda", "sparsity": -0.5}),
    step("a sparsity that is a list", "", kind="prune", method={"kind": "wanda", "sparsity": [0]}),
    step("a method that there is not", "", kind="prune", method={"kind": "wandb"}),
    step("no windows", "", kind="compensate", calibration={"windows": 0}),
    step("a billion windows", "", kind="compensate", calibration={"windows": 10**9}),
    step("windows of one token", "", kind="compensate", calibration={"length": 1}),
    step("a seed below none", "", kind="compensate", calibration={"seed": -1}),
    step("a seed of 400 digits", "", kind="compensate", calibration={"seed": 10**400}),
    step("a calibration that is a text", "", kind="compensate", calibration="wikitext2"),
]


def recipe_file(name: str, make: Callable[[Path], Any], says: str) -> Case:
    """`laco run` with a recipe that is no plain file."""

    def words(folder: Path, _model: Path) -> Words:
        file = folder / "recipe.json"
        make(file)
        return ["run", str(file)]

    return Case(f"recipe: {name}", words, says)


RECIPES += [
    recipe_file("a folder", Path.mkdir, r"no recipe file"),
    recipe_file("not there", lambda _file: None, r"no recipe file"),
    recipe_file("a link to itself", lambda file: file.symlink_to(file), r"recipe file"),
    recipe_file("a pipe that nobody writes", os.mkfifo, r"recipe file .* is no plain file"),
    recipe_file("a file without end", lambda file: file.symlink_to("/dev/zero"), r"no plain file"),
    recipe_file("5 GB", sparse, r"recipe file .* is larger than"),
]


def typed(name: str, *words: str, says: str, status: int = 1) -> Case:
    """A command as it is typed; MODEL and FOLDER stand for a sound model and an empty folder."""

    def make(folder: Path, model: Path) -> Words:
        return [word.replace("MODEL", str(model)).replace("FOLDER", str(folder)) for word in words]

    return Case(f"words: {name}", make, says, status)


def changed(change: str, says: str = r"^(--set|The recipe)") -> Case:
    """A preset with a field changed."""
    return typed(
        f"--set {change}", "run", "shortgpt", "--model", "MODEL", "--set", change, says=says
    )


WORDS = [
    changed("steps.0"),
    changed("=1"),
    changed("steps.9.threshold=1"),
    changed("steps.-1.threshold=1"),
    changed("steps.²=1"),
    changed("steps.0.kind.x=1"),
    changed("steps.0.nonsense=1", "there is no such field"),
    changed("steps=3"),
    changed("steps=null"),
    changed("steps.0.target_layers=NaN"),
    changed("steps.0.target_layers=1e400"),
    changed("steps.0.target_layers=" + "9" * 6000),
    changed("steps.0.target_layers=" + nested("[", "]")),
    changed(".".join(["model"] * 3000) + "=1"),
    changed("steps.0.calibration.source=file:\0"),
    typed("no command of that name", "prune-it", says="No such command", status=2),
    typed("an option that there is not", "runs", "--nonsense", says="No such option", status=2),
    typed("a missing argument", "run", says="Missing argument", status=2),
    typed("a port that there is not", "app", "--port", "70000", says="less than or equal to 65535", status=2),
    typed("a port that is a word", "app", "--port", "http", says="valid integer", status=2),
    typed("a device that there is not", "similarity", "MODEL", "--device", "cuda:99; rm -rf /", says="there is none here"),
    typed("a key that there is not", "show", "k1-0123", says="no result"),
    typed("a key that is a path", "show", "k1-/../../../etc", says="no result"),
    typed("a key with a wild card", "show", "k1-%", says="no result"),
    typed("a key with a zero in it", "show", "k1-\0", says="no result"),
    typed("a key of a million letters", "show", "k1-" + "a" * 10**6, says="no result"),
    typed("a job that is a path", "logs", "../../../etc/passwd", says="no job"),
    typed("a job that is SQL", "cancel", "' OR 1=1 --", says="no job"),
    typed("a format that there is not", "compare", "k1-0", "--format", "pdf", says="."),
    typed("a store that is a device", "runs", "--store", "/dev/null/x", says="cannot be written"),
    typed("a store with a zero in it", "runs", "--store", "a\0b", says="null byte", status=2),
    typed("a measure that there is not", "similarity", "MODEL", "--measure", "dot", says="--measure"),
    typed("a picture that is no file of ours", "similarity", "MODEL", "--out", "map.exe", says="--out"),
    typed("windows below none", "similarity", "MODEL", "--windows", "-4", says="windows"),
    typed("a span that is longer than 64", "whatif", "MODEL", "--longest", "999", says="longest"),
    typed("an evaluation that there is not", "evaluate", "MODEL", "iq", says="not an evaluation"),
    typed("a setting without a value", "evaluate", "MODEL", "latency,prompt", says="latency"),
    typed("a setting that there is not", "evaluate", "MODEL", "footprint,deep=1", says="no such"),
    typed("a setting out of bounds", "evaluate", "MODEL", "latency,prompt=-1", says="prompt"),
    typed("a window that is a word", "evaluate", "MODEL", "perplexity:c4,window=x", says="window"),
    typed("no task", "evaluate", "MODEL", "zero-shot:", says="names no task"),
    typed("a text that there is not", "evaluate", "MODEL", "perplexity:books", says="no text source"),
    typed("a part that there is not", "evaluate", "MODEL", "kl:bundled:pydoc@test", says="a part is"),
    typed("an export onto a file", "export", "MODEL", "MODEL/config.json", says="is a file"),
    typed("an export onto a full folder", "export", "MODEL", "MODEL", says="is not empty"),
    typed("a revision with a zero in it", "inspect", "org/name@\0", says="."),
    typed("a model that is two words", "inspect", "two words", says="neither a folder nor"),
    typed("a model that is a web address", "inspect", "https://example.org/m", says="neither"),
    typed("a model that climbs", "inspect", "../../../../etc", says="config.json|neither"),
    typed("a bundle that there is not", "inspect", "bundled:gpt5", says="it holds"),
]  # fmt: skip


# --- models ---------------------------------------------------------------------------------------


def model(
    name: str,
    spoil: Callable[[Path], Any],
    says: str,
    command: tuple[str, ...] = ("inspect",),
) -> Case:
    """A command on a copy of the sound model, spoilt."""

    def make(folder: Path, sound: Path) -> Words:
        copy = folder / "model"
        shutil.copytree(sound, copy)
        spoil(copy)
        return [command[0], str(copy), *command[1:]]

    return Case(f"model: {name}", make, says)


def config(
    name: str, says: str, command: tuple[str, ...] = ("inspect",), /, **changes: Any
) -> Case:
    """A command on a copy of the sound model whose config says this."""

    def spoil(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return model(f"config with {name}", spoil, says, command)


def written(file: str, content: Content) -> Callable[[Path], None]:
    """What puts this into that file of a model's folder."""
    return lambda folder: put(folder / file, content)


def safetensors(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A file of that format with any header, true or not."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    """One entry of such a header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def weights(name: str, content: Content, says: str = "is broken") -> Case:
    """The sound model with these bytes for its weights."""
    return model(f"weights: {name}", written("model.safetensors", content), says)


def header(name: str, entries: dict[str, Any], size: int = 8) -> Case:
    """The sound model with weights of this header, and so many bytes after it."""
    return weights(name, safetensors(entries, bytes(size)))


def zipped(entries: dict[str, bytes]) -> bytes:
    """A ZIP archive of these entries."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return out.getvalue()


class Evil:
    """Pickled, it makes a file when it is opened."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("/tmp/laco-was-here",)


def index(name: str, content: Any, says: str = "index") -> Case:
    """The sound model with an index of shards in place of its one file."""
    text = content if isinstance(content, str) else json.dumps(content)

    def spoil(folder: Path) -> None:
        shutil.copy(folder / "model.safetensors", folder.parent / "outside.safetensors")
        (folder / "model.safetensors").rename(folder / "a.safetensors")
        (folder / "model.safetensors.index.json").write_text(text)

    return model(f"index: {name}", spoil, says)


def renamed(name: str) -> Callable[[Path], None]:
    """What gives the weights another name."""
    return lambda folder: (folder / "model.safetensors").rename(folder / name) and None


def linked(name: str, target: str) -> Callable[[Path], None]:
    """What puts a link out of the folder in place of a file."""

    def spoil(folder: Path) -> None:
        outside = folder.parent / "outside"
        (folder / name).rename(outside)
        (folder / name).symlink_to(target.replace("OUTSIDE", str(outside)))

    return spoil


def without(*names: str) -> Callable[[Path], None]:
    """What takes files away."""

    def spoil(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return spoil


def remote_code(folder: Path) -> None:
    """Python beside the model that makes a file when it runs."""
    (folder / "evil.py").write_text("import os\nos.mkdir('/tmp/laco-was-here')\n")
    file = folder / "config.json"
    auto = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {"model_type": "x", "auto_map": auto})
    )


LOOK = ("similarity", "--windows", "1", "--length", "8", "--corpus", "bundled:pydoc")
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
MODELS = [
    model("an empty folder", lambda folder: [file.unlink() for file in folder.iterdir()], "config"),
    model("without a config", without("config.json"), "no config.json"),
    model("an empty config", written("config.json", ""), "not valid JSON"),
    model("a config that is HTML", written("config.json", "<html>404</html>"), "not valid JSON"),
    model("a config that is a list", written("config.json", "[]"), "names no"),
    model("a config without a type", written("config.json", "{}"), "names no"),
    model("a config in UTF-16", written("config.json", "{}".encode("utf-16")), "not UTF-8"),
    model("a config in bytes", written("config.json", bytes(range(256))), "not UTF-8"),
    model("a config 100,000 deep", written("config.json", nested("[", "]")), "not valid JSON"),
    model("a config with a field twice", written("config.json", '{"model_type": "llama", "model_type": "gpt2"}'), "twice"),
    model("a config of 5 GB", lambda folder: sparse(folder / "config.json"), "larger than"),
    model("a config that is a pointer of Git LFS", written("config.json", LFS), "not valid JSON"),
    config("a type that is a number", "model_type", model_type=3),
    config("a type that is a list", "model_type", model_type=["llama"]),
    config("a type that is null", "model_type", model_type=None),
    config("a type that is a path", ".", LOOK, model_type="../../evil"),
    config("a type that there is not", "cannot be loaded", LOOK, model_type="no-such-model"),
    config("no layers", "layers", num_hidden_layers=0),
    config("layers below none", "layers", num_hidden_layers=-6),
    config("layers that are a word", "layers", num_hidden_layers="six"),
    config("layers that are true", "layers", num_hidden_layers=True),
    config("layers that are a list", "layers", num_hidden_layers=[6]),
    config("layers that are null", "layers", num_hidden_layers=None),
    config("10**12 layers", "layers", num_hidden_layers=10**12),
    config("100,000 layers, to be run", "layers", LOOK, num_hidden_layers=100_000),
    config("fewer layers than there are, to be run", "layers", LOOK, num_hidden_layers=3),
    config("a width of 10**12", ".", LOOK, hidden_size=10**12),
    config("a width below none", ".", LOOK, hidden_size=-32),
    config("a width that is a word", ".", LOOK, hidden_size="wide"),
    config("a width that is a word, to look at", ".", hidden_size="wide"),
    config("an MLP of 10**11", ".", LOOK, intermediate_size=10**11),
    config("a vocabulary of 10**12", ".", LOOK, vocab_size=10**12),
    config("a vocabulary that is a list", ".", vocab_size=[320]),
    config("heads that are none", ".", LOOK, num_attention_heads=0),
    config("heads that are none, to look at", ".", num_attention_heads=0),
    config("heads that do not divide the width", ".", LOOK, num_attention_heads=7),
    config("a text part that is a list", ".", text_config=[1]),
    config("a text part that is a word", ".", text_config="llama"),
    config("a number format that there is not", "float4|float", torch_dtype="float4", dtype="float4"),
    config("a number format that is a list", ".", torch_dtype=["a"], dtype=["a"]),
    config("weights that are quantised", "quantised", LOOK, quantization_config={"quant_method": "gptq"}),
    config("a quantisation that is a word", "quantised", LOOK, quantization_config="gptq"),
    config("an encoder's type", "encoder", LOOK, model_type="bert"),
    config("positions that are a word", ".", LOOK, max_position_embeddings="long"),
    config("rope that is a word", ".", LOOK, rope_parameters="wide"),
    model("its own Python code", remote_code, "does not run unasked|Python code", LOOK),
    model("without weights", without("model.safetensors"), "no model.safetensors"),
    model("a .bin", renamed("pytorch_model.bin"), "pickled"),
    model("a .pt", renamed("model.pt"), "pickled"),
    model("a .pth", renamed("consolidated.00.pth"), "pickled"),
    model("a .ckpt", renamed("model.ckpt"), "pickled"),
    weights("a pickle under another name", pickle.dumps(Evil())),
    weights("a ZIP under another name", zipped({"../../evil": b"x", "data.pkl": b"x"})),
    weights("a ZIP bomb under another name", lambda: zipped({"bomb": bytes(50_000_000)})),
    weights("gzip under another name", gzip.compress(bytes(1_000_000))),
    weights("a page under another name", b"<!doctype html><title>404</title>"),
    weights("a pointer of Git LFS", LFS, "Git LFS"),
    weights("none", b""),
    weights("four bytes", b"\x01\0\0\0"),
    weights("a header of 2**63 bytes", safetensors({}, length=2**63)),
    weights("a header longer than the file", safetensors({}, length=1000)),
    weights("a header of no bytes", safetensors(b"", length=0)),
    weights("a header of nothing", safetensors({})),
    weights("a header that is a list", safetensors([1, 2])),
    weights("a header 100,000 deep", safetensors(nested("[", "]").encode())),
    weights("a header that is no text", safetensors(bytes(range(128, 256)))),
    weights("a name twice", safetensors(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', bytes(8))),
    header("a tensor without offsets", {"a": {"dtype": "F32", "shape": [2]}}),
    header("a tensor that is a number", {"a": 3}),
    header("offsets before the start", {"a": tensor(offsets=(-8, 8))}),
    header("offsets backwards", {"a": tensor(offsets=(8, 0))}),
    header("offsets past the end", {"a": tensor(offsets=(0, 2**40))}),
    header("three offsets", {"a": tensor(offsets=(0, 4, 8))}),
    header("offsets that are words", {"a": tensor(offsets=("a", "b"))}),
    header("offsets that overlap", {"a": tensor(offsets=(0, 8)), "b": tensor(offsets=(4, 12))}, 12),
    header("a gap", {"a": tensor(offsets=(0, 8)), "b": tensor(offsets=(12, 20))}, 20),
    header("a shape larger than its bytes", {"a": tensor(shape=(2, 2**40))}),
    header("a shape below none", {"a": tensor(shape=(-2,))}),
    header("a shape of words", {"a": tensor(shape=("a",))}),
    header("a shape that is a number", {"a": tensor(shape=2)}),
    header("a number format that there is not", {"a": tensor(dtype="F99")}),
    header("a number format that is a list", {"a": tensor(dtype=["F32"])}),
    header("bytes left over", {"a": tensor()}, 4000),
    model("weights of 5 GB of nothing", lambda folder: sparse(folder / "model.safetensors"), "is broken"),
    index("no JSON", "{"),
    index("a list", []),
    index("without a map", {"metadata": {}}),
    index("a map that is a list", {"weight_map": ["a.safetensors"]}),
    index("a map to numbers", {"weight_map": {"a": 3}}),
    index("an empty map", {"weight_map": {}}),
    index("100,000 deep", nested("[", "]")),
    index("a file above the folder", {"weight_map": {"a": "../outside.safetensors"}}, "outside"),
    index("an absolute path", {"weight_map": {"a": "/etc/passwd"}}, "outside"),
    index("a path that climbs and comes back", {"weight_map": {"a": "../model/a.safetensors"}}, "outside"),
    index("a path with a zero in it", {"weight_map": {"a": "a\0b"}}, "."),
    index("a pickled shard", {"weight_map": {"a": "pytorch_model-1.bin"}}, "pickled"),
    index("a shard that is not there", {"weight_map": {"a": "b.safetensors"}}, "lacks b.safetensors"),
    index("a tensor that its shard lacks", {"weight_map": {"no.such.tensor": "a.safetensors"}}, "index"),
    model("weights that link out of the folder", linked("model.safetensors", "OUTSIDE"), "out of"),
    model("a config that links out of the folder", linked("config.json", "OUTSIDE"), "out of"),
    model("a tokenizer that links out of the folder", linked("tokenizer.json", "OUTSIDE"), "out of"),
    model("a tokenizer that links to a secret", linked("tokenizer.json", "/etc/passwd"), "out of"),
    model("a config that links to itself", linked("config.json", "config.json"), "."),
    model("weights without end", linked("model.safetensors", "/dev/zero"), "."),
]  # fmt: skip


def file_as_model(name: str, file: str, content: Content, says: str) -> Case:
    """`laco inspect` with a single file."""

    def make(folder: Path, _model: Path) -> Words:
        put(folder / file, content)
        return ["inspect", str(folder / file)]

    return Case(f"model: {name}", make, says)


def gguf(*fields: bytes, version: int = 3, tensors: int = 0, count: int | None = None) -> bytes:
    """A GGUF file with any fields, true or not."""
    counted = len(fields) if count is None else count
    return b"GGUF" + struct.pack("<IQQ", version, tensors, counted) + b"".join(fields)


def field(key: str, kind: int, value: bytes) -> bytes:
    """One field of a GGUF header."""
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + value


def text(value: str) -> bytes:
    """A text as GGUF has it."""
    return struct.pack("<Q", len(value)) + value.encode()


GIVE = "give the folder"
FAMILY = field("general.architecture", 8, text("llama"))
GGUFS = [
    file_as_model("a ZIP that escapes", "m.zip", zipped({"../../evil": b"x"}), GIVE),
    file_as_model("a ZIP bomb", "m.zip", lambda: zipped({"bomb": bytes(50_000_000)}), GIVE),
    file_as_model("a tar", "m.tar.gz", gzip.compress(bytes(10_240)), GIVE),
    file_as_model("a single .bin", "m.bin", pickle.dumps(Evil()), GIVE),
    file_as_model("a GGUF of nothing", "m.gguf", b"", "not a whole GGUF"),
    file_as_model("a GGUF that is a pickle", "m.gguf", pickle.dumps(Evil()), "not a whole GGUF"),
    file_as_model("a GGUF of version 99", "m.gguf", gguf(version=99), "not a whole GGUF"),
    file_as_model("a GGUF of 2**60 fields", "m.gguf", gguf(count=2**60), "not a whole GGUF"),
    file_as_model("a GGUF of 2**60 tensors", "m.gguf", gguf(FAMILY, tensors=2**60), "not a whole"),
    file_as_model("a GGUF with a text past its end", "m.gguf", gguf(field("a", 8, struct.pack("<Q", 2**62))), "not a whole"),
    file_as_model("a GGUF with a list past its end", "m.gguf", gguf(field("a", 9, struct.pack("<IQ", 4, 2**61))), "not a whole"),
    file_as_model("a GGUF of lists in lists", "m.gguf", gguf(field("a", 9, struct.pack("<IQ", 9, 1) * DEEP)), "not a whole"),
    file_as_model("a GGUF with a kind that there is not", "m.gguf", gguf(field("a", 77, b"")), "not a whole"),
    file_as_model("a GGUF whose family is a number", "m.gguf", gguf(field("general.architecture", 4, b"\1\0\0\0")), "."),
    file_as_model("a GGUF whose family is a list", "m.gguf", gguf(field("general.architecture", 9, struct.pack("<IQ", 4, 0))), "."),
    file_as_model("a GGUF whose layers are a word", "m.gguf", gguf(FAMILY, field("llama.block_count", 8, text("six"))), "."),
    file_as_model("a GGUF whose heads are no numbers", "m.gguf", gguf(FAMILY, field("llama.attention.head_count", 9, struct.pack("<IQ", 4, 0))), "."),
    Case("model: a GGUF of 5 GB of nothing", lambda folder, _: (sparse(folder / "m.gguf"), ["inspect", str(folder / "m.gguf")])[1], "not a whole"),
    Case("model: a GGUF and 5 GB of nothing", lambda folder, _: [*zeros_after(folder / "m.gguf", gguf(FAMILY, tensors=2**40))], "not a whole"),
    Case("model: a path too long for a disk", lambda _f, _m: ["inspect", "/" + "x" * 5000], "."),
    Case("model: a path with a zero in it", lambda _f, _m: ["inspect", "/a\0b"], "."),
]  # fmt: skip


def zeros_after(file: Path, content: bytes) -> Iterator[str]:
    """`laco inspect` with a file that begins with this and goes on with 5 GB of nothing."""
    file.write_bytes(content)
    with file.open("r+b") as stream:
        stream.truncate(FIVE_GB)
    yield from ("inspect", str(file))


# --- tokenizers -----------------------------------------------------------------------------------


def tokenizer(
    name: str, spoil: Callable[[Path], Any], says: str = "cannot be loaded|fetch it anew"
) -> Case:
    """The sound model with its tokenizer spoilt, shown some text."""
    found = model(name, spoil, says, LOOK)
    return Case(f"tokenizer: {name}", found.make, says)


def edited(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """What changes the document in tokenizer.json."""

    def spoil(folder: Path) -> None:
        file = folder / "tokenizer.json"
        document = json.loads(file.read_text())
        change(document)
        file.write_text(json.dumps(document))

    return spoil


def more_tokens(document: Any) -> None:
    """A thousand tokens past the end of the embedding, one of them a common letter's."""
    vocabulary = document["model"]["vocab"]
    vocabulary |= {f"extra{number}": 400 + number for number in range(1000)}
    vocabulary["e"] = 5000


TOKENIZERS = [
    tokenizer("none", without("tokenizer.json", "tokenizer_config.json"), "no tokenizer"),
    tokenizer("an empty file", written("tokenizer.json", "")),
    tokenizer("an empty document", written("tokenizer.json", "{}")),
    tokenizer("a list", written("tokenizer.json", "[1]")),
    tokenizer("bytes", written("tokenizer.json", bytes(range(256)))),
    tokenizer("a document 100,000 deep", written("tokenizer.json", nested("[", "]"))),
    tokenizer("a pickle", written("tokenizer.json", pickle.dumps(Evil()))),
    tokenizer("5 GB of nothing", lambda folder: sparse(folder / "tokenizer.json"), "larger than"),
    tokenizer("a model that there is not", edited(lambda d: d["model"].update(type="Magic"))),
    tokenizer("a vocabulary that is a list", edited(lambda d: d["model"].update(vocab=[1, 2]))),
    tokenizer("ids that are words", edited(lambda d: d["model"]["vocab"].update(a="x"))),
    tokenizer("ids below none", edited(lambda d: d["model"]["vocab"].update(a=-1))),
    tokenizer("merges of unknown tokens", edited(lambda d: d["model"].update(merges=[["☃", "☃"]]))),
    tokenizer("more tokens than the embedding has", edited(more_tokens), "embedding"),
    tokenizer("a config that is a list", written("tokenizer_config.json", "[]")),
    tokenizer("a config that is no JSON", written("tokenizer_config.json", "{")),
    tokenizer("a config 100,000 deep", written("tokenizer_config.json", nested("[", "]"))),
    tokenizer("its own Python code", lambda folder: own_tokenizer(folder), ""),
    tokenizer("a class that is a list", written("tokenizer_config.json", '{"tokenizer_class": [1]}')),
    tokenizer("special tokens that are numbers", written("tokenizer_config.json", '{"bos_token": 3, "eos_token": [4]}'), ""),
]  # fmt: skip


def own_tokenizer(folder: Path) -> None:
    """A tokenizer that is Python beside the model, which makes a file when it runs."""
    (folder / "evil.py").write_text("import os\nos.mkdir('/tmp/laco-was-here')\n")
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text("{}")
    told = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))


# --- texts ----------------------------------------------------------------------------------------


def corpus(name: str, file: str, content: Content, says: str) -> Case:
    """Perplexity, and windows, of a text file."""

    def make(folder: Path, sound: Path) -> Words:
        put(folder / file, content)
        return ["similarity", str(sound), "--windows", "1", "--corpus", f"file:{folder / file}"]

    return Case(f"text: {name}", make, says)


def measured(case: Case) -> Case:
    """The same text, measured on in place of calibrated on."""

    def make(folder: Path, sound: Path) -> Words:
        source = case.make(folder, sound)[-1]
        return ["evaluate", str(sound), f"perplexity:{source}"]

    return Case(f"{case.name}, measured", make, case.says)


def parquet(values: Any, column: str = "text") -> bytes:
    """A parquet file of one column."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(pa.table({column: values}), out)
    return out.getvalue()


def records(*lines: str) -> str:
    """A sound record, then these lines."""
    return "\n".join(['{"text": "It is so."}', *lines])


LONG = 70_000_000  # characters of one line
ENDLESS = [  # each read both ways
    corpus("zeros, 5 GB", "t.txt", None, "binary"),
    corpus("zeros in JSON lines, 5 GB", "t.jsonl", None, "."),
    corpus("zeros in parquet, 5 GB", "t.parquet", None, "parquet"),
    corpus(
        "an endless line that was compressed",
        "t.txt.gz",
        lambda: gzip.compress(b"a" * LONG, 1),
        "line",
    ),
]
TEXTS = [
    corpus("empty", "t.txt", "", "is empty"),
    corpus("white space", "t.txt", " \n \n\t\n", "."),
    corpus("a few words", "t.txt", "So it is.", "tokens"),
    corpus("bytes", "t.txt", bytes(range(256)) * 64, "binary|not UTF-8"),
    corpus("Latin-1", "t.txt", "größer als groß\n".encode("latin-1") * 99, "not UTF-8"),
    corpus("UTF-16", "t.txt", ("so it is\n" * 99).encode("utf-16"), "not UTF-8|binary"),
    corpus("UTF-16 without a mark", "t.txt", ("so it is\n" * 99).encode("utf-16-le"), "binary"),
    corpus("text with zeros", "t.txt", "so it\0is\n" * 99, "binary"),
    corpus("a picture", "t.png", b"\x89PNG\r\n", "does not read .png"),
    corpus("a PDF", "t.pdf", b"%PDF-1.7", "does not read .pdf"),
    corpus("a ZIP", "t.zip", zipped({"../../evil": b"x"}), "does not read .zip"),
    corpus("a pickle", "t.pkl", pickle.dumps(Evil()), "does not read .pkl"),
    corpus("a pickle under another name", "t.txt", pickle.dumps(Evil()) * 9, "binary|UTF-8"),
    corpus("gzip that is none", "t.txt.gz", b"so it is", "cannot be read"),
    corpus("gzip cut off", "t.txt.gz", gzip.compress(os.urandom(10_000))[:5000], "."),
    corpus("a gzip bomb of zeros", "t.txt.gz", lambda: gzip.compress(bytes(50_000_000), 1), "binary"),
    corpus("gzip with a wrong sum", "t.txt.gz", gzip.compress(b"so it is\n" * 9)[:-8] + bytes(8), "cannot be read"),
    corpus("JSON lines that are none", "t.jsonl", records("so it is"), "line 2 is not JSON"),
    corpus("a list a line", "t.jsonl", records("[1]"), "line 2 has no `text`"),
    corpus("a number for text", "t.jsonl", records('{"text": 3}'), "line 2 has no `text`"),
    corpus("records without text", "t.jsonl", records('{"words": "so"}'), "line 2 has no `text`"),
    corpus("one JSON document", "t.json", "[\n1,\n2\n]", "line 1"),
    corpus("a record 100,000 deep", "t.jsonl", records(nested("[", "]")), "line 2 is not JSON"),
    corpus("a record with a number of 6,000 digits", "t.jsonl", records('{"text": ' + "9" * 6000 + "}"), "line 2"),
    corpus("half a character", "t.jsonl", '{"text": "' + r"\ud800 " * 2000 + '"}', "."),
    corpus("records in UTF-16", "t.jsonl", records().encode("utf-16"), "."),
    corpus("an endless record", "t.jsonl", lambda: b'{"text": "' + b"a" * LONG, "line"),
    corpus("parquet that is none", "t.parquet", b"so it is", "not a readable parquet"),
    corpus("parquet cut off", "t.parquet", lambda: parquet(["so"] * 99)[:-20], "not a readable parquet"),
    corpus("parquet spoilt inside", "t.parquet", lambda: parquet(["so it is"] * 999)[:8] + bytes(40) + parquet(["so it is"] * 999)[48:], "parquet|."),
    corpus("parquet without text", "t.parquet", lambda: parquet(["so"], "words"), "no column `text`"),
    corpus("parquet of numbers", "t.parquet", lambda: parquet([1, 2]), "text"),
    corpus("parquet of lists", "t.parquet", lambda: parquet([["so"], ["it"]]), "text"),
    corpus("parquet of nothing", "t.parquet", lambda: parquet([None, None]), "."),
    *ENDLESS,
    *(measured(case) for case in ENDLESS[:3]),
    typed("a text that is a folder", "similarity", "MODEL", "--corpus", "file:FOLDER", says="is a folder"),
    typed("a text that is not there", "similarity", "MODEL", "--corpus", "file:FOLDER/x.txt", says="no file"),
    typed("a text without a name", "similarity", "MODEL", "--corpus", "file:", says="folder"),
    typed("a text with a zero in its name", "similarity", "MODEL", "--corpus", "file:a\0b", says="."),
    typed("a text with a name too long", "similarity", "MODEL", "--corpus", "file:" + "x" * 5000, says="."),
    typed("a text that is a device", "similarity", "MODEL", "--corpus", "file:/dev/zero", says="no file"),
    Case("text: a link to itself", lambda folder, model: looped(folder, model), "."),
]  # fmt: skip


def looped(folder: Path, sound: Path) -> Words:
    """A text that is a link to itself."""
    (folder / "t.txt").symlink_to(folder / "t.txt")
    return ["similarity", str(sound), "--corpus", f"file:{folder / 't.txt'}"]


# --- tasks ----------------------------------------------------------------------------------------

TASK = {
    "task": "mine",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "mine.jsonl"}},
    "output_type": "multiple_choice",
    "test_split": "test",
    "doc_to_text": "{{q}} is",
    "doc_to_choice": ["even", "odd"],
    "doc_to_target": "a",
}
HERE = "__import__('os').mkdir('/tmp/laco-was-here')"


def task(name: str, content: str | bytes, says: str, rows: str | bytes | None = None) -> Case:
    """A task's own YAML file beside two questions, asked."""

    def make(folder: Path, sound: Path) -> Words:
        given = '{"q": "1 and 1", "a": 0}\n{"q": "1 and 2", "a": 1}\n' if rows is None else rows
        told = content.replace("FOLDER", str(folder)) if isinstance(content, str) else content
        put(folder / "mine.yaml", told)
        put(folder / "mine.jsonl", given)
        (folder / "evil.py").write_text(f"def evil(*_):\n    {HERE}\n")
        (folder / "included.yaml").write_text("process_docs: !function evil.evil\n")
        return ["evaluate", str(sound), f"zero-shot:{folder / 'mine.yaml'}"]

    return Case(f"task: {name}", make, says)


def told(name: str, says: str, /, **changes: Any) -> Case:
    """A sound task with some fields changed (JSON is YAML)."""
    return task(name, json.dumps(TASK | changes), says)


def data(name: str, which: str, files: dict[str, Content], says: str) -> Case:
    """A stock task whose questions lie in a folder."""

    def make(folder: Path, sound: Path) -> Words:
        for file, content in files.items():
            put(folder / file, content)
        return ["evaluate", str(sound), f"zero-shot:{which},data=file:{folder}"]

    return Case(f"questions: {name}", make, says)


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [*{a},*{a},*{a},*{a},*{a},*{a},*{a},*{a},*{a}]\n"
    for a, b in zip("abcdefghij", "bcdefghijk", strict=True)
)
TASKS = [
    typed("a task's file that is not there", "evaluate", "MODEL", "zero-shot:FOLDER/x.yaml", says="does not exist"),
    task("empty", "", "."),
    task("a list", "[1, 2]", "."),
    task("a text", "so it is", "."),
    task("no YAML", "a: [", "cannot be read"),
    task("tabs", "a:\n\tb: 1", "cannot be read"),
    task("bytes", bytes(range(256)), "cannot be read"),
    task("100,000 deep", nested("[", "]"), "cannot be read"),
    task("a bomb of aliases", BOMB, "aliases"),
    task("a function", "task: mine\nprocess_docs: !function evil.evil\n", "Python functions"),
    task("a function in disguise", "task: mine\nprocess_docs: !f%75nction evil.evil\n", "."),
    task("a Python object", f'task: !!python/object/apply:eval ["{HERE}"]\n', "Python functions"),
    task("an include with a function", json.dumps(TASK)[:-1] + ', "include": "included.yaml"}', "include"),
    task("an include from elsewhere", json.dumps(TASK | {"include": "/etc/passwd"}), "include"),
    told("a field that there is not", "nonsense", nonsense=1),
    told("a kind of output that there is not", ".", output_type="telepathy"),
    told("a template that is broken", ".", doc_to_text="{{q"),
    told("a template that calls Python", ".", doc_to_text="{{ cycler.__init__.__globals__.os.mkdir('/tmp/laco-was-here') }}"),
    told("a template without end", ".", doc_to_text="{% for a in range(10**9) %}{% for b in range(10**9) %}{% endfor %}{% endfor %}"),
    told("a template of an unknown column", ".", doc_to_text="{{nonsense}}"),
    told("a target out of the choices", ".", doc_to_target="9"),
    told("a metric that is a file", "metric", metric_list=[{"metric": "FOLDER/evil.py"}]),
    told("a metric from elsewhere", "code", metric_list=[{"metric": "acc", "hf_evaluate": True}]),
    told("a metric that is a number", "metric", metric_list=[3]),
    told("a prompt from elsewhere", "use_prompt", use_prompt="/etc/passwd:x"),
    told("data that are pickled", "dataset_path", dataset_path="pandas", dataset_kwargs={"data_files": {"test": "x.pkl"}}),
    told("data from a script", "dataset_path", dataset_path="./evil.py"),
    told("data that are not there", ".", dataset_kwargs={"data_files": {"test": "gone.jsonl"}}),
    told("data from above the folder", "data_files", dataset_kwargs={"data_files": {"test": "../../etc/passwd"}}),
    told("data from an absolute path", "data_files", dataset_kwargs={"data_files": {"test": "/etc/passwd"}}),
    told("data from the web", "no .https", dataset_kwargs={"data_files": {"test": "https://example.org/x"}}),
    told("data that are a number", "dataset_kwargs", dataset_kwargs=3),
    told("a split that there is not", ".", test_split="gone"),
    task("no questions", json.dumps(TASK), ".", rows=""),
    task("questions that are no JSON", json.dumps(TASK), ".", rows="so it is"),
    task("questions that are bytes", json.dumps(TASK), ".", rows=bytes(range(256))),
    Case("task: 5 GB", lambda folder, sound: (sparse(folder / "m.yaml"), ["evaluate", str(sound), f"zero-shot:{folder / 'm.yaml'}"])[1], "larger than"),
    data("none", "piqa", {}, "no questions of piqa"),
    data("of a task that files cannot give", "mmlu", {}, "cannot be read from files"),
    data("no JSON", "winogrande", {"dev.jsonl": "so it is"}, "line 1"),
    data("empty", "winogrande", {"dev.jsonl": ""}, "no question of winogrande"),
    data("a list a line", "winogrande", {"dev.jsonl": "[1, 2]"}, "."),
    data("numbers", "winogrande", {"dev.jsonl": "3"}, "."),
    data("other columns", "boolq", {"dev.jsonl": '{"a": 1}'}, "not boolq as it was released"),
    data("fewer labels than questions", "piqa", {"valid.jsonl": '{"goal": "x"}', "valid-labels.lst": ""}, "labels"),
    data("no labels", "piqa", {"valid.jsonl": '{"goal": "x"}'}, "not piqa"),
    data("labels that are words", "piqa", {"valid.jsonl": '{"goal": "x"}', "valid-labels.lst": "one"}, "not piqa"),
    data("a table with too few columns", "openbookqa", {"test.tsv": "a\nb\tc\n"}, "not openbookqa"),
    data("bytes", "boolq", {"dev.jsonl": bytes(range(256))}, "not boolq|dev.jsonl"),
    data("5 GB of nothing", "boolq", {"dev.jsonl": None}, "."),
    data("100,000 deep", "boolq", {"dev.jsonl": nested("[", "]")}, "dev.jsonl"),
    data("a table of 5 GB of nothing", "openbookqa", {"test.tsv": None}, "."),
]  # fmt: skip

CASES = [*RECIPES, *WORDS, *MODELS, *GGUFS, *TOKENIZERS, *TEXTS, *TASKS]
