"""Results on other machines: whole or not there, checked, and work that goes on without them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest

from laco import engine, sharing
from laco.cli import app
from laco.cli.terminal import speak
from laco.context import Context
from laco.errors import LacoError, StoreError
from laco.evaluations import Footprint, ParameterSimilarity, Request
from laco.recipe import Drop, ModelRef, Recipe
from laco.share import Share
from laco.store import RunStore
from tests import tiny

BUCKET = "results"


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of an S3 server of this machine's own."""
    pytest.importorskip("s3fs", reason="the package s3fs is not installed")
    server_of = pytest.importorskip("moto.server", reason="the package moto is not installed")
    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    before = dict(os.environ)
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    fsspec.filesystem("s3", use_listings_cache=False).mkdir(BUCKET)
    yield f"s3://{BUCKET}/laco"
    server.stop()
    os.environ.clear()
    os.environ |= before


@pytest.fixture(params=["memory", "folder", "s3"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new share of each kind."""
    if request.param == "s3":
        return f"{request.getfixturevalue('s3')}/{tmp_path.name}"
    return f"memory://{tmp_path.name}" if request.param == "memory" else str(tmp_path / "share")


@pytest.fixture
def share(address: str) -> Share:
    return Share(address)


def files_in(folder: Path, text: str = "weights") -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("a.txt", text), ("b.txt", text * 1000)):
        (folder / name).write_text(content)
    return {"a.txt": folder / "a.txt", "inner/b.txt": folder / "b.txt"}


def paths_in(address: str) -> tuple[Any, list[str]]:
    """Everything that lies in a share, and the file system it lies in."""
    files, root = fsspec.url_to_fs(address, use_listings_cache=False)
    return files, files.find(root)


def test_what_was_uploaded_comes_back_and_is_there_once(share: Share, tmp_path: Path):
    files = files_in(tmp_path / "from")
    assert not share.has("artifacts", "k1-a")
    assert not share.get("artifacts", "k1-a", tmp_path / "to")
    assert share.put("artifacts", "k1-a", files)
    assert not share.put("artifacts", "k1-a", files), "it is there already"
    assert share.get("artifacts", "k1-a", tmp_path / "to")
    assert (tmp_path / "to/inner/b.txt").read_text() == "weights" * 1000
    assert share.names("artifacts") == ["k1-a"]
    assert share.names("models") == []


def test_half_an_upload_is_never_seen(
    share: Share, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    files = files_in(tmp_path / "from")
    sent: list[str] = []
    put_file = share._files.put_file

    def dying(local: str, remote: str) -> None:
        if sent:
            raise OSError("the cable was pulled")
        sent.append(remote)
        put_file(local, remote)

    monkeypatch.setattr(share._files, "put_file", dying)
    with pytest.raises(StoreError, match="does not take k1-a: the cable was pulled"):
        share.put("artifacts", "k1-a", files)
    monkeypatch.undo()
    assert sent
    assert not share.has("artifacts", "k1-a")
    assert share.names("artifacts") == []
    assert share.put("artifacts", "k1-a", files)
    assert share.has("artifacts", "k1-a")


def test_a_changed_file_is_found_after_the_download(share: Share, address: str, tmp_path: Path):
    share.put("artifacts", "k1-a", files_in(tmp_path / "from"))
    files, paths = paths_in(address)
    (place,) = [path for path in paths if path.endswith("b.txt")]
    files.pipe_file(place, b"x" * 7000)
    with pytest.raises(StoreError, match=r"inner/b\.txt of k1-a .* is not what was uploaded"):
        share.get("artifacts", "k1-a", tmp_path / "to")
    assert not (tmp_path / "to/inner/b.txt").exists()


@pytest.mark.parametrize("wrong", ["half", "changed", "text"])
def test_a_marker_that_is_not_whole_counts_as_none(
    share: Share, address: str, tmp_path: Path, wrong: str
):
    share.put("artifacts", "k1-a", files_in(tmp_path / "from"))
    files, paths = paths_in(address)
    (place,) = [path for path in paths if path.endswith("k1-a.json")]
    whole = files.cat_file(place)
    changed = {"half": whole[:40], "changed": whole.replace(b"7000", b"7001"), "text": b"[]"}
    files.pipe_file(place, changed[wrong])
    assert not share.has("artifacts", "k1-a")
    assert not share.get("artifacts", "k1-a", tmp_path / "to")


def test_uploads_of_the_same_at_once_do_no_harm(address: str, tmp_path: Path):
    files = files_in(tmp_path / "from")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: Share(address).put("artifacts", "k1-a", files), range(4)))
    share = Share(address)
    assert share.get("artifacts", "k1-a", tmp_path / "to")
    assert (tmp_path / "to/a.txt").read_text() == "weights"
    assert share.names("artifacts") == ["k1-a"]


def test_a_file_that_was_changed_here_is_not_uploaded(share: Share, tmp_path: Path):
    files = files_in(tmp_path / "from")
    with pytest.raises(StoreError, match="is not what was saved"):
        share.put("artifacts", "k1-a", files, {"a.txt": "0" * 64})
    assert not share.has("artifacts", "k1-a")


def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path):
    share = Share(f"memory://{tmp_path.name}")
    about = {"bytes": 1, "sha256": "0"}
    share.put_document("artifacts", "k1-a", {"upload": "u", "files": {"../x": about}})
    with pytest.raises(StoreError, match="outside its folder"):
        share.get("artifacts", "k1-a", tmp_path / "to")


def test_a_bucket_that_is_not_there_is_said_and_not_made(s3: str, tmp_path: Path):
    share = Share("s3://no-such-bucket/laco")
    assert not share.has("artifacts", "k1-a")
    with pytest.raises(StoreError, match="its bucket or folder is not there"):
        share.put("artifacts", "k1-a", files_in(tmp_path / "from"))


def test_without_credentials_it_is_said(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fsspec.filesystem("s3").clear_instance_cache()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(StoreError, match="there are no credentials"):
        Share(f"{s3}/b").has("artifacts", "k1-a")
    fsspec.filesystem("s3").clear_instance_cache()


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("spam://x", "its kind is not known"),
        ("/dev/null/laco", "does not|cannot"),
    ],
    ids=["kind", "no folder"],
)
def test_an_address_that_cannot_be_is_one_sentence(address: str, words: str, tmp_path: Path):
    with pytest.raises(StoreError, match=words) as raised:
        Share(address).put("artifacts", "k1-a", files_in(tmp_path / "from"))
    assert "\n" not in str(raised.value)


# Work with a share: two stores that never see each other.


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(tiny.redundant(), tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The places of the steps that are computed."""
    steps: list[int] = []
    for spec, function in engine.STEPS.items():

        def count(recipe: Recipe, keys: Any, index: int, *rest: Any, function: Any = function):
            steps.append(index)
            return function(recipe, keys, index, *rest)

        monkeypatch.setitem(engine.STEPS, spec, count)
    return steps


def wanted(model: Path, *layers: int) -> Request:
    steps = tuple(Drop(layers=(layer,)) for layer in layers)
    recipe = Recipe(model=ModelRef(path=str(model)), steps=steps)
    measures = {"evaluations": (Footprint(),), "analyses": (ParameterSimilarity(),)}
    return Request.model_validate({"recipe": recipe, **measures})


def work(request: Request, folder: Path) -> dict[str, Any]:
    store = RunStore(folder)
    try:
        return engine.run(request, store, Context())
    finally:
        store.close()


@pytest.mark.parametrize("address", ["s3"], indirect=True)
def test_another_machine_takes_results_and_measurements_instead_of_computing(
    address: str, model: Path, tmp_path: Path, counted: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(sharing.ADDRESS, address)
    first = work(wanted(model, 1, 2), tmp_path / "one")
    assert counted == [0, 1]
    assert len(first["share"]["given"]) == 4, "two results, a metric and an analysis"
    counted.clear()
    second = work(wanted(model, 1, 2), tmp_path / "two")
    assert counted == []
    assert second["metrics"] == first["metrics"]
    assert len(second["share"]["taken"]) == 3
    assert second["share"]["problem"] is None
    store = RunStore(tmp_path / "two")
    assert store.verify() == []
    assert store.analyses(second["key"])
    store.close()
    third = work(wanted(model, 1, 3), tmp_path / "three")
    assert counted == [1], "the first step is taken, the second is new"
    assert third["share"]["problem"] is None


def test_work_goes_on_without_the_share_and_says_so(
    model: Path, tmp_path: Path, counted: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(sharing.ADDRESS, "/dev/null/laco")
    report = work(wanted(model, 1), tmp_path / "one")
    assert counted == [0]
    assert report["metrics"]
    assert "/dev/null/laco" in report["share"]["problem"]
    monkeypatch.delenv(sharing.ADDRESS)
    assert "share" not in work(wanted(model, 1), tmp_path / "one")


def test_a_result_that_arrived_changed_is_computed_here(
    model: Path, tmp_path: Path, counted: list[int], monkeypatch: pytest.MonkeyPatch
):
    address = str(tmp_path / "share")
    monkeypatch.setenv(sharing.ADDRESS, address)
    work(wanted(model, 1), tmp_path / "one")
    weights = next((tmp_path / "share").rglob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    counted.clear()
    report = work(wanted(model, 1), tmp_path / "two")
    assert counted == [0]
    assert "is not what was uploaded" in report["share"]["problem"]
    assert not list((tmp_path / "two/artifacts").glob("*.partial-*"))


def test_a_result_of_another_recipe_under_a_key_is_not_taken(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    share, store = Share(str(tmp_path / "share")), RunStore(tmp_path / "one")
    report = engine.run(wanted(model, 1), store, Context())
    folder = store.artifacts / report["key"]
    share.put("artifacts", "k1-00", {path.name: path for path in folder.iterdir()})
    with pytest.raises(StoreError, match="is another result"):
        sharing.take_result(share, store, "k1-00")
    assert not (store.artifacts / "k1-00").exists()
    store.close()


def test_a_recipe_may_start_from_what_only_the_share_has(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    address = str(tmp_path / "share")
    monkeypatch.setenv(sharing.ADDRESS, address)
    elsewhere = Path(shutil.copytree(model, tmp_path / "elsewhere"))
    first = work(wanted(elsewhere, 1), tmp_path / "one")
    store = RunStore(tmp_path / "one")
    recipe = store.artifact(first["key"]).recipe  # type: ignore[union-attr]
    store.close()
    shutil.rmtree(elsewhere)
    on = Request(recipe=Recipe(model=ModelRef(path=first["key"]), steps=(Drop(layers=(2,)),)))
    fresh = Request(recipe=recipe.model_copy(update={"steps": (Drop(layers=(3,)),)}))
    with pytest.raises(LacoError):
        work(fresh, tmp_path / "two")
    sharing.give_model(Share(address), model)
    assert work(fresh, tmp_path / "two")["share"]["taken"] == [recipe.model.revision]
    with pytest.raises(LacoError, match="is neither a folder nor a model id"):
        work(on, tmp_path / "three")
    monkeypatch.setenv(sharing.ADDRESS, "spam://x")
    with pytest.raises(StoreError, match="its kind is not known"):
        work(fresh, tmp_path / "four")


def test_results_are_pushed_and_pulled_by_hand(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    address = str(tmp_path / "share")
    report = work(wanted(model, 1), tmp_path / "one")

    def said(*words: str, store: str) -> dict[str, Any]:
        given = ["store", *words, "--share", address, "--json", "--store", str(tmp_path / store)]
        assert speak(app, given) == 0
        return json.loads(capsys.readouterr().out)

    assert len(said("push", store="one")["results"]) == 2
    assert said("push", store="one") == {"results": [], "measurements": 0}
    assert said("push", "--model", str(model), store="one")["new"]
    assert said("pull", report["key"][:9], store="two")["results"] == [report["key"]]
    found = said("pull", store="two")
    assert (len(found["results"]), found["measurements"]) == (1, 0)
    store = RunStore(tmp_path / "two")
    assert store.metrics(report["key"], Footprint())
    store.close()
    assert speak(app, ["store", "pull", "k1-ff", "--share", address]) == 1
    assert "has no result k1-ff" in capsys.readouterr().err
    assert speak(app, ["store", "push", "--share", ""]) == 1
    assert "No share is named" in capsys.readouterr().err
