"""Names of models that cannot mean anything."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from huggingface_hub import constants

from opct.config.schema import DEFAULT_MODEL
from opct.errors import ModelError
from opct.models.loading import resolve_model
from opct.models.names import check_folder, check_name


@pytest.fixture
def hub(monkeypatch, tmp_path: Path):
    """A hub whose address nobody knows, and an empty cache; gives the hosts that were looked up."""
    looked_up = []

    def getaddrinfo(host, port):
        looked_up.append(host)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.example:8443/models")
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    return looked_up


@pytest.mark.parametrize("name", ["smollm2-135m-instrukt", "SmolLM2-135M-Instruct", "smollm2-135m"])
def test_a_slip_in_the_name_of_the_own_model_is_one(hub, name: str):
    with pytest.raises(ModelError, match=rf"There is no folder {name}\. Did you mean '{DEFAULT_MODEL}'\?"):
        check_folder(name)
    assert hub == []


def test_what_is_there_or_may_be_on_the_hub_is_none(hub, tmp_path: Path):
    """A hub id with an owner stays one, however near its name is."""
    (tmp_path / "smollm2-135m-mine").mkdir()
    (tmp_path / "mine.gguf").touch()
    for name in (DEFAULT_MODEL, "smollm2-135m-mine", "owner/smollm2-135m-instruct", "gpt2", "mine.gguf"):
        check_folder(name)


@pytest.mark.parametrize("name", ["./absent.gguf", "folder/absent.gguf", "smollm2-135m-instruct.gguf"])
def test_a_gguf_file_that_is_not_there_is_missed_as_a_file(hub, name: str):
    """Before anything else is loaded, by the same check as a folder, and no slip in the name of the own model."""
    for check in (check_folder, check_name):
        with pytest.raises(ModelError, match=rf"No GGUF file at {name}: check the path\.$"):
            check(name)
    assert hub == []


def test_a_hub_that_cannot_be_reached_is_said_at_once(hub, tmp_path: Path):
    """Of what is no folder and was not fetched before; by the same check before any load."""
    said = r"no folder runs/nope here.*hub\.example cannot be reached.*\(Name or service not known\)"
    for check in (check_name, resolve_model):
        with pytest.raises(ModelError, match=said):
            check("runs/nope")
    assert hub == ["hub.example"] * 2
    (tmp_path / "hub" / "models--owner--fetched").mkdir(parents=True)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine.gguf").touch()
    for name in (DEFAULT_MODEL, "owner/fetched", "folder", "folder/mine.gguf"):
        check_name(name)
    assert hub == ["hub.example"] * 2


@pytest.mark.parametrize("way", ["offline", "proxy", "reached"])
def test_where_the_hub_may_be_reached_or_its_client_says_so_nothing_is_refused(hub, monkeypatch, way: str):
    if way == "offline":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    elif way == "proxy":
        monkeypatch.setattr("urllib.request.getproxies", lambda: {"https": "http://proxy:3128"})
    else:
        monkeypatch.setattr(socket, "getaddrinfo", lambda host, port: hub.append(host) or [("an address",)])
    check_name("owner/name")
    assert hub == (["hub.example"] if way == "reached" else [])


def test_hosts_that_no_proxy_is_asked_for_are_no_proxy(hub, monkeypatch):
    """A machine with `no_proxy` alone asks the hub itself."""
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"no": "localhost,10.0.0.0/8"})
    with pytest.raises(ModelError, match="cannot be reached"):
        check_name("owner/name")
