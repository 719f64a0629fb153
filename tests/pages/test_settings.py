"""Where jobs run, as the pages say and ask it."""

import pytest
from streamlit.testing.v1 import AppTest

from laco import access, places
from laco.errors import JobError
from laco.places import kept
from laco.places.kept import Places, RayOptions
from laco.ui import person, session

ADDRESS = "http://127.0.0.1:9"  # where nothing answers


def button(at: AppTest, label: str):
    return next(each for each in at.button if each.label == label)


@pytest.fixture
def with_ray():
    kept.keep(session.store().folder, Places(ray=RayOptions(address=ADDRESS)))


def test_address_is_kept_and_a_bad_one_is_said(open_page):
    at = open_page("settings")
    at.text_input(key="ray.address").input("head:8265")
    button(at, "Keep").click().run()
    assert "write http://host:8265" in at.error[0].value
    assert places.configured(session.store().folder) == ["local"]
    at.text_input(key="ray.address").input(f"{ADDRESS}/")
    at.number_input(key="ray.gpus").set_value(2)
    button(at, "Keep").click().run()
    assert kept.read(session.store().folder).ray == RayOptions(address=ADDRESS, gpus=2)


def test_connection_is_tried_and_the_place_removed(open_page, with_ray, monkeypatch):
    at = open_page("settings")
    button(at, "Test the connection").click().run()
    assert f"The Ray cluster at {ADDRESS} does not answer" in at.error[0].value
    monkeypatch.setattr(places, "tried", lambda *_: (True, "2 nodes, 3 GPUs (1 free)"))
    button(at, "Test the connection").click().run()
    assert at.success[0].value == "It takes jobs: 2 nodes, 3 GPUs (1 free)."
    button(at, "Remove").click().run()
    assert places.configured(session.store().folder) == ["local"]


@pytest.mark.parametrize("role", ["viewer", "runner"])
def test_visitors_may_not_change_them(open_page, with_ray, monkeypatch, role):
    known = access.Settings(people={"a@lab.org": role})
    monkeypatch.setattr(person, "settings", lambda: known)
    monkeypatch.setattr(person, "has_provider", lambda: True)
    signed_in = {"is_logged_in": True, "email": "a@lab.org"}
    monkeypatch.setattr(person, "claims", lambda: signed_in)
    at = open_page("settings")
    assert at.info[0].value == access.SETTING
    assert not [each for each in at.button if each.label == "Keep"]


def test_every_start_button_offers_the_places(open_page, with_ray, keys, model):
    for page in ("home", "collapse", "sparsify", "evaluate"):
        at = open_page(page, model=str(model))
        offered = [box for box in at.selectbox if box.label == "Runs on"]
        assert offered, page
        assert offered[0].options == ["local", f"ray:{ADDRESS}"]
    assert "Runs on" not in [box.label for box in open_page("jobs").selectbox]


def test_without_places_nothing_is_asked(open_page, model):
    at = open_page("similarity", model=str(model))
    assert "Runs on" not in [box.label for box in at.selectbox]


def test_chosen_place_is_where_the_job_is_sent(open_page, with_ray, model, waiting, monkeypatch):
    at = open_page("similarity", model=str(model))
    box = next(box for box in at.selectbox if box.label == "Runs on")
    box.select(f"ray:{ADDRESS}").run()
    button(at, "Compute the map").click().run()
    assert f"The Ray cluster at {ADDRESS} does not answer" in at.error[0].value
    assert waiting.jobs() == []
    monkeypatch.setattr(places, "named", lambda _, name: name)
    button(at, "Compute the map").click().run()
    (job,) = waiting.jobs()
    assert job.place == f"ray:{ADDRESS}"
    table = open_page("jobs").dataframe[0].value
    assert list(table["place"]) == [f"ray:{ADDRESS}"]


def test_settings_that_cannot_be_read_do_no_harm(open_page, model):
    (session.store().folder / kept.FILE).write_text("{")
    assert "cannot be read" in open_page("settings").error[0].value
    open_page("similarity", model=str(model))
    with pytest.raises(JobError, match="cannot be read"):
        places.configured(session.store().folder)
