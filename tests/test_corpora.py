"""Text sources: documents, their parts, and the tokens that come of them."""

import gzip
import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from laco import corpora, hub, texts
from laco.errors import CalibrationError
from laco.recipe import Calibration
from tests import tiny

WORDS = "the cat sat on a mat and then it ran into another garden where the rain began to fall"
COMMIT = "0123456789abcdef0123456789abcdef01234567"

bundle = pytest.mark.skipif(not texts.is_bundle_installed(), reason="the bundle is not installed")


def story(index):
    return f"Story {index} tells how {WORDS}. It goes on for a while; {WORDS}."


def encode(text):
    return tiny.tokenizer()(text, add_special_tokens=False).input_ids


def draw(source, tokenizer=None, **fields):
    return corpora.windows(Calibration(source=source, **fields), tokenizer or tiny.tokenizer())


def running(source, limit=None):
    return corpora.stream(source, tiny.tokenizer(), limit)


def complaint(source, **fields):
    with pytest.raises(CalibrationError) as caught:
        draw(source, **fields)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


@pytest.fixture
def stories(tmp_path):
    file = tmp_path / "stories.txt"
    file.write_text("\n\n".join(story(index) for index in range(60)) + "\n")
    return f"file:{file}"


def written(tmp_path, name, text):
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    return f"file:{file}"


# --- windows --------------------------------------------------------------------------------------


def test_windows_are_cut_from_the_running_text(stories):
    got = draw(stories, windows=5, length=16)
    ids = encode("\n\n".join(story(index) for index in range(60)))
    cut = [ids[start : start + 16] for start in range(0, len(ids) - 15, 16)]
    assert got.tokens.shape == (5, 16)
    assert got.tokens.dtype == torch.int64
    assert got.lengths.tolist() == [16] * 5
    assert all(row in cut for row in got.tokens.tolist())
    assert len({tuple(row) for row in got.tokens.tolist()}) == 5


def test_same_seed_draws_the_same_windows_and_another_seed_others(stories):
    first, again, other = (draw(stories, windows=5, length=16, seed=s) for s in (0, 0, 1))
    assert torch.equal(first.tokens, again.tokens)
    assert first.digest == again.digest != other.digest
    assert not torch.equal(first.tokens, other.tokens)


def test_more_windows_begin_with_the_same_ones(stories):
    few, many = (draw(stories, windows=n, length=16).tokens for n in (3, 12))
    assert torch.equal(many[:3], few)


def test_all_windows_can_be_drawn_and_not_one_more(stories):
    total = len(encode("\n\n".join(story(index) for index in range(60))))
    whole = total // 64
    assert len(draw(stories, windows=whole, length=64).tokens) == whole
    message = complaint(stories, windows=whole + 1, length=64)
    assert f"has {total:,} tokens" in message
    assert f"ask for at most {whole:,} windows" in message


def test_windows_hold_no_special_tokens(stories):
    got = draw(stories, tokenizer=with_bos(), windows=20, length=32)
    assert 0 not in got.tokens


def test_digest_is_of_the_tokens_alone(stories, tmp_path):
    copy = written(tmp_path, "copy.txt", Path(stories.removeprefix("file:")).read_text())
    assert draw(copy, windows=4, length=16).digest == draw(stories, windows=4, length=16).digest


def test_windows_of_a_long_text_come_from_its_first_million_characters(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "POOL", 2000)
    source = written(tmp_path, "long.txt", "\n\n".join(story(index) for index in range(300)))
    early = {tuple(row) for row in draw(source, windows=20, length=16).tokens.tolist()}
    ids = encode("\n\n".join(story(index) for index in range(15)))
    assert early <= {tuple(ids[start : start + 16]) for start in range(0, len(ids), 16)}
    assert len(draw(source, windows=500, length=16).tokens) == 500  # and beyond, where it must


# --- sentences ------------------------------------------------------------------------------------


def with_bos():
    from tokenizers.processors import TemplateProcessing

    tokenizer = tiny.tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return tokenizer


def test_sentences_are_first_sentences_of_distinct_documents(stories):
    got = draw(stories, windows=10, length=200, unit="sentence")
    tokenizer = tiny.tokenizer()
    said = [
        tokenizer.decode(row[:length])
        for row, length in zip(got.tokens, got.lengths.tolist(), strict=True)
    ]
    assert set(said) <= {f"Story {index} tells how {WORDS}." for index in range(60)}
    assert len(set(said)) == 10


def test_sentences_are_cut_and_padded_on_the_right(tmp_path):
    source = written(tmp_path, "two.txt", "This is a short sentence.\n\n" + story(1))
    got = draw(source, windows=2, length=40, unit="sentence")
    assert sorted(got.lengths.tolist()) == [len(encode("This is a short sentence.")), 40]
    for row, length in zip(got.tokens, got.lengths.tolist(), strict=True):
        assert not row[length:].any()


def test_sentences_get_the_bos_that_the_tokenizer_gives_by_itself(stories):
    got = draw(stories, tokenizer=with_bos(), windows=3, length=20, unit="sentence")
    assert got.tokens[:, 0].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ("The U.S. were led by John D. Smith at the time. Then not.", None),
        ("He asked her: is it really so far? She nodded.", "He asked her: is it really so far?"),
        (" = A Title = \n \n The house stood on a hill . It fell .", "The house stood on a hill ."),
        ("Version 2.5 of the program came out in May. It was slow.", None),
    ],
)
def test_sentence_ends_at_its_full_stop(tmp_path, document, sentence):
    source = written(tmp_path, "one.txt", document)
    got = draw(source, windows=1, length=100, unit="sentence")
    said = tiny.tokenizer().decode(got.tokens[0, : got.lengths[0]])
    assert said == (sentence or document[: document.rindex(".", 0, -1) + 1])


def test_too_few_sentences_say_how_many_there_are(stories):
    assert "has 60 documents that begin with a sentence, and 61" in complaint(
        stories, windows=61, unit="sentence"
    )


def test_padding_does_not_count_in_the_digest(stories):
    short, long = (draw(stories, windows=4, length=n, unit="sentence") for n in (300, 400))
    assert short.digest == long.digest


# --- parts ----------------------------------------------------------------------------------------


def test_parts_share_no_document_and_leave_none_out(stories):
    every = list(texts.documents(stories))
    held, rest = (list(texts.documents(f"{stories}@{part}")) for part in ("heldout", "calibration"))
    assert set(held).isdisjoint(rest)
    assert sorted([*held, *rest]) == sorted(every)
    assert 5 <= len(held) <= 25


def test_copies_fall_into_one_part_whatever_their_line_breaks():
    for index in range(50):
        assert texts.part_of(story(index)) == texts.part_of(story(index).replace(" ", "\n "))


@pytest.mark.parametrize("source", ["stories@train", "bundled:pydoc@test", "wikitext2@validation"])
def test_unknown_part_is_refused(source):
    assert complaint(source)


def test_part_of_a_known_source_names_the_two_there_are():
    assert "`@calibration` or `@heldout`, not `@test`" in complaint("bundled:pydoc@test")


def test_file_name_may_hold_an_at_sign(tmp_path):
    source = written(tmp_path, "me@home.txt", "\n\n".join(story(index) for index in range(60)))
    assert len(list(texts.documents(source))) == 60
    assert len(list(texts.documents(f"{source}@heldout"))) < 60


# --- running text ---------------------------------------------------------------------------------


def test_plain_file_streams_exactly_as_it_stands(tmp_path):
    text = " \n = Title = \n \n One  two .\n\n\n three \n"
    tokens, digest = running(written(tmp_path, "wiki.raw", text))
    assert tokens.tolist() == encode(text)
    assert digest == corpora.digest_of(torch.tensor(encode(text)))


def test_part_of_a_file_streams_as_documents_with_blank_lines(stories):
    tokens, _ = running(f"{stories}@heldout")
    held = list(texts.documents(f"{stories}@heldout"))
    assert tokens.tolist() == encode("\n\n".join(held))


@pytest.mark.parametrize("limit", [2, 100, 999, 5000])
def test_limited_stream_is_the_beginning_of_the_whole(stories, limit):
    whole, _ = running(stories)
    part, digest = running(stories, limit)
    assert torch.equal(part, whole[:limit])
    assert digest == corpora.digest_of(whole[:limit])


def test_limit_beyond_the_end_gives_the_whole(stories):
    whole, digest = running(stories)
    part, same = running(stories, 10**9)
    assert torch.equal(part, whole)
    assert digest == same


def test_limited_stream_reads_and_tokenises_little_of_a_long_text(monkeypatch):
    served, seen = [], []

    def endless(_part):
        for index in range(10**9):
            served.append(index)
            yield story(index)

    def tokenizer(text, **options):
        seen.append(len(text))
        return tiny.tokenizer()(text, **options)

    monkeypatch.setitem(corpora.SOURCES, "endless", texts.Source("", endless))
    tokens, _ = corpora.stream("endless", tokenizer, 1000)
    assert len(tokens) == 1000
    assert len(served) < 100
    assert max(seen) < 20_000


def test_long_text_is_tokenised_without_a_warning(stories, capfd):
    tokens, _ = running(stories)
    assert len(tokens) > tiny.tokenizer().model_max_length
    assert capfd.readouterr().err == ""


def test_text_without_two_tokens_is_refused(tmp_path):
    with pytest.raises(CalibrationError, match="has no text to measure"):
        running(written(tmp_path, "dot.txt", "."))


# --- files ----------------------------------------------------------------------------------------


def documents(source):
    return list(texts.documents(source))


def test_plain_text_is_cut_at_blank_lines(tmp_path):
    source = written(tmp_path, "a.txt", "\ufeffone\nstill one\n\n \n\ntwo\n")
    assert documents(source) == ["one\nstill one", "two"]


def test_plain_text_without_blank_lines_has_a_document_a_line(tmp_path):
    assert documents(written(tmp_path, "c4.utf8", "one\ntwo\n")) == ["one", "two"]


def test_wikitext_is_cut_into_articles(tmp_path):
    text = " \n = First = \n \n Text . \n = = Section = = \n More . \n = Second = \n Text . \n"
    first, second = documents(written(tmp_path, "wiki.raw", text))
    assert first.startswith("= First =")
    assert "= = Section = =" in first
    assert second == "= Second = \n Text ."


def test_extracted_wikipedia_is_cut_at_its_tags(tmp_path):
    text = '<doc id="1">\nA\n\nfirst\n</doc>\n<doc id="2">\nB\n\nsecond\n</doc>\n'
    assert documents(written(tmp_path, "wiki.utf8", text)) == ["A\n\nfirst", "B\n\nsecond"]


def test_json_lines_and_parquet_hold_the_same_documents(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [story(0), "  ", story(1)]
    lines = "\n".join(json.dumps({"text": row, "id": 1}) for row in rows) + "\n\n"
    source = written(tmp_path, "a.jsonl", lines)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    pq.write_table(pa.table({"id": [1, 2, 3], "text": rows}), tmp_path / "c.parquet")
    assert documents(source) == [story(0), story(1)]
    assert documents(f"file:{tmp_path}/b.jsonl.gz") == documents(source)
    assert documents(f"file:{tmp_path}/c.parquet") == documents(source)


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("a.jsonl", b'{"text": "fine"}\n{"text"', "line 2 is not JSON"),
        ("a.jsonl", b'{"text": "fine"}\n\n{"content": "x"}', "line 3 has no `text` field"),
        ("a.jsonl", b"[1]", "line 1 has no `text` field"),
        ("a.jsonl", b'{"text": 5}', "line 1 has no `text` field"),
        ("a.txt", b"", "is empty"),
        ("a.txt", "Grüße".encode("latin-1"), "not UTF-8 text (byte 0xfc"),
        ("a.txt", b"text\0\0", "is binary"),
        ("a.txt", b"  \n \n", "has 0 tokens"),
        ("a.csv", b"text\n", "does not read .csv files"),
        ("a.parquet", b"PAR1 or not", "not a readable parquet file"),
        ("a.txt.gz", b"not packed", "cannot be read"),
        ("a.txt.gz", gzip.compress(b"packed" * 999, mtime=0)[:30], "cannot be read"),
    ],
)
def test_file_that_cannot_be_read_says_where_and_why(tmp_path, name, content, part):
    (tmp_path / name).write_bytes(content)
    message = complaint(f"file:{tmp_path / name}", windows=2, length=8)
    assert part in message
    assert name in message


def test_parquet_without_text_names_its_columns(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"id": [1], "body": ["x"]}), tmp_path / "a.parquet")
    assert "no column `text`, only id, body" in complaint(f"file:{tmp_path}/a.parquet")


def test_missing_file_and_folder_are_told_apart(tmp_path):
    assert "There is no file" in complaint(f"file:{tmp_path}/none.txt")
    assert "is a folder" in complaint(f"file:{tmp_path}")


def test_unknown_name_is_answered_with_the_nearest():
    assert "did you mean `bundled:wikipedia`?" in complaint("bundled:wikpedia")
    assert "did you mean" not in complaint("qqqq")
    assert "wikitext2" in complaint("qqqq")


# --- the bundle -----------------------------------------------------------------------------------


@bundle
def test_bundled_wikipedia_holds_no_passage_twice():
    found = documents("bundled:wikipedia")
    assert len(found) > 2800
    assert len({" ".join(text.split()) for text in found}) == len(found)


@bundle
def test_bundled_parts_share_no_long_sentence():
    held, rest = (documents(f"bundled:wikipedia@{part}") for part in ("heldout", "calibration"))
    sentences = [{s for text in part for s in texts.long_sentences(text)} for part in (held, rest)]
    assert sentences[0].isdisjoint(sentences[1])
    assert 0.2 < len(held) / (len(held) + len(rest)) < 0.3


@bundle
def test_bundled_wikihow_has_no_markup_left():
    found = documents("bundled:wikihow")
    assert len(found) == 6799
    marks = ("[title]", "[header]", "[step]", "[substeps]")
    assert not [text for text in found if any(mark in text for mark in marks)]


@pytest.mark.parametrize("source", ["bundled:pydoc", "bundled:pydoc@heldout"])
def test_python_help_is_there_without_any_bundle(source):
    assert draw(source, windows=8, length=64).tokens.shape == (8, 64)


def test_missing_bundle_names_what_installs_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert "requirements-offline.txt" in complaint("bundled:wikipedia")


# --- the hub --------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["wikitext2", "c4@calibration", "ptb@heldout"])
def test_hub_source_fails_at_once_without_a_hub(source):
    start = time.monotonic()
    message = complaint(source)
    assert time.monotonic() - start < 1
    assert "HF_HUB_OFFLINE is set" in message
    assert "`bundled:wikipedia`" in message
    assert "`file:PATH`" in message


def test_silent_hub_is_not_waited_for(monkeypatch):
    from huggingface_hub import HfApi, constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "PATIENCE", 0.2)
    monkeypatch.setattr(HfApi, "dataset_info", lambda *_, **__: time.sleep(2))
    assert "no answer within 0.2 seconds" in complaint("wikitext2")


@pytest.fixture
def wikitext(tmp_path, monkeypatch):
    """A hub cache that holds the two parts of WikiText-2, one row a line as the hub has it."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    place = tmp_path / "datasets--Salesforce--wikitext" / "snapshots" / COMMIT
    place = place / "wikitext-2-raw-v1"
    place.mkdir(parents=True)
    for split in ("train", "test"):
        rows = [
            "",
            f" = {split} one = \n",
            "",
            " Text . \n",
            " = = Part = = \n",
            f" = {split} 2 = \n",
        ]
        pq.write_table(pa.table({"text": rows}), place / f"{split}-00000-of-00001.parquet")


def test_cached_wikitext_streams_in_the_usual_protocol(wikitext):
    rows = ["", " = test one = \n", "", " Text . \n", " = = Part = = \n", " = test 2 = \n"]
    expected = encode("\n\n".join(rows))
    for source in ("wikitext2", "wikitext2@heldout"):
        assert running(source)[0].tolist() == expected


def test_cached_wikitext_has_articles_and_its_own_splits(wikitext):
    assert documents("wikitext2@calibration") == [
        "= train one = \n Text . \n = = Part = =",
        "= train 2 =",
    ]
    assert documents("wikitext2@heldout")[1] == "= test 2 ="


def test_hub_file_is_found_by_its_pattern_and_fetched(tmp_path, monkeypatch):
    from huggingface_hub import HfApi, constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    names = [
        "README.md",
        "en/c4-train.00000-of-01024.json.gz",
        "en/c4-train.00001-of-01024.json.gz",
    ]
    info = SimpleNamespace(sha=COMMIT, siblings=[SimpleNamespace(rfilename=n) for n in names])
    monkeypatch.setattr(HfApi, "dataset_info", lambda *_, **__: info)
    asked = []

    def download(name, file, **options):
        asked.append((name, file, options))
        packed = tmp_path / "part.json.gz"
        packed.write_bytes(gzip.compress(json.dumps({"text": story(1)}).encode()))
        return str(packed)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert documents("c4@calibration") == [story(1)]
    assert asked == [("allenai/c4", names[1], {"repo_type": "dataset", "revision": COMMIT})]
    assert "no longer has en/c4-validation" in complaint("c4@heldout")


def test_corpus_names_are_the_table():
    assert corpora.corpus_names() == list(corpora.SOURCES)
    assert all(source.about for source in corpora.SOURCES.values())
